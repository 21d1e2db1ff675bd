//! Writes a trace as a table.

use std::{
    fmt::{self, Display},
    io::{self, Write},
    mem,
};

use super::{
    columns::{Lines, SocketColumn, Thread},
    summary,
};
use crate::{
    header::{Clocks, Filter, TraceHeader},
    output::TraceWriter,
    record::{TimesliceEnd, TimesliceRecord},
    scale::{Bytes, Percent, Seconds, Time},
    summary::Summary,
    total::Total,
    trailer::{Ending, Trailer},
};

/// The headings are repeated after this many lines.
const PAGE: u64 = 40;

/// Records collected before they are written to the output.
const BATCH: usize = 512;

/// Widths of the columns whose content is cut to fit.
const THREAD: usize = 15;
const SOCKET: usize = 20;

const LEGEND: [&str; 5] = [
    "time     seconds since the start, when the thread lost the CPU; sleep, wait: before it got it",
    "socket   local port<remote address; several that one timeslice read: their sums, then each",
    "queue    bytes unread when it got the CPU->when it lost it; fill: rmem/rcvbuf at the latter",
    "arrived  bytes while it was off/on the CPU; read: bytes it drained",
    "end      B blocked, P preempted, X exited; p activation not seen, h handed over, c closed",
];

/// A timeslice: when it ended, and its thread.
type Slice = (u64, u32);

fn slice_of(record: &TimesliceRecord) -> Slice {
    (record.deactivated_ns, record.tid)
}

/// Writes a trace as a table, each line at most [`TABLE_WIDTH`](super::TABLE_WIDTH) columns wide and in ASCII.
#[derive(Debug)]
pub struct TableWriter<W: Write> {
    output: W,
    lines: Lines,
    start: Clocks,
    summary: Summary,
    records: u64,
    /// Lines under the last headings.
    rows: u64,
    /// Records that are still in memory.
    batch: Vec<TimesliceRecord>,
    /// Timeslices of the previous batch: records of them that come late are shown without times.
    shown: Vec<Slice>,
    /// Records that the output did not accept.
    refused: u64,
}

impl<W: Write> TableWriter<W> {
    /// Starts a table: writes the header's contents and an explanation of the columns.
    pub fn new(output: W, header: &TraceHeader) -> io::Result<Self> {
        let mut writer = Self {
            output,
            lines: Lines::default(),
            start: header.start,
            summary: Summary::new(header),
            records: 0,
            rows: PAGE,
            batch: Vec::with_capacity(BATCH),
            shown: Vec::new(),
            refused: 0,
        };
        writer.preamble(header);
        writer.flush()?;
        Ok(writer)
    }

    /// Records written so far, including those still in memory.
    pub fn records(&self) -> u64 {
        self.records
    }

    fn preamble(&mut self, header: &TraceHeader) {
        let TraceHeader { tcpmon_version, kernel_release, hostname, boot_id: _, cpus: _, start, filter, trigger } =
            header;
        let started = start.utc();
        self.lines.wrapped(&format!(
            "tcpmon {tcpmon_version} traces {} on {hostname} (Linux {kernel_release}) from {started}",
            subject(filter)
        ));
        if !trigger.is_empty() {
            self.lines.wrapped(&format!("written by a flight recorder because of {trigger}"));
        }
        if !filter.summary_only {
            for line in LEGEND {
                self.lines.left(super::TABLE_WIDTH, line);
                self.lines.end();
            }
        }
    }

    fn headings(&mut self) {
        self.lines.end();
        self.lines.right(9, "time");
        self.lines.left(THREAD, "thread");
        self.lines.left(SOCKET, "socket");
        self.lines.right(10, "queue");
        self.lines.right(4, "fill");
        self.lines.right(9, "arrived");
        self.lines.right(4, "read");
        self.lines.right(5, "onCPU");
        self.lines.right(5, "wait");
        self.lines.right(5, "sleep");
        self.lines.left(4, "end");
        self.lines.end();
    }

    /// The records of one timeslice: a row, or a row for it and one for each of its sockets.
    fn slice(&mut self, records: &[TimesliceRecord]) {
        let [first, others @ ..] = records else { return };
        if self.rows >= PAGE {
            self.headings();
            self.rows = 0;
        }
        self.rows += 1;
        let is_late = self.shown.contains(&slice_of(first));
        let lines = &mut self.lines;
        lines.right(9, Seconds(first.deactivated_ns.saturating_sub(self.start.monotonic_ns)));
        lines.left(THREAD, Thread { comm: &first.comm, tid: first.tid, width: THREAD });
        if others.is_empty() {
            socket(lines, first);
        } else {
            let more = if is_late { "more " } else { "" };
            lines.left(SOCKET, format_args!("{} {more}sockets", records.len()));
            bytes(lines, records);
        }
        let times = [first.on_cpu_ns, first.wait_ns, first.sleep_ns];
        times.into_iter().for_each(|ns| if is_late { lines.right(5, "") } else { lines.right(5, Time(ns)) });
        lines.left(4, format_args!("{}{}", letter(first), if others.is_empty() { marks(first) } else { Marks::NONE }));
        lines.end();
        if others.is_empty() {
            return;
        }
        for record in records {
            self.rows += 1;
            lines.right(9 + 1 + THREAD, "");
            socket(lines, record);
            lines.right(3 * 5 + 2, "");
            lines.left(4, marks(record));
            lines.end();
        }
    }

    /// Formats the batch as lines and writes them to the output.
    fn hand_over(&mut self) -> io::Result<()> {
        let mut batch = mem::take(&mut self.batch);
        batch.sort_by_key(slice_of);
        let same = |a: &TimesliceRecord, b: &TimesliceRecord| slice_of(a) == slice_of(b);
        batch.chunk_by(same).for_each(|records| self.slice(records));
        let result = self.output.write_all(self.lines.as_bytes());
        let count = batch.len() as u64;
        if result.is_err() {
            // It is not known how many of them were written, and writing them again could show them twice.
            self.records -= count;
            self.refused += count;
        }
        self.lines.clear();
        if count > 0 {
            self.shown = batch.iter().map(slice_of).collect();
            self.shown.dedup();
        }
        batch.clear();
        self.batch = batch;
        result
    }

    fn conclusion(&mut self, trailer: &Trailer) {
        self.lines.end();
        let nothing = if self.summary.totals_only { self.summary.by_bytes().is_empty() } else { trailer.records == 0 };
        if nothing {
            self.lines.wrapped("no timeslices: no traced thread read a TCP socket or had unread data in one");
        } else {
            summary::write(&self.summary, &mut self.lines, trailer);
            summary::write_threads(&self.summary, &mut self.lines);
        }
        self.lines.end();
        let ns = trailer.end.monotonic_ns.saturating_sub(self.start.monotonic_ns);
        let records = if self.summary.totals_only { "totals".into() } else { format!("{} records", trailer.records) };
        self.lines.wrapped(&format!(
            "{records} in {}, ended by {}; lost: {}",
            Time(ns),
            trailer.reason.name(),
            match trailer.lost_in_words() {
                Some(lost) if self.summary.threads.is_empty() => lost + " (from unknown sockets)",
                Some(lost) => {
                    let share = (self.summary.recorded_share() * 1000.0).floor() / 10.0;
                    format!(
                        "{lost}: the recorded timeslices have {share}% of the bytes. Bytes and threads above are \
                         exact, > marks a lower bound, and all other values are of the recorded timeslices"
                    )
                }
                None => "nothing".into(),
            }
        ));
    }
}

impl<W: Write> TraceWriter for TableWriter<W> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        self.records += 1;
        self.summary.add(record);
        self.batch.push(*record);
        if self.batch.len() >= BATCH { self.hand_over() } else { Ok(()) }
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.summary.add_total(total);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hand_over()?;
        self.output.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let written = self.hand_over();
        let trailer = Trailer::new(ending, self.records, self.refused);
        written?;
        self.conclusion(&trailer);
        self.flush()?;
        Ok(trailer)
    }
}

/// What is traced, as text.
fn subject(filter: &Filter) -> String {
    let mut parts = Vec::new();
    let mut part = |name: &str, values: Vec<String>| {
        if !values.is_empty() {
            parts.push(format!("{name} {}", values.join(", ")));
        }
    };
    part("command", filter.command.iter().take(1).cloned().collect());
    part("pid", filter.pids.iter().map(u32::to_string).collect());
    part("comm", filter.comms.clone());
    part("port", filter.ports.iter().map(u16::to_string).collect());
    part("cgroup", filter.cgroups.clone());
    if parts.is_empty() { "every reader".into() } else { parts.join("; ") }
}

/// The columns of one socket of a timeslice.
fn socket(lines: &mut Lines, record: &TimesliceRecord) {
    lines.left(SOCKET, SocketColumn { local_port: record.local.port(), remote: record.remote, width: SOCKET });
    bytes(lines, std::slice::from_ref(record));
}

/// The columns with bytes: sums over the sockets of a timeslice. A common fill of several buffers would say nothing.
fn bytes(lines: &mut Lines, records: &[TimesliceRecord]) {
    let sum = |of: fn(&TimesliceRecord) -> u64| {
        Bytes(records.iter().fold(0, |sum: u64, record| sum.saturating_add(of(record))))
    };
    let before = sum(|record| record.activation.queued_bytes.into());
    let after = sum(|record| record.deactivation.queued_bytes.into());
    lines.right(10, format_args!("{before}->{after}"));
    match records {
        [record] => lines.right(4, Percent(record.deactivation.fill_permille())),
        _ => lines.right(4, ""),
    }
    let (off, on) = (sum(|record| record.arrived_off_cpu_bytes), sum(|record| record.arrived_on_cpu_bytes));
    lines.right(9, format_args!("{off}/{on}"));
    lines.right(4, sum(|record| record.read_bytes));
}

/// Why the timeslice ended, as a letter.
fn letter(record: &TimesliceRecord) -> &'static str {
    match record.end {
        TimesliceEnd::Preempted => "P",
        TimesliceEnd::Blocked => "B",
        TimesliceEnd::Exited => "X",
        TimesliceEnd::Unknown => "?",
    }
}

/// A record's marks, as a letter each.
fn marks(record: &TimesliceRecord) -> Marks {
    let mark = |set: bool, letter| if set { letter } else { "" };
    Marks([mark(record.partial, "p"), mark(record.handed_over, "h"), mark(record.closed, "c")])
}

struct Marks([&'static str; 3]);

impl Marks {
    const NONE: Self = Self([""; 3]);
}

impl Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|mark| f.write_str(mark))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        TABLE_WIDTH,
        record::{Comm, Queue},
        sample,
        total::SocketTotal,
    };

    fn table(header: &TraceHeader, records: &[TimesliceRecord], ending: &Ending) -> String {
        let mut bytes = Vec::new();
        let mut writer = TableWriter::new(&mut bytes, header).expect("memory takes all");
        for record in records {
            writer.record(record).expect("memory takes all");
        }
        writer.finish(ending).expect("memory takes all");
        String::from_utf8(bytes).expect("the table is ASCII")
    }

    fn assert_fits(table: &str) {
        for line in table.lines() {
            assert!(line.is_ascii(), "{line:?}");
            assert!(line.len() <= TABLE_WIDTH, "{} columns: {line}", line.len());
        }
    }

    /// Two timeslices of one socket and one of another.
    fn sample_slices() -> [TimesliceRecord; 3] {
        let first = sample::record();
        let second = TimesliceRecord {
            activated_ns: first.activated_ns + 100_000_000,
            deactivated_ns: first.deactivated_ns + 104_000_000,
            end: TimesliceEnd::Preempted,
            partial: false,
            sleep_ns: 0,
            wait_ns: 95_000_000,
            on_cpu_ns: 4_250_000,
            activation: Queue { queued_bytes: 5_000_000, ..first.activation },
            deactivation: Queue { queued_bytes: 4_000_000, rmem_bytes: 6_000_000, ..first.deactivation },
            ..first
        };
        let other = TimesliceRecord {
            deactivated_ns: first.deactivated_ns + 104_001_000,
            comm: Comm::try_from("0123456789abcdef").expect("a name"),
            cookie: 0x20,
            remote: "[2001:db8:1:2:3:4:5:6]:40000".parse().expect("an address"),
            end: TimesliceEnd::Exited,
            closed: true,
            ..second
        };
        [first, second, other]
    }

    #[test]
    fn the_table_is_as_a_person_reads_it() {
        let shown = table(&sample::header(), &sample_slices(), &sample::ending());
        let expected = "\
tcpmon 0.1.0 traces pid 4321; port 5201 on dtn1 (Linux 6.18.44) from 2026-07-30T12:00:00.123456789Z
time     seconds since the start, when the thread lost the CPU; sleep, wait: before it got it
socket   local port<remote address; several that one timeslice read: their sums, then each
queue    bytes unread when it got the CPU->when it lost it; fill: rmem/rcvbuf at the latter
arrived  bytes while it was off/on the CPU; read: bytes it drained
end      B blocked, P preempted, X exited; p activation not seen, h handed over, c closed

     time thread          socket                    queue fill   arrived read onCPU  wait sleep end
 1.500250 iperf3/4322     5201<192.0.2.2:40000  1.2M->12K   0%  1.1M/41K 1.2M 240us  12us 3.4ms Bp
 1.604250 iperf3/4322     5201<192.0.2.2:40000 4.8M->3.8M  95%  1.1M/41K 1.2M 4.2ms  95ms     0 P
 1.604251 012345678~/4322 5201<[~:4:5:6]:40000 4.8M->3.8M  95%  1.1M/41K 1.2M 4.2ms  95ms     0 Xc

socket                      read throughput fill p50/p99 wait total/p99 limited by       slices lost
5201<192.0.2.2:40000        2.5M  198Mbit/s   0.3%/95.4%      95ms/95ms upstream 58%          2    0
5201<[~:1:2:3:4:5:6]:40000  1.2M 2.42Gbit/s  95.4%/95.4%      95ms/95ms upstream 58%          1    0

3 records in 30s, ended by duration; lost: nothing
";
        assert_eq!(shown, expected);
        assert_fits(&shown);
    }

    #[test]
    fn a_timeslice_is_a_row_with_its_sockets_below() {
        let [first, second, other] = sample_slices();
        let both = [other, second].map(|record| TimesliceRecord {
            comm: first.comm,
            deactivated_ns: second.deactivated_ns,
            end: TimesliceEnd::Preempted,
            ..record
        });
        // Records of another CPU come in between.
        let shown = table(&sample::header(), &[both[0], first, both[1]], &sample::ending());
        let expected = "
 1.500250 iperf3/4322     5201<192.0.2.2:40000  1.2M->12K   0%  1.1M/41K 1.2M 240us  12us 3.4ms Bp
 1.604250 iperf3/4322     2 sockets            9.5M->7.6M       2.3M/81K 2.5M 4.2ms  95ms     0 P
                          5201<[~:4:5:6]:40000 4.8M->3.8M  95%  1.1M/41K 1.2M                   c
                          5201<192.0.2.2:40000 4.8M->3.8M  95%  1.1M/41K 1.2M
";
        assert!(shown.contains(expected), "{shown}");
        assert_fits(&shown);
    }

    #[test]
    fn a_record_that_comes_late_does_not_repeat_the_times_of_its_timeslice() {
        let [first, ..] = sample_slices();
        let mut bytes = Vec::new();
        let mut writer = TableWriter::new(&mut bytes, &sample::header()).expect("memory takes all");
        for _ in 0..2 {
            writer.record(&first).expect("memory takes all");
            writer.flush().expect("memory takes all");
        }
        writer.finish(&sample::ending()).expect("memory takes all");
        let shown = String::from_utf8(bytes).expect("the table is ASCII");
        let rows: Vec<_> = shown.lines().filter(|line| line.starts_with(" 1.500250 ")).collect();
        assert_eq!(rows.len(), 2, "{shown}");
        assert!(rows[0].ends_with(" 1.2M 240us  12us 3.4ms Bp") && rows[1].ends_with(" 1.2M                   Bp"));
    }

    #[test]
    fn a_trace_without_records_says_so() {
        let shown = table(&sample::header(), &[], &sample::ending());
        assert!(shown.contains("\nno timeslices: no traced thread read a TCP socket or had unread data in one\n"));
        assert!(shown.ends_with("\n0 records in 30s, ended by duration; lost: nothing\n"), "{shown}");
    }

    #[test]
    fn lost_records_are_reported_and_mark_the_sockets_as_doubtful() {
        let mut ending = sample::ending();
        ending.lost.insert("timeslice_record".into(), 12);
        let shown = table(&sample::header(), &sample_slices(), &ending);
        assert!(shown.ends_with("; lost: timeslice_record 12 (from unknown sockets)\n"), "{shown}");
        let socket = shown.lines().find(|line| line.contains("Mbit/s")).expect("a socket's line");
        assert!(socket.ends_with(" ?"), "{socket}");
    }

    #[test]
    fn totals_tell_how_much_of_each_sockets_data_was_lost() {
        let mut ending = sample::ending();
        ending.lost.insert("timeslice_record".into(), 12);
        let mut bytes = Vec::new();
        let mut writer = TableWriter::new(&mut bytes, &sample::header()).expect("memory takes all");
        writer.record(&sample::record()).expect("memory takes all");
        writer.total(&Total::Socket(sample::socket_total())).expect("memory takes all");
        writer.total(&Total::Thread(sample::thread_total())).expect("memory takes all");
        writer.finish(&ending).expect("memory takes all");
        let shown = String::from_utf8(bytes).expect("the table is ASCII");
        assert_fits(&shown);
        let conclusion = &shown[shown.rfind("\nsocket ").expect("a summary")..];
        let expected = "
socket                      read throughput fill p50/p99 wait total/p99 limited by       slices lost
5201<192.0.2.2:40000        2.3M 76.8Gbit/s    0.3%/0.3%     >12us/12us upstream 58%         >1  47%

thread, from its first read read     on CPU         wait           time        preempted  blocked
iperf3/4322                 2.2M       9.0s        800ms            30s              123      46k

1 records in 30s, ended by duration; lost: timeslice_record 12: the recorded timeslices have 53.6%
    of the bytes. Bytes and threads above are exact, > marks a lower bound, and all other values are
    of the recorded timeslices
";
        assert_eq!(conclusion, expected);
    }

    #[test]
    fn a_trace_of_totals_shows_no_timeslices_and_the_busiest_sockets() {
        let mut header = sample::header();
        header.filter.summary_only = true;
        let mut bytes = Vec::new();
        let mut writer = TableWriter::new(&mut bytes, &header).expect("memory takes all");
        for cookie in 0..300 {
            let total = sample::socket_total();
            let total =
                SocketTotal { cookie, read_bytes: total.read_bytes - cookie, timeslices_read_bytes: 0, ..total };
            writer.total(&Total::Socket(total)).expect("memory takes all");
        }
        writer.total(&Total::Thread(sample::thread_total())).expect("memory takes all");
        writer.finish(&sample::ending()).expect("memory takes all");
        let shown = String::from_utf8(bytes).expect("the table is ASCII");
        assert_fits(&shown);
        let expected = "
5201<192.0.2.2:40000        2.3M 5.26Gbit/s            -              - memory 21%            0    0
200 other sockets           458M                                                              0

thread, from its first read read     on CPU         wait           time        preempted  blocked
iperf3/4322                 2.2M       9.0s        800ms            30s              123      46k

totals in 30s, ended by duration; lost: nothing
";
        assert!(shown.ends_with(expected), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.starts_with("5201<")).count(), 100);
    }

    #[test]
    fn headings_are_repeated_on_a_long_listing() {
        let records: Vec<_> = (0..100).map(|at| TimesliceRecord { deactivated_ns: at, ..sample::record() }).collect();
        let shown = table(&sample::header(), &records, &sample::ending());
        assert_eq!(shown.lines().filter(|line| line.starts_with("     time thread")).count(), 3);
    }

    #[test]
    fn records_that_the_output_refuses_count_as_lost() {
        let mut memory = Vec::new();
        TableWriter::new(&mut memory, &sample::header()).expect("memory takes all");
        let room = memory.as_mut_slice();
        let mut writer = TableWriter::new(room, &sample::header()).expect("the header fits");
        writer.record(&sample::record()).expect("it stays in memory");
        assert!(writer.flush().is_err());
        assert_eq!((writer.records(), writer.refused), (0, 1));
    }

    #[test]
    fn no_line_is_too_wide_when_everything_is_as_long_as_it_can_be() {
        let header = TraceHeader {
            tcpmon_version: "1".repeat(200),
            kernel_release: "6".repeat(64),
            hostname: "\u{fc}".repeat(64),
            filter: Filter {
                pids: vec![u32::MAX; 100],
                comms: vec!["\x1b[2J0123456789ab".into(); 100],
                ports: vec![u16::MAX; 100],
                cgroups: vec!["/system.record/a name with spaces".repeat(8); 8],
                all: true,
                command: vec!["/usr/bin/a\u{fc}".repeat(30); 8],
                follow: true,
                summary_only: false,
            },
            ..sample::header()
        };
        let mut ending = sample::ending();
        ending.lost.values_mut().for_each(|count| *count = u64::MAX);
        assert_fits(&table(&header, &[sample::longest(); 3], &ending));
    }

    proptest! {
        #[test]
        fn no_record_makes_a_line_too_wide(
            records in proptest::collection::vec(any::<[u64; sample::NUMBERS]>(), 0..8), start in any::<u64>(),
        ) {
            let records: Vec<_> =
                records.iter().map(sample::record_of).collect();
            let mut header = sample::header();
            header.start.monotonic_ns = start;
            assert_fits(&table(&header, &records, &sample::ending()));
        }

        #[test]
        fn no_name_makes_a_line_too_wide(
            hostname in ".*", comms in proptest::collection::vec(".*", 0..20), comm in ".{0,5}",
        ) {
            let mut header = sample::header();
            header.hostname = hostname;
            header.filter.comms = comms;
            let mut record = sample::record();
            if let Ok(comm) = Comm::try_from(comm.as_str()) {
                record.comm = comm;
            }
            assert_fits(&table(&header, &[record], &sample::ending()));
        }
    }
}
