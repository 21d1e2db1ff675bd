//! Reads of a socket that may be gone.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use tcpmon_common::{
    socket::{LIVE_FIN, SocketLive},
    timeslice::QueueSample,
};

use super::{load, offset, sock};

/// A TCP socket of which only the address is known. The memory may belong to another socket by now: compare the cookie.
/// A read that fails returns zero.
pub trait MaybeFreedSock: Copy {
    /// Reads one field.
    fn read<T: Copy + Default>(self, offset: u32) -> T;

    /// `skc_cookie`.
    #[inline(always)]
    fn cookie(self) -> u64 {
        self.read(offset!(sock_cookie))
    }

    /// Number of references; 0 once the socket is being freed.
    #[inline(always)]
    fn references(self) -> u32 {
        self.read(offset!(sock_references))
    }

    /// Whether a process holds the socket's lock.
    #[inline(always)]
    fn owned_by_user(self) -> bool {
        self.read::<u32>(offset!(sock_owned)) != 0
    }

    /// See [`Sock::fin_received`](super::Sock::fin_received).
    #[inline(always)]
    fn fin_received(self) -> bool {
        self.read::<u64>(offset!(sock_flags)) >> offset!(sock_done_bit) & 1 == 1
    }

    /// `rcv_rtt_est.rtt_us` in us.
    #[inline(always)]
    fn rcv_rtt_us(self) -> u32 {
        self.read::<u32>(offset!(tcp_rcv_rtt)) >> 3
    }

    /// `rcv_ssthresh`.
    #[inline(always)]
    fn rcv_ssthresh(self) -> u32 {
        self.read(offset!(tcp_rcv_ssthresh))
    }

    /// `window_clamp`.
    #[inline(always)]
    fn window_clamp(self) -> u32 {
        self.read(offset!(tcp_window_clamp))
    }

    /// `rcv_nxt`.
    #[inline(always)]
    fn rcv_nxt(self) -> u32 {
        self.read(offset!(tcp_rcv_nxt))
    }

    /// Local port.
    #[inline(always)]
    fn local_port(self) -> u16 {
        u16::from_be(self.read(offset!(sock_local_port)))
    }

    /// `sk_state`.
    #[inline(always)]
    fn state(self) -> u32 {
        self.read::<u8>(offset!(sock_state)) as u32
    }

    /// `sk_rcvbuf`.
    #[inline(always)]
    fn rcvbuf(self) -> u32 {
        self.read(offset!(sock_rcvbuf))
    }

    /// `sk_rmem_alloc`.
    #[inline(always)]
    fn rmem(self) -> u32 {
        self.read(offset!(sock_rmem))
    }

    /// `sk_backlog.len`.
    #[inline(always)]
    fn backlog(self) -> u32 {
        self.read(offset!(sock_backlog))
    }

    /// The last advertised window.
    #[inline(always)]
    fn window(self) -> u32 {
        self.read(offset!(tcp_rcv_wnd))
    }

    /// See [`Sock::rcvbuf_locked`](super::Sock::rcvbuf_locked).
    #[inline(always)]
    fn rcvbuf_locked(self) -> bool {
        self.userlocks() & sock::RCVBUF_LOCK != 0
    }

    /// See [`TcpSock::autotunes`](super::TcpSock::autotunes).
    #[inline(always)]
    fn autotunes(self) -> bool {
        let namespace = Probed(self.read(offset!(sock_net)));
        !self.rcvbuf_locked()
            && self.window_clamp() != self.read(offset!(sock_rcvlowat))
            && namespace.read::<u8>(offset!(net_autotuning)) != 0
    }

    /// See [`Sock::port_chosen`](super::Sock::port_chosen).
    #[inline(always)]
    fn port_chosen(self) -> bool {
        self.userlocks() & sock::BINDPORT_LOCK == 0
    }

    /// `sk_userlocks`, and bits of other fields above it.
    #[inline(always)]
    fn userlocks(self) -> u32 {
        self.read::<u8>(offset!(sock_userlocks)) as u32 >> offset!(sock_userlocks_shift)
    }

    /// Bytes in the out-of-order queue that the SACK blocks name: all of them, unless there are more than four holes.
    #[inline(always)]
    fn out_of_order(self) -> u32 {
        let blocks = self.read::<u8>(offset!(tcp_sack_count)) as u32;
        // Nearly always.
        if blocks == 0 {
            return 0;
        }
        // `selective_acks` is an array of four pairs of u32.
        let sacks = self.read::<[u32; 8]>(offset!(tcp_sacks));
        let mut bytes = 0u32;
        let mut i = 0;
        while i < 4 {
            let counts = ((i as u32).wrapping_sub(blocks) as i32 >> 31) as u32;
            bytes = bytes.wrapping_add(sacks[2 * i + 1].wrapping_sub(sacks[2 * i]) & counts);
            i += 1;
        }
        bytes
    }

    /// Reads everything that a pass shows of the socket itself. This takes no lock, so the read may see a FIN that is
    /// not in the `rcv_nxt` that was read: the received bytes are then one byte too few until the next pass. If the
    /// read comes between the two steps of the kernel (`rcv_nxt` advances, then `tcp_fin` sets `SOCK_DONE`), they are
    /// one byte too many until then; the group's total makes up for it with the next byte.
    #[inline(always)]
    fn live(self, live: &mut SocketLive) {
        live.copied_seq = self.read(offset!(tcp_copied_seq));
        live.rcv_nxt = self.rcv_nxt();
        live.flags = self.fin_received() as u8 * LIVE_FIN;
        live.rmem = self.rmem();
        live.rcvbuf = self.rcvbuf();
        live.backlog = self.backlog();
        live.out_of_order = self.out_of_order();
        live.window = self.window();
        live.edge = self.read::<u32>(offset!(tcp_rcv_wup)).wrapping_add(live.window);
        live.mss = self.read::<u16>(offset!(tcp_mss)) as u32;
        live.rcv_ssthresh = self.rcv_ssthresh();
        live.window_clamp = self.window_clamp();
        live.rcv_rtt_us = self.rcv_rtt_us();
        live.local_port = self.local_port();
        live.state = self.state() as u8;
    }

    /// Samples the receive queue.
    #[inline(always)]
    fn sample_queue(self, queue: &mut QueueSample) {
        queue.copied_seq = self.read(offset!(tcp_copied_seq));
        queue.rcv_nxt = self.rcv_nxt();
        queue.rmem = self.rmem();
        queue.rcvbuf = self.rcvbuf();
        queue.backlog = self.backlog();
        queue.window = self.window();
    }
}

/// Reads with a helper.
#[derive(Clone, Copy)]
pub struct Probed(pub u64);

impl MaybeFreedSock for Probed {
    #[inline(always)]
    fn read<T: Copy + Default>(self, offset: u32) -> T {
        let mut value = T::default();
        // SAFETY: the destination is `value`; the helper checks the source.
        unsafe {
            bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, (self.0 + offset as u64) as *const _)
        };
        value
    }
}

/// Reads with plain loads, which may fault: on kernels with `bpf_rdonly_cast`.
#[derive(Clone, Copy)]
pub struct Cast(*const u8);

impl Cast {
    /// The socket at this address.
    #[inline(always)]
    pub fn new(address: u64) -> Self {
        Self(sock::cast(address as *const u8))
    }
}

impl MaybeFreedSock for Cast {
    #[inline(always)]
    fn read<T: Copy + Default>(self, offset: u32) -> T {
        // SAFETY: see `load`; the layout's offset of a field of `struct tcp_sock` or of what it starts with.
        unsafe { load(self.0, offset) }
    }
}
