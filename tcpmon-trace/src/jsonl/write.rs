//! Writes a trace as JSON Lines.

use std::io::{self, ErrorKind};

use super::{
    RECORD,
    line::{HeaderLine, TrailerLine},
};
use crate::{
    fields::{SocketLine, ThreadLine, TimesliceLine},
    header::TraceHeader,
    output::{Output, TraceWriter},
    record::TimesliceRecord,
    total::Total,
    trailer::{EndReason, Ending, LOST_TOTAL, Trailer},
};

/// Bytes collected before they are written to the output.
const BATCH: usize = 64 * 1024;

/// How many line ends before the buffer are remembered: a trailer is shorter than this many lines.
const REMEMBERED: usize = 8;

/// Writes a trace as JSON Lines, in batches of whole lines. When the output accepts no more, [`finish`](Self::finish)
/// cuts it back to the end of a line, so that there is room for the trailer, and counts the records that this costs.
#[derive(Debug)]
pub struct JsonLinesWriter<O: Output> {
    output: O,
    /// Whole lines.
    buffer: Vec<u8>,
    /// Bytes of the buffer that the output has accepted.
    taken: usize,
    /// Bytes that the output had accepted before the buffer.
    before: u64,
    /// Where the last lines before the buffer end, in order, and whether they are records; the end of the header's line
    /// comes first.
    ends: Vec<LineEnd>,
    /// Records in the output and the buffer.
    records: u64,
    /// Records that were not accepted into the buffer.
    refused: u64,
    /// The same for totals.
    refused_totals: u64,
    /// See [`TraceWriter::failure`].
    failure: Option<io::Error>,
}

impl<O: Output> JsonLinesWriter<O> {
    /// Starts a trace: writes its header to the output at once.
    pub fn new(output: O, header: &TraceHeader) -> io::Result<Self> {
        let mut writer = Self {
            output,
            buffer: Vec::with_capacity(2 * BATCH),
            taken: 0,
            before: 0,
            ends: Vec::with_capacity(2 * REMEMBERED),
            records: 0,
            refused: 0,
            refused_totals: 0,
            failure: None,
        };
        writer.buffer.extend(header_line(header)?);
        writer.flush()?;
        Ok(writer)
    }

    /// Records written so far, including those still in memory.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Writes the buffer to the output. After an error, the next call continues where the output stopped.
    fn drain(&mut self) -> io::Result<()> {
        while self.taken < self.buffer.len() {
            match self.output.write(&self.buffer[self.taken..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.taken += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let known = self.ends.len();
        let ends = line_ends(&self.buffer).take(REMEMBERED);
        self.ends.extend(ends.map(|end| LineEnd { at: self.before + end.at, ..end }));
        self.ends[known..].reverse();
        self.ends.drain(..self.ends.len().saturating_sub(REMEMBERED));
        self.before += self.buffer.len() as u64;
        self.buffer.clear();
        self.taken = 0;
        Ok(())
    }

    /// Cuts the output back to the end of a line, far enough for the trailer to fit into the space of the removed
    /// bytes, and writes the trailer there. `error` is the reason for this.
    fn finish_full(&mut self, ending: &Ending, error: io::Error) -> io::Result<Trailer> {
        let held = self.before + self.taken as u64;
        let mut ending = Ending { reason: EndReason::WriteError, ..ending.clone() };
        let lost_totals = ending.lost.get(LOST_TOTAL).copied().unwrap_or(0);
        ending.lost.insert(LOST_TOTAL.into(), u64::MAX);
        let longest = trailer_line(&Trailer::new(&ending, self.records, u64::MAX))?.len() as u64;
        let (mut dropped, mut dropped_totals) = (0, 0);
        let mut keep = self.ends.first().map_or(0, |end| end.at);
        let buffered = line_ends(&self.buffer).map(|end| LineEnd { at: self.before + end.at, ..end });
        for end in buffered.chain(self.ends.iter().rev().copied()) {
            if end.at + longest <= held {
                keep = end.at;
                break;
            }
            if end.at > keep {
                dropped += u64::from(end.is_record);
                dropped_totals += u64::from(!end.is_record);
            }
        }
        if self.output.cut(keep).is_err() {
            return Err(error);
        }
        self.failure = Some(error);
        match lost_totals + self.refused_totals + dropped_totals {
            0 => ending.lost.remove(LOST_TOTAL),
            lost => ending.lost.insert(LOST_TOTAL.into(), lost),
        };
        let records = self.records - dropped;
        let trailer = Trailer::new(&ending, records, self.refused + dropped);
        let line = trailer_line(&trailer)?;
        // From here on, only the content of the output counts.
        self.buffer.clear();
        self.taken = 0;
        self.output.write_all(&line)?;
        self.output.flush()?;
        Ok(trailer)
    }
}

impl<O: Output> TraceWriter for JsonLinesWriter<O> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        if self.buffer.len() >= BATCH
            && let Err(error) = self.drain()
        {
            self.refused += 1;
            return Err(error);
        }
        append(&mut self.buffer, &TimesliceLine::from(record))?;
        self.records += 1;
        Ok(())
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        if self.buffer.len() >= BATCH
            && let Err(error) = self.drain()
        {
            self.refused_totals += 1;
            return Err(error);
        }
        self.buffer.extend(total_line(total)?);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.output.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        if let Err(error) = self.drain() {
            return self.finish_full(ending, error);
        }
        let trailer = Trailer::new(ending, self.records, self.refused);
        self.buffer = trailer_line(&trailer)?;
        if let Err(error) = self.drain() {
            // A part of the trailer that the output has accepted is neither a line nor a record.
            self.buffer.truncate(self.taken);
            return self.finish_full(ending, error);
        }
        self.output.flush()?;
        Ok(trailer)
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }
}

fn append(buffer: &mut Vec<u8>, line: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *buffer, line)?;
    buffer.push(b'\n');
    Ok(())
}

/// The header's line.
pub(crate) fn header_line(header: &TraceHeader) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    append(&mut line, &HeaderLine::from(header))?;
    Ok(line)
}

/// The line of these totals.
pub(crate) fn total_line(total: &Total) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    match total {
        Total::Socket(total) => append(&mut line, &SocketLine::from(total))?,
        Total::Thread(total) => append(&mut line, &ThreadLine::from(total))?,
    }
    Ok(line)
}

/// The trailer's line.
pub(crate) fn trailer_line(trailer: &Trailer) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    append(&mut line, &TrailerLine::from(trailer))?;
    Ok(line)
}

/// Where a line ends.
#[derive(Clone, Copy, Debug)]
struct LineEnd {
    at: u64,
    is_record: bool,
}

/// Where the lines end, the last line first. A JSON object on one line contains no newline.
fn line_ends(lines: &[u8]) -> impl Iterator<Item = LineEnd> {
    let mut rest = lines.strip_suffix(b"\n");
    std::iter::from_fn(move || {
        let whole = rest?;
        let begin = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        rest = begin.checked_sub(1).map(|newline| &whole[..newline]);
        Some(LineEnd { at: whole.len() as u64 + 1, is_record: whole[begin..].starts_with(RECORD) })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        JsonLinesReader, Stream, TraceReader as _,
        sample::{self, Disk},
        trailer::LOST_WRITE,
    };

    /// Writes a trace of `records` records, with a flush after every `every` records, as far as the output accepts it.
    fn trace(output: impl Output, records: u64, every: u64) -> io::Result<Trailer> {
        let mut writer = JsonLinesWriter::new(output, &sample::header())?;
        for number in 1..=records {
            let _ = writer.record(&sample::record());
            if number.is_multiple_of(every) {
                let _ = writer.flush();
            }
        }
        writer.finish(&sample::ending())
    }

    #[test]
    fn the_lines_are_spelt_as_documented() {
        let mut bytes = Vec::new();
        trace(&mut bytes, 1, 1).expect("memory takes all");
        let text = String::from_utf8(bytes).expect("JSON is UTF-8");
        let expected = concat!(
            r#"{"type":"header","format":"tcpmon-trace","format_version":1,"tcpmon_version":"0.1.0","#,
            r#""kernel_release":"6.18.44","hostname":"dtn1","#,
            r#""boot_id":"0f9a5c1e-2b3d-4e5f-8a7b-6c5d4e3f2a1b","cpus":2,"#,
            r#""start_time":"2026-07-30T12:00:00.123456789Z","start_monotonic_ns":5000000000000,"#,
            r#""start_realtime_ns":1785412800123456789,"filter":{"pids":[4321],"comms":[],"#,
            r#""ports":[5201],"cgroups":[],"all":false,"command":[],"follow":false,"summary_only":false},"#,
            r#""trigger":""}"#,
            "\n",
            r#"{"type":"timeslice","activated_ns":5001500000000,"deactivated_ns":5001500250000,"#,
            r#""cpu":3,"tid":4322,"tgid":4321,"comm":"iperf3","cookie":"1f","family":4,"#,
            r#""local_address":"192.0.2.1","local_port":5201,"remote_address":"192.0.2.2","#,
            r#""remote_port":40000,"netns":4026531840,"end":"blocked","partial":true,"#,
            r#""handed_over":false,"closed":false,"sleep_ns":3400000,"wait_ns":12000,"#,
            r#""on_cpu_ns":240000,"arrived_off_cpu_bytes":1200000,"arrived_on_cpu_bytes":41708,"#,
            r#""read_bytes":1288000,"activation_queued_bytes":1258292,"#,
            r#""activation_rmem_bytes":2000000,"activation_rcvbuf_bytes":6291456,"#,
            r#""activation_backlog_bytes":4352,"activation_window_bytes":1887436,"#,
            r#""deactivation_queued_bytes":12000,"deactivation_rmem_bytes":20000,"#,
            r#""deactivation_rcvbuf_bytes":6291457,"deactivation_backlog_bytes":0,"#,
            r#""deactivation_window_bytes":3145728,"rcv_rtt_us":1850,"#,
            r#""rcv_ssthresh_bytes":3000000,"window_clamp_bytes":4000000,"#,
            r#""limited_upstream_ns":2100000,"limited_application_ns":900000,"#,
            r#""limited_scheduler_ns":11000,"limited_window_ns":600000,"limited_memory_ns":30000,"#,
            r#""waited_application_byte_us":1024000,"waited_scheduler_byte_us":512000,"#,
            r#""preempted_by_tid":77,"preempted_by":"hog"}"#,
            "\n",
            r#"{"type":"trailer","records":1,"lost":{"followed_process":0,"output":0,"#,
            r#""reader_slot":0,"reader_storage":0,"recursion_sched_process_fork":0,"#,
            r#""recursion_sched_switch":0,"recursion_tcp_probe":0,"#,
            r#""recursion_tcp_rcv_space_adjust":0,"#,
            r#""socket_copy":0,"socket_state":0,"socket_table":0,"timeslice_edge":0,"#,
            r#""timeslice_record":0,"timeslice_socket":0,"write":0},"#,
            r#""end_time":"2026-07-30T12:00:30.123456790Z","end_monotonic_ns":5030000000000,"#,
            r#""end_realtime_ns":1785412830123456790,"reason":"duration","complete":true}"#,
            "\n",
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn the_header_is_in_the_output_before_any_record() {
        let mut bytes = Vec::new();
        let writer = JsonLinesWriter::new(&mut bytes, &sample::header()).expect("memory takes all");
        drop(writer);
        assert!(bytes.ends_with(b"\n"));
    }

    #[test]
    fn a_full_disk_still_gets_its_trailer_and_the_loss_is_in_it() {
        const RECORDS: u64 = 90;
        for every in [1, 7, u64::MAX] {
            let mut whole = Disk { bytes: Vec::new(), room: usize::MAX };
            trace(&mut whole, RECORDS, every).expect("there is room");
            let mut header = Vec::new();
            trace(&mut header, 0, 1).expect("memory takes all");

            for room in (header.len() + 100..whole.bytes.len()).step_by(173) {
                let mut disk = Disk { bytes: Vec::new(), room };
                let trailer = trace(&mut disk, RECORDS, every).expect("a trailer fits");
                assert!(disk.bytes.len() <= room);
                assert_eq!(trailer.records + trailer.lost[LOST_WRITE], RECORDS, "with room for {room}");
                assert!(!trailer.complete);
                assert!(room - disk.bytes.len() < 3000, "{} of {room} used", disk.bytes.len());

                let mut reader = JsonLinesReader::new(disk.bytes.as_slice()).expect("a header");
                assert_eq!(reader.by_ref().filter(Result::is_ok).count() as u64, trailer.records);
                assert_eq!(reader.trailer(), Some(&trailer));
            }
        }
    }

    #[test]
    fn an_output_that_cannot_be_cut_reports_its_own_error() {
        let disk = Disk { bytes: Vec::new(), room: 5000 };
        let error = trace(Stream(disk), 100, 10).expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            records in proptest::collection::vec(any::<[u64; sample::NUMBERS]>(), 0..5),
            hostname in ".*", comms in proptest::collection::vec(".*", 0..3),
        ) {
            let records: Vec<_> =
                records.iter().map(sample::record_of).collect();
            let mut header = sample::header();
            header.hostname = hostname;
            header.filter.comms = comms;
            let mut bytes = Vec::new();
            let mut writer = JsonLinesWriter::new(&mut bytes, &header)?;
            for record in &records {
                writer.record(record)?;
            }
            let trailer = writer.finish(&sample::ending())?;

            let mut reader = JsonLinesReader::new(bytes.as_slice())?;
            prop_assert_eq!(reader.header(), &header);
            let read = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
            prop_assert_eq!(read, records);
            prop_assert_eq!(reader.trailer(), Some(&trailer));
        }
    }
}
