//! What the kernel counts per network namespace, read in each one that can be entered: `TcpExt` and `IpExt`, stuck
//! sockets.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    Report,
    namespaces::{self, Home},
    netstat::{self, First, NamespaceSums},
    stuck::Counts,
};
use crate::model::host::Stuck;

/// Time for the other namespaces in one sample. A host with many containers is covered over several samples, and the
/// namespaces that are not read keep their last values: a walk over the connection table takes a millisecond or more on
/// large hosts.
const BUDGET: Duration = Duration::from_millis(25);

/// Maximum number of namespaces that a reason names.
const NAMED: usize = 8;

/// The namespaces, and what was read from them.
#[derive(Debug, Default)]
pub(super) struct Network {
    tcp_events: NamespaceSums,
    ip_events: NamespaceSums,
    opens: NamespaceSums,
    /// By inode number of the namespace; the own one is under 0.
    stuck: HashMap<u64, Counts>,
    /// Cookies of other namespaces, by the inode numbers under which they were last read.
    cookies: HashMap<u64, u64>,
    /// Namespaces (inode numbers) that existed at the first sample and have not been read yet. By now, such a number
    /// may belong to another namespace: then what that one has counted so far is not shown, which is better than a
    /// step.
    old: Option<HashSet<u64>>,
    /// The namespace with which the last sample ended.
    last: u64,
}

/// Result of one sample.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) tcp_events: Vec<(String, u64)>,
    pub(super) ip_events: Vec<(String, u64)>,
    pub(super) connections_opened: Option<u64>,
    pub(super) stuck: Vec<Stuck>,
}

/// The own namespace: no namespace has this inode number or cookie.
const OWN: u64 = 0;

impl Network {
    /// Reads the own namespace, and as many others as there is time for. Reports the status of each source.
    pub(super) fn read(&mut self, take: &mut Report<'_>) -> Reading {
        let mut reading = Reading::default();
        let events = self.read_events(OWN, First::Baseline);
        let stuck = self.read_stuck(OWN);
        let others = self.read_others();

        let events = take.of("netstat", "TcpExt and IpExt counters and the time of memory pressure", events);
        let stuck = take.of("inet_diag", "stuck sockets", stuck);
        // The own namespace is always read.
        take.of("network_namespaces", "", Ok::<_, String>(()));
        take.note(others.unwrap_or_else(|error| format!("{error}: only the own one is looked into")));

        let (tcp_events, ip_events, opens) = (self.tcp_events.end(), self.ip_events.end(), self.opens.end());
        if events.is_some() {
            (reading.tcp_events, reading.ip_events) = (tcp_events, ip_events);
            reading.connections_opened = Some(opens.iter().map(|(_, count)| count).sum());
        }
        if stuck.is_some() {
            reading.stuck = Counts::sum(self.stuck.values());
        }
        reading
    }

    fn read_events(&mut self, cookie: u64, first: First) -> Result<(), String> {
        let text = netstat::text(netstat::OF_THREAD).map_err(|error| error.to_string())?;
        let counters = netstat::parse(&text).map_err(|error| error.to_string())?;
        self.tcp_events.add(cookie, first, &counters.tcp);
        self.ip_events.add(cookie, first, &counters.ip);
        let text = netstat::text(netstat::SNMP_OF_THREAD).map_err(|error| error.to_string())?;
        self.opens.add(cookie, first, &netstat::opens(&text).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn read_stuck(&mut self, inode: u64) -> Result<(), String> {
        let counts = Counts::read().map_err(|error| {
            format!("the kernel does not list sockets ({error}): load the modules tcp_diag and inet_diag")
        })?;
        self.stuck.insert(inode, counts);
        Ok(())
    }

    /// Reads the namespace that the calling thread is in.
    fn read_other(&mut self, inode: u64, first: First) -> Result<(), String> {
        let cookie = namespaces::cookie().map_err(|error| format!("it has no cookie: {error}"))?;
        self.cookies.insert(inode, cookie);
        self.read_events(cookie, first)?;
        self.read_stuck(inode)
    }

    /// Continues where the last sample ended. Returns which namespaces are missing, and why; empty if none is.
    fn read_others(&mut self) -> io::Result<String> {
        let found = namespaces::find()?;
        let home = Home::here()?;
        self.stuck.retain(|inode, _| *inode == OWN || found.others.contains_key(inode));
        self.cookies.retain(|inode, _| found.others.contains_key(inode));
        let mut old = self.old.take().unwrap_or_else(|| found.others.keys().copied().collect());
        old.retain(|inode| found.others.contains_key(inode));
        let mut refused = Vec::new();
        let begin = Instant::now();
        let mut visited = HashSet::new();
        for (inode, path) in going_round(&found.others, self.last) {
            if begin.elapsed() > BUDGET {
                break;
            }
            self.last = *inode;
            let first = if old.contains(inode) { First::Baseline } else { First::Counts };
            match home.visit(path, || self.read_other(*inode, first)) {
                Ok(Ok(())) => {
                    old.remove(inode);
                    visited.insert(*inode);
                }
                Ok(Err(error)) => refused.push(named(*inode, path, &error)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused.push(named(*inode, path, &error));
                }
                // The namespace is gone, or is not a network namespace.
                Err(_) => {}
            }
        }
        self.old = Some(old);
        for (_, cookie) in self.cookies.iter().filter(|(inode, _)| !visited.contains(inode)) {
            self.tcp_events.keep(*cookie);
            self.ip_events.keep(*cookie);
            self.opens.keep(*cookie);
        }
        Ok(missing(&refused, found.others.len(), found.hidden_processes))
    }
}

/// All namespaces, starting after `last`.
fn going_round(others: &BTreeMap<u64, PathBuf>, last: u64) -> impl Iterator<Item = (&u64, &PathBuf)> {
    others.range(last + 1..).chain(others.range(..=last))
}

/// As `ls -l /proc/PID/ns/net` and `ip netns` show it.
fn named(inode: u64, path: &Path, error: &dyn Display) -> String {
    let comm = path.parent().and_then(Path::parent).map(|process| process.join("comm"));
    let comm = comm.and_then(|comm| fs::read_to_string(comm).ok()).unwrap_or_default();
    format!("net:[{inode}] at {} {} ({error})", path.display(), comm.trim_end())
}

fn missing(refused: &[String], namespaces: usize, hidden_processes: u64) -> String {
    let mut reasons = Vec::new();
    if !refused.is_empty() {
        let named = &refused[..refused.len().min(NAMED)];
        let more = refused.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        reasons.push(format!(
            "{} of {namespaces} other namespaces may not be entered: {}{more}: give tcpmon CAP_SYS_ADMIN",
            refused.len(),
            named.join(", "),
        ));
    }
    if hidden_processes > 0 {
        reasons.push(format!(
            "processes that may not be asked for their namespace: {hidden_processes}; give tcpmon CAP_SYS_PTRACE if \
             it lacks it"
        ));
    }
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_goes_on_where_the_last_one_ended() {
        let others: BTreeMap<u64, PathBuf> = [3, 5, 9].map(|inode| (inode, PathBuf::new())).into();
        let after = |last| going_round(&others, last).map(|(inode, _)| *inode).collect::<Vec<_>>();
        assert_eq!(after(0), [3, 5, 9]);
        assert_eq!(after(3), [5, 9, 3]);
        assert_eq!(after(4), [5, 9, 3]);
        assert_eq!(after(9), [3, 5, 9]);
    }

    #[test]
    fn namespaces_that_are_missing_are_named_but_not_without_end() {
        assert_eq!(missing(&[], 7, 0), "");
        let refused: Vec<String> = (0..10).map(|i| format!("net:[{i}]")).collect();
        let text = missing(&refused, 12, 3);
        assert!(
            text.starts_with("10 of 12 ") && text.contains("net:[7] and 2 more") && !text.contains("net:[8]"),
            "{text}"
        );
        assert!(text.contains("namespace: 3; give tcpmon CAP_SYS_PTRACE"), "{text}");
    }

    #[test]
    fn the_own_namespace_is_read_with_every_state() {
        let mut sources = Vec::new();
        let reading = Network::default().read(&mut Report(&mut sources));
        assert!(reading.tcp_events.iter().any(|(name, _)| name == "TCPMemoryPressuresChrono"), "{reading:?}");
        assert!(reading.stuck.iter().any(|stuck| stuck.state == "fin_wait_1"), "{reading:?}");
        let names: Vec<_> = sources.iter().map(|source| source.name).collect();
        assert_eq!(names, ["netstat", "inet_diag", "network_namespaces"]);
        assert!(sources.iter().all(|source| source.available), "{sources:?}");
    }
}
