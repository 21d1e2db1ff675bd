//! The lines above and below: title, host, answer, keys.

use ratatui::text::{Line, Span};
use tcpmon_trace::scale::Bytes;

use super::{super::screen::Source, Screen, Theme, cut};
use crate::top::{advice::advice, rows::Row};

/// Lines of the answer.
const ANSWER: usize = 2;

/// The program, the host, and where the data comes from.
pub(super) fn title(screen: &Screen, theme: Theme, width: usize) -> Line<'static> {
    let source = match screen.source {
        Source::Daemon => "daemon",
        Source::OwnPrograms => "own programs",
    };
    let count = |number: usize, one: &str| if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") };
    let mut spans = vec![
        Span::styled("tcpmon top", theme.heading()),
        Span::raw(format!(
            "  {}  {} in {}  every {} s  {source}",
            cut(&screen.hostname, width / 4, theme),
            count(screen.rows.sockets.len(), "connection"),
            count(screen.rows.groups.len(), "group"),
            screen.every,
        )),
    ];
    if screen.paused {
        spans.push(Span::styled("  PAUSED", theme.alarm()));
    }
    if let Some(group) = screen.within.as_ref().filter(|_| screen.sockets) {
        let crate::top::rows::Subject::Group(process, service, _) = group else { return Line::from(spans) };
        spans.push(Span::raw(format!("  in {process} {service}")));
    }
    if !screen.text.is_empty() || screen.typing {
        let cursor = if screen.typing { "_" } else { "" };
        spans.push(Span::styled(format!("  /{}{cursor}", screen.text), theme.heading()));
    }
    Line::from(spans)
}

/// What the host lost before any socket, and what tcpmon itself lost.
pub(super) fn host(screen: &Screen, theme: Theme) -> Line<'static> {
    if let Some(problem) = &screen.problem {
        return Line::from(Span::styled(format!("no new sample: {problem}"), theme.alarm()));
    }
    let (now, before) = (&screen.rows.host, screen.rows.host_before.as_ref());
    let mut spans = vec![Span::styled("host ", theme.quiet())];
    let mut add = |name: &str, value: String, is_bad: bool| {
        let style = if is_bad { theme.alarm() } else { theme.quiet() };
        let separator = if spans.len() > 1 { "  " } else { "" };
        spans.push(Span::styled(format!("{separator}{name} {value}"), style));
    };
    let rate = |now: Option<u64>, before: Option<u64>| {
        let grown = now.zip(before).map(|(now, before)| now.saturating_sub(before) as f64 / screen.rows.interval);
        grown.filter(|rate| rate.is_finite())
    };
    let counters: [(&str, Option<u64>, Option<u64>, bool); 3] = [
        ("overruns", now.ring_overruns, before.and_then(|host| host.ring_overruns), true),
        ("softnet drops", now.softnet_dropped, before.and_then(|host| host.softnet_dropped), true),
        ("squeezed", now.softnet_squeezed, before.and_then(|host| host.softnet_squeezed), false),
    ];
    for (name, now, before, is_loss) in counters {
        match rate(now, before) {
            Some(rate) => add(name, format!("{rate:.0}/s"), is_loss && rate > 0.0),
            None if now.is_none() => add(name, "n/a".into(), false),
            None => add(name, "-".into(), false),
        }
    }
    if let Some((bytes, pressure, is_under)) = now.tcp_memory {
        let words = if is_under { " PRESSURE" } else { "" };
        add("TCP mem", format!("{}/{}{words}", Bytes(bytes), Bytes(pressure)), is_under);
    }
    add("lost", now.lost.to_string(), now.lost > 0);
    if !now.broken_probes.is_empty() {
        add("broken probes", now.broken_probes.join(" "), true);
    }
    if !now.switched_off_probes.is_empty() {
        add("probes switched off", now.switched_off_probes.join(" "), false);
    }
    if now.hidden_groups > 0 {
        add("groups in `other`", now.hidden_groups.to_string(), false);
    }
    Line::from(spans)
}

/// The sentence about the selected row, in two lines.
pub(super) fn answer(row: Option<&Row>, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let Some(row) = row else { return vec![Line::default(); ANSWER] };
    let arrow = if theme.ascii { "=> " } else { "⇒ " };
    let options = textwrap::Options::new(width.max(10)).initial_indent(arrow).subsequent_indent("   ");
    let sentence = format!("{}: {}", row.process, advice(row));
    let wrapped = textwrap::wrap(&sentence, options);
    let cause = row.rates.limited_by().map_or(0, |(cause, _)| cause);
    let style = match cause {
        _ if row.is_stuck() => theme.alarm().patch(theme.heading()),
        0 => theme.heading(),
        cause => theme.cause(cause).patch(theme.heading()),
    };
    let more = wrapped.len() > ANSWER;
    let mut lines: Vec<_> =
        wrapped.into_iter().take(ANSWER).map(|line| Line::from(Span::styled(line.into_owned(), style))).collect();
    if let Some(last) = lines.last_mut().filter(|_| more) {
        last.push_span(Span::raw(if theme.ascii { "~" } else { "…" }));
    }
    lines.resize(ANSWER, Line::default());
    lines
}

/// The keys that have an effect here.
pub(super) fn keys(screen: &Screen, theme: Theme) -> Line<'static> {
    let text = if screen.typing {
        "type part of a name or address; Enter keeps the filter, Esc removes it"
    } else if screen.help {
        "any key closes the help"
    } else if screen.detail.is_some() {
        "Esc back  p pause  ? help  q quit"
    } else if screen.sockets {
        "q quit  s groups  Enter details  / filter  <> sort  i reverse  p pause  ? help"
    } else {
        "q quit  s connections  Enter open  / filter  <> sort  i reverse  p pause  ? help"
    };
    Line::from(Span::styled(text, theme.quiet()))
}
