//! What no counter may ever do: decrease, disappear, or increase by more than is physically possible.
//!
//! Counters of tcpmon start at 0 when tcpmon starts; counters of the kernel start at their value on the first metrics
//! page. On every page, a counter's increase since then is compared with what could have happened in the whole time
//! since tcpmon was started, not since the previous page: the next pass catches up on a socket that one pass could not
//! read, a correction is offset against the next increments, and a group is shown later than its first byte arrived.
//!
//! With `TCPMON_REPORT`, each daemon's counters report how near they came to what is possible, as `fastest` lines: what
//! the bounds below allow on a machine is its fastest line, times two.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use crate::clock::monotonic_ns;
use crate::report;
use crate::truth::{context_switches, sockstat, threads};

/// How far one of the kernel's own sums may lag when it is read for the first time, in seconds: the kernel updates
/// `/proc/pressure` every 2 s (`PSI_FREQ` of kernel/sched/psi.c), and everything else at each tick or sooner.
const BEHIND: f64 = 3.0;

/// Allowance for sockets and threads that may still be created, on top of those that exist.
const TO_COME: f64 = 200.0;

/// Upper limits of what can happen on this host.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of CPUs.
    pub cpus: f64,
    /// Number of TCP sockets, in all namespaces.
    pub sockets: f64,
    /// Number of threads that read from them.
    pub readers: f64,
    /// Bytes that can wait in one socket.
    pub queue_bytes: f64,
}

/// The moment before a daemon is started.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    time: Instant,
    /// The kernel's count, of all CPUs.
    switches: u64,
}

/// What has passed since the daemon was started.
#[derive(Clone, Copy, Debug)]
struct Passed {
    seconds: f64,
    /// Context switches, by the kernel's count.
    switches: f64,
}

/// The most by which a counter can increase in the time that has passed.
type UpperBound = fn(&Limits, Passed) -> f64;

/// Counters that start with tcpmon; for histograms, the bound is that of the sum.
const OF_TCPMON: [(&str, UpperBound); 32] = [
    ("tcpmon_receive_bytes_total", bytes),
    ("tcpmon_receive_segments_total", events),
    ("tcpmon_receive_read_bytes_total", bytes),
    ("tcpmon_receive_queue_byte_seconds_total", byte_seconds),
    ("tcpmon_receive_wait_byte_seconds_total", byte_seconds),
    ("tcpmon_receive_limited_seconds_total", socket_seconds),
    ("tcpmon_socket_seconds_total", socket_seconds),
    ("tcpmon_receive_buffer_fill_ratio", fills),
    ("tcpmon_receive_zero_window_seconds_total", socket_seconds),
    ("tcpmon_receive_buffer_growths_total", events),
    ("tcpmon_receive_drops_total", events),
    ("tcpmon_timeslices_total", switches),
    ("tcpmon_timeslice_fill_ratio", fills),
    ("tcpmon_timeslice_seconds", cpu_seconds),
    ("tcpmon_timeslice_arrived_bytes_total", bytes),
    ("tcpmon_timeslice_read_bytes_total", bytes),
    ("tcpmon_reader_run_queue_wait_seconds", reader_seconds),
    ("tcpmon_reader_cpu_seconds_total", cpu_seconds),
    ("tcpmon_reader_run_queue_seconds_total", reader_seconds),
    ("tcpmon_napi_polls_total", events),
    ("tcpmon_napi_packets_total", events),
    ("tcpmon_napi_budget_exhausted_total", events),
    ("tcpmon_memory_limit_exceeded_total", events),
    ("tcpmon_page_allocation_failures_total", events),
    ("tcpmon_lost_total", events),
    ("tcpmon_bpf_program_runs_total", events),
    ("tcpmon_bpf_program_run_seconds_total", cpu_seconds),
    ("tcpmon_groups_suppressed_total", events),
    ("tcpmon_connections_opened_total", connections),
    ("tcpmon_sockets_found_late_total", connections),
    ("tcpmon_sockets_ignored_total", connections),
    ("process_cpu_seconds_total", cpu_seconds),
];

/// Histograms with one entry for each timeslice.
const OF_TIMESLICES: [&str; 2] = ["tcpmon_timeslice_seconds", "tcpmon_reader_run_queue_wait_seconds"];

/// Counters of the kernel, which started long before tcpmon.
const OF_THE_KERNEL: [(&str, UpperBound); 9] = [
    ("tcpmon_device_rx_overruns_total", events),
    ("tcpmon_softnet_processed_total", events),
    ("tcpmon_softnet_dropped_total", events),
    ("tcpmon_softnet_time_squeezed_total", events),
    ("tcpmon_tcp_events_total", packets),
    ("tcpmon_ip_events_total", bytes), // these include `InOctets`
    ("tcpmon_context_switches_total", switches),
    ("tcpmon_tcp_memory_pressure_seconds_total", uptime),
    ("tcpmon_psi_memory_stalled_seconds_total", seconds),
];

/// A CPU has to copy the bytes that are sent on this host. The fastest machine so far carried 5.5 GB/s in one
/// connection over loopback with a CPU at each end, which is 2.75 GB/s per CPU: no CPU sends and receives more than
/// twice that.
fn bytes(limits: &Limits, passed: Passed) -> f64 {
    5.5e9 * limits.cpus * passed.seconds
}

/// A segment takes 0.36 us in tcpmon's program alone (`tcp_probe` under R in docs/performance.md, gross), a read 0.40,
/// and each of them longer than that in the kernel: 1.4 million events a second, and twice that on a faster machine.
fn events(limits: &Limits, passed: Passed) -> f64 {
    2.8e6 * limits.cpus * passed.seconds
}

/// Packets as on the wire, of 1,400 bytes and more: `TCPOrigDataSent` counts such packets even for data that are sent
/// within the host in pieces of 64 KiB.
fn packets(limits: &Limits, passed: Passed) -> f64 {
    bytes(limits, passed) / 1_400.0
}

/// Begin and end of both ends of a connection take 3.5 us in tcpmon's programs alone (gross, on a machine that is twice
/// as fast as that of docs/performance.md), and the kernel longer than that: no CPU opens more than two ends in 7 us.
fn connections(limits: &Limits, passed: Passed) -> f64 {
    2.0 / 7e-6 * limits.cpus * passed.seconds
}

/// The kernel's own count. Each timeslice ends with a context switch, which the kernel counts before tcpmon does.
fn switches(_: &Limits, passed: Passed) -> f64 {
    passed.switches
}

/// A segment of 64 KiB takes at most twice its size, and the smallest receive buffer is 2,304 bytes
/// (`SOCK_MIN_RCVBUF`): the segment can overdraw it 57 times.
fn fills(limits: &Limits, passed: Passed) -> f64 {
    57.0 * events(limits, passed)
}

/// As if every socket were full all the time.
fn byte_seconds(limits: &Limits, passed: Passed) -> f64 {
    limits.queue_bytes * socket_seconds(limits, passed)
}

fn socket_seconds(limits: &Limits, passed: Passed) -> f64 {
    limits.sockets * passed.seconds
}

fn reader_seconds(limits: &Limits, passed: Passed) -> f64 {
    limits.readers * passed.seconds
}

fn cpu_seconds(limits: &Limits, passed: Passed) -> f64 {
    limits.cpus * passed.seconds
}

fn seconds(_: &Limits, passed: Passed) -> f64 {
    passed.seconds
}

/// A pressure period is added when it ends, however long ago it started.
fn uptime(_: &Limits, _: Passed) -> f64 {
    monotonic_ns() as f64 / 1e9
}

impl Limits {
    /// The limits of this host as it is now, with room for some more sockets and threads. `queue_bytes` is the most
    /// that one socket can hold.
    pub fn of_host(queue_bytes: f64) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let sockets = sockstat().allocated as f64 + TO_COME;
        Self { cpus: cpus as f64, sockets, readers: threads() as f64 + TO_COME, queue_bytes }
    }
}

impl Start {
    /// Now.
    pub fn now() -> Self {
        Self { time: Instant::now(), switches: context_switches() }
    }

    /// What has passed since then.
    fn passed(&self) -> Passed {
        let (seconds, switches) = (self.time.elapsed().as_secs_f64(), context_switches() - self.switches);
        Passed { seconds, switches: switches as f64 }
    }
}

/// The counters of one daemon, page after page.
#[derive(Debug)]
pub struct Physics {
    limits: Limits,
    start: Start,
    /// What had passed when the last page was seen.
    passed: Passed,
    pages: u64,
    series: HashMap<String, Series>,
    groups_end: bool,
    /// Groups that ended and came back between the last page and this one.
    came_back: HashSet<String>,
    /// By the name of a line: the largest increase, as a part of what was possible.
    fastest: BTreeMap<String, f64>,
}

/// One counter, or one number of a histogram.
#[derive(Clone, Copy, Debug)]
struct Series {
    from: f64,
    last: f64,
    page: u64,
}

/// The family that the lines after a `# TYPE` belong to.
#[derive(Clone, Copy)]
struct PageFamily<'t> {
    name: &'t str,
    histogram: bool,
    upper_bound: UpperBound,
    of_tcpmon: bool,
}

impl Physics {
    /// For a daemon that was started no earlier than `start`.
    pub fn new(limits: Limits, start: Start) -> Self {
        Self {
            limits,
            start,
            passed: Passed { seconds: 0.0, switches: 0.0 },
            pages: 0,
            series: HashMap::new(),
            groups_end: false,
            came_back: HashSet::new(),
            fastest: BTreeMap::new(),
        }
    }

    /// Allows groups to disappear, because there are more than are shown or because idle ones end. A group that comes
    /// back counts from zero, and has zeros on its first page.
    pub fn groups_end(mut self) -> Self {
        self.groups_end = true;
        self
    }

    /// A counter on the last page, by its name and labels as written there.
    pub fn value(&self, key: &str) -> Option<f64> {
        self.series.get(key).map(|series| series.last)
    }

    /// Checks a metrics page in the Prometheus text format that has just arrived. An error names the counter and what
    /// it did.
    pub fn page(&mut self, text: &str) -> Result<(), String> {
        self.page_after(text, self.start.passed())
    }

    fn page_after(&mut self, text: &str, passed: Passed) -> Result<(), String> {
        (self.passed, self.pages) = (passed, self.pages + 1);
        let mut family = None;
        let mut seen = 0;
        for line in text.lines() {
            if let Some(words) = line.strip_prefix("# TYPE ") {
                family = PageFamily::of(words)?;
            } else if let Some(family) = family.filter(|_| !line.starts_with('#')) {
                seen += 1;
                self.sample(family, line).map_err(|error| self.report(&error))?;
            }
        }
        if self.groups_end {
            let page = self.pages;
            self.series.retain(|_, series| series.page == page);
            self.all_of_them_came_back()?;
        }
        if seen == self.series.len() {
            return Ok(());
        }
        let gone = self.series.iter().find(|(_, series)| series.page != self.pages);
        let (name, series) = gone.ok_or_else(|| self.report("a counter is there twice"))?;
        Err(self.report(&format!("{name} is gone, it was {}", series.last)))
    }

    /// Checks that no counter of a group fell to zero alone.
    fn all_of_them_came_back(&mut self) -> Result<(), String> {
        let back = std::mem::take(&mut self.came_back);
        if back.is_empty() {
            return Ok(());
        }
        let is_back = |key: &str| group(key).is_some_and(|group| back.contains(group));
        match self.series.iter().find(|(key, series)| series.last > 0.0 && is_back(key)) {
            Some((key, series)) => {
                Err(self.report(&format!("another counter of its group fell to 0, and {key} is {}", series.last)))
            }
            None => Ok(()),
        }
    }

    /// An error with the page and time at which it was seen.
    pub fn report(&self, error: &str) -> String {
        format!("page {}, {:.3} s after tcpmon was started: {error}", self.pages, self.passed.seconds)
    }

    fn sample(&mut self, family: PageFamily<'_>, line: &str) -> Result<(), String> {
        let (key, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
        let value: f64 = value.parse().map_err(|error| format!("{error}: {line}"))?;
        let most = family.upper_bound_of(key)?;
        let page = self.pages;
        let series = match self.series.get_mut(key) {
            Some(series) => series,
            None => {
                let from = if family.of_tcpmon { 0.0 } else { value };
                self.series.entry(key.to_owned()).or_insert(Series { from, last: from, page })
            }
        };
        if value == 0.0
            && series.last > 0.0
            && self.groups_end
            && let Some(group) = group(key)
        {
            self.came_back.insert(group.to_owned());
            *series = Series { from: 0.0, last: 0.0, page };
        }
        if value.is_nan() || value < series.last {
            let last = std::mem::replace(&mut series.last, value);
            return Err(format!("{key} fell from {last} to {value}"));
        }
        let most = most(&self.limits, Passed { seconds: self.passed.seconds + BEHIND, ..self.passed });
        let rise = value - series.from;
        if rise > most {
            return Err(format!(
                "{key} rose from {} to {value}, by {rise} since the start; {most} is the most that is possible",
                series.last
            ));
        }
        (series.last, series.page) = (value, page);
        let name = name_of(key);
        match self.fastest.get_mut(name) {
            // Not a number if nothing was possible; `max` leaves that out.
            Some(fastest) => *fastest = fastest.max(rise / most),
            None => drop(self.fastest.insert(name.to_owned(), rise / most)),
        }
        Ok(())
    }
}

impl Drop for Physics {
    fn drop(&mut self) {
        let rose = self.fastest.iter().filter(|(_, fastest)| **fastest > 0.0);
        let rose: Vec<_> = rose.map(|(name, fastest)| format!("{name} {:.3} %", 100.0 * fastest)).collect();
        report::line("fastest", &format!("in {:.0} s: {}", self.passed.seconds, rose.join(", ")));
    }
}

/// The name at the start of a line, without labels.
fn name_of(key: &str) -> &str {
    key.split_once('{').map_or(key, |(name, _)| name)
}

/// The labels of a group in a line, up to those that only this family has.
fn group(key: &str) -> Option<&str> {
    let labels = &key[key.find("{process=\"")?..];
    let mut end = labels.find("\",service=\"")? + "\",service=\"".len();
    end += labels[end..].find('"')?;
    if labels[end..].starts_with("\",cgroup=\"") {
        end += "\",cgroup=\"".len();
        end += labels[end..].find('"')?;
    }
    Some(&labels[..end])
}

impl<'t> PageFamily<'t> {
    /// The counter family that a `# TYPE` announces; `None` for other types.
    fn of(words: &'t str) -> Result<Option<Self>, String> {
        let (name, kind) = words.split_once(' ').ok_or_else(|| format!("a TYPE without a type: {words}"))?;
        let histogram = kind == "histogram";
        if !histogram && kind != "counter" {
            return Ok(None);
        }
        let find = |table: &[(&str, UpperBound)]| {
            table.iter().find(|(family, _)| *family == name).map(|(_, upper_bound)| *upper_bound)
        };
        let (upper_bound, of_tcpmon) = match (find(&OF_TCPMON), find(&OF_THE_KERNEL)) {
            (Some(upper_bound), _) => (upper_bound, true),
            (None, Some(upper_bound)) => (upper_bound, false),
            (None, None) => return Err(format!("{name} has no bound: give it one in tests/src/physics.rs")),
        };
        Ok(Some(Self { name, histogram, upper_bound, of_tcpmon }))
    }

    /// The bound of one of the family's lines, by the name at the start of the line.
    fn upper_bound_of(&self, key: &str) -> Result<UpperBound, String> {
        let name = name_of(key);
        match (name.strip_prefix(self.name), self.histogram) {
            (Some(""), false) | (Some("_sum"), true) => Ok(self.upper_bound),
            (Some("_count" | "_bucket"), true) if OF_TIMESLICES.contains(&self.name) => Ok(switches),
            (Some("_count" | "_bucket"), true) => Ok(events),
            _ => Err(format!("{key} stands under {}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { cpus: 2.0, sockets: 10.0, readers: 3.0, queue_bytes: 1000.0 };

    /// After this many seconds, with a hundred switches in each.
    fn after(seconds: u32) -> Passed {
        Passed { seconds: seconds.into(), switches: f64::from(100 * seconds) }
    }

    /// Checks one page per second, from the tenth second on, and returns the result of the last check.
    fn look<const N: usize>(pages: [&str; N]) -> Result<(), String> {
        let mut physics = Physics::new(LIMITS, Start::now());
        let mut last = Ok(());
        for (page, second) in pages.into_iter().zip(10..) {
            assert_eq!(last, Ok(()));
            last = physics.page_after(page, after(second));
        }
        last
    }

    /// The check failed, and its error has these words.
    #[track_caller]
    fn fails(checked: Result<(), String>, words: &str) {
        assert!(checked.as_ref().is_err_and(|error| error.contains(words)), "{checked:?} instead of {words:?}");
    }

    fn counter(family: &str, lines: &str) -> String {
        format!("# HELP {family} Of a type.\n# TYPE {family} counter\n{lines}")
    }

    #[test]
    fn a_counter_may_stay_and_rise_but_never_fall() {
        let page = |value: &str| counter("tcpmon_lost_total", &format!("tcpmon_lost_total{{what=\"a b\"}} {value}\n"));
        assert_eq!(look([&page("5"), &page("5"), &page("6")]), Ok(()));
        for fallen in ["4", "NaN"] {
            let error = look([&page("5"), &page(fallen)]).unwrap_err();
            let expected = "page 2, 11.000 s after tcpmon was started: tcpmon_lost_total{what=\"a b\"} fell";
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_rise_beyond_the_physical_is_found_in_the_first_page_too() {
        let family = "tcpmon_receive_queue_byte_seconds_total";
        let page = |value: &str| counter(family, &format!("{family}{{process=\"x\"}} {value}\n"));
        // Ten sockets of 1,000 bytes, over ten seconds plus three.
        assert_eq!(look([&page("130000.0")]), Ok(()));
        fails(look([&page("130001.0")]), "130000 is the most");
        // The second page comes one second later.
        assert_eq!(look([&page("0.0"), &page("140000.0")]), Ok(()));
        fails(look([&page("0.0"), &page("5.5e12")]), "rose from 0 to 5500000000000");
    }

    #[test]
    fn counters_may_rise_by_the_most_that_is_possible_and_not_by_more() {
        // Two CPUs, over ten seconds plus three; of the kernel's own counter, over eleven plus three.
        for (family, most) in [
            ("tcpmon_receive_bytes_total", 143_000_000_000_u64),
            ("tcpmon_receive_segments_total", 72_800_000),
            ("tcpmon_connections_opened_total", 7_428_571),
            ("tcpmon_timeslices_total", 1_000),
            ("process_cpu_seconds_total", 26),
        ] {
            let page = |value: u64| counter(family, &format!("{family} {value}\n"));
            assert_eq!(look([&page(most)]), Ok(()), "{family}");
            fails(look([&page(most + 1)]), &format!("{family} rose from 0"));
        }
        for (family, most) in [("tcpmon_tcp_events_total", 110_000_000_u64), ("tcpmon_context_switches_total", 1_100)] {
            let page = |value: u64| counter(family, &format!("{family} {value}\n"));
            assert_eq!(look([&page(7), &page(7 + most)]), Ok(()), "{family}");
            fails(look([&page(7), &page(8 + most)]), &format!("{family} rose from 7"));
        }
    }

    #[test]
    fn the_largest_part_of_what_was_possible_is_remembered_by_name() {
        let family = "tcpmon_receive_zero_window_seconds_total";
        let page = |first: f64, second: f64| {
            counter(family, &format!("{family}{{process=\"a\"}} {first}\n{family}{{process=\"b\"}} {second}\n"))
        };
        let mut physics = Physics::new(LIMITS, Start::now());
        // Of 130 s, then of 140.
        assert_eq!(physics.page_after(&page(13.0, 65.0), after(10)), Ok(()));
        assert_eq!(physics.page_after(&page(14.0, 65.0), after(11)), Ok(()));
        assert_eq!(physics.fastest, BTreeMap::from([(family.to_owned(), 0.5)]));
    }

    #[test]
    fn a_group_may_come_late_with_all_that_it_has_counted() {
        let family = "tcpmon_receive_zero_window_seconds_total";
        let one = counter(family, "tcpmon_receive_zero_window_seconds_total{process=\"a\"} 1.5\n");
        let two = format!("{one}tcpmon_receive_zero_window_seconds_total{{process=\"b\"}} 129.5\n");
        assert_eq!(look([&one, &two]), Ok(()));
        let error = look([&two, &one]).unwrap_err();
        assert!(error.contains("process=\"b\"} is gone, it was 129.5"), "{error}");
    }

    #[test]
    fn a_group_that_may_end_may_come_back_with_zeros_and_only_as_a_whole() {
        let page = |bytes: &str, segments: &str| {
            let (labels, lost) =
                ("{process=\"a\",service=\"b\"", counter("tcpmon_lost_total", "tcpmon_lost_total 5\n"));
            let bytes =
                counter("tcpmon_receive_bytes_total", &format!("tcpmon_receive_bytes_total{labels}}} {bytes}\n"));
            let line = format!("tcpmon_receive_drops_total{labels},reason=\"c\"}} {segments}\n");
            format!("{lost}{bytes}{}", counter("tcpmon_receive_drops_total", &line))
        };
        let mut physics = Physics::new(LIMITS, Start::now()).groups_end();
        let mut look = |page: &str| physics.page_after(page, after(10));
        let gone = counter("tcpmon_lost_total", "tcpmon_lost_total 5\n");
        assert_eq!((look(&page("5", "5")), look(&gone), look(&page("1", "1"))), (Ok(()), Ok(()), Ok(())));
        assert_eq!((look(&page("0", "0")), look(&page("1", "1"))), (Ok(()), Ok(())));
        fails(look(&page("0", "2")), "reason=\"c\"} is 2");
        fails(look(&page("0", "1")), "fell from 2 to 1");
        fails(look(&gone.replace(" 5", " 0")), "fell from 5 to 0");
        fails(look(&format!("{gone}{gone}")), "twice");
    }

    #[test]
    fn counters_of_the_kernel_are_compared_with_their_value_on_the_first_page() {
        let family = "tcpmon_psi_memory_stalled_seconds_total";
        let page = |value: f64| counter(family, &format!("{family}{{kind=\"some\"}} {value}\n"));
        assert_eq!(look([&page(1e6), &page(1e6 + 14.0)]), Ok(()));
        fails(look([&page(1e6), &page(1e6 + 14.5)]), "14 is the most that is possible");
    }

    #[test]
    fn each_number_of_a_histogram_is_a_counter() {
        let page = |bucket: u64, sum: f64, count: u64| {
            format!(
                "# TYPE tcpmon_timeslice_seconds histogram\ntcpmon_timeslice_seconds_bucket{{le=\"1.0\"}} {bucket}\n\
                 tcpmon_timeslice_seconds_sum {sum}\ntcpmon_timeslice_seconds_count {count}\n# TYPE b gauge\nb 7\n"
            )
        };
        assert_eq!(look([&page(1, 0.5, 1), &page(2, 28.0, 2)]), Ok(()));
        fails(look([&page(1, 0.5, 1), &page(0, 0.5, 1)]), "_bucket{le=\"1.0\"} fell");
        fails(look([&page(1, 0.5, 1), &page(1, 28.5, 1)]), "_sum rose");
        // A hundred switches a second, in eleven.
        assert_eq!(look([&page(1, 0.5, 1), &page(1, 0.5, 1_100)]), Ok(()));
        fails(look([&page(1, 0.5, 1), &page(1, 0.5, 1_101)]), "_count rose");
    }

    #[test]
    fn a_counter_without_a_bound_is_refused() {
        let error = look([&counter("tcpmon_new_total", "tcpmon_new_total 1\n")]).unwrap_err();
        assert!(error.contains("tcpmon_new_total has no bound"), "{error}");
    }

    #[test]
    fn every_counter_of_the_reference_has_a_bound_and_every_bound_a_counter() {
        let rows = include_str!("../../docs/metrics.md").lines().filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let (name, kind) = (cells.next()?.trim_matches('`'), cells.next()?);
            ["counter", "histogram"].contains(&kind).then_some(name)
        });
        let mut documented: Vec<&str> = rows.collect();
        let mut bounded: Vec<&str> = OF_TCPMON.iter().chain(&OF_THE_KERNEL).map(|(name, _)| *name).collect();
        documented.sort_unstable();
        bounded.sort_unstable();
        assert_eq!(bounded, documented);
    }
}
