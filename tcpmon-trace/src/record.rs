//! One timeslice of a thread, for one of its sockets, as shown to users.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str,
};

use serde::{Deserialize, Serialize};

/// The family of a socket. It can differ from that of its addresses: an IPv6 socket that carries IPv4 is shown with
/// IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum AddressFamily {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

impl From<AddressFamily> for u8 {
    fn from(family: AddressFamily) -> Self {
        match family {
            AddressFamily::V4 => 4,
            AddressFamily::V6 => 6,
        }
    }
}

impl TryFrom<u8> for AddressFamily {
    type Error = &'static str;

    fn try_from(version: u8) -> Result<Self, &'static str> {
        match version {
            4 => Ok(AddressFamily::V4),
            6 => Ok(AddressFamily::V6),
            _ => Err("family is neither 4 nor 6"),
        }
    }
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimesliceEnd {
    /// It was still runnable, but another thread was given the CPU.
    Preempted,
    /// It went to sleep.
    Blocked,
    /// It exited.
    Exited,
    /// The record has a value that this tcpmon does not know.
    Unknown,
}

impl TimesliceEnd {
    /// All ends.
    pub const ALL: [TimesliceEnd; 4] =
        [TimesliceEnd::Preempted, TimesliceEnd::Blocked, TimesliceEnd::Exited, TimesliceEnd::Unknown];

    /// The name in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            TimesliceEnd::Preempted => "preempted",
            TimesliceEnd::Blocked => "blocked",
            TimesliceEnd::Exited => "exited",
            TimesliceEnd::Unknown => "unknown",
        }
    }
}

/// The name of a thread: at most 16 bytes of UTF-8, without a NUL.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Comm {
    bytes: [u8; 16],
    length: u8,
}

/// A text that cannot be a thread's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a thread: give at most 16 bytes without NUL")]
pub struct CommError;

impl Comm {
    /// No name.
    pub(crate) const EMPTY: Self = Self { bytes: [0; 16], length: 0 };

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

/// An address of no socket.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The receive queue at an edge of a timeslice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
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

impl Queue {
    /// Nothing.
    const EMPTY: Self = Self { queued_bytes: 0, rmem_bytes: 0, rcvbuf_bytes: 0, backlog_bytes: 0, window_bytes: 0 };

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

/// Time of a connection by what limited it, up to the last read of a timeslice, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// The sender or the path.
    pub upstream_ns: u64,
    /// The reader, for other reasons than waiting for a CPU.
    pub application_ns: u64,
    /// The reader, which waited for a CPU.
    pub scheduler_ns: u64,
    /// A window that is too small for the path.
    pub window_ns: u64,
    /// A window that the kernel keeps small because it is short of memory.
    pub memory_ns: u64,
}

impl Limited {
    /// No time.
    pub(crate) const NONE: Self =
        Self { upstream_ns: 0, application_ns: 0, scheduler_ns: 0, window_ns: 0, memory_ns: 0 };

    /// Each cause's name and time.
    pub fn causes(&self) -> [(&'static str, u64); 5] {
        [
            ("upstream", self.upstream_ns),
            ("application", self.application_ns),
            ("scheduler", self.scheduler_ns),
            ("window", self.window_ns),
            ("memory", self.memory_ns),
        ]
    }

    /// Time for which it is known what limited the connection, ns.
    pub fn decided_ns(&self) -> u64 {
        self.causes().iter().fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns))
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// This minus the other, at least 0.
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            upstream_ns: each(self.upstream_ns, other.upstream_ns),
            application_ns: each(self.application_ns, other.application_ns),
            scheduler_ns: each(self.scheduler_ns, other.scheduler_ns),
            window_ns: each(self.window_ns, other.window_ns),
            memory_ns: each(self.memory_ns, other.memory_ns),
        }
    }
}

/// Bytes x time in the receive queue by what they waited for, up to the last read of a timeslice, byte-microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// The reader, for other reasons than waiting for a CPU.
    pub application_byte_us: u64,
    /// The reader, which waited for a CPU.
    pub scheduler_byte_us: u64,
}

impl Waited {
    /// No byte.
    pub(crate) const NONE: Self = Self { application_byte_us: 0, scheduler_byte_us: 0 };

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// This minus the other, at least 0.
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            application_byte_us: each(self.application_byte_us, other.application_byte_us),
            scheduler_byte_us: each(self.scheduler_byte_us, other.scheduler_byte_us),
        }
    }
}

/// One timeslice of a thread, for one of its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimesliceRecord {
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
    pub family: AddressFamily,
    /// This side. The address is IPv4 if the connection is IPv4, even in an IPv6 socket.
    pub local: SocketAddr,
    /// The other side, in the same form.
    pub remote: SocketAddr,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Why the thread left the CPU.
    pub end: TimesliceEnd,
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
    /// What limited the connection since its previous record.
    pub limited: Limited,
    /// What its bytes waited for in the queue since its previous record.
    pub waited: Waited,
    /// The queue when the thread got the CPU.
    pub activation: Queue,
    /// The queue when the thread lost the CPU.
    pub deactivation: Queue,
    /// The receiver's estimate of the round-trip time, us; 0 if unknown, or if the socket was closed.
    pub rcv_rtt_us: u32,
    /// `rcv_ssthresh`, bytes; 0 if the socket was closed.
    pub rcv_ssthresh_bytes: u32,
    /// `window_clamp`, bytes; 0 if the socket was closed.
    pub window_clamp_bytes: u32,
    /// Id of the thread that got the CPU, if this one was preempted; otherwise 0.
    pub preempted_by_tid: u32,
    /// Name of that thread.
    pub preempted_by: Comm,
}

impl TimesliceRecord {
    /// A record in which everything is empty or zero.
    pub(crate) const EMPTY: Self = Self {
        activated_ns: 0,
        deactivated_ns: 0,
        cpu: 0,
        tid: 0,
        tgid: 0,
        comm: Comm::EMPTY,
        cookie: 0,
        family: AddressFamily::V4,
        local: NOWHERE,
        remote: NOWHERE,
        netns: 0,
        end: TimesliceEnd::Unknown,
        partial: false,
        handed_over: false,
        closed: false,
        sleep_ns: 0,
        wait_ns: 0,
        on_cpu_ns: 0,
        arrived_off_cpu_bytes: 0,
        arrived_on_cpu_bytes: 0,
        read_bytes: 0,
        limited: Limited::NONE,
        waited: Waited::NONE,
        activation: Queue::EMPTY,
        deactivation: Queue::EMPTY,
        rcv_rtt_us: 0,
        rcv_ssthresh_bytes: 0,
        window_clamp_bytes: 0,
        preempted_by_tid: 0,
        preempted_by: Comm::EMPTY,
    };

    /// A record that was read, if its addresses are those of its family.
    pub(crate) fn checked(self) -> Result<Self, &'static str> {
        let both_v4 = self.local.is_ipv4() && self.remote.is_ipv4();
        if self.family == AddressFamily::V4 && !both_v4 {
            return Err("an IPv6 address in a record of family 4");
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fill_is_rounded_and_may_exceed_the_limit() {
        let fill = |rmem_bytes, rcvbuf_bytes| Queue { rmem_bytes, rcvbuf_bytes, ..Queue::default() }.fill_permille();
        assert_eq!(fill(0, 0), 0);
        assert_eq!(fill(1, 0), u64::MAX);
        assert_eq!(fill(1, 3), 333);
        assert_eq!(fill(2, 3), 667);
        assert_eq!(fill(300, 200), 1500);
        assert_eq!(fill(u32::MAX, 1), 4_294_967_295_000);
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
        fn a_name_from_the_kernel_is_a_valid_name(bytes in any::<[u8; 16]>()) {
            let comm = Comm::from_kernel(&bytes);
            prop_assert_eq!(Comm::try_from(comm.as_str()), Ok(comm));
        }

        #[test]
        fn a_name_of_more_than_16_bytes_or_with_a_nul_is_refused(name in ".{0,24}") {
            let fits = name.len() <= 16 && !name.contains('\0');
            prop_assert_eq!(Comm::try_from(name.as_str()).is_ok(), fits);
        }
    }
}
