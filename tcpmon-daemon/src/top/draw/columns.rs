//! The columns of the table: those that fit, the most useful first.

use ratatui::text::{Line, Span};
use tcpmon_trace::scale::{Bytes, Count, Time};

use super::{Screen, Theme, cut};
use crate::top::{
    rows::{Limit, Row},
    select::SortKey,
    theme::LETTERS,
};

/// One column.
pub(super) struct Column {
    title: &'static str,
    /// Characters.
    width: usize,
    /// Columns with a smaller number are shown on narrower screens.
    priority: u8,
    /// Width up to which the column takes room that is left.
    up_to: usize,
    left: bool,
    sort: Option<SortKey>,
    cell: fn(&Row, usize, Theme) -> Vec<Span<'static>>,
}

/// Characters of the bar of the causes.
const BAR: usize = 8;

const fn number(
    title: &'static str,
    priority: u8,
    sort: Option<SortKey>,
    cell: fn(&Row, usize, Theme) -> Vec<Span<'static>>,
) -> Column {
    Column { title, width: 6, priority, up_to: 6, left: false, sort, cell }
}

const fn name(
    title: &'static str,
    width: usize,
    priority: u8,
    up_to: usize,
    cell: fn(&Row, usize, Theme) -> Vec<Span<'static>>,
) -> Column {
    Column { title, width, priority, up_to, left: true, sort: None, cell }
}

const PROCESS: Column = Column {
    sort: Some(SortKey::Process),
    ..name("PROCESS", 11, 0, 20, |row, width, theme| text(cut(&row.process, width, theme)))
};
const RECEIVED: Column = number("RECV/s", 0, Some(SortKey::Received), |row, _, _| rate(row.rates.received));
const READ: Column = number("READ/s", 2, Some(SortKey::Read), |row, _, _| rate(row.rates.read));
const QUEUE: Column = number("QUEUE", 0, Some(SortKey::Queue), |row, _, _| text(Bytes(row.gauges.queue_bytes)));
const BUFFER: Column = name("BUFFER", 6, 1, 12, |row, width, theme| {
    let gauges = &row.gauges;
    let share = if gauges.limit_bytes == 0 { 0.0 } else { gauges.used_bytes as f64 / gauges.limit_bytes as f64 };
    vec![Span::styled(theme.filled(share, width), theme.bar())]
});
const WAIT: Column = number("WAIT", 0, Some(SortKey::Wait), |row, _, theme| match row.rates.mean_wait {
    _ if row.is_stuck() => vec![Span::styled("stuck", theme.alarm())],
    Some((wait, _)) => time(wait),
    None => text("-"),
});
const CAUSE: Column = Column {
    sort: Some(SortKey::Limited),
    ..name("LIMITED BY", 16, 0, 16, |row, _, theme| {
        let limit = row.limit();
        let style = match limit {
            Limit::Idle => theme.quiet(),
            Limit::NobodyReads => theme.alarm(),
            Limit::Cause(cause, _) => theme.cause(cause),
        };
        vec![Span::styled(limit.to_string(), style)]
    })
};
const CAUSES_BAR: Column = name("", BAR, 1, BAR, |row, _, theme| match row.limit() {
    Limit::Cause(..) => bar(row, theme),
    Limit::Idle | Limit::NobodyReads => Vec::new(),
});
const RUN_QUEUE: Column = number("RUNQ", 3, Some(SortKey::RunQueue), |row, _, theme| {
    let wait = row.rates.timeslices.run_queue_wait;
    let style = if wait >= 0.1 { theme.cause(2) } else { theme.quiet() };
    vec![Span::styled(share(wait), style)]
});
const ON_CPU: Column = number("CPU", 6, None, |row, _, _| {
    let slices = &row.rates.timeslices;
    text(slices.computed().map_or_else(|| "-".to_owned(), |_| share(slices.on_cpu)))
});
const DROPS: Column = number("DROP/s", 4, Some(SortKey::Drops), |row, _, theme| {
    let style = if row.rates.drops > 0.0 { theme.alarm() } else { theme.quiet() };
    vec![Span::styled(Count(row.rates.drops.round() as u64).to_string(), style)]
});
const WINDOW: Column = number("WINDOW", 4, None, |row, _, _| text(Bytes(row.gauges.window_bytes)));
const LIMIT: Column = number("RCVBUF", 5, None, |row, _, _| text(Bytes(row.gauges.limit_bytes)));
const GROWTHS: Column = number("GROWN", 5, None, |row, _, _| text(Count(row.rates.growths)));
const SOCKETS: Column = number("CONNS", 2, None, |row, _, _| text(Count(row.gauges.sockets)));
const SERVICE: Column = name("SERVICE", 12, 0, 24, |row, width, theme| text(cut(&row.service, width, theme)));
const CGROUP: Column =
    name("CGROUP", 20, 7, 40, |row, width, theme| text(cut(row.cgroup.as_deref().unwrap_or("-"), width, theme)));
const PID: Column = number("PID", 3, None, |row, _, _| text(row.connection.map_or(0, |connection| connection.tgid)));
const PORT: Column =
    number("LPORT", 0, None, |row, _, _| text(row.connection.map_or(0, |connection| connection.local.port())));
const REMOTE: Column = name("REMOTE", 16, 0, 40, |row, width, theme| {
    let Some(connection) = row.connection else { return Vec::new() };
    let whole = connection.remote.to_string();
    // The end of an address tells more than its beginning.
    let skipped = whole.chars().count().saturating_sub(width);
    let mark = if theme.ascii { '~' } else { '…' };
    let kept: String =
        if skipped == 0 { whole } else { [mark].into_iter().chain(whole.chars().skip(skipped + 1)).collect() };
    text(kept)
});
const AGE: Column = number("AGE", 5, None, |row, _, _| time(row.connection.map_or(0.0, |connection| connection.age)));
const ROUND_TRIP: Column =
    number("RTT", 6, None, |row, _, _| time(row.connection.map_or(0.0, |connection| connection.round_trip)));

const OF_GROUPS: [Column; 17] = [
    PROCESS, SERVICE, SOCKETS, RECEIVED, READ, QUEUE, BUFFER, WAIT, CAUSE, CAUSES_BAR, RUN_QUEUE, ON_CPU, DROPS,
    WINDOW, LIMIT, GROWTHS, CGROUP,
];
const OF_SOCKETS: [Column; 19] = [
    PROCESS, PID, PORT, REMOTE, RECEIVED, READ, QUEUE, BUFFER, WAIT, CAUSE, CAUSES_BAR, RUN_QUEUE, ON_CPU, DROPS,
    WINDOW, LIMIT, GROWTHS, ROUND_TRIP, AGE,
];

/// The columns that fit into this width, in order, each as wide as it becomes.
pub(super) fn that_fit(sockets: bool, width: usize) -> Vec<(&'static Column, usize)> {
    let all: &'static [Column] = if sockets { &OF_SOCKETS } else { &OF_GROUPS };
    let mut by_priority: Vec<_> = all.iter().enumerate().collect();
    by_priority.sort_by_key(|(place, column)| (column.priority, *place));
    let mut fitting: Vec<(usize, &Column)> = Vec::new();
    let mut used = 0;
    for (place, column) in by_priority {
        let more = column.width + usize::from(!fitting.is_empty());
        if used + more > width && !fitting.is_empty() {
            // No less useful column may take its place.
            break;
        }
        used += more;
        fitting.push((place, column));
    }
    fitting.sort_by_key(|(place, _)| *place);
    let mut left = width.saturating_sub(used);
    let widened = fitting.into_iter().map(|(_, column)| {
        let more = left.min(column.up_to - column.width);
        left -= more;
        (column, column.width + more)
    });
    widened.collect()
}

/// The titles, with an arrow at the order.
pub(super) fn heading(columns: &[(&Column, usize)], screen: &Screen, theme: Theme) -> Line<'static> {
    let cells = columns.iter().map(|(column, width)| {
        let sorted = column.sort == Some(screen.sort);
        let arrow = theme.arrow((screen.sort != SortKey::Process) != screen.reversed);
        let title = match column.title.len() < *width {
            true if sorted && column.left => format!("{}{arrow}", column.title),
            true if sorted => format!("{arrow}{}", column.title),
            // There is no room beside the title for the arrow.
            _ if sorted => format!("{arrow}{}", column.title.trim_end_matches("/s")),
            _ => column.title.to_owned(),
        };
        if column.left { format!("{title:<width$}") } else { format!("{title:>width$}") }
    });
    Line::from(Span::styled(cells.collect::<Vec<_>>().join(" "), theme.heading()))
}

/// A row.
pub(super) fn line(columns: &[(&Column, usize)], row: &Row, theme: Theme) -> Line<'static> {
    let mut line = Line::default();
    for (place, (column, width)) in columns.iter().enumerate() {
        if place > 0 {
            line.push_span(Span::raw(" "));
        }
        let cell = (column.cell)(row, *width, theme);
        let used: usize = cell.iter().map(Span::width).sum();
        let blank = Span::raw(" ".repeat(width.saturating_sub(used)));
        if column.left {
            cell.into_iter().chain([blank]).for_each(|span| line.push_span(span));
        } else {
            [blank].into_iter().chain(cell).for_each(|span| line.push_span(span));
        }
    }
    line
}

/// The causes as letters, in proportion to their shares.
fn bar(row: &Row, theme: Theme) -> Vec<Span<'static>> {
    let shares = row.rates.shares();
    if shares.iter().sum::<f64>() == 0.0 {
        return Vec::new();
    }
    // Where each cause ends, so that the parts always fill the bar.
    let mut before = 0.0;
    let ends = shares.map(|share| {
        before += share;
        (before * BAR as f64).round() as usize
    });
    let mut start = 0;
    let mut spans = Vec::new();
    for (cause, end) in ends.into_iter().enumerate() {
        if end > start {
            spans.push(Span::styled(LETTERS[cause].to_string().repeat(end - start), theme.cause(cause)));
            start = end;
        }
    }
    spans
}

fn text(value: impl ToString) -> Vec<Span<'static>> {
    vec![Span::raw(value.to_string())]
}

/// A rate in bytes a second.
fn rate(value: f64) -> Vec<Span<'static>> {
    text(Count(value as u64))
}

fn time(seconds: f64) -> Vec<Span<'static>> {
    text(Time((seconds * 1e9) as u64))
}

/// Seconds a second, as percent.
fn share(value: f64) -> String {
    format!("{:.0}%", value * 100.0)
}
