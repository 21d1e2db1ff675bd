//! Shows a report: to people as text, to programs as JSON.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::Serialize;
use tcpmon_trace::{
    TimesliceEnd,
    distribution::{Durations, Fills},
    scale::{Bytes, Rate, Time},
    summary::{SocketSummary, causes},
};

use super::{
    compare::{self, Change, Unit},
    evidence::Evidence,
    read::{Trace, TraceFile},
    verdict::TransferVerdict,
};

/// Version of the JSON.
const FORMAT_VERSION: u32 = 1;

/// Widest line of text.
const WIDTH: usize = 100;

/// Percentiles that are shown, in thousandths.
const PERCENTILES: [(&str, u64); 3] = [("p50", 500), ("p90", 900), ("p99", 990)];

/// A report on one trace.
#[derive(Debug, Serialize)]
pub struct TraceReport {
    files: Vec<FileReport>,
    /// Caveats about the trace.
    caveats: Vec<String>,
    /// The verdict on the sockets that carried nearly all bytes.
    verdict: TransferVerdict,
    /// Bytes read by all sockets.
    read_bytes: u64,
    /// From the first activation to the last deactivation, seconds.
    duration_seconds: f64,
    /// Number of sockets; more than in `sockets` if there are very many, or because of a limit.
    sockets_total: usize,
    /// The busiest first.
    sockets: Vec<SocketReport>,
}

#[derive(Debug, Serialize)]
struct FileReport {
    name: String,
    hostname: String,
    kernel_release: String,
    tcpmon_version: String,
    start_realtime_ns: u64,
    duration_seconds: f64,
    records: u64,
    /// `None` if the file was cut.
    lost: Option<BTreeMap<String, u64>>,
}

#[derive(Debug, Serialize)]
struct SocketReport {
    /// `None` for the sum of the sockets that have no line of their own.
    local: Option<String>,
    remote: Option<String>,
    /// Process id and name of a thread.
    readers: Vec<(u32, String)>,
    verdict: TransferVerdict,
    records: u64,
    partial_records: u64,
    read_bytes: u64,
    arrived_bytes: u64,
    duration_seconds: f64,
    bytes_per_second: Option<f64>,
    /// Seconds by cause.
    limited_seconds: BTreeMap<&'static str, f64>,
    mean_wait_seconds: Option<f64>,
    /// The part of it in which the reader waited for a CPU.
    mean_scheduler_wait_seconds: Option<f64>,
    fill_at_activation: BTreeMap<&'static str, f64>,
    fill_at_deactivation: BTreeMap<&'static str, f64>,
    timeslices: BTreeMap<&'static str, u64>,
    on_cpu_seconds: BTreeMap<&'static str, f64>,
    run_queue_wait_seconds: BTreeMap<&'static str, f64>,
    longest_queue_bytes: u32,
    rcvbuf_bytes: Option<(u32, u32)>,
    growths: u64,
    window_bytes: Option<(u32, u32)>,
    zero_windows: u64,
    round_trip_seconds: Option<f64>,
    /// Throughput x round trip.
    bytes_in_flight: Option<f64>,
    #[serde(skip)]
    evidence: Evidence,
}

impl TraceReport {
    /// The report on this trace, with at most `limit` sockets.
    pub fn of(trace: &Trace, limit: usize) -> Self {
        let sockets = trace.summary.by_bytes();
        let all = Evidence::of(&sockets, trace.summary.cpus);
        let whole = Evidence::of_busiest(&trace.summary);
        Self {
            files: trace.files.iter().map(FileReport::of).collect(),
            caveats: trace.caveats(),
            verdict: TransferVerdict::of(&whole),
            read_bytes: all.read_bytes,
            duration_seconds: all.duration_ns as f64 / 1e9,
            sockets_total: sockets.len(),
            sockets: sockets
                .into_iter()
                .take(limit)
                .map(|socket| SocketReport::of(socket, trace.summary.cpus, &whole))
                .collect(),
        }
    }

    /// The report as one JSON object.
    ///
    /// # Errors
    /// None in practice: all keys are strings.
    pub fn json(&self) -> serde_json::Result<String> {
        versioned(self)
    }

    /// The report as text, in lines of at most 100 characters where names allow it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            file.write(&mut text);
        }
        for caveat in &self.caveats {
            wrapped(&mut text, "! ", "  ", caveat);
        }
        let all = Rate { bytes: self.read_bytes, ns: (self.duration_seconds * 1e9) as u64 };
        let sockets = match self.sockets_total {
            1 => "1 socket".into(),
            count => format!("{count} sockets"),
        };
        let _ = writeln!(
            text,
            "\n{} read in {} ({all}) from {sockets}",
            Bytes(self.read_bytes),
            Time((self.duration_seconds * 1e9) as u64)
        );
        wrapped(&mut text, "=> ", "   ", &self.verdict.sentence);
        for socket in &self.sockets {
            socket.write(&mut text);
        }
        if self.sockets_total > self.sockets.len() {
            let more = self.sockets_total - self.sockets.len();
            let _ = writeln!(text, "\n{more} more with fewer bytes: --limit shows more");
        }
        text
    }
}

impl FileReport {
    fn of(file: &TraceFile) -> Self {
        let header = &file.header;
        Self {
            name: file.name.clone(),
            hostname: header.hostname.clone(),
            kernel_release: header.kernel_release.clone(),
            tcpmon_version: header.tcpmon_version.clone(),
            start_realtime_ns: header.start.realtime_ns,
            duration_seconds: file.duration().as_secs_f64(),
            records: file.records,
            lost: file.lost(),
        }
    }

    fn write(&self, text: &mut String) {
        let start = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(self.start_realtime_ns);
        let lost = match &self.lost {
            None => "cut",
            Some(lost) if lost.is_empty() => "nothing lost",
            Some(_) => "records lost",
        };
        let line = format!(
            "{}: {}, Linux {}, {}, {}, {} records, {lost}",
            self.name,
            self.hostname,
            self.kernel_release,
            humantime::format_rfc3339_seconds(start),
            Time((self.duration_seconds * 1e9) as u64),
            self.records,
        );
        wrapped(text, "", "  ", &line);
    }
}

impl SocketReport {
    fn of(socket: &SocketSummary, cpus: u32, whole: &Evidence) -> Self {
        let evidence = Evidence::of(&[socket], cpus);
        let limited = causes().into_iter().zip(socket.limited_ns);
        let ends = TimesliceEnd::ALL.into_iter().zip(socket.ends_of_timeslices);
        let bytes = socket.waited_bytes();
        let per_byte = |byte_us: u64| (bytes > 0).then(|| byte_us as f64 / 1e6 / bytes as f64);
        Self {
            local: socket.ends.map(|(local, _)| local.to_string()),
            remote: socket.ends.map(|(_, remote)| remote.to_string()),
            readers: socket.readers.iter().map(|(tgid, comm)| (*tgid, comm.as_str().to_owned())).collect(),
            verdict: TransferVerdict::of_part(&evidence, whole),
            records: socket.records,
            partial_records: socket.partial,
            read_bytes: socket.all_read_bytes(),
            arrived_bytes: socket.arrived_bytes,
            duration_seconds: socket.seconds(),
            bytes_per_second: evidence.bytes_per_second,
            limited_seconds: limited.map(|(cause, ns)| (cause, ns as f64 / 1e9)).collect(),
            mean_wait_seconds: evidence.mean_wait_us.map(|us| us / 1e6),
            mean_scheduler_wait_seconds: per_byte(socket.waited_byte_us[1]),
            fill_at_activation: fills(&socket.fills_at_activation),
            fill_at_deactivation: fills(&socket.fills_at_deactivation),
            timeslices: ends.map(|(end, count)| (end.name(), count)).collect(),
            on_cpu_seconds: durations(&socket.on_cpu),
            run_queue_wait_seconds: durations(&socket.run_queue_waits),
            longest_queue_bytes: socket.longest_queue_bytes,
            rcvbuf_bytes: socket.rcvbuf_bytes,
            growths: socket.growths,
            window_bytes: socket.window_bytes,
            zero_windows: socket.zero_windows,
            round_trip_seconds: (evidence.round_trip_ns > 0).then(|| evidence.round_trip_ns as f64 / 1e9),
            bytes_in_flight: evidence.bytes_in_flight(),
            evidence,
        }
    }

    fn write(&self, text: &mut String) {
        let readers: Vec<_> = self.readers.iter().map(|(tgid, comm)| format!("{comm} ({tgid})")).collect();
        let ends = match (&self.local, &self.remote) {
            (Some(local), Some(remote)) => format!("{local} <- {remote}"),
            _ => "all other sockets".into(),
        };
        let _ = writeln!(text);
        wrapped(text, "", "  ", &format!("{ends}  {}", readers.join(", ")));
        wrapped(text, "  => ", "     ", &self.verdict.sentence);
        let evidence = &self.evidence;
        let mut row = |name: &str, words: String| wrapped(text, &format!("  {name:12}"), &" ".repeat(14), &words);
        let rate = Rate { bytes: self.read_bytes, ns: evidence.duration_ns };
        let read = format!("{} in {}: {rate}", Bytes(self.read_bytes), Time(evidence.duration_ns));
        row("read", read);
        let shares = causes().into_iter().zip(evidence.shares()).filter(|(_, share)| *share >= 0.0005);
        let shares: Vec<_> = shares.map(|(cause, share)| format!("{cause} {:.1} %", share * 100.0)).collect();
        if !shares.is_empty() {
            row("limited by", shares.join(", "));
        }
        if let (Some(all), Some(scheduler)) = (self.mean_wait_seconds, self.mean_scheduler_wait_seconds) {
            let time = |seconds: f64| Time((seconds * 1e9) as u64);
            row("mean wait", format!("{} per byte, {} of it for a CPU", time(all), time(scheduler)));
        }
        if self.records == 0 {
            return;
        }
        let fill = |of: &BTreeMap<&str, f64>| {
            PERCENTILES.map(|(name, _)| format!("{name} {:.0} %", of.get(name).unwrap_or(&0.0) * 100.0)).join(", ")
        };
        row(
            "buffer fill",
            format!("activated: {}; deactivated: {}", fill(&self.fill_at_activation), fill(&self.fill_at_deactivation)),
        );
        let ended: Vec<_> = TimesliceEnd::ALL
            .iter()
            .filter_map(|end| {
                self.timeslices.get(end.name()).filter(|count| **count > 0).map(|count| (end.name(), count))
            })
            .map(|(end, count)| format!("{count} {end}"))
            .collect();
        let partial = if self.partial_records > 0 {
            format!(", {} of them partial", self.partial_records)
        } else {
            String::new()
        };
        row("timeslices", format!("{}{partial}", ended.join(", ")));
        row("on a CPU", spread(&self.on_cpu_seconds));
        row("run queue", spread(&self.run_queue_wait_seconds));
        let range = |range: Option<(u32, u32)>| match range {
            Some((least, most)) if least == most => Bytes(most.into()).to_string(),
            Some((least, most)) => format!("{} to {}", Bytes(least.into()), Bytes(most.into())),
            None => "not known".into(),
        };
        let grown = if self.growths > 0 { format!(", grown {} times", self.growths) } else { String::new() };
        let queue = Bytes(self.longest_queue_bytes.into());
        row("buffer", format!("{}{grown}; longest queue {queue}", range(self.rcvbuf_bytes)));
        let shut =
            if self.zero_windows > 0 { format!(", closed at {} samples", self.zero_windows) } else { String::new() };
        row("window", format!("{}{shut}", range(self.window_bytes)));
        if let Some(bytes) = self.bytes_in_flight {
            let words = format!("{} (throughput x {})", Bytes(bytes as u64), Time(evidence.round_trip_ns));
            row("in flight", words);
        }
    }
}

/// Percentiles of durations in words.
fn spread(of: &BTreeMap<&str, f64>) -> String {
    let time = |name: &str| Time((of.get(name).unwrap_or(&0.0) * 1e9) as u64);
    let percentiles = PERCENTILES.map(|(name, _)| format!("{name} {}", time(name))).join(", ");
    format!("{} in total; per timeslice {percentiles}", time("sum"))
}

fn fills(fills: &Fills) -> BTreeMap<&'static str, f64> {
    PERCENTILES.map(|(name, permille)| (name, fills.quantile(permille) as f64 / 1000.0)).into()
}

fn durations(durations: &Durations) -> BTreeMap<&'static str, f64> {
    let percentiles = PERCENTILES.map(|(name, permille)| (name, durations.quantile(permille) as f64 / 1e9));
    percentiles.into_iter().chain([("sum", durations.sum_ns() as f64 / 1e9)]).collect()
}

fn wrapped(text: &mut String, lead: &str, indent: &str, words: &str) {
    let options = textwrap::Options::new(WIDTH).initial_indent(lead).subsequent_indent(indent).break_words(false);
    let _ = writeln!(text, "{}", textwrap::fill(words, options));
}

/// The answer as one JSON object, which begins with its version.
fn versioned(answer: &impl Serialize) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        /// Raised when a key changes its meaning or is removed.
        format_version: u32,
        #[serde(flatten)]
        answer: &'a T,
    }
    serde_json::to_string_pretty(&Versioned { format_version: FORMAT_VERSION, answer })
}

/// A comparison of two traces.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// What differs, in one sentence.
    pub sentence: String,
    /// The first trace.
    pub first: TraceReport,
    /// The second.
    pub second: TraceReport,
    /// What differs, in numbers.
    pub changes: Vec<Change>,
}

impl Comparison {
    /// The comparison of these traces, with at most `limit` sockets of each.
    pub fn of(first: &Trace, second: &Trace, limit: usize) -> Self {
        let evidence = |trace: &Trace| Evidence::of_busiest(&trace.summary);
        let changes = compare::changes(&evidence(first), &evidence(second));
        let sentence = compare::sentence(&changes);
        Self { sentence, first: TraceReport::of(first, limit), second: TraceReport::of(second, limit), changes }
    }

    /// The comparison as one JSON object.
    ///
    /// # Errors
    /// None in practice: all keys are strings.
    pub fn json(&self) -> serde_json::Result<String> {
        versioned(self)
    }

    /// The comparison as text: what differs, then what limited each trace.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for report in [&self.first, &self.second] {
            report.files.iter().for_each(|file| file.write(&mut text));
            report.caveats.iter().for_each(|caveat| wrapped(&mut text, "! ", "  ", caveat));
        }
        text.push('\n');
        wrapped(&mut text, "=> ", "   ", &self.sentence);
        for (name, report) in [("first", &self.first), ("second", &self.second)] {
            wrapped(&mut text, &format!("   {name:7}"), &" ".repeat(10), &report.verdict.sentence);
        }
        let _ = writeln!(text, "\n{:20}{:>14}{:>14}{:>14}  beyond noise", "", "first", "second", "change");
        for change in &self.changes {
            let shown = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| change.unit.shown(value));
            let difference = match (change.before, change.after) {
                (Some(before), Some(after)) => change.difference(before, after),
                _ => "-".into(),
            };
            let noise = match change.beyond_noise {
                Some(true) => "yes",
                Some(false) => "no",
                None => "not known",
            };
            let _ = writeln!(
                text,
                "{:20}{:>14}{:>14}{difference:>14}  {noise}",
                change.what,
                shown(change.before),
                shown(change.after)
            );
        }
        text
    }
}

impl Change {
    /// Percentages as a difference in points, everything else as a change in percent.
    fn difference(&self, before: f64, after: f64) -> String {
        // Adding a zero turns a negative zero into a positive one.
        let rounded = |value: f64| (value * 10.0).round() / 10.0 + 0.0;
        match self.unit {
            Unit::Percent => format!("{:+.1} points", rounded(after - before)),
            _ if before > 0.0 => format!("{:+.1} %", rounded((after / before - 1.0) * 100.0)),
            _ => "-".into(),
        }
    }
}

impl Unit {
    fn shown(self, value: f64) -> String {
        match self {
            Unit::BytesPerSecond => Rate { bytes: value as u64, ns: 1_000_000_000 }.to_string(),
            Unit::Bytes => Bytes(value as u64).to_string(),
            Unit::Seconds => Time((value * 1e9) as u64).to_string(),
            Unit::Percent => format!("{value:.1} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_rounded_to_zero_has_no_minus() {
        for (unit, less, expected) in [(Unit::Percent, 0.04, "points"), (Unit::Bytes, 0.0004, "%")] {
            let change = Change { what: "", unit, before: None, after: None, beyond_noise: None };
            assert_eq!(change.difference(1.0, 1.0 - less), format!("+0.0 {expected}"));
            assert!(change.difference(1.0, 0.5).starts_with('-'));
        }
    }

    #[test]
    fn json_begins_with_its_version() {
        let trace = Trace { files: Vec::new(), summary: Default::default() };
        let report = TraceReport::of(&trace, 1).json().expect("JSON");
        assert!(report.starts_with("{\n  \"format_version\": 1,\n  \"files\": []"), "{report}");
        let comparison = Comparison::of(&trace, &trace, 1).json().expect("JSON");
        assert!(comparison.starts_with("{\n  \"format_version\": 1,\n  \"sentence\": "), "{comparison}");
        // The reports inside have no version of their own.
        assert_eq!(comparison.matches("format_version").count(), 1, "{comparison}");
    }
}
