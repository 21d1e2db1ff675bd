//! Converts what the programs have counted for a socket or a thread to the totals of a trace.

use std::net::SocketAddr;

use tcpmon_common::{
    counters::{Cells as _, Counted as _},
    reader::{END_BLOCKED, END_PREEMPTED, READER_EXITED, ReaderSlot},
    socket::{SocketCounters, SocketRecord},
};
use tcpmon_trace::{AddressFamily, Comm, Limited, SocketTotal, ThreadTotal, Waited};
use zerocopy::IntoBytes as _;

use super::{AF_INET6, timeslice::byte_us};

/// The totals of a socket with these counters, without any timeslices.
pub fn socket_total(record: &SocketRecord, counters: &SocketCounters, closed: bool) -> SocketTotal {
    let (identity, state) = (&record.state.identity, &record.state);
    let address = |bytes| super::address(identity.family, bytes).to_canonical();
    let totals = counters.since(&SocketCounters::ZERO);
    SocketTotal {
        at_ns: record.time_ns,
        cookie: state.cookie,
        family: if identity.family == AF_INET6 { AddressFamily::V6 } else { AddressFamily::V4 },
        local: SocketAddr::new(address(identity.local_address), identity.local_port),
        remote: SocketAddr::new(address(identity.remote_address), identity.remote_port),
        netns: identity.netns,
        tid: state.reader_tid,
        tgid: state.reader_tgid,
        comm: comm(state.process),
        closed,
        received_bytes: counters.received_bytes,
        read_bytes: counters.timeslice_read_bytes,
        timeslices_read_bytes: 0,
        zero_window_ns: counters.zero_window_ns,
        limited: Limited {
            upstream_ns: totals.upstream_limited_ns,
            application_ns: totals.application_limited_ns,
            scheduler_ns: totals.scheduler_limited_ns,
            window_ns: totals.window_limited_ns,
            memory_ns: totals.memory_limited_ns,
        },
        waited: Waited {
            application_byte_us: byte_us(totals.application_byte_ticks),
            scheduler_byte_us: byte_us(totals.scheduler_byte_ticks),
        },
    }
}

/// The totals of a thread at `now_ns`, with the name of its group.
pub fn thread_total(slot: &ReaderSlot, now_ns: u64) -> ThreadTotal {
    let counters = &slot.counters;
    ThreadTotal {
        begun_ns: slot.begun_ns,
        at_ns: now_ns,
        tid: slot.tid,
        tgid: slot.tgid,
        comm: comm(slot.process),
        exited: slot.flags & READER_EXITED != 0,
        on_cpu_ns: counters.on_cpu_ns,
        wait_ns: counters.run_queue_wait_ns,
        preempted: counters.ends[END_PREEMPTED as usize],
        blocked: counters.ends[END_BLOCKED as usize],
        read_bytes: slot.read_bytes,
    }
}

fn comm(name: tcpmon_common::name::Name) -> Comm {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(name.as_bytes());
    Comm::from_kernel(&bytes)
}
