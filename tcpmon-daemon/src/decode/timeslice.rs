//! Converts the programs' record of a timeslice to the record of a trace.

use std::net::SocketAddr;

use tcpmon_common::{
    reader::{END_BLOCKED, END_EXITED, END_PREEMPTED},
    socket::TICK_NS,
    timeslice::{QueueSample, TIMESLICE_CLOSED, TIMESLICE_HANDED_OVER, TIMESLICE_PARTIAL, Timeslice},
};
use tcpmon_trace::{AddressFamily, Comm, Limited, Queue, TimesliceEnd, TimesliceRecord, Waited};

use super::AF_INET6;

/// Converts a timeslice. Total: any bytes give a record.
pub fn trace_record(record: &Timeslice) -> TimesliceRecord {
    let closed = record.flags & TIMESLICE_CLOSED != 0;
    // The queue samples were taken while the socket existed. The three fields below are read at the deactivation, when
    // the memory may already belong to another socket.
    let live = |value| if closed { 0 } else { value };
    // A connection that carries IPv4 is shown as IPv4, even in an IPv6 socket.
    let address = |bytes| super::address(record.family, bytes).to_canonical();
    TimesliceRecord {
        activated_ns: record.activated_ns,
        deactivated_ns: record.header.time_ns,
        cpu: record.header.cpu,
        tid: record.tid,
        tgid: record.tgid,
        comm: Comm::from_kernel(&record.comm),
        cookie: record.header.cookie,
        family: if record.family == AF_INET6 { AddressFamily::V6 } else { AddressFamily::V4 },
        local: SocketAddr::new(address(record.local_address), record.local_port),
        remote: SocketAddr::new(address(record.remote_address), record.remote_port),
        netns: record.netns,
        end: match u32::from(record.end) {
            END_PREEMPTED => TimesliceEnd::Preempted,
            END_BLOCKED => TimesliceEnd::Blocked,
            END_EXITED => TimesliceEnd::Exited,
            _ => TimesliceEnd::Unknown,
        },
        partial: record.flags & TIMESLICE_PARTIAL != 0,
        handed_over: record.flags & TIMESLICE_HANDED_OVER != 0,
        closed,
        sleep_ns: record.sleep_ns,
        wait_ns: record.run_queue_wait_ns,
        on_cpu_ns: record.on_cpu_ns,
        arrived_off_cpu_bytes: record.arrived_off_cpu_bytes,
        arrived_on_cpu_bytes: record.arrived_on_cpu_bytes,
        read_bytes: record.read_bytes,
        activation: queue(&record.activation, record.fin & 1 != 0),
        deactivation: queue(&record.deactivation, record.fin & 2 != 0),
        rcv_rtt_us: live(record.rcv_rtt_us),
        rcv_ssthresh_bytes: live(record.rcv_ssthresh),
        window_clamp_bytes: live(record.window_clamp),
        limited: Limited {
            upstream_ns: record.causes.upstream_ns,
            application_ns: record.causes.application_ns,
            scheduler_ns: record.causes.scheduler_ns,
            window_ns: record.causes.window_ns,
            memory_ns: record.causes.memory_ns,
        },
        waited: Waited {
            application_byte_us: byte_us(record.causes.application_byte_ticks),
            scheduler_byte_us: byte_us(record.causes.scheduler_byte_ticks),
        },
        preempted_by_tid: record.next_tid,
        preempted_by: Comm::from_kernel(&record.next_comm),
    }
}

pub(super) fn byte_us(ticks: u64) -> u64 {
    (u128::from(ticks) * u128::from(TICK_NS) / 1000).try_into().unwrap_or(u64::MAX)
}

fn queue(queue: &QueueSample, fin: bool) -> Queue {
    // The FIN takes one sequence number but is not data; it is the last to be queued and the last to be read.
    let queued = queue.rcv_nxt.wrapping_sub(queue.copied_seq) as i32;
    let queued = queued - i32::from(fin && queued > 0);
    Queue {
        queued_bytes: queued.max(0) as u32,
        rmem_bytes: queue.rmem,
        rcvbuf_bytes: queue.rcvbuf,
        backlog_bytes: queue.backlog,
        window_bytes: queue.window,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;
    use tcpmon_common::{
        causes::Causes,
        header::{Header, KIND_TIMESLICE, VERSION},
    };
    use tcpmon_trace::sample;

    use super::*;

    fn first_four(address: [u8; 4]) -> [u8; 16] {
        let mut padded = [0; 16];
        padded[..4].copy_from_slice(&address);
        padded
    }

    /// A kernel record in which no two fields are equal.
    fn timeslice() -> Timeslice {
        Timeslice {
            header: Header { kind: KIND_TIMESLICE, version: VERSION, cpu: 3, time_ns: 5_001_500_250_000, cookie: 0x1f },
            activated_ns: 5_001_500_000_000,
            on_cpu_ns: 240_000,
            run_queue_wait_ns: 12_000,
            sleep_ns: 3_400_000,
            activation: QueueSample {
                rcv_nxt: 1_000_000 + 1_258_292,
                copied_seq: 1_000_000,
                rmem: 2_000_000,
                rcvbuf: 6_291_456,
                backlog: 4_352,
                window: 1_887_436,
            },
            deactivation: QueueSample {
                rcv_nxt: 2_300_001,
                copied_seq: 2_288_000,
                rmem: 20_000,
                rcvbuf: 6_291_457,
                backlog: 0,
                window: 3_145_728,
            },
            arrived_off_cpu_bytes: 1_200_000,
            arrived_on_cpu_bytes: 41_708,
            read_bytes: 1_288_000,
            causes: Causes {
                upstream_ns: 2_100_000,
                application_ns: 900_000,
                scheduler_ns: 11_000,
                window_ns: 600_000,
                memory_ns: 30_000,
                application_byte_ticks: 1_000_000,
                scheduler_byte_ticks: 500_000,
            },
            rcv_rtt_us: 1_850,
            rcv_ssthresh: 3_000_000,
            window_clamp: 4_000_000,
            tid: 4322,
            tgid: 4321,
            comm: *b"iperf3\0\0\0\0\0\0\0\0\0\0",
            netns: 4_026_531_840,
            end: 1,
            flags: TIMESLICE_PARTIAL,
            family: 2,
            local_port: 5201,
            remote_port: 40000,
            fin: 2,
            local_address: first_four([192, 0, 2, 1]),
            remote_address: first_four([192, 0, 2, 2]),
            next_tid: 77,
            next_comm: *b"hog\0\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }

    #[test]
    fn queued_bytes_leave_out_the_fin_and_survive_a_wrapped_sequence_number() {
        let queue =
            |rcv_nxt, copied_seq| QueueSample { rcv_nxt, copied_seq, rmem: 0, rcvbuf: 0, backlog: 0, window: 0 };
        let queued = |rcv_nxt, copied_seq, fin| super::queue(&queue(rcv_nxt, copied_seq), fin).queued_bytes;
        assert_eq!(queued(1000, 400, false), 600);
        assert_eq!(queued(1001, 400, true), 600);
        assert_eq!(queued(401, 400, true), 0);
        assert_eq!(queued(400, 400, true), 0);
        assert_eq!(queued(50, u32::MAX - 49, false), 100);
        assert_eq!(queued(400, 500, false), 0);
        assert_eq!(queued(0x8000_0000, 0, true), 0);
    }

    #[test]
    fn an_ipv4_mapped_socket_shows_ipv4_addresses_and_family_6() {
        let mut record = timeslice();
        record.family = 10;
        record.local_address = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets();
        record.remote_address = "2001:db8::2".parse::<Ipv6Addr>().expect("a valid sample").octets();
        let shown = trace_record(&record);
        assert_eq!(shown.family, AddressFamily::V6);
        assert_eq!(shown.local, "192.0.2.1:5201".parse().expect("a valid sample"));
        assert_eq!(shown.remote, "[2001:db8::2]:40000".parse().expect("a valid sample"));
    }

    #[test]
    fn every_field_of_the_kernels_record_reaches_the_user() {
        let record = timeslice();
        let shown = trace_record(&record);
        assert_eq!(shown, sample::record());
    }

    #[test]
    fn a_closed_socket_has_no_values_from_memory_that_is_no_longer_its_own() {
        let mut record = timeslice();
        record.flags = TIMESLICE_CLOSED;
        let shown = trace_record(&record);
        assert!(shown.closed);
        assert_eq!((shown.rcv_rtt_us, shown.rcv_ssthresh_bytes, shown.window_clamp_bytes), (0, 0, 0));
        assert_eq!(shown.deactivation, sample::record().deactivation);
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_record(bytes in any::<[u8; 288]>()) {
            let shown = trace_record(&zerocopy::transmute!(bytes));
            prop_assert_eq!(Comm::try_from(shown.comm.as_str()), Ok(shown.comm));
            prop_assert!(shown.activation.queued_bytes <= i32::MAX as u32);
        }
    }
}
