//! Writes a trace as JSON Lines.

use std::io;

use super::line::{HeaderLine, TrailerLine};
use crate::{
    batch::BatchedOutput,
    fields::{SocketLine, ThreadLine, TimesliceLine},
    header::TraceHeader,
    output::{Output, TraceWriter},
    record::TimesliceRecord,
    total::Total,
    trailer::{Ending, Trailer},
};

/// Writes a trace as JSON Lines, in batches of whole lines.
#[derive(Debug)]
pub struct JsonLinesWriter<O: Output> {
    output: BatchedOutput<O>,
}

impl<O: Output> JsonLinesWriter<O> {
    /// Starts a trace: writes its header to the output at once.
    pub fn new(output: O, header: &TraceHeader) -> io::Result<Self> {
        Ok(Self { output: BatchedOutput::new(output, &header_line(header)?)? })
    }

    /// Records written so far, including those still in memory.
    pub fn records(&self) -> u64 {
        self.output.records()
    }
}

impl<O: Output> TraceWriter for JsonLinesWriter<O> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        self.output.record(|buffer| append(buffer, &TimesliceLine::from(record)))
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.output.total(|buffer| append_total(buffer, total))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        self.output.finish(ending, trailer_line)
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.output.failure()
    }

    fn finish_cut(&mut self) -> io::Result<()> {
        self.output.finish_cut()
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

/// Appends the line of these totals.
pub(crate) fn append_total(buffer: &mut Vec<u8>, total: &Total) -> io::Result<()> {
    match total {
        Total::Socket(total) => append(buffer, &SocketLine::from(total)),
        Total::Thread(total) => append(buffer, &ThreadLine::from(total)),
    }
}

/// The trailer's line.
pub(crate) fn trailer_line(trailer: &Trailer) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    append(&mut line, &TrailerLine::from(trailer))?;
    Ok(line)
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
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    proptest! {
        #[test]
        fn a_written_trace_is_read_back(
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
