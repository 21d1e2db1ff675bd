//! Sample traces for the tests of programs that write or read them.

use std::{
    io::{self, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::{
    header::{Clocks, Filter, TraceHeader},
    output::Output,
    record::{AddressFamily, Comm, Limited, Queue, TimesliceEnd, TimesliceRecord, Waited},
    total::{SocketTotal, ThreadTotal},
    trailer::{EndReason, Ending, LOSSES, LOST_OUTPUT},
};

/// An output with room for this many bytes.
#[derive(Debug, Default)]
pub struct Disk {
    /// What was written.
    pub bytes: Vec<u8>,
    /// Number of bytes that fit.
    pub room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.room - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..fits]);
        if fits == 0 && !bytes.is_empty() { Err(ErrorKind::StorageFull.into()) } else { Ok(fits) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Disk {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.bytes.cut(length)
    }
}

/// A header.
pub fn header() -> TraceHeader {
    TraceHeader {
        tcpmon_version: "0.1.0".into(),
        kernel_release: "6.18.44".into(),
        hostname: "dtn1".into(),
        boot_id: "0f9a5c1e-2b3d-4e5f-8a7b-6c5d4e3f2a1b".into(),
        cpus: 2,
        start: Clocks { monotonic_ns: 5_000_000_000_000, realtime_ns: 1_785_412_800_123_456_789 },
        filter: Filter { pids: vec![4321], ports: vec![5201], ..Filter::default() },
        trigger: String::new(),
    }
}

/// A record in which no two numbers are equal.
pub fn record() -> TimesliceRecord {
    TimesliceRecord {
        activated_ns: 5_001_500_000_000,
        deactivated_ns: 5_001_500_250_000,
        cpu: 3,
        tid: 4322,
        tgid: 4321,
        comm: Comm::try_from("iperf3").expect("a valid sample"),
        cookie: 0x1f,
        family: AddressFamily::V4,
        local: (Ipv4Addr::new(192, 0, 2, 1), 5201).into(),
        remote: (Ipv4Addr::new(192, 0, 2, 2), 40000).into(),
        netns: 4_026_531_840,
        end: TimesliceEnd::Blocked,
        partial: true,
        handed_over: false,
        closed: false,
        sleep_ns: 3_400_000,
        wait_ns: 12_000,
        on_cpu_ns: 240_000,
        arrived_off_cpu_bytes: 1_200_000,
        arrived_on_cpu_bytes: 41_708,
        read_bytes: 1_288_000,
        activation: Queue {
            queued_bytes: 1_258_292,
            rmem_bytes: 2_000_000,
            rcvbuf_bytes: 6_291_456,
            backlog_bytes: 4_352,
            window_bytes: 1_887_436,
        },
        deactivation: Queue {
            queued_bytes: 12_000,
            rmem_bytes: 20_000,
            rcvbuf_bytes: 6_291_457,
            backlog_bytes: 0,
            window_bytes: 3_145_728,
        },
        rcv_rtt_us: 1_850,
        rcv_ssthresh_bytes: 3_000_000,
        window_clamp_bytes: 4_000_000,
        limited: Limited {
            upstream_ns: 2_100_000,
            application_ns: 900_000,
            scheduler_ns: 11_000,
            window_ns: 600_000,
            memory_ns: 30_000,
        },
        waited: Waited { application_byte_us: 1_024_000, scheduler_byte_us: 512_000 },
        preempted_by_tid: 77,
        preempted_by: Comm::try_from("hog").expect("a valid sample"),
    }
}

/// Totals of the record's socket, in which no two numbers are equal.
pub fn socket_total() -> SocketTotal {
    let record = record();
    SocketTotal {
        at_ns: 5_030_000_000_001,
        cookie: record.cookie,
        family: record.family,
        local: record.local,
        remote: record.remote,
        netns: record.netns,
        tid: record.tid,
        tgid: record.tgid,
        comm: record.comm,
        closed: true,
        received_bytes: 2_500_000,
        read_bytes: 2_400_000,
        timeslices_read_bytes: 1_288_000,
        zero_window_ns: 70_000,
        limited: Limited {
            upstream_ns: 710_000,
            application_ns: 720_000,
            scheduler_ns: 730_000,
            window_ns: 740_000,
            memory_ns: 750_000,
        },
        waited: Waited { application_byte_us: 1_536_000, scheduler_byte_us: 768_000 },
    }
}

/// Totals of the record's thread, in which no two numbers are equal.
pub fn thread_total() -> ThreadTotal {
    let record = record();
    ThreadTotal {
        begun_ns: 5_000_100_000_000,
        at_ns: 5_030_000_000_002,
        tid: record.tid,
        tgid: record.tgid,
        comm: record.comm,
        exited: false,
        on_cpu_ns: 9_000_000_000,
        wait_ns: 800_000_000,
        preempted: 123,
        blocked: 45_678,
        read_bytes: 2_300_000,
    }
}

/// The record in which every number and text has its maximum length.
pub fn longest() -> TimesliceRecord {
    let address: Ipv6Addr = "2001:db8:1111:2222:3333:4444:5555:6666".parse().expect("a valid sample");
    TimesliceRecord {
        comm: Comm::from_kernel(&[0xff; 16]),
        local: (address, u16::MAX).into(),
        remote: (address, u16::MAX).into(),
        ..record_of(&[u64::MAX; NUMBERS])
    }
}

/// Number of numbers in a record.
pub const NUMBERS: usize = 44;

/// The record with these numbers, each truncated to the size of its field.
pub fn record_of(numbers: &[u64; NUMBERS]) -> TimesliceRecord {
    let mut numbers = numbers.iter().copied();
    let mut next = || numbers.next().expect("as many numbers as fields");
    let name = [next().to_ne_bytes(), next().to_ne_bytes()].concat();
    let flags = next();
    let family = if flags & 1 == 0 { AddressFamily::V4 } else { AddressFamily::V6 };
    let mut address = || {
        let bits = u128::from(next()) << 64 | u128::from(next());
        let address = match family {
            AddressFamily::V4 => IpAddr::V4((bits as u32).into()),
            AddressFamily::V6 => IpAddr::V6(bits.into()).to_canonical(),
        };
        SocketAddr::new(address, next() as u16)
    };
    let (local, remote) = (address(), address());
    let mut queue = || Queue {
        queued_bytes: next() as u32,
        rmem_bytes: next() as u32,
        rcvbuf_bytes: next() as u32,
        backlog_bytes: next() as u32,
        window_bytes: next() as u32,
    };
    TimesliceRecord {
        activation: queue(),
        deactivation: queue(),
        comm: Comm::from_kernel(&name.try_into().expect("16 bytes")),
        local,
        remote,
        family,
        end: TimesliceEnd::ALL[flags as usize >> 1 & 3],
        partial: flags & 8 != 0,
        handed_over: flags & 16 != 0,
        closed: flags & 32 != 0,
        activated_ns: next(),
        deactivated_ns: next(),
        cpu: next() as u32,
        tid: next() as u32,
        tgid: next() as u32,
        cookie: next(),
        netns: next() as u32,
        sleep_ns: next(),
        wait_ns: next(),
        on_cpu_ns: next(),
        arrived_off_cpu_bytes: next(),
        arrived_on_cpu_bytes: next(),
        read_bytes: next(),
        rcv_rtt_us: next() as u32,
        rcv_ssthresh_bytes: next() as u32,
        window_clamp_bytes: next() as u32,
        limited: Limited {
            upstream_ns: next(),
            application_ns: next(),
            scheduler_ns: next(),
            window_ns: next(),
            memory_ns: next(),
        },
        waited: Waited { application_byte_us: next(), scheduler_byte_us: next() },
        preempted_by_tid: next() as u32,
        preempted_by: if next() & 1 == 0 { Comm::default() } else { Comm::from_kernel(b"kworker/3:1-eve\0") },
    }
}

/// What the command passes at the end of a trace in which nothing was lost.
pub fn ending() -> Ending {
    Ending {
        end: Clocks { monotonic_ns: 5_030_000_000_000, realtime_ns: 1_785_412_830_123_456_790 },
        reason: EndReason::Duration,
        lost: LOSSES.into_iter().chain([LOST_OUTPUT]).map(|loss| (loss.to_owned(), 0)).collect(),
    }
}
