//! Which rows are shown, and in which order.

use std::{cmp::Ordering, collections::HashSet};

use super::rows::{Row, Rows, Subject};

/// Which rows are shown: of each list that is not empty, one entry must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFilter {
    /// Process ids.
    pub pids: Vec<u32>,
    /// Names of processes.
    pub comms: Vec<String>,
    /// Ports, local or remote; for a group, the port of its service.
    pub ports: Vec<u16>,
    /// Texts that the label of the control group must contain, one of them at least.
    pub cgroups: Vec<String>,
}

/// What rows are sorted by; the largest comes first, names from A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SortKey {
    /// Data received a second
    #[default]
    Received,
    /// Data read a second
    Read,
    /// Data that wait to be read
    Queue,
    /// Mean wait of a byte
    Wait,
    /// Share of the time limited by the reader, the window or memory
    Limited,
    /// Time that the readers waited for a CPU
    RunQueue,
    /// Segments dropped a second
    Drops,
    /// Name of the process
    Process,
}

impl SortKey {
    /// All, in the order in which keys walk through them.
    pub const ALL: [Self; 8] = [
        Self::Process,
        Self::Received,
        Self::Read,
        Self::Queue,
        Self::Wait,
        Self::Limited,
        Self::RunQueue,
        Self::Drops,
    ];

    /// The name as it is written for `--sort`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Read => "read",
            Self::Queue => "queue",
            Self::Wait => "wait",
            Self::Limited => "limited",
            Self::RunQueue => "run-queue",
            Self::Drops => "drops",
            Self::Process => "process",
        }
    }

    /// The sort key `by` places further on, wrapping around at the ends.
    pub fn moved(self, by: isize) -> Self {
        let place = Self::ALL.iter().position(|key| *key == self).unwrap_or(0).cast_signed();
        Self::ALL[(place + by).rem_euclid(Self::ALL.len().cast_signed()).unsigned_abs()]
    }

    /// How two rows are ordered: the one that comes first is less. Equal rows are ordered by their subject, so that
    /// they do not change places.
    pub fn compare(self, a: &Row, b: &Row) -> Ordering {
        let largest = |value: fn(&Row) -> f64| value(b).total_cmp(&value(a));
        let order = match self {
            Self::Received => largest(|row| row.rates.received),
            Self::Read => largest(|row| row.rates.read),
            Self::Queue => largest(|row| row.gauges.queue_bytes as f64),
            // A stuck connection waits longest of all.
            Self::Wait => largest(|row| match row.rates.mean_wait {
                Some((wait, _)) => wait,
                None if row.is_stuck() => f64::INFINITY,
                None => 0.0,
            }),
            Self::Limited => largest(|row| row.rates.limited_here()),
            Self::RunQueue => largest(|row| row.rates.timeslices.run_queue_wait),
            Self::Drops => largest(|row| row.rates.drops),
            Self::Process => a.process.cmp(&b.process),
        };
        let busier = || b.rates.received.total_cmp(&a.rates.received);
        order.then_with(busier).then_with(|| a.subject.cmp(&b.subject))
    }
}

impl RowFilter {
    /// Returns the rows, either groups or connections, that match this filter.
    pub fn of<'a>(&self, rows: &'a Rows, sockets: bool) -> Vec<&'a Row> {
        let all = if sockets { &rows.sockets } else { &rows.groups };
        // A group has no process id: it matches if one of its connections does.
        let by_pid: Option<HashSet<(&str, &str)>> = (!self.pids.is_empty() && !sockets).then(|| {
            let matching = rows.sockets.iter().filter(|row| self.has_pid(row));
            matching.map(|row| (row.process.as_str(), row.service.as_str())).collect()
        });
        let matches = |row: &&Row| {
            let pid = match &by_pid {
                Some(groups) => groups.contains(&(row.process.as_str(), row.service.as_str())),
                None => self.pids.is_empty() || self.has_pid(row),
            };
            pid && any(&self.comms, |comm| row.process == *comm)
                && any(&self.ports, |port| has_port(row, *port))
                && any(&self.cgroups, |cgroup| row.cgroup.as_ref().is_some_and(|of| of.contains(cgroup)))
        };
        all.iter().filter(matches).collect()
    }

    fn has_pid(&self, row: &Row) -> bool {
        row.connection.is_some_and(|connection| self.pids.contains(&connection.tgid))
    }
}

/// Whether one of the entries matches; an empty list matches everything.
fn any<T>(entries: &[T], matches: impl FnMut(&T) -> bool) -> bool {
    entries.is_empty() || entries.iter().any(matches)
}

fn has_port(row: &Row, port: u16) -> bool {
    match &row.connection {
        Some(connection) => connection.local.port() == port || connection.remote.port() == port,
        None => row.service.rsplit_once(':').is_some_and(|(_, of)| of.parse() == Ok(port)),
    }
}

/// Whether the row has this text, in lower case, in one of its names or addresses.
pub fn has_text(row: &Row, text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let has = |name: &str| name.to_lowercase().contains(text);
    let connection = |of: &super::rows::ConnectionInfo| {
        [of.local.to_string(), of.remote.to_string(), of.tgid.to_string()].iter().any(|name| name.contains(text))
    };
    let named = has(&row.process) || has(&row.service) || row.cgroup.as_deref().is_some_and(has);
    named || row.connection.as_ref().is_some_and(connection)
}

/// Whether a connection belongs to this group.
pub fn is_in(row: &Row, group: &Subject) -> bool {
    match group {
        Subject::Group(process, service, cgroup) => {
            row.process == *process && row.service == *service && row.cgroup == *cgroup
        }
        Subject::Socket(_) => row.subject == *group,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::fixture::{at, sample};

    #[test]
    fn filters_restrict_by_each_kind_and_groups_by_their_connections() {
        let mut rows = Rows::default();
        rows.update(at(1, sample(3)));
        let count = |filter: &RowFilter, sockets| filter.of(&rows, sockets).len();
        let none = RowFilter::default();
        assert_eq!((count(&none, false), count(&none, true)), (1, 3));
        let port = RowFilter { ports: vec![40_001], ..RowFilter::default() };
        assert_eq!((count(&port, false), count(&port, true)), (0, 1));
        let port = RowFilter { ports: vec![1094], ..RowFilter::default() };
        assert_eq!((count(&port, false), count(&port, true)), (1, 3));
        let pid = |pid| RowFilter { pids: vec![pid], ..RowFilter::default() };
        assert_eq!((count(&pid(4711), false), count(&pid(4711), true)), (1, 3));
        assert_eq!((count(&pid(1), false), count(&pid(1), true)), (0, 0));
        let both = RowFilter { comms: vec!["nginx".into()], ..pid(4711) };
        assert_eq!(count(&both, true), 0);
        assert!(has_text(&rows.sockets[0], "192.168") && !has_text(&rows.sockets[0], "nginx"));
    }

    #[test]
    fn the_stuck_reader_has_the_longest_wait() {
        let mut rows = Rows::default();
        rows.update(at(1, sample(2)));
        let mut second = at(2, sample(2));
        second.socket_mut(0).gauges.queue_bytes = 5;
        second.socket_mut(1).totals.read_bytes = 10;
        second.socket_mut(1).totals.queue_byte_ticks = 1 << 40;
        rows.update(second);
        let mut shown = RowFilter::default().of(&rows, true);
        shown.sort_by(|a, b| SortKey::Wait.compare(a, b));
        assert_eq!(shown[0].subject, Subject::Socket(1000));
        shown.sort_by(|a, b| SortKey::Queue.compare(b, a));
        assert_eq!(shown[0].subject, Subject::Socket(1001));
    }

    #[test]
    fn keys_walk_through_all_orders_and_around() {
        let walked: Vec<_> =
            (0..8).scan(SortKey::Process, |key, _| Some(std::mem::replace(key, key.moved(1)))).collect();
        assert_eq!(walked, SortKey::ALL);
        assert_eq!((SortKey::Drops.moved(1), SortKey::Process.moved(-1)), (SortKey::Process, SortKey::Drops));
    }
}
