//! Records for the tests.

use std::net::{Ipv4Addr, Ipv6Addr};

use tcpmon_common::{
    header::{Header as KernelHeader, KIND_TIMESLICE, VERSION},
    timeslice::{QueuePhoto, TIMESLICE_PARTIAL, Timeslice},
};

use super::{
    header::{Clocks, Filter, Header},
    slice::{Comm, Edge, End, Family, Slice},
    trailer::{Ending, LOSSES, LOST_OUTPUT, Reason},
};

/// A header.
pub fn header() -> Header {
    Header {
        tcpmon_version: "0.1.0".into(),
        kernel_release: "6.18.44".into(),
        hostname: "dtn1".into(),
        start: Clocks { monotonic_ns: 5_000_000_000_000, realtime_ns: 1_785_412_800_123_456_789 },
        filter: Filter { pids: vec![4321], ports: vec![5201], ..Filter::default() },
    }
}

/// A kernel record in which no two fields are equal.
pub fn timeslice() -> Timeslice {
    Timeslice {
        header: KernelHeader {
            kind: KIND_TIMESLICE,
            version: VERSION,
            cpu: 3,
            time_ns: 5_001_500_250_000,
            cookie: 0x1f,
        },
        activated_ns: 5_001_500_000_000,
        on_cpu_ns: 240_000,
        wait_ns: 12_000,
        sleep_ns: 3_400_000,
        activation: QueuePhoto {
            rcv_nxt: 1_000_000 + 1_258_292,
            copied_seq: 1_000_000,
            rmem: 2_000_000,
            rcvbuf: 6_291_456,
            backlog: 4_352,
            window: 1_887_436,
        },
        deactivation: QueuePhoto {
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
        padding: 0,
    }
}

/// The user's view of [`timeslice`].
pub fn slice() -> Slice {
    Slice {
        activated_ns: 5_001_500_000_000,
        deactivated_ns: 5_001_500_250_000,
        cpu: 3,
        tid: 4322,
        tgid: 4321,
        comm: Comm::try_from("iperf3").expect("a valid sample"),
        cookie: 0x1f,
        family: Family::V4,
        local: (Ipv4Addr::new(192, 0, 2, 1), 5201).into(),
        remote: (Ipv4Addr::new(192, 0, 2, 2), 40000).into(),
        netns: 4_026_531_840,
        end: End::Blocked,
        partial: true,
        handed_over: false,
        closed: false,
        sleep_ns: 3_400_000,
        wait_ns: 12_000,
        on_cpu_ns: 240_000,
        arrived_off_cpu_bytes: 1_200_000,
        arrived_on_cpu_bytes: 41_708,
        read_bytes: 1_288_000,
        activation: Edge {
            queued_bytes: 1_258_292,
            rmem_bytes: 2_000_000,
            rcvbuf_bytes: 6_291_456,
            backlog_bytes: 4_352,
            window_bytes: 1_887_436,
        },
        deactivation: Edge {
            queued_bytes: 12_000,
            rmem_bytes: 20_000,
            rcvbuf_bytes: 6_291_457,
            backlog_bytes: 0,
            window_bytes: 3_145_728,
        },
        rcv_rtt_us: 1_850,
        rcv_ssthresh_bytes: 3_000_000,
        window_clamp_bytes: 4_000_000,
    }
}

/// The record in which every number and text has its maximum length.
pub fn longest() -> Slice {
    let mut slice = Slice::from_kernel(&timeslice_of(&[0xff; size_of::<Timeslice>()]));
    slice.family = Family::V6;
    let address: Ipv6Addr = "2001:db8:1111:2222:3333:4444:5555:6666".parse().expect("a valid sample");
    slice.local = (address, u16::MAX).into();
    slice.remote = (address, u16::MAX).into();
    slice
}

/// The kernel record that consists of these bytes.
pub fn timeslice_of(bytes: &[u8; size_of::<Timeslice>()]) -> Timeslice {
    zerocopy::transmute!(*bytes)
}

fn first_four(address: [u8; 4]) -> [u8; 16] {
    let mut padded = [0; 16];
    padded[..4].copy_from_slice(&address);
    padded
}

/// What the command passes at the end of a trace in which nothing was lost.
pub fn ending() -> Ending {
    Ending {
        end: Clocks { monotonic_ns: 5_030_000_000_000, realtime_ns: 1_785_412_830_123_456_790 },
        reason: Reason::Duration,
        lost: LOSSES.into_iter().chain([LOST_OUTPUT]).map(|loss| (loss.to_owned(), 0)).collect(),
    }
}
