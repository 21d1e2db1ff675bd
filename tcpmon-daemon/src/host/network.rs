//! What the kernel counts per network namespace, read in each namespace that tcpmon can enter: `TcpExt`, `IpExt` and
//! stuck sockets.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Display,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    SourceReport, addresses,
    file::{FileError, Parsed, Skipped, malformed, read_text},
    namespaces::{self, OriginalNamespace},
    netlink,
    netstat::{self, InitialValues, NamespaceSums},
    stuck::StuckCounts,
};
use crate::{clock::monotonic_ns, host_state::Stuck};

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
    /// When it was made; `CLOCK_MONOTONIC` of the host, ns.
    began_ns: u64,
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

/// Which of a namespace's two files with counters could be used.
#[derive(Clone, Copy, Debug, Default)]
struct EventsRead {
    netstat: bool,
    snmp: bool,
}

/// Tells whether the calling thread's namespace is younger than the first time, as of the second time: see
/// [`addresses::are_younger_than`].
type IsYoungerThan = fn(u64, u64) -> io::Result<bool>;

/// The namespace of tcpmon itself: no namespace has this inode number or cookie.
const OWN: u64 = 0;

impl NamespaceReader {
    /// A reader that shows what namespaces count from now on.
    pub(super) fn new() -> Self {
        Self { began_ns: monotonic_ns(), ..Self::default() }
    }

    /// Reads the namespace of tcpmon, and as many others as there is time for. Reports the status of each source.
    pub(super) fn read(&mut self, report: &mut SourceReport<'_>) -> NetworkSample {
        let mut sample = NetworkSample::default();
        self.without_events = report.is_switched_off("netstat");
        self.without_stuck = report.is_switched_off("inet_diag");
        let events = self.read_events(OWN, InitialValues::Baseline);
        let stuck = self.read_stuck(OWN);
        let others = if self.without_events && self.without_stuck { Ok(String::new()) } else { self.read_others() };
        // Keep also the namespaces that could not be read: otherwise, their counts since their creation would be added
        // again.
        for cookie in self.cookies.values() {
            self.tcp_events.keep(*cookie);
            self.ip_events.keep(*cookie);
            self.connection_opens.keep(*cookie);
        }

        let missing = "TcpExt and IpExt counters, time under memory pressure, opened connections";
        let events = report.record_parsed("netstat", missing, || events);
        let stuck = report.record("inet_diag", "stuck sockets", || stuck);
        report.note(stuck.clone().unwrap_or_default());
        // The namespace of tcpmon is always read.
        report.record("network_namespaces", "", || Ok::<_, String>(()));
        report.note(others.unwrap_or_else(|error| format!("{error}: only the network namespace of tcpmon is read")));

        let (tcp_events, ip_events, connection_opens) =
            (self.tcp_events.end_round(), self.ip_events.end_round(), self.connection_opens.end_round());
        let events = events.unwrap_or_default();
        if events.netstat {
            (sample.tcp_events, sample.ip_events) = (tcp_events, ip_events);
        }
        if events.snmp {
            sample.connections_opened = Some(connection_opens.iter().map(|(_, count)| count).sum());
        }
        if stuck.is_some() {
            sample.stuck = StuckCounts::sum(self.stuck.values());
        }
        sample
    }

    /// Adds the counters of the namespace that the calling thread is in. For a namespace that is older than tcpmon, a
    /// counter that cannot be read gets its baseline when it can be read.
    fn read_events(&mut self, cookie: u64, first: InitialValues) -> Result<Parsed<EventsRead>, FileError> {
        let mut skipped = Skipped::default();
        if self.without_events {
            return Ok(Parsed { value: EventsRead::default(), skipped });
        }
        let text = skipped.keep(netstat::text(netstat::OF_THREAD));
        let counters = text.as_ref().and_then(|text| skipped.keep_parsed(netstat::parse(text)));
        let text = skipped.keep(netstat::text(netstat::SNMP_OF_THREAD));
        let opens = text.as_ref().and_then(|text| skipped.keep_parsed(netstat::connection_opens(text)));
        let read = EventsRead { netstat: counters.is_some(), snmp: opens.is_some() };
        let counters = counters.unwrap_or_default();
        self.tcp_events.add(cookie, first, &counters.tcp);
        self.ip_events.add(cookie, first, &counters.ip);
        self.connection_opens.add(cookie, first, &opens.unwrap_or_default());
        skipped.parsed((read.netstat || read.snmp).then_some(read), || malformed(netstat::OF_THREAD, "it is empty"))
    }

    /// Returns what was skipped; empty if nothing was.
    fn read_stuck(&mut self, inode: u64) -> Result<String, String> {
        if self.without_stuck {
            return Ok(String::new());
        }
        let (counts, skipped) = StuckCounts::read().map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::ENOENT | libc::EPROTONOSUPPORT) => "load the kernel modules tcp_diag and inet_diag",
                _ => netlink::remedy(&error),
            };
            format!("cannot list sockets over inet_diag ({error}): {remedy}")
        })?;
        self.stuck.insert(inode, counts);
        let note = || format!("skipped {skipped} answers of inet_diag that cannot be parsed: report this");
        Ok(if skipped > 0 { note() } else { String::new() })
    }

    /// Reads the namespace that the calling thread is in. Returns what could not be read of it; empty if nothing.
    fn read_other(&mut self, inode: u64, is_younger_than: IsYoungerThan) -> String {
        let events = self.read_other_events(inode, is_younger_than).unwrap_or_else(|error| error);
        let stuck = self.read_stuck(inode).unwrap_or_else(|error| error);
        [events, stuck].into_iter().filter(|problem| !problem.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// Adds the counters of the calling thread's namespace. If it cannot be found out how to count their first values,
    /// they are left for the next sample. Returns what was skipped; empty if nothing was.
    fn read_other_events(&mut self, inode: u64, is_younger_than: IsYoungerThan) -> Result<String, String> {
        if self.without_events {
            return Ok(String::new());
        }
        let cookie = namespaces::cookie()
            .map_err(|error| format!("cannot read its cookie ({error}): boot Linux 5.14 or newer"))?;
        self.cookies.insert(inode, cookie);
        let first = self.initial_values(cookie, is_younger_than)?;
        self.read_events(cookie, first).map(|parsed| parsed.skipped.to_string()).map_err(|error| error.to_string())
    }

    /// How to count the first values of the calling thread's namespace. When tcpmon first found the namespace does not
    /// tell: one that only descriptors hold open is found when a process enters it.
    fn initial_values(&self, cookie: u64, is_younger_than: IsYoungerThan) -> Result<InitialValues, String> {
        // Used only when a namespace is first read.
        if self.tcp_events.has(cookie) {
            return Ok(InitialValues::Baseline);
        }
        let is_young = is_younger_than(self.began_ns, monotonic_ns());
        let is_young = is_young.map_err(|error| {
            format!("cannot list its addresses over rtnetlink ({error}): {}", netlink::remedy(&error))
        })?;
        Ok(if is_young { InitialValues::Counts } else { InitialValues::Baseline })
    }

    /// Continues where the last sample ended. Returns which namespaces are missing, and why; empty if none is.
    fn read_others(&mut self) -> io::Result<String> {
        let found = namespaces::find()?;
        let original = OriginalNamespace::current()?;
        self.stuck.retain(|inode, _| *inode == OWN || found.others.contains_key(inode));
        self.cookies.retain(|inode, _| found.others.contains_key(inode));
        let (mut refused, mut incomplete) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        for (inode, path) in starting_after(&found.others, self.last) {
            if begin.elapsed() > TIME_BUDGET {
                break;
            }
            self.last = *inode;
            match original.run_in(path, || self.read_other(*inode, addresses::are_younger_than)) {
                Ok(problems) if problems.is_empty() => {}
                Ok(problems) => incomplete.push(describe_namespace(*inode, path, &problems)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused.push(describe_namespace(*inode, path, &error));
                }
                Err(error) if is_no_network_namespace(&error) => {}
                Err(error) => incomplete.push(describe_namespace(*inode, path, &error)),
            }
        }
        Ok(unreadable_namespaces(&refused, &incomplete, found.others.len(), found.hidden_processes))
    }
}

/// All namespaces, starting after `last`.
fn starting_after(others: &BTreeMap<u64, PathBuf>, last: u64) -> impl Iterator<Item = (&u64, &PathBuf)> {
    others.range(last + 1..).chain(others.range(..=last))
}

/// Whether the namespace is gone, or the file is not one of a network namespace.
fn is_no_network_namespace(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EINVAL))
}

/// As `ls -l /proc/PID/ns/net` and `ip netns` show it.
fn describe_namespace(inode: u64, path: &Path, error: &dyn Display) -> String {
    let comm = path.parent().and_then(Path::parent).map(|process| process.join("comm"));
    let comm = comm.and_then(|comm| read_text(comm).ok()).unwrap_or_default();
    format!("net:[{inode}] at {} {} ({error})", path.display(), comm.trim_end())
}

/// What is missing: of namespaces that tcpmon may not enter, and of those that it may.
fn unreadable_namespaces(
    refused: &[String],
    incomplete: &[String],
    namespaces: usize,
    hidden_processes: u64,
) -> String {
    let mut reasons = Vec::new();
    if !refused.is_empty() {
        reasons.push(format!(
            "tcpmon may not enter {} of the {namespaces} other network namespaces: {}: give it CAP_SYS_ADMIN",
            refused.len(),
            some_of(refused),
        ));
    }
    if !incomplete.is_empty() {
        reasons.push(format!(
            "tcpmon may enter {} of the {namespaces} other network namespaces but could not read all of them: {}",
            incomplete.len(),
            some_of(incomplete),
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

/// The first of these namespaces, and how many more there are.
fn some_of(namespaces: &[String]) -> String {
    let named = &namespaces[..namespaces.len().min(MAX_NAMED)];
    let more = namespaces.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
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
        assert_eq!(unreadable_namespaces(&[], &[], 7, 0), "");
        let refused: Vec<String> = (0..10).map(|i| format!("net:[{i}]")).collect();
        let text = unreadable_namespaces(&refused, &[], 12, 3);
        assert!(
            text.starts_with("tcpmon may not enter 10 of the 12 ")
                && text.contains("net:[7] and 2 more")
                && !text.contains("net:[8]"),
            "{text}"
        );
        assert!(text.contains("may not read: 3: give it CAP_SYS_PTRACE"), "{text}");
    }

    #[test]
    fn a_namespace_that_has_gone_is_no_problem_but_one_for_which_there_is_no_descriptor_is() {
        let error = io::Error::from_raw_os_error;
        assert!([libc::ENOENT, libc::ESRCH, libc::EINVAL].map(error).iter().all(is_no_network_namespace));
        assert!(![libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(error).iter().any(is_no_network_namespace));
        let original = OriginalNamespace::current().expect("a namespace of this thread");
        let missing = original.run_in(Path::new("/proc/0/ns/net"), || ()).expect_err("no process has the number 0");
        let mount = original.run_in(Path::new("/proc/self/ns/mnt"), || ()).expect_err("a mount namespace");
        assert!(is_no_network_namespace(&missing) && is_no_network_namespace(&mount), "{missing} {mount}");
    }

    #[test]
    fn a_namespace_that_may_be_entered_needs_no_capability() {
        let incomplete = ["net:[1] (cannot parse it: report this)".to_owned()];
        let text = unreadable_namespaces(&[], &incomplete, 12, 0);
        assert_eq!(
            text,
            "tcpmon may enter 1 of the 12 other network namespaces but could not read all of them: net:[1] (cannot \
             parse it: report this)"
        );
        let text = unreadable_namespaces(&["net:[2] (Permission denied)".to_owned()], &incomplete, 12, 0);
        assert!(
            text.starts_with("tcpmon may not enter 1 of the 12 ") && text.contains("give it CAP_SYS_ADMIN; tcpmon")
        );
    }

    #[test]
    fn a_namespace_whose_addresses_cannot_be_listed_lacks_only_its_counters_until_they_can() {
        let mut reader = NamespaceReader::new();
        let cookie = namespaces::cookie().expect("Linux 5.14");
        let problems = reader.read_other(7, |_, _| Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
        assert!(problems.starts_with("cannot list its addresses over rtnetlink (No buffer space"), "{problems}");
        assert!(reader.stuck.contains_key(&7) && !reader.tcp_events.has(cookie));
        assert_eq!(reader.read_other(7, |_, _| Ok(true)), "");
        assert!(reader.tcp_events.has(cookie));
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
        assert!(sources[..2].iter().all(|source| source.reason.is_empty()), "{sources:?}");
    }
}
