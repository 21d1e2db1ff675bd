//! Reads of a socket that may be gone.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use tcpmon_common::timeslice::QueueSample;

use super::offset;

/// A socket of which only the address is known. The memory may belong to another socket by now: compare the cookie.
#[derive(Clone, Copy)]
pub struct Remembered(pub u64);

impl Remembered {
    /// Reads one field in a way that cannot fault; zero if the read fails.
    #[inline(always)]
    fn read<T: Copy + Default>(self, offset: u32) -> T {
        let mut value = T::default();
        // SAFETY: the destination is `value`; the helper checks the source.
        unsafe {
            bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, (self.0 + offset as u64) as *const _)
        };
        value
    }

    #[inline(always)]
    pub fn cookie(self) -> u64 {
        self.read(offset!(sock_cookie))
    }

    /// Whether a process holds the socket's lock.
    #[inline(always)]
    pub fn owned_by_user(self) -> bool {
        self.read::<u32>(offset!(sock_owned)) != 0
    }

    #[inline(always)]
    pub fn fin_received(self) -> bool {
        self.read::<u64>(offset!(sock_flags)) >> offset!(sock_done_bit) & 1 == 1
    }

    #[inline(always)]
    pub fn rcv_rtt_us(self) -> u32 {
        self.read::<u32>(offset!(tcp_rcv_rtt)) >> 3
    }

    #[inline(always)]
    pub fn rcv_ssthresh(self) -> u32 {
        self.read(offset!(tcp_rcv_ssthresh))
    }

    #[inline(always)]
    pub fn window_clamp(self) -> u32 {
        self.read(offset!(tcp_window_clamp))
    }

    #[inline(always)]
    pub fn rcv_nxt(self) -> u32 {
        self.read(offset!(tcp_rcv_nxt))
    }

    /// Samples the receive queue.
    #[inline(always)]
    pub fn sample_queue(self, queue: &mut QueueSample) {
        queue.copied_seq = self.read(offset!(tcp_copied_seq));
        queue.rcv_nxt = self.rcv_nxt();
        queue.rmem = self.read(offset!(sock_rmem));
        queue.rcvbuf = self.read(offset!(sock_rcvbuf));
        queue.backlog = self.read(offset!(sock_backlog));
        queue.window = self.read(offset!(tcp_rcv_wnd));
    }
}
