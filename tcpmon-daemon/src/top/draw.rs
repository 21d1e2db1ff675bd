//! Draws the screen: a title, the host, the advice on the selected row, and below it the rows, the details of a
//! connection, or the help.

mod columns;
mod detail;
mod head;
mod help;

use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Paragraph,
};

use super::{screen::Screen, theme::Theme};

/// Lines above the rows: title, host, two of the answer, and the heading.
const ABOVE: usize = 5;

/// Draws the whole screen, and notes in it how many rows fit.
pub fn draw(screen: &mut Screen, theme: Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    screen.page = height.saturating_sub(ABOVE + 1).max(1);
    let mut lines = vec![head::title(screen, theme, width), head::host(screen, theme)];
    if screen.help {
        lines.extend(help::lines(theme));
    } else if screen.detail.is_some() {
        lines.extend(detail::lines(screen, theme, width, height.saturating_sub(3)));
    } else {
        let (table, offset) = table(screen, theme, width);
        lines.extend(table);
        screen.offset = offset;
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(head::keys(screen, theme));
    frame.render_widget(Paragraph::new(lines), Rect { x: 0, y: 0, width: area.width, height: area.height });
}

/// The table, and the first row of it that is on the screen.
fn table(screen: &Screen, theme: Theme, width: usize) -> (Vec<Line<'static>>, usize) {
    let shown = screen.shown();
    let place = screen.selected_position(&shown);
    let offset = screen.offset_with(place, shown.len());
    let mut lines = head::answer(shown.get(place).copied(), theme, width);
    let columns = columns::that_fit(screen.sockets, width);
    lines.push(columns::heading(&columns, screen, theme));
    for (number, row) in shown.iter().enumerate().skip(offset).take(screen.page) {
        let mut line = columns::line(&columns, row, theme);
        if number == place {
            line = pad(line, width).style(theme.selected());
        }
        lines.push(line);
    }
    if shown.is_empty() {
        let what = if screen.sockets { "connections" } else { "groups" };
        let why = if screen.text.is_empty() && screen.within.is_none() { "" } else { " match: Esc shows all" };
        lines.push(Line::from(Span::styled(format!("no {what}{why}"), theme.quiet())));
    }
    (lines, offset)
}

/// The line with blanks up to the width, so that its style reaches the edge.
fn pad(mut line: Line<'static>, width: usize) -> Line<'static> {
    let missing = width.saturating_sub(line.width());
    line.push_span(Span::raw(" ".repeat(missing)));
    line
}

/// The text in at most `width` characters; a mark replaces what is cut off.
fn cut(text: &str, width: usize, theme: Theme) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mark = if theme.ascii { '~' } else { '…' };
    text.chars().take(width.saturating_sub(1)).chain([mark]).take(width).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend, buffer::Cell, style::Color};

    use super::*;
    use crate::{
        model::live::LiveHost,
        tests::is_kept_in,
        top::{
            fixture::{at, sample},
            screen::{Key, Source},
            select::RowFilter,
        },
    };

    /// Five connections: one keeps up, one computes, one has no CPU, one has a small buffer, one is stuck.
    fn screen() -> Screen {
        let mut screen = Screen::new("dtn01".into(), Source::OwnPrograms, 1.0, RowFilter::default());
        for second in 1..=30_u64 {
            let mut sample = at(second, sample(5));
            sample.host = LiveHost {
                ring_overruns: Some(12),
                softnet_dropped: Some(0),
                softnet_squeezed: Some(second * 3),
                tcp_memory: Some((734_003_200, 1_468_006_400, false)),
                lost: 0,
                broken_probes: Vec::new(),
                switched_off_probes: Vec::new(),
                hidden_groups: 0,
            };
            for (number, cause) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
                let socket = sample.socket_mut(number);
                let totals = &mut socket.totals;
                totals.received_bytes = second * 1_000_000 * [500, 200, 120, 3][number];
                totals.read_bytes = totals.received_bytes;
                totals.queue_byte_ticks = second * 1_000_000_000 / 1024 * [100, 900_000, 700_000, 100][number];
                totals.limited_ns[cause] = second * (900 - 10 * cause as u64) * 1_000_000;
                totals.limited_ns[0] += second * 100_000_000;
                totals.edges = [second * 1000; 2];
                totals.edge_fills = [second * 1000 * 320, second * 1000 * 64];
                socket.gauges.queue_bytes = [0, 900_000, 700_000, 100][number];
                socket.gauges.used_bytes = [0, 130_000, 90_000, 1_000][number];
            }
            let hangs = sample.socket_mut(4);
            (hangs.process, hangs.service) = ("hangs".into(), "remote:443".into());
            (hangs.gauges.queue_bytes, hangs.gauges.used_bytes) = (65_536, 131_072);
            hangs.totals.limited_ns[0] = second * 1_000_000_000;
            let group = &mut sample.groups[0];
            group.gauges.sockets = 4;
            for socket in &sample.sockets[..4] {
                group.totals.received_bytes += socket.totals.received_bytes;
                group.totals.read_bytes += socket.totals.read_bytes;
                group.totals.queue_byte_ticks += socket.totals.queue_byte_ticks;
                group.gauges.used_bytes += socket.gauges.used_bytes;
                group.gauges.window_bytes += socket.gauges.window_bytes;
                group.gauges.limit_bytes += socket.gauges.limit_bytes;
                group.gauges.queue_bytes += socket.gauges.queue_bytes;
            }
            let mut hangs = group.clone();
            (hangs.process, hangs.service) = ("hangs".into(), "remote:443".into());
            (hangs.gauges, hangs.totals) = (sample.sockets[4].gauges, sample.sockets[4].totals);
            sample.groups.insert(0, hangs);
            screen.update(sample);
        }
        screen
    }

    fn text(screen: &mut Screen, theme: Theme, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(screen, theme, frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(width));
        rows.map(|row| shown(row).trim_end().to_owned() + "\n").collect()
    }

    /// What these cells show.
    fn shown(cells: &[Cell]) -> String {
        cells.iter().map(Cell::symbol).collect()
    }

    /// Compares a picture with the committed one.
    fn looks(name: &str, screen: &mut Screen, theme: Theme, (width, height): (u16, u16)) {
        is_kept_in(&format!("src/top/draw/pictures/{name}.txt"), &text(screen, theme, width, height));
    }

    const UTF8: Theme = Theme { color: true, ascii: false };
    const ASCII: Theme = Theme { color: false, ascii: true };

    #[test]
    fn each_view_looks_as_committed() {
        looks("groups-80", &mut screen(), UTF8, (80, 24));
        looks("groups-160", &mut screen(), UTF8, (160, 20));
        let mut sockets = screen();
        sockets.key(Key::Char('s'));
        looks("sockets-80", &mut sockets, UTF8, (80, 24));
        looks("sockets-ascii-80", &mut sockets, ASCII, (80, 24));
        looks("sockets-200", &mut sockets, UTF8, (200, 20));
        sockets.key(Key::Down);
        sockets.key(Key::Enter);
        looks("detail-80", &mut sockets, UTF8, (80, 24));
        looks("detail-ascii-100", &mut sockets, ASCII, (100, 30));
        sockets.key(Key::Char('?'));
        looks("help-80", &mut sockets, UTF8, (80, 24));
        let mut typing = screen();
        "s/no such".chars().for_each(|key| _ = typing.key(Key::Char(key)));
        typing.paused = true;
        looks("no-match-80", &mut typing, UTF8, (80, 24));
    }

    #[test]
    fn rows_with_data_that_nobody_reads_are_red_and_rows_that_keep_up_are_green() {
        for keys in [&[][..], &[Key::Char('s')]] {
            let mut screen = screen();
            keys.iter().for_each(|key| _ = screen.key(*key));
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
            terminal.draw(|frame| draw(&mut screen, UTF8, frame)).expect("drawn");
            let cells = terminal.backend().buffer().content();
            let is_all = |text: &str, color: Color| {
                let place = cells.windows(text.len()).find(|cells| shown(cells) == text).expect(text);
                place.iter().all(|cell| cell.fg == color)
            };
            assert!(is_all("stuck", Color::Red) && is_all("nobody reads", Color::Red));
            if screen.sockets {
                assert!(is_all("upstream 100%", Color::Green));
            }
        }
        let mut in_depth = screen();
        [Key::Char('s'), Key::End, Key::Enter].into_iter().for_each(|key| _ = in_depth.key(key));
        let text = text(&mut in_depth, UTF8, 80, 24);
        assert!(text.contains("reader hangs") && text.contains("causes now   nobody reads\n"), "{text}");
    }

    #[test]
    fn no_size_makes_it_panic_and_lines_fit() {
        let mut screen = screen();
        assert!(screen.rows.sockets.iter().any(crate::top::Row::is_stuck));
        for keys in [&[][..], &[Key::Char('s')], &[Key::Enter], &[Key::Char('?')]] {
            keys.iter().for_each(|key| _ = screen.key(*key));
            for (width, height) in [(1, 1), (5, 3), (20, 6), (79, 23), (80, 24), (133, 50), (300, 100)] {
                for theme in [UTF8, ASCII] {
                    let text = text(&mut screen, theme, width, height);
                    assert_eq!(text.lines().count(), usize::from(height));
                    assert!(!theme.ascii || text.is_ascii(), "{text}");
                }
            }
        }
    }
}
