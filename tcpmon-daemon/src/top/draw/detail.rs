//! One connection in detail: the last two minutes, its buffer and window, its reader's timeslices.

use ratatui::text::{Line, Span};
use tcpmon_trace::{
    scale::{Bytes, Rate, Time},
    summary::causes,
};

use super::{Screen, Theme, head};
use crate::top::{
    rows::{HISTORY, Limit, Moment, Row},
    theme::{LETTERS, NOBODY_READS},
};

/// Width of the names before the sparklines.
const NAMES: usize = 13;

/// Width of the numbers behind them.
const NUMBERS: usize = 26;

/// The lines, at most `height`.
pub(super) fn lines(screen: &Screen, theme: Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    let Some((row, is_open)) = &screen.detail else { return Vec::new() };
    let mut lines = head::answer(Some(row), theme, width);
    lines.extend(identity(row, *is_open, theme));
    let past: Vec<Moment> =
        row.subject.cookie().into_iter().flat_map(|cookie| screen.rows.past(cookie)).copied().collect();
    lines.extend(graphs(row, &past, screen.every, theme, width));
    lines.extend(timeslices(row, theme));
    lines.truncate(height);
    lines
}

/// Names of the kernel's TCP states.
const STATES: [&str; 13] = [
    "?",
    "ESTAB",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "CLOSED",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "NEW-SYN-RECV",
];

fn identity(row: &Row, is_open: bool, theme: Theme) -> Vec<Line<'static>> {
    let Some(connection) = row.connection else { return Vec::new() };
    let state = STATES.get(usize::from(connection.state)).unwrap_or(&"?");
    let state = if is_open {
        Span::raw(format!("  {state}, {}", Time((connection.age * 1e9) as u64)))
    } else {
        Span::styled("  closed", theme.alarm())
    };
    let reader = format!(
        "reader {} (pid {}, thread {})  service {}  netns {}{}",
        row.process,
        connection.tgid,
        connection.tid,
        row.service,
        connection.netns,
        row.cgroup.as_ref().map_or_else(String::new, |cgroup| format!("  cgroup {cgroup}")),
    );
    vec![
        Line::from(vec![
            Span::styled(format!("{} <- {}", connection.local, connection.remote), theme.heading()),
            state,
        ]),
        Line::from(Span::raw(reader)),
    ]
}

/// Sparklines of the past, the newest value at the right, each with its current and its largest value.
fn graphs(row: &Row, past: &[Moment], every: f64, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(NAMES + NUMBERS + 2).clamp(1, HISTORY);
    let past = &past[past.len().saturating_sub(room)..];
    let graph = |name: &str, value: fn(&Moment) -> f32, most: Option<f64>, shown: &dyn Fn(f64) -> String| {
        let largest = past.iter().map(|moment| f64::from(value(moment))).fold(0.0, f64::max);
        let spark = theme.spark(past.iter().map(|moment| f64::from(value(moment))), most.unwrap_or(largest));
        let now = past.last().map_or(0.0, |moment| f64::from(value(moment)));
        Line::from(vec![
            Span::styled(format!("{name:<NAMES$}"), theme.quiet()),
            Span::styled(format!("{spark:>room$}"), theme.bar()),
            Span::raw(format!(" {:>10} ", shown(now))),
            Span::styled(format!("max {}", shown(largest)), theme.quiet()),
        ])
    };
    let rate = |bytes: f64| Rate { bytes: bytes as u64, ns: 1_000_000_000 }.to_string();
    let size = |bytes: f64| Bytes(bytes as u64).to_string();
    let time = |seconds: f64| Time((seconds * 1e9) as u64).to_string();
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let limit = past.iter().map(|moment| f64::from(moment.limit)).fold(row.gauges.limit_bytes as f64, f64::max);
    let seconds = (room as f64 * every) as u64;
    vec![
        Line::from(Span::styled(
            format!("{:<NAMES$}{:>room$}", "", format!("last {}", Time(seconds * 1_000_000_000))),
            theme.quiet(),
        )),
        graph("received", |moment| moment.received, None, &rate),
        graph("read", |moment| moment.read, None, &rate),
        graph("mean queue", |moment| moment.queue, None, &size),
        graph("buffer used", |moment| moment.used, Some(limit), &size),
        graph("buffer limit", |moment| moment.limit, None, &size),
        graph("window", |moment| moment.window, None, &size),
        graph("mean wait", |moment| moment.wait, None, &time),
        graph("run queue", |moment| moment.run_queue_wait, Some(1.0), &percent),
        limits(past, room, theme),
    ]
}

/// What limited it at each moment, as a letter.
fn limits(past: &[Moment], room: usize, theme: Theme) -> Line<'static> {
    let mut line = Line::from(Span::styled(format!("{:<NAMES$}", "limited by"), theme.quiet()));
    line.push_span(Span::raw(" ".repeat(room.saturating_sub(past.len()))));
    for moment in past {
        line.push_span(match moment.limited_by {
            Limit::Cause(cause, _) => Span::styled(LETTERS[cause].to_string(), theme.cause(cause)),
            Limit::NobodyReads => Span::styled(NOBODY_READS.to_string(), theme.alarm()),
            Limit::Idle => Span::styled(if theme.ascii { "." } else { "·" }, theme.quiet()),
        });
    }
    line
}

fn timeslices(row: &Row, theme: Theme) -> Vec<Line<'static>> {
    let (rates, slices) = (&row.rates, &row.rates.timeslices);
    let count = slices.preempted + slices.blocked;
    let per_slice = |seconds: f64| {
        if count > 0.0 { Time((seconds / count * 1e9) as u64).to_string() } else { "-".into() }
    };
    let fill = |edge: usize| rates.edge_fills[edge].map_or_else(|| "-".into(), |fill| format!("{:.0} %", fill * 100.0));
    let row_of = |name: &str, words: String| {
        Line::from(vec![Span::styled(format!("{name:<NAMES$}"), theme.quiet()), Span::raw(words)])
    };
    let shares = causes().into_iter().zip(rates.shares()).filter(|(_, share)| *share >= 0.005);
    let shares: Vec<_> = shares.map(|(cause, share)| format!("{cause} {:.0} %", share * 100.0)).collect();
    let now = match row.limit() {
        limit @ Limit::NobodyReads => limit.to_string(),
        _ if shares.is_empty() => "idle".into(),
        _ => shares.join(", "),
    };
    let wait = rates.mean_wait.map_or_else(
        || "-".into(),
        |(all, for_cpu)| {
            format!("{} per byte, {} of it for a CPU", Time((all * 1e9) as u64), Time((for_cpu * 1e9) as u64))
        },
    );
    vec![
        row_of("causes now", now),
        row_of("wait now", wait),
        row_of(
            "timeslices",
            format!(
                "{count:.0}/s: {:.0} preempted, {:.0} blocked; {} on CPU and {} in run queue each",
                slices.preempted,
                slices.blocked,
                per_slice(slices.on_cpu),
                per_slice(slices.run_queue_wait)
            ),
        ),
        row_of("buffer fill", format!("{} when the reader gets the CPU, {} when it leaves it", fill(0), fill(1))),
        row_of(
            "trouble",
            format!(
                "{:.1} drops/s; out of order {}, backlog {}; zero window {:.0} %; grown {} times",
                rates.drops,
                Bytes(row.gauges.out_of_order_bytes),
                Bytes(row.gauges.backlog_bytes),
                rates.zero_window * 100.0,
                rates.growths
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_in_which_nobody_read_is_not_green() {
        let past = [Limit::Idle, Limit::Cause(0, 1.0), Limit::NobodyReads];
        let past = past.map(|limited_by| Moment { limited_by, ..Moment::default() });
        let theme = Theme { color: true, ascii: true };
        let line = limits(&past, 4, theme);
        assert_eq!(line.to_string(), "limited by    .u!");
        let style_of = |letter: &str| line.iter().find(|span| span.content == letter).map(|span| span.style);
        assert_eq!([style_of("u"), style_of("!")], [Some(theme.cause(0)), Some(theme.alarm())]);
    }
}
