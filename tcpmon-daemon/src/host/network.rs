//! What the kernel counts per network namespace, read in each one that tcpmon can enter: `TcpExt` and `IpExt`, stuck
//! sockets.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Display,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    SourceReport,
    file::read_text,
    namespaces::{self, OriginalNamespace},
    netstat::{self, InitialValues, NamespaceSums},
    stuck::StuckCounts,
};
use crate::model::host::Stuck;

/// Time for the other namespaces in one sample. A host with many containers is covered over several samples, and the
/// namespaces that are not read keep their last values: a walk over the connection table takes a millisecond or more on
/// large hosts.
const TIME_BUDGET: Duration = Duration::from_millis(25);

/// Maximum number of namespaces that a reason names.
const MAX_NAMED: usize = 8;

/// The namespaces, and what was read from them.
#[derive(Debug, Default)]
pub(super) struct NamespaceReader {
    tcp_events: NamespaceSums,
    ip_events: NamespaceSums,
    connection_opens: NamespaceSums,
    /// By inode number of the namespace; that of tcpmon is under 0.
    stuck: HashMap<u64, StuckCounts>,
    /// Cookies of other namespaces, by the inode numbers under which they were last read.
    cookies: HashMap<u64, u64>,
    /// Namespaces (inode numbers) that existed at the first sample and have not been read yet. By now, such a number
    /// may belong to another namespace: then what that one has counted so far is not shown, which is better than a
    /// step.
    not_yet_read: Option<HashSet<u64>>,
    /// `netstat` is switched off.
    without_events: bool,
    /// Stuck sockets are not read.
    without_stuck: bool,
    /// The namespace with which the last sample ended.
    last: u64,
}

/// Result of one sample.
#[derive(Debug, Default)]
pub(super) struct NetworkSample {
    pub(super) tcp_events: Vec<(String, u64)>,
    pub(super) ip_events: Vec<(String, u64)>,
    pub(super) connections_opened: Option<u64>,
    pub(super) stuck: Vec<Stuck>,
}

/// The namespace of tcpmon itself: no namespace has this inode number or cookie.
const OWN: u64 = 0;

impl NamespaceReader {
    /// Reads the namespace of tcpmon, and as many others as there is time for. Reports the status of each source.
    pub(super) fn read(&mut self, report: &mut SourceReport<'_>) -> NetworkSample {
        let mut sample = NetworkSample::default();
        self.without_events = report.is_switched_off("netstat");
        self.without_stuck = report.is_switched_off("inet_diag");
        let events = self.read_events(OWN, InitialValues::Baseline);
        let stuck = self.read_stuck(OWN);
        let others = if self.without_events && self.without_stuck { Ok(String::new()) } else { self.read_others() };

        let events = report.record("netstat", "TcpExt and IpExt counters, time under memory pressure", || events);
        let stuck = report.record("inet_diag", "stuck sockets", || stuck);
        // The namespace of tcpmon is always read.
        report.record("network_namespaces", "", || Ok::<_, String>(()));
        report.note(others.unwrap_or_else(|error| format!("{error}: only the network namespace of tcpmon is read")));

        let (tcp_events, ip_events, connection_opens) =
            (self.tcp_events.end_round(), self.ip_events.end_round(), self.connection_opens.end_round());
        if events.is_some() {
            (sample.tcp_events, sample.ip_events) = (tcp_events, ip_events);
            sample.connections_opened = Some(connection_opens.iter().map(|(_, count)| count).sum());
        }
        if stuck.is_some() {
            sample.stuck = StuckCounts::sum(self.stuck.values());
        }
        sample
    }

    fn read_events(&mut self, cookie: u64, first: InitialValues) -> Result<(), String> {
        if self.without_events {
            return Ok(());
        }
        let text = netstat::text(netstat::OF_THREAD).map_err(|error| error.to_string())?;
        let counters = netstat::parse(&text).map_err(|error| error.to_string())?;
        self.tcp_events.add(cookie, first, &counters.tcp);
        self.ip_events.add(cookie, first, &counters.ip);
        let text = netstat::text(netstat::SNMP_OF_THREAD).map_err(|error| error.to_string())?;
        self.connection_opens.add(cookie, first, &netstat::connection_opens(&text).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn read_stuck(&mut self, inode: u64) -> Result<(), String> {
        if self.without_stuck {
            return Ok(());
        }
        let counts = StuckCounts::read().map_err(|error| {
            format!("cannot list sockets over inet_diag ({error}): load the kernel modules tcp_diag and inet_diag")
        })?;
        self.stuck.insert(inode, counts);
        Ok(())
    }

    /// Reads the namespace that the calling thread is in.
    fn read_other(&mut self, inode: u64, first: InitialValues) -> Result<(), String> {
        let cookie = namespaces::cookie().map_err(|error| format!("cannot read its cookie: {error}"))?;
        self.cookies.insert(inode, cookie);
        self.read_events(cookie, first)?;
        self.read_stuck(inode)
    }

    /// Continues where the last sample ended. Returns which namespaces are missing, and why; empty if none is.
    fn read_others(&mut self) -> io::Result<String> {
        let found = namespaces::find()?;
        let original = OriginalNamespace::current()?;
        self.stuck.retain(|inode, _| *inode == OWN || found.others.contains_key(inode));
        self.cookies.retain(|inode, _| found.others.contains_key(inode));
        let mut not_yet_read = self.not_yet_read.take().unwrap_or_else(|| found.others.keys().copied().collect());
        not_yet_read.retain(|inode| found.others.contains_key(inode));
        let mut refused = Vec::new();
        let begin = Instant::now();
        let mut visited = HashSet::new();
        for (inode, path) in starting_after(&found.others, self.last) {
            if begin.elapsed() > TIME_BUDGET {
                break;
            }
            self.last = *inode;
            let first = if not_yet_read.contains(inode) { InitialValues::Baseline } else { InitialValues::Counts };
            match original.run_in(path, || self.read_other(*inode, first)) {
                Ok(Ok(())) => {
                    not_yet_read.remove(inode);
                    visited.insert(*inode);
                }
                Ok(Err(error)) => refused.push(describe_namespace(*inode, path, &error)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused.push(describe_namespace(*inode, path, &error));
                }
                // The namespace is gone, or is not a network namespace.
                Err(_) => {}
            }
        }
        self.not_yet_read = Some(not_yet_read);
        for (_, cookie) in self.cookies.iter().filter(|(inode, _)| !visited.contains(inode)) {
            self.tcp_events.keep(*cookie);
            self.ip_events.keep(*cookie);
            self.connection_opens.keep(*cookie);
        }
        Ok(unreadable_namespaces(&refused, found.others.len(), found.hidden_processes))
    }
}

/// All namespaces, starting after `last`.
fn starting_after(others: &BTreeMap<u64, PathBuf>, last: u64) -> impl Iterator<Item = (&u64, &PathBuf)> {
    others.range(last + 1..).chain(others.range(..=last))
}

/// As `ls -l /proc/PID/ns/net` and `ip netns` show it.
fn describe_namespace(inode: u64, path: &Path, error: &dyn Display) -> String {
    let comm = path.parent().and_then(Path::parent).map(|process| process.join("comm"));
    let comm = comm.and_then(|comm| read_text(comm).ok()).unwrap_or_default();
    format!("net:[{inode}] at {} {} ({error})", path.display(), comm.trim_end())
}

fn unreadable_namespaces(refused: &[String], namespaces: usize, hidden_processes: u64) -> String {
    let mut reasons = Vec::new();
    if !refused.is_empty() {
        let named = &refused[..refused.len().min(MAX_NAMED)];
        let more = refused.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        reasons.push(format!(
            "tcpmon may not enter {} of the {namespaces} other network namespaces: {}{more}: give it CAP_SYS_ADMIN",
            refused.len(),
            named.join(", "),
        ));
    }
    if hidden_processes > 0 {
        reasons.push(format!(
            "processes whose network namespace tcpmon may not read: {hidden_processes}: give it CAP_SYS_PTRACE if it \
             does not have it"
        ));
    }
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_continues_where_the_last_one_ended() {
        let others: BTreeMap<u64, PathBuf> = [3, 5, 9].map(|inode| (inode, PathBuf::new())).into();
        let after = |last| starting_after(&others, last).map(|(inode, _)| *inode).collect::<Vec<_>>();
        assert_eq!(after(0), [3, 5, 9]);
        assert_eq!(after(3), [5, 9, 3]);
        assert_eq!(after(4), [5, 9, 3]);
        assert_eq!(after(9), [3, 5, 9]);
    }

    #[test]
    fn unreadable_namespaces_are_named_up_to_a_limit() {
        assert_eq!(unreadable_namespaces(&[], 7, 0), "");
        let refused: Vec<String> = (0..10).map(|i| format!("net:[{i}]")).collect();
        let text = unreadable_namespaces(&refused, 12, 3);
        assert!(
            text.starts_with("tcpmon may not enter 10 of the 12 ")
                && text.contains("net:[7] and 2 more")
                && !text.contains("net:[8]"),
            "{text}"
        );
        assert!(text.contains("may not read: 3: give it CAP_SYS_PTRACE"), "{text}");
    }

    #[test]
    fn the_namespace_of_tcpmon_is_read_with_every_state() {
        let mut sources = Vec::new();
        let sample = NamespaceReader::default().read(&mut SourceReport { sources: &mut sources, switched_off: &[] });
        assert!(sample.tcp_events.iter().any(|(name, _)| name == "TCPMemoryPressuresChrono"), "{sample:?}");
        assert!(sample.stuck.iter().any(|stuck| stuck.state == "fin_wait_1"), "{sample:?}");
        let names: Vec<_> = sources.iter().map(|source| source.name).collect();
        assert_eq!(names, ["netstat", "inet_diag", "network_namespaces"]);
        assert!(sources.iter().all(|source| source.available), "{sources:?}");
    }
}
