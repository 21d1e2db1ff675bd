//! Typed reads of kernel memory: the only place that knows offsets and raw pointers of the kernel.
//!
//! Every accessor is a plain load through a BTF-typed pointer at an offset that the verifier knows as a constant and
//! checks against the type; a load that faults reads zero. An [`ABSENT`] field must not be read: callers branch on
//! [`present`] first, and the verifier removes the branch that is not taken.

use aya_ebpf::{
    helpers::generated::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_get_socket_cookie,
        bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_skc_to_tcp_sock,
    },
    programs::{BtfTracePointContext, SockOpsContext},
};
use tcpmon_common::{
    settings::{ABSENT, Settings},
    socket::{LIVE_FIN, SocketLive},
    timeslice::QueuePhoto,
};

/// What user space found out about this kernel; filled in before loading.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = {
    // SAFETY: `Settings` is made of integers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
};

/// Reads a setting; volatile, because the compiler sees only the zeros of the initialiser.
#[inline(always)]
pub fn constant<T: Copy>(setting: &'static T) -> T {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::read_volatile(setting) }
}

/// One setting by its path.
macro_rules! setting {
    ($($field:tt)+) => {
        $crate::kernel::constant(&$crate::kernel::SETTINGS.$($field)+)
    };
}
pub(crate) use setting;

/// Offset of one field.
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::constant(&$crate::kernel::SETTINGS.layout.$field)
    };
}
pub(crate) use offset;

/// Whether the running kernel has the field.
#[inline(always)]
pub fn present(offset: u32) -> bool {
    offset != ABSENT
}

/// Direct load through a typed kernel pointer.
///
/// # Safety
/// `base` is a pointer that the verifier knows as a kernel object, `offset` comes from its BTF and is present.
#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: as the caller promises; the verifier checks offset and size against the object's type.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
}

/// `CLOCK_MONOTONIC`, ns. The dearest primitive here: at most once per program.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// The compiler moves no memory access across this; it is no instruction.
#[inline(always)]
pub fn barrier() {
    // SAFETY: an empty statement.
    unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
}

/// The CPU that the program runs on.
#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_smp_processor_id() }
}

/// Argument `N` of a tracepoint as a word, if that is where this kernel has what the caller wants. `N` is a constant,
/// because the verifier allows only constant offsets into the context; a kernel that moved the argument is refused
/// at start.
#[inline(always)]
pub fn argument<const N: u32>(ctx: &BtfTracePointContext, position: u32) -> Option<u64> {
    if position == N { Some(ctx.arg(N as usize)) } else { None }
}

/// The socket of a callback of a control group, as TCP.
#[inline(always)]
pub fn callback_tcp(ctx: &SockOpsContext) -> Option<TcpSock> {
    // SAFETY: the context is valid for reads; the verifier knows this field as a socket or null.
    let sock = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sock.is_null() {
        return None;
    }
    // What a callback gets is a `struct bpf_sock`, of which next to nothing can be read.
    let tcp = Sock(sock as *const u8).tcp()?.0;
    Some(TcpSock(tcp, Sock(tcp)))
}

/// The cookie of a callback's socket, made now if it had none.
#[inline(always)]
pub fn callback_cookie(ctx: &SockOpsContext) -> u64 {
    // SAFETY: programs of this kind pass their context.
    unsafe { bpf_get_socket_cookie(ctx.ops.cast()) }
}

/// `struct sock *`, TCP or not.
#[derive(Clone, Copy)]
pub struct Sock(*const u8);

/// `struct tcp_sock *`, obtained through `bpf_skc_to_tcp_sock` and therefore typed, beside the `struct sock *` that it
/// came from: the verifier trusts the latter, so its fields are read without a check for faults.
#[derive(Clone, Copy)]
pub struct TcpSock(*const u8, Sock);

/// `struct sk_buff *` that TCP receives.
#[derive(Clone, Copy)]
pub struct Skb(*const u8);

/// `struct task_struct *`.
#[derive(Clone, Copy)]
pub struct Task(*const u8);

/// `struct napi_struct *`.
#[derive(Clone, Copy)]
pub struct Napi(*const u8);

/// User-space ABI.
const AF_INET6: u16 = 10;

/// `TCP_ESTABLISHED` and the other states that matter here; user-space ABI, so constants.
pub mod state {
    pub const ESTABLISHED: u32 = 1;
    pub const SYN_SENT: u32 = 2;
    pub const SYN_RECV: u32 = 3;
    pub const CLOSE: u32 = 7;
    pub const LISTEN: u32 = 10;
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
    pub fn of_socket(socket: *const u8) -> Option<Self> {
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

    /// The low half of its address, as a number: the verifier lets a program have that much of a pointer, by a move.
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

    /// The same socket as TCP, unless it is another protocol, a request or a time-wait socket.
    #[inline(always)]
    pub fn tcp(self) -> Option<TcpSock> {
        // SAFETY: the helper checks the socket's kind itself.
        let tcp = unsafe { bpf_skc_to_tcp_sock(self.0.cast_mut().cast()) } as *const u8;
        if tcp.is_null() { None } else { Some(TcpSock(tcp, self)) }
    }

    /// The socket's cookie, made now if it had none.
    #[inline(always)]
    pub fn cookie(self) -> u64 {
        // SAFETY: a typed socket pointer, which tracing programs may pass since 5.12.
        unsafe { bpf_get_socket_cookie(self.0.cast_mut().cast()) }
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

    /// A process holds the socket's lock, so `current` is the one that called into the socket.
    #[inline(always)]
    pub fn owned_by_user(self) -> bool {
        // SAFETY: see `state`.
        unsafe { load::<u32>(self.0, offset!(sock_owned)) != 0 }
    }

    /// It belongs to the kernel (NFS, Ceph, NVMe/TCP, ...) and not to a process; where that cannot be told, it does not.
    #[inline(always)]
    pub fn kernel_owned(self) -> bool {
        // SAFETY: see `state`.
        present(offset!(sock_kernel))
            && unsafe { load::<u8>(self.0, offset!(sock_kernel)) } as u32 >> offset!(sock_kernel_bit) & 1 == 1
    }

    /// `SOCK_DONE`: `tcp_fin` alone sets it, when the peer's FIN has been taken into `rcv_nxt`.
    #[inline(always)]
    pub fn fin_received(self) -> bool {
        // SAFETY: see `state`.
        unsafe { load::<u64>(self.0, offset!(sock_flags)) >> offset!(sock_done_bit) & 1 == 1 }
    }

    /// `SOCK_DEAD`: the application has closed it, so nobody reads from it any more.
    #[inline(always)]
    pub fn orphaned(self) -> bool {
        // SAFETY: see `state`.
        unsafe { load::<u64>(self.0, offset!(sock_flags)) >> offset!(sock_dead_bit) & 1 == 1 }
    }

    /// The application fixed `sk_rcvbuf` (`SOCK_RCVBUF_LOCK`, bit 1 of `sk_userlocks`).
    #[inline(always)]
    pub fn rcvbuf_locked(self) -> bool {
        // SAFETY: see `state`.
        let locks = unsafe { load::<u8>(self.0, offset!(sock_userlocks)) } as u32;
        locks >> offset!(sock_userlocks_shift) & 2 != 0
    }

    /// No BPF storage of any kind hangs on the socket: cheaper than asking for ours.
    #[inline(always)]
    pub fn has_no_storage(self) -> bool {
        // SAFETY: see `state`.
        present(offset!(sock_storage)) && unsafe { load::<u64>(self.0, offset!(sock_storage)) } == 0
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
        // SAFETY: see `rcv_nxt`; `struct inet_sock` begins with `struct sock` and begins `struct tcp_sock`.
        unsafe {
            (
                u16::from_be(load(self.0, offset!(sock_local_port))),
                u16::from_be(load(self.0, offset!(sock_remote_port))),
            )
        }
    }

    /// Inode number of its network namespace.
    #[inline(always)]
    pub fn netns(self) -> u32 {
        // SAFETY: see `rcv_nxt`; the namespace outlives its sockets.
        unsafe { load(load::<*const u8>(self.0, offset!(sock_net)), offset!(net_inum)) }
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

    /// The window advertised last.
    #[inline(always)]
    pub fn window(self) -> u32 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(tcp_rcv_wnd)) }
    }

    /// The kernel's estimate of the peer's segment size.
    #[inline(always)]
    pub fn mss(self) -> u32 {
        // SAFETY: see `rcv_nxt`; `struct inet_connection_sock` is the first member of `struct tcp_sock`.
        unsafe { load::<u16>(self.0, offset!(tcp_mss)) as u32 }
    }

    /// In-order bytes accepted since the connection began, a FIN included.
    #[inline(always)]
    pub fn bytes_received(self) -> u64 {
        // SAFETY: see `rcv_nxt`.
        unsafe { load(self.0, offset!(tcp_bytes_received)) }
    }

    /// Data received since the connection began, bytes.
    #[inline(always)]
    pub fn data_received(self) -> u64 {
        self.bytes_received().saturating_sub(self.sock().fin_received() as u64)
    }

    /// Whether its data belong to an MPTCP connection, which applications read instead of this socket. Set before the
    /// socket connects, and settled for an accepted one before it is established (`net/mptcp/subflow.c`).
    #[inline(always)]
    pub fn is_mptcp(self) -> bool {
        // SAFETY: present, from the kernel's BTF, as `load` demands.
        present(offset!(tcp_is_mptcp)) && unsafe { load::<u8>(self.0, offset!(tcp_is_mptcp)) != 0 }
    }

    /// Bytes in the out-of-order queue that the SACK blocks name: all, unless there are more than four holes.
    #[inline(always)]
    fn out_of_order(self) -> u32 {
        // SAFETY: see `rcv_nxt`; `selective_acks` is an array of four pairs of u32.
        unsafe {
            let blocks = load::<u8>(self.0, offset!(tcp_sack_count)) as u32;
            let mut bytes = 0u32;
            let mut i = 0u32;
            while i < 4 {
                if i < blocks {
                    let start = load::<u32>(self.0, offset!(tcp_sacks) + 8 * i);
                    let end = load::<u32>(self.0, offset!(tcp_sacks) + 8 * i + 4);
                    bytes = bytes.wrapping_add(end.wrapping_sub(start));
                }
                i += 1;
            }
            bytes
        }
    }

    /// Everything a snapshot shows of the socket itself. Without the lock, a FIN may be seen although it is not in the
    /// `rcv_nxt` that was read: what is shown is then a byte short for a moment, and never one too many.
    #[inline(always)]
    pub fn live(self, live: &mut SocketLive) {
        let sock = self.sock();
        live.copied_seq = self.copied_seq();
        live.rcv_nxt = self.rcv_nxt();
        live.flags = if sock.fin_received() { LIVE_FIN } else { 0 };
        live.rmem = sock.rmem();
        live.rcvbuf = sock.rcvbuf();
        live.out_of_order = self.out_of_order();
        live.window = self.window();
        live.mss = self.mss();
        live.state = sock.state() as u8;
        (live.local_port, live.remote_port) = self.ports();
        live.backlog = sock.backlog();
        // SAFETY: see `state` and `rcv_nxt`.
        unsafe {
            live.rcv_ssthresh = load(self.0, offset!(tcp_rcv_ssthresh));
            live.window_clamp = load(self.0, offset!(tcp_window_clamp));
            live.rcv_rtt_us = load::<u32>(self.0, offset!(tcp_rcv_rtt)) >> 3;
        }
        self.address(live);
    }

    /// Network namespace, family and addresses.
    #[inline(always)]
    pub fn address(self, live: &mut SocketLive) {
        live.netns = self.netns();
        // SAFETY: see `rcv_nxt`.
        unsafe {
            live.family = load(self.0, offset!(sock_family));
            let (local, remote) = if live.family == AF_INET6 {
                (load::<[u64; 2]>(self.0, offset!(sock_local_v6)), load::<[u64; 2]>(self.0, offset!(sock_remote_v6)))
            } else {
                (
                    [load::<u32>(self.0, offset!(sock_local_v4)) as u64, 0],
                    [load::<u32>(self.0, offset!(sock_remote_v4)) as u64, 0],
                )
            };
            live.local_address = core::mem::transmute::<[u64; 2], [u8; 16]>(local);
            live.remote_address = core::mem::transmute::<[u64; 2], [u8; 16]>(remote);
        }
    }

    /// The receive queue now.
    #[inline(always)]
    pub fn photo(self, photo: &mut QueuePhoto) {
        let sock = self.sock();
        photo.rcv_nxt = self.rcv_nxt();
        photo.copied_seq = self.copied_seq();
        photo.rmem = sock.rmem();
        photo.rcvbuf = sock.rcvbuf();
        photo.window = self.window();
        photo.backlog = sock.backlog();
    }
}

impl Skb {
    /// The buffer at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// Payload of a segment that TCP has accepted for parsing, from its control block (`tcp_v4_fill_cb`).
    #[inline(always)]
    pub fn payload(self) -> u32 {
        let block = offset!(skb_cb);
        // SAFETY: see `load`; the control block lies inside `struct sk_buff`.
        unsafe {
            let seq = load::<u32>(self.0, block + offset!(cb_seq));
            let end = load::<u32>(self.0, block + offset!(cb_end_seq));
            let flags = load::<u8>(self.0, block + offset!(cb_flags)) as u32;
            // end_seq counts SYN (2) and FIN (1) as one each.
            end.wrapping_sub(seq).wrapping_sub(flags & 1).wrapping_sub(flags >> 1 & 1)
        }
    }
}

impl Task {
    /// The task at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// The running task.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: a helper without arguments; never null.
        Self(unsafe { bpf_get_current_task_btf() } as *const u8)
    }

    /// The task at `pointer`, unless that is null.
    #[inline(always)]
    pub fn new(pointer: *const u8) -> Option<Self> {
        if pointer.is_null() { None } else { Some(Self(pointer)) }
    }

    #[inline(always)]
    pub fn pointer(self) -> *const u8 {
        self.0
    }

    /// Thread id in the initial pid namespace.
    #[inline(always)]
    pub fn tid(self) -> u32 {
        // SAFETY: see `load`; the layout's offset of a field of `struct task_struct`.
        unsafe { load(self.0, offset!(task_tid)) }
    }

    /// Thread-group id.
    #[inline(always)]
    pub fn tgid(self) -> u32 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_tgid)) }
    }

    /// The thread's name.
    #[inline(always)]
    pub fn comm(self) -> [u8; 16] {
        // SAFETY: see `tid`.
        unsafe { core::mem::transmute(load::<[u64; 2]>(self.0, offset!(task_comm))) }
    }

    /// The name of its thread group.
    #[inline(always)]
    pub fn process(self) -> [u8; 16] {
        // SAFETY: see `tid`; the group leader outlives its threads.
        Self(unsafe { load(self.0, offset!(task_leader)) }).comm()
    }

    /// Time on a CPU, ns; up to date when `sched_switch` fires for the task that leaves.
    #[inline(always)]
    pub fn exec_ns(self) -> u64 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_exec)) }
    }

    /// Time runnable but not running, ns; 0 where the kernel does not keep it.
    #[inline(always)]
    pub fn run_delay_ns(self) -> u64 {
        if present(offset!(task_run_delay)) {
            // SAFETY: see `tid`.
            unsafe { load(self.0, offset!(task_run_delay)) }
        } else {
            0
        }
    }

    /// Id of the control group (v2) at `level` above the running task's.
    #[inline(always)]
    pub fn current_ancestor_cgroup(level: u32) -> u64 {
        // SAFETY: a helper that takes a number.
        unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) }
    }

    /// `__state`.
    #[inline(always)]
    pub fn state(self) -> u32 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_state)) }
    }

    /// No BPF storage of any kind hangs on the task: it is no reader. Cheaper than asking for ours.
    #[inline(always)]
    pub fn has_no_storage(self) -> bool {
        // SAFETY: see `tid`.
        present(offset!(task_storage)) && unsafe { load::<u64>(self.0, offset!(task_storage)) } == 0
    }
}

impl Napi {
    /// The NAPI instance at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// Name of its device, or `None` for the per-CPU backlog.
    #[inline(always)]
    pub fn device_name(self) -> Option<[u64; 2]> {
        // SAFETY: see `load`; fields of `struct napi_struct` and `struct net_device`.
        unsafe {
            let device = load::<*const u8>(self.0, offset!(napi_dev));
            if device.is_null() {
                None
            } else {
                Some([load(device, offset!(device_name)), load(device, offset!(device_name) + 8)])
            }
        }
    }
}

/// A socket known by its address only. The memory may belong to another socket by now: compare the cookie.
#[derive(Clone, Copy)]
pub struct Remembered(pub u64);

impl Remembered {
    /// One field, by a read that cannot fault; zero if it fails.
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

    /// A process holds the socket's lock.
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

    /// The receive queue now.
    #[inline(always)]
    pub fn photo(self, photo: &mut QueuePhoto) {
        photo.copied_seq = self.read(offset!(tcp_copied_seq));
        photo.rcv_nxt = self.rcv_nxt();
        photo.rmem = self.read(offset!(sock_rmem));
        photo.rcvbuf = self.read(offset!(sock_rcvbuf));
        photo.backlog = self.read(offset!(sock_backlog));
        photo.window = self.read(offset!(tcp_rcv_wnd));
    }
}
