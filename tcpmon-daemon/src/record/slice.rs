//! One timeslice of a thread, for one of its sockets, as shown to users.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
};

use tcpmon_common::{
    reader::{END_BLOCKED, END_EXITED, END_PREEMPTED},
    timeslice::{QueuePhoto, TIMESLICE_CLOSED, TIMESLICE_HANDED_OVER, TIMESLICE_PARTIAL, Timeslice},
};

/// `AF_INET`.
const AF_INET: u16 = 2;

/// The family of a socket. It can differ from that of its addresses: an IPv6 socket that carries IPv4 is shown with
/// IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was still runnable, but another thread was given the CPU.
    Preempted,
    /// It went to sleep.
    Blocked,
    /// It exited.
    Exited,
    /// The record has a value that this tcpmon does not know.
    Unknown,
}

impl End {
    /// All ends.
    pub const ALL: [End; 4] = [End::Preempted, End::Blocked, End::Exited, End::Unknown];

    /// The name in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            End::Preempted => "preempted",
            End::Blocked => "blocked",
            End::Exited => "exited",
            End::Unknown => "unknown",
        }
    }
}

/// The name of a thread: at most 16 bytes of UTF-8, without a NUL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Comm {
    bytes: [u8; 16],
    length: u8,
}

/// A text that cannot be a thread's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a thread: give at most 16 bytes without NUL")]
pub struct CommError;

impl Comm {
    /// From `task_struct.comm`: up to the first NUL, with each byte that is not UTF-8 replaced by `?`.
    pub fn from_kernel(bytes: &[u8; 16]) -> Self {
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let mut name = [0; 16];
        name[..length].copy_from_slice(&bytes[..length]);
        let mut valid = 0;
        while let Err(error) = str::from_utf8(&name[valid..length]) {
            let bad = valid + error.valid_up_to();
            valid = error.error_len().map_or(length, |bytes| bad + bytes);
            name[bad..valid].fill(b'?');
        }
        Self { bytes: name, length: length as u8 }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        // Both constructors produce valid UTF-8 only.
        str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl TryFrom<&str> for Comm {
    type Error = CommError;

    fn try_from(name: &str) -> Result<Self, CommError> {
        let mut bytes = [0; 16];
        let place = bytes.get_mut(..name.len()).ok_or(CommError)?;
        place.copy_from_slice(name.as_bytes());
        if name.contains('\0') {
            return Err(CommError);
        }
        Ok(Self { bytes, length: name.len() as u8 })
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The receive queue at an edge of a timeslice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Data received in order and not read yet, bytes.
    pub queued_bytes: u32,
    /// Memory charged to the receive buffer (`sk_rmem_alloc`), bytes.
    pub rmem_bytes: u32,
    /// The limit on that memory (`sk_rcvbuf`), bytes.
    pub rcvbuf_bytes: u32,
    /// Memory in the backlog (`sk_backlog.len`), bytes.
    pub backlog_bytes: u32,
    /// Advertised window, bytes.
    pub window_bytes: u32,
}

impl Edge {
    fn from_kernel(photo: &QueuePhoto, fin: bool) -> Self {
        // The FIN takes one sequence number but is not data; it is the last to be queued and the last to be read.
        let queued = photo.rcv_nxt.wrapping_sub(photo.copied_seq) as i32;
        let queued = queued - i32::from(fin && queued > 0);
        Self {
            queued_bytes: queued.max(0) as u32,
            rmem_bytes: photo.rmem,
            rcvbuf_bytes: photo.rcvbuf,
            backlog_bytes: photo.backlog,
            window_bytes: photo.window,
        }
    }

    /// How full the receive buffer is: `rmem / rcvbuf` in thousandths, rounded. The kernel allows more than 1000.
    pub fn fill_permille(&self) -> u64 {
        let (rmem, rcvbuf) = (u64::from(self.rmem_bytes), u64::from(self.rcvbuf_bytes));
        match (rmem * 1000 + rcvbuf / 2).checked_div(rcvbuf) {
            Some(fill) => fill,
            None if rmem == 0 => 0,
            None => u64::MAX,
        }
    }
}

/// One timeslice of a thread, for one of its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// When the thread got the CPU, `CLOCK_MONOTONIC`, ns.
    pub activated_ns: u64,
    /// When it lost the CPU, `CLOCK_MONOTONIC`, ns.
    pub deactivated_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// Thread id.
    pub tid: u32,
    /// Thread group id (what `ps` calls the pid).
    pub tgid: u32,
    /// The thread's name.
    pub comm: Comm,
    /// The socket's cookie: `ss -e` shows it in hexadecimal after `sk:`.
    pub cookie: u64,
    /// The socket's family.
    pub family: Family,
    /// This side. The address is IPv4 if the connection is IPv4, even in an IPv6 socket.
    pub local: SocketAddr,
    /// The other side, in the same form.
    pub remote: SocketAddr,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Why the thread left the CPU.
    pub end: End,
    /// tcpmon did not see the activation: it first saw the socket in the middle of this timeslice.
    pub partial: bool,
    /// Another thread took the socket over during this timeslice.
    pub handed_over: bool,
    /// The socket was closed during this timeslice: the deactivation shows it as of its last read.
    pub closed: bool,
    /// Time asleep between the previous timeslice and this one, ns.
    pub sleep_ns: u64,
    /// Time runnable but without a CPU between the previous timeslice and this one, ns.
    pub wait_ns: u64,
    /// Time on the CPU, ns.
    pub on_cpu_ns: u64,
    /// Bytes that arrived after the previous timeslice and before this one.
    pub arrived_off_cpu_bytes: u64,
    /// Bytes that arrived during this timeslice.
    pub arrived_on_cpu_bytes: u64,
    /// Bytes that the thread read.
    pub read_bytes: u64,
    /// The queue when the thread got the CPU.
    pub activation: Edge,
    /// The queue when the thread lost the CPU.
    pub deactivation: Edge,
    /// The receiver's estimate of the round-trip time, us; 0 if unknown, or if the socket was closed.
    pub rcv_rtt_us: u32,
    /// `rcv_ssthresh`, bytes; 0 if the socket was closed.
    pub rcv_ssthresh_bytes: u32,
    /// `window_clamp`, bytes; 0 if the socket was closed.
    pub window_clamp_bytes: u32,
}

impl Slice {
    /// Converts a record from the kernel. Total: any bytes give a record.
    pub fn from_kernel(record: &Timeslice) -> Self {
        let closed = record.flags & TIMESLICE_CLOSED != 0;
        // The queue samples were taken while the socket existed. These three fields are read at the deactivation, when
        // the memory may already belong to another socket.
        let live = |value| if closed { 0 } else { value };
        let family = if record.family == AF_INET { Family::V4 } else { Family::V6 };
        Self {
            activated_ns: record.activated_ns,
            deactivated_ns: record.header.time_ns,
            cpu: record.header.cpu,
            tid: record.tid,
            tgid: record.tgid,
            comm: Comm::from_kernel(&record.comm),
            cookie: record.header.cookie,
            family,
            local: SocketAddr::new(address(family, &record.local_address), record.local_port),
            remote: SocketAddr::new(address(family, &record.remote_address), record.remote_port),
            netns: record.netns,
            end: match u32::from(record.end) {
                END_PREEMPTED => End::Preempted,
                END_BLOCKED => End::Blocked,
                END_EXITED => End::Exited,
                _ => End::Unknown,
            },
            partial: record.flags & TIMESLICE_PARTIAL != 0,
            handed_over: record.flags & TIMESLICE_HANDED_OVER != 0,
            closed,
            sleep_ns: record.sleep_ns,
            wait_ns: record.wait_ns,
            on_cpu_ns: record.on_cpu_ns,
            arrived_off_cpu_bytes: record.arrived_off_cpu_bytes,
            arrived_on_cpu_bytes: record.arrived_on_cpu_bytes,
            read_bytes: record.read_bytes,
            activation: Edge::from_kernel(&record.activation, record.fin & 1 != 0),
            deactivation: Edge::from_kernel(&record.deactivation, record.fin & 2 != 0),
            rcv_rtt_us: live(record.rcv_rtt_us),
            rcv_ssthresh_bytes: live(record.rcv_ssthresh),
            window_clamp_bytes: live(record.window_clamp),
        }
    }
}

/// IPv4 is in the first four bytes; IPv6 takes all of them. IPv4-mapped IPv6 is shown as IPv4.
fn address(family: Family, bytes: &[u8; 16]) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::sample;

    #[test]
    fn queued_bytes_leave_out_the_fin_and_survive_a_wrapped_sequence_number() {
        let photo = |rcv_nxt, copied_seq| QueuePhoto { rcv_nxt, copied_seq, rmem: 0, rcvbuf: 0, backlog: 0, window: 0 };
        let queued = |rcv_nxt, copied_seq, fin| Edge::from_kernel(&photo(rcv_nxt, copied_seq), fin).queued_bytes;
        assert_eq!(queued(1000, 400, false), 600);
        assert_eq!(queued(1001, 400, true), 600);
        assert_eq!(queued(401, 400, true), 0);
        assert_eq!(queued(400, 400, true), 0);
        assert_eq!(queued(50, u32::MAX - 49, false), 100);
        assert_eq!(queued(400, 500, false), 0);
        assert_eq!(queued(0x8000_0000, 0, true), 0);
    }

    #[test]
    fn fill_is_rounded_and_may_pass_one() {
        let fill = |rmem_bytes, rcvbuf_bytes| Edge { rmem_bytes, rcvbuf_bytes, ..Edge::default() }.fill_permille();
        assert_eq!(fill(0, 0), 0);
        assert_eq!(fill(1, 0), u64::MAX);
        assert_eq!(fill(1, 3), 333);
        assert_eq!(fill(2, 3), 667);
        assert_eq!(fill(300, 200), 1500);
        assert_eq!(fill(u32::MAX, 1), 4_294_967_295_000);
    }

    #[test]
    fn an_ipv4_mapped_socket_shows_ipv4_addresses_and_family_6() {
        let mut record = sample::timeslice();
        record.family = 10;
        record.local_address = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets();
        record.remote_address = "2001:db8::2".parse::<Ipv6Addr>().expect("a valid sample").octets();
        let slice = Slice::from_kernel(&record);
        assert_eq!(slice.family, Family::V6);
        assert_eq!(slice.local, "192.0.2.1:5201".parse().expect("a valid sample"));
        assert_eq!(slice.remote, "[2001:db8::2]:40000".parse().expect("a valid sample"));
    }

    #[test]
    fn every_field_of_the_kernels_record_reaches_the_user() {
        let record = sample::timeslice();
        let slice = Slice::from_kernel(&record);
        assert_eq!(slice, sample::slice());
    }

    #[test]
    fn a_closed_socket_has_no_values_from_memory_that_is_no_longer_its_own() {
        let mut record = sample::timeslice();
        record.flags = TIMESLICE_CLOSED;
        let slice = Slice::from_kernel(&record);
        assert!(slice.closed);
        assert_eq!((slice.rcv_rtt_us, slice.rcv_ssthresh_bytes, slice.window_clamp_bytes), (0, 0, 0));
        assert_eq!(slice.deactivation, sample::slice().deactivation);
    }

    #[test]
    fn a_thread_name_is_valid_text_whatever_its_bytes() {
        let comm = |bytes: &[u8]| {
            let mut padded = [0; 16];
            padded[..bytes.len()].copy_from_slice(bytes);
            Comm::from_kernel(&padded).as_str().to_owned()
        };
        assert_eq!(comm(b""), "");
        assert_eq!(comm(b"iperf3\0old"), "iperf3");
        assert_eq!(comm(b"0123456789abcdef"), "0123456789abcdef");
        assert_eq!(comm("Zürich".as_bytes()), "Zürich");
        assert_eq!(comm(b"a\xffb\xe2\x82c\xe2\x82"), "a?b??c??");
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_record(bytes in any::<[u8; 216]>()) {
            let slice = Slice::from_kernel(&sample::timeslice_of(&bytes));
            prop_assert_eq!(Comm::try_from(slice.comm.as_str()), Ok(slice.comm));
            prop_assert!(slice.activation.queued_bytes <= i32::MAX as u32);
        }

        #[test]
        fn a_name_of_more_than_16_bytes_or_with_a_nul_is_refused(name in ".{0,24}") {
            let fits = name.len() <= 16 && !name.contains('\0');
            prop_assert_eq!(Comm::try_from(name.as_str()).is_ok(), fits);
        }
    }
}
