//! `struct sock` and `struct tcp_sock`.

use aya_ebpf::{
    helpers::generated::{
        bpf_get_socket_cookie, bpf_probe_read_kernel, bpf_seq_write, bpf_skc_to_tcp_sock, bpf_sock_from_file,
    },
    programs::{BtfTracePointContext, SockOpsContext},
};
use tcpmon_common::{settings::CAST_CALL, socket::SocketIdentity, timeslice::QueueSample, tracepoint::TaskFile};

use super::{MaybeFreedSock as _, Probed, Task, load, offset, present, setting};

/// User-space ABI.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCK_STREAM: u16 = 1;
const IPPROTO_TCP: u16 = 6;

/// Bits of `sk_userlocks`, of `include/linux/socket.h` and the same in 5.10 to 7.3: the application has fixed the
/// buffer's size; it has asked for the port.
pub const RCVBUF_LOCK: u32 = 2;
pub const BINDPORT_LOCK: u32 = 8;

/// `struct sock *`, TCP or not.
#[derive(Clone, Copy)]
pub struct Sock(*const u8);

/// `struct tcp_sock *`, with the `struct sock *` that it came from.
///
/// The first is typed, because it comes from `bpf_skc_to_tcp_sock`. The verifier trusts the second, so fields of
/// `struct sock` are read through that one without a check for faults.
#[derive(Clone, Copy)]
pub struct TcpSock(*const u8, Sock);

/// The socket of a sock_ops program's context, as TCP.
#[inline(always)]
pub fn sock_ops_tcp(ctx: &SockOpsContext) -> Option<TcpSock> {
    // SAFETY: the context is valid for reads; the verifier knows this field as a socket or null.
    let sock = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sock.is_null() {
        return None;
    }
    // A sock_ops program gets a `struct bpf_sock`, of which next to nothing can be read.
    let tcp = Sock(sock as *const u8).tcp()?.0;
    Some(TcpSock(tcp, Sock(tcp)))
}

/// The cookie of a sock_ops program's socket; created now if it had none.
#[inline(always)]
pub fn sock_ops_cookie(ctx: &SockOpsContext) -> u64 {
    // SAFETY: programs of this kind may pass their context to this helper.
    unsafe { bpf_get_socket_cookie(ctx.ops.cast()) }
}

/// The process and the TCP socket that an iterator over open files visits; `None` if the file is another one.
///
/// # Safety
/// The context is that of such an iterator.
#[inline(always)]
pub unsafe fn open_socket(ctx: *const TaskFile) -> Option<(Task, TcpSock)> {
    // SAFETY: as the caller promises.
    let ctx = unsafe { &*ctx };
    let task = Task::new(ctx.task)?;
    if ctx.file.is_null() {
        return None;
    }
    // SAFETY: a typed file pointer; the result is null if the file is not a socket.
    let socket = unsafe { bpf_sock_from_file(ctx.file.cast()) } as *const u8;
    let sock = Sock::of_socket(socket)?;
    // Not `tcp`: some kernels do not trust what a program has read from a file's socket. What a file has is neither a
    // request nor in TIME_WAIT.
    if sock.is_tcp() { Some((task, sock.known_tcp()?)) } else { None }
}

/// Writes a record that user space reads from an iterator. If there is no room, the kernel visits the file again for
/// the next read.
///
/// # Safety
/// The context is that of such an iterator.
#[inline(always)]
pub unsafe fn tell<T>(ctx: *const TaskFile, mut record: T) {
    // SAFETY: as the caller promises; the helper copies the record.
    unsafe { bpf_seq_write((*(*ctx).meta).output.cast(), (&raw mut record).cast(), size_of::<T>() as u32) };
}

/// A `struct tcp_sock` whose address is known, as a pointer that the verifier knows.
#[inline(always)]
pub fn cast(address: *const u8) -> *const u8 {
    let tcp: *const u8;
    // SAFETY: user space replaces the call; its arguments and result are those of `bpf_rdonly_cast`.
    unsafe {
        core::arch::asm!(
            "call {call}",
            call = const CAST_CALL,
            inlateout("r1") address => _,
            inlateout("r2") setting!(tcp_sock_type) as u64 => _,
            lateout("r0") tcp,
            lateout("r3") _,
            lateout("r4") _,
            lateout("r5") _,
            options(nostack, preserves_flags)
        );
    }
    tcp
}

impl Sock {
    /// The socket at argument `N` of a tracepoint; never null there.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// The socket at `pointer`, unless that is null.
    #[inline(always)]
    pub fn new(pointer: *const u8) -> Option<Self> {
        if pointer.is_null() { None } else { Some(Self(pointer)) }
    }

    /// The `struct sock` of a `struct socket`.
    #[inline(always)]
    fn of_socket(socket: *const u8) -> Option<Self> {
        if socket.is_null() {
            return None;
        }
        // SAFETY: see `load`; the layout's offset of a field of `struct socket`.
        Self::new(unsafe { load(socket, offset!(socket_sock)) })
    }

    #[inline(always)]
    pub fn pointer(self) -> *const u8 {
        self.0
    }

    /// The low half of the socket's address, as a number: with a 32-bit move, the verifier lets a program have that
    /// much of a pointer.
    #[inline(always)]
    pub fn address(self) -> u32 {
        let low: u64;
        // SAFETY: a move between registers.
        unsafe {
            core::arch::asm!(
                "w0 = w1", in("r1") self.0, out("r0") low, options(pure, readonly, nostack, preserves_flags)
            );
        }
        low as u32
    }

    /// The same socket as TCP; `None` for other protocols, request sockets and time-wait sockets.
    #[inline(always)]
    pub fn tcp(self) -> Option<TcpSock> {
        // SAFETY: the helper itself checks what kind of socket it is.
        let tcp = unsafe { bpf_skc_to_tcp_sock(self.0.cast_mut().cast()) } as *const u8;
        if tcp.is_null() { None } else { Some(TcpSock(tcp, self)) }
    }

    /// The same socket as TCP, for a socket that is known to be that, and neither a request nor in TIME_WAIT.
    #[inline(always)]
    pub fn known_tcp(self) -> Option<TcpSock> {
        let tcp = cast(self.0);
        // Null only if the helper was put in place of the call.
        if tcp.is_null() { None } else { Some(TcpSock(tcp, self)) }
    }

    /// The socket's cookie; created now if it had none.
    #[inline(always)]
    pub fn cookie(self) -> u64 {
        // SAFETY: a typed socket pointer, which tracing programs may pass since 5.12.
        unsafe { bpf_get_socket_cookie(self.0.cast_mut().cast()) }
    }

    /// The socket's cookie; 0 if it has none yet.
    #[inline(always)]
    pub fn known_cookie(self) -> u64 {
        // SAFETY: see `state`.
        unsafe { load(self.0, offset!(sock_cookie)) }
    }

    /// Whether it is TCP over IPv4 or IPv6. Not for requests and sockets in TIME_WAIT, which have no such fields.
    #[inline(always)]
    fn is_tcp(self) -> bool {
        // SAFETY: see `state`.
        let (family, kind, protocol) = unsafe {
            (
                load::<u16>(self.0, offset!(sock_family)),
                load::<u16>(self.0, offset!(sock_type)),
                load::<u16>(self.0, offset!(sock_protocol)),
            )
        };
        (family == AF_INET || family == AF_INET6) && kind == SOCK_STREAM && protocol == IPPROTO_TCP
    }

    /// `sk_state`.
    #[inline(always)]
    pub fn state(self) -> u32 {
        // SAFETY: see `load`; the layout's offset of a field of `struct sock`.
        unsafe { load::<u8>(self.0, offset!(sock_state)) as u32 }
    }

    /// Bytes of memory charged to the receive buffer.
    #[inline(always)]
    pub fn rmem(self) -> u32 {
        // SAFETY: see `state`.
        unsafe { load(self.0, offset!(sock_rmem)) }
    }

    /// `sk_backlog.len`, bytes of memory.
    #[inline(always)]
    pub fn backlog(self) -> u32 {
        // SAFETY: see `state`.
        unsafe { load(self.0, offset!(sock_backlog)) }
    }

    /// `sk_rcvbuf`.
    #[inline(always)]
    pub fn rcvbuf(self) -> u32 {
        // SAFETY: see `state`.
        unsafe { load(self.0, offset!(sock_rcvbuf)) }
    }

    /// Whether a process holds the socket's lock: `current` is then the thread that called into the socket.
    #[inline(always)]
    pub fn owned_by_user(self) -> bool {
        // SAFETY: see `state`.
        unsafe { load::<u32>(self.0, offset!(sock_owned)) != 0 }
    }

    /// Whether the socket belongs to the kernel (NFS, Ceph, NVMe/TCP, ...) and not to a process; false if this kernel
    /// does not show it.
    #[inline(always)]
    pub fn kernel_owned(self) -> bool {
        // SAFETY: see `state`.
        present(offset!(sock_kernel))
            && unsafe { load::<u8>(self.0, offset!(sock_kernel)) } as u32 >> offset!(sock_kernel_bit) & 1 == 1
    }

    /// `SOCK_DONE`: set only by `tcp_fin`, after `rcv_nxt` has advanced over the peer's FIN.
    #[inline(always)]
    pub fn fin_received(self) -> bool {
        // SAFETY: see `state`.
        unsafe { load::<u64>(self.0, offset!(sock_flags)) >> offset!(sock_done_bit) & 1 == 1 }
    }

    /// `SOCK_DEAD`: the application has closed the socket, so nobody reads from it any more.
    #[inline(always)]
    pub fn orphaned(self) -> bool {
        // SAFETY: see `state`.
        unsafe { load::<u64>(self.0, offset!(sock_flags)) >> offset!(sock_dead_bit) & 1 == 1 }
    }

    /// Whether the application has fixed `sk_rcvbuf`.
    #[inline(always)]
    pub fn rcvbuf_locked(self) -> bool {
        self.userlocks() & RCVBUF_LOCK != 0
    }

    /// Whether the kernel chose the socket's port, or will choose it: no port was asked for.
    #[inline(always)]
    pub fn port_chosen(self) -> bool {
        self.userlocks() & BINDPORT_LOCK == 0
    }

    /// `sk_userlocks`, and bits of other fields above it.
    #[inline(always)]
    fn userlocks(self) -> u32 {
        // SAFETY: see `state`.
        unsafe { load::<u8>(self.0, offset!(sock_userlocks)) as u32 >> offset!(sock_userlocks_shift) }
    }

    /// Whether its protocol is under memory pressure: TCP as a whole takes more than the second number of `tcp_mem`.
    #[inline(always)]
    fn is_under_pressure(self) -> bool {
        // SAFETY: see `state`; `struct proto` is never freed while sockets use it. The word is not part of a structure,
        // so the verifier admits no direct load of it.
        unsafe {
            let protocol = load::<*const u8>(self.0, offset!(sock_prot));
            let word = load::<*const u8>(protocol, offset!(proto_memory_pressure));
            let mut pressure = 0u64;
            bpf_probe_read_kernel((&raw mut pressure).cast(), size_of::<u64>() as u32, word.cast());
            pressure != 0
        }
    }
}

impl TcpSock {
    #[inline(always)]
    pub fn sock(self) -> Sock {
        self.1
    }

    /// Local and remote port, in host order.
    #[inline(always)]
    pub fn ports(self) -> (u16, u16) {
        // SAFETY: see `rcv_nxt`; `struct tcp_sock` starts with `struct inet_sock`, which starts with `struct sock`.
        unsafe {
            (
                u16::from_be(load(self.0, offset!(sock_local_port))),
                u16::from_be(load(self.0, offset!(sock_remote_port))),
            )
        }
    }

    /// Inode number of the socket's network namespace.
    #[inline(always)]
    pub fn netns(self) -> u32 {
        // SAFETY: see `rcv_nxt`; the namespace outlives its sockets.
        unsafe { load(load::<*const u8>(self.0, offset!(sock_net)), offset!(net_inum)) }
    }

    /// Whether a growth of `sk_rcvbuf` comes from autotuning: the network namespace has autotuning on, the application
    /// has not fixed the size, and the buffer was not enlarged for SO_RCVLOWAT, which is then also the limit of the
    /// window. (The kernel also enlarges a buffer that is full of small packets.)
    #[inline(always)]
    pub fn autotunes(self) -> bool {
        // SAFETY: see `rcv_nxt`; the namespace outlives its sockets.
        let (is_on, clamp, least) = unsafe {
            (
                load::<u8>(load::<*const u8>(self.0, offset!(sock_net)), offset!(net_autotuning)) != 0,
                load::<u32>(self.0, offset!(tcp_window_clamp)),
                load::<u32>(self.0, offset!(sock_rcvlowat)),
            )
        };
        is_on && !self.sock().rcvbuf_locked() && clamp != least
    }

    /// Sequence number of the next byte expected.
    #[inline(always)]
    pub fn rcv_nxt(self) -> u32 {
        // SAFETY: see `load`; the layout's offset of a field of `struct tcp_sock`.
        unsafe { load(self.0, offset!(tcp_rcv_nxt)) }
    }

    /// Sequence number of the next byte that the application reads.
    #[inline(always)]
    pub fn copied_seq(self) -> u32 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(tcp_copied_seq)) }
    }

    /// The last advertised window.
    #[inline(always)]
    pub fn window(self) -> u32 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(tcp_rcv_wnd)) }
    }

    /// Right edge of the last advertised window: the sequence number behind the last byte that the sender may send.
    #[inline(always)]
    pub fn edge(self) -> u32 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load::<u32>(self.0, offset!(tcp_rcv_wup)).wrapping_add(self.window()) }
    }

    /// The kernel's best estimate of a round trip, us, 0 if there is none; and whether the echoes of timestamps can
    /// give a better one.
    ///
    /// With timestamps, the receiver measures the round trip all the time, in ticks of 1 ms unless the route asks for
    /// microseconds. Without timestamps, its estimate is the time in which a whole window arrives, whatever limits
    /// that. The sending side measures in microseconds, and the handshake gives it a first sample at both ends.
    #[inline(always)]
    pub fn round_trip_us(self) -> (u32, bool) {
        // SAFETY: see `rcv_nxt`.
        let (received, timestamps, smoothed, least) = unsafe {
            (
                load::<u32>(self.0, offset!(tcp_rcv_rtt)) >> 3,
                load::<u32>(self.0, offset!(tcp_ts_recent)),
                load::<u32>(self.0, offset!(tcp_srtt)) >> 3,
                load::<u32>(self.0, offset!(tcp_rtt_min)),
            )
        };
        let is_measured = timestamps != 0 && received != 0;
        if is_measured && (received > 2000 || self.has_usec_timestamps()) {
            (received, false)
        } else if least.wrapping_add(1) > 1 && least < smoothed {
            (least, is_measured)
        } else {
            (smoothed, is_measured)
        }
    }

    /// Whether the timestamps of this connection count microseconds, not milliseconds.
    #[inline(always)]
    fn has_usec_timestamps(self) -> bool {
        if !present(offset!(tcp_usec_ts)) {
            return false;
        }
        // SAFETY: see `rcv_nxt`.
        let bits = unsafe { load::<u8>(self.0, offset!(tcp_usec_ts)) } as u32;
        bits >> offset!(tcp_usec_ts_bit) & 1 != 0
    }

    /// How long ago this host sent the timestamp `echo` of a millisecond clock, ms.
    #[inline(always)]
    pub fn echo_age_ms(self, echo: u32, now_ns: u64) -> u32 {
        // SAFETY: see `rcv_nxt`.
        let offset = unsafe { load::<u32>(self.0, offset!(tcp_tsoffset)) };
        ((now_ns / 1_000_000) as u32).wrapping_sub(echo.wrapping_sub(offset))
    }

    /// Whether the kernel keeps the receive buffer small because it is short of memory: TCP as a whole is under
    /// pressure, or the limit of the window was cut to four segments, as the kernel does under pressure and when it
    /// prunes the queue.
    #[inline(always)]
    pub fn is_short_of_memory(self) -> bool {
        // SAFETY: see `rcv_nxt`.
        let (limit, segment) = unsafe {
            (load::<u32>(self.0, offset!(tcp_rcv_ssthresh)), load::<u16>(self.0, offset!(tcp_advmss)) as u32)
        };
        // Not a socket with a buffer of a few segments, nor one on loopback, where a segment is as large as a first
        // window.
        let is_cut = limit <= 4 * segment && limit < self.sock().rcvbuf() / 4 && segment < 16_384;
        is_cut || self.sock().is_under_pressure()
    }

    /// The kernel's estimate of the peer's segment size.
    #[inline(always)]
    pub fn mss(self) -> u32 {
        // SAFETY: see `rcv_nxt`; `struct inet_connection_sock` is the first member of `struct tcp_sock`.
        unsafe { load::<u16>(self.0, offset!(tcp_mss)) as u32 }
    }

    /// In-order bytes accepted since the connection started, including a FIN.
    #[inline(always)]
    pub fn bytes_received(self) -> u64 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(tcp_bytes_received)) }
    }

    /// Data segments that have arrived since the connection started, as counted on the wire, before GRO. Includes those
    /// that are still being handled.
    #[inline(always)]
    pub fn data_segments(self) -> u32 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(tcp_data_segs_in)) }
    }

    /// Whether the connection has sent anything, even if only a SYN.
    #[inline(always)]
    pub fn has_sent(self) -> bool {
        // SAFETY: see `rcv_nxt`.
        unsafe { load::<u32>(self.0, offset!(tcp_segs_out)) != 0 }
    }

    /// Data received since the connection started, bytes.
    #[inline(always)]
    pub fn data_received(self) -> u64 {
        self.bytes_received().saturating_sub(self.sock().fin_received() as u64)
    }

    /// When the owner last read a window's worth of data, or when the connection was established if it never did;
    /// `CLOCK_MONOTONIC`, ns.
    #[inline(always)]
    pub fn last_drained_ns(self) -> u64 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load::<u64>(self.0, offset!(tcp_rcvq_time)) }.wrapping_mul(1000)
    }

    /// Whether the socket is part of an MPTCP connection, which applications read instead of this socket. For a
    /// connecting socket this is set before it connects; for an accepted one it is settled before it is established
    /// (`net/mptcp/subflow.c`).
    #[inline(always)]
    pub fn is_mptcp(self) -> bool {
        // SAFETY: the offset is present and comes from the kernel's BTF, as `load` requires.
        present(offset!(tcp_is_mptcp)) && unsafe { load::<u8>(self.0, offset!(tcp_is_mptcp)) != 0 }
    }

    /// The address of the `struct tcp_sock`, as a number: programs with CAP_PERFMON may store it.
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The socket that this one was copied from, while `tcp_create_openreq_child` has not changed that yet: an accepted
    /// connection starts as a copy of its listening socket. The head of an empty list points to itself, so the copy of
    /// a head points to the original.
    #[inline(always)]
    pub fn original(self) -> Probed {
        let head = Probed(self.address()).read::<u64>(offset!(tcp_sent_queue));
        Probed(head.wrapping_sub(offset!(tcp_sent_queue) as u64))
    }

    /// Network namespace, family, addresses and ports.
    #[inline(always)]
    pub fn identity(self, identity: &mut SocketIdentity) {
        identity.netns = self.netns();
        (identity.local_port, identity.remote_port) = self.ports();
        identity.service_port = identity.local_port;
        identity.family = self.family();
        let (local, remote) = self.addresses();
        // SAFETY: two numbers of 8 bytes are 16 bytes.
        unsafe {
            identity.local_address = core::mem::transmute::<[u64; 2], [u8; 16]>(local);
            identity.remote_address = core::mem::transmute::<[u64; 2], [u8; 16]>(remote);
        }
    }

    /// `AF_INET` or `AF_INET6`.
    #[inline(always)]
    fn family(self) -> u16 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(sock_family)) }
    }

    /// Local and remote address; one of IPv4 is in the first four bytes.
    #[inline(always)]
    pub fn addresses(self) -> ([u64; 2], [u64; 2]) {
        // SAFETY: see `rcv_nxt`.
        unsafe {
            if self.family() == AF_INET6 {
                (load(self.0, offset!(sock_local_v6)), load(self.0, offset!(sock_remote_v6)))
            } else {
                (
                    [load::<u32>(self.0, offset!(sock_local_v4)) as u64, 0],
                    [load::<u32>(self.0, offset!(sock_remote_v4)) as u64, 0],
                )
            }
        }
    }

    /// Samples the receive queue.
    #[inline(always)]
    pub fn sample_queue(self, queue: &mut QueueSample) {
        let sock = self.sock();
        queue.rcv_nxt = self.rcv_nxt();
        queue.copied_seq = self.copied_seq();
        queue.rmem = sock.rmem();
        queue.rcvbuf = sock.rcvbuf();
        queue.window = self.window();
        queue.backlog = sock.backlog();
    }
}
