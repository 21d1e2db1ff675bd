//! Typed reads of kernel memory: the only place that knows offsets and raw pointers of the kernel.
//!
//! Every accessor is a plain load through a BTF-typed pointer, at an offset that the verifier knows as a constant and
//! checks against the type. A load that faults reads zero. An [`ABSENT`] field must not be read: callers branch on
//! [`present`] first, and the verifier removes the branch that is not taken.

use aya_ebpf::{
    helpers::generated::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_get_socket_cookie,
        bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_skc_to_tcp_sock,
    },
    programs::{BtfTracePointContext, SockOpsContext},
};
use tcpmon_common::{
    name::{self, Name},
    napi::{BACKLOG, VETHS},
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

/// Reads a setting. The read is volatile because the compiler sees only the zeros of the initialiser.
#[inline(always)]
pub fn constant<T: Copy>(setting: &'static T) -> T {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::read_volatile(setting) }
}

/// Reads one setting by its path.
macro_rules! setting {
    ($($field:tt)+) => {
        $crate::kernel::constant(&$crate::kernel::SETTINGS.$($field)+)
    };
}
pub(crate) use setting;

/// Reads the offset of one field.
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

/// Loads a value directly through a typed kernel pointer.
///
/// # Safety
/// The verifier knows `base` as a pointer to a kernel object; `offset` comes from the BTF of that object's type and is
/// present.
#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: as the caller promises; the verifier checks offset and size against the object's type.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
}

/// `CLOCK_MONOTONIC`, ns. The most expensive primitive here: call it at most once per program.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// A compiler barrier: the compiler moves no memory access across it. It generates no instruction.
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

/// The socket of a sock_ops program's context, as TCP.
#[inline(always)]
pub fn callback_tcp(ctx: &SockOpsContext) -> Option<TcpSock> {
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
pub fn callback_cookie(ctx: &SockOpsContext) -> u64 {
    // SAFETY: programs of this kind may pass their context to this helper.
    unsafe { bpf_get_socket_cookie(ctx.ops.cast()) }
}

/// `struct sock *`, TCP or not.
#[derive(Clone, Copy)]
pub struct Sock(*const u8);

/// `struct tcp_sock *`, with the `struct sock *` that it came from.
///
/// The first is typed, because it comes from `bpf_skc_to_tcp_sock`. The verifier trusts the second, so fields of
/// `struct sock` are read through that one without a check for faults.
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

/// From `include/linux/sched.h`, the same in 5.10 to 7.3; a test compares it with what `/proc` shows for thread 2.
const PF_KTHREAD: u32 = 0x0020_0000;

/// User-space ABI.
const AF_INET6: u16 = 10;

/// The TCP states that matter here. They are user-space ABI, so they are constants.
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

    /// The low half of the socket's address, as a number: the verifier allows a program that much of a pointer, by a
    /// 32-bit move.
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

    /// The socket's cookie; created now if it had none.
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

    /// Whether the application has fixed `sk_rcvbuf` (`SOCK_RCVBUF_LOCK`, bit 1 of `sk_userlocks`).
    #[inline(always)]
    pub fn rcvbuf_locked(self) -> bool {
        // SAFETY: see `state`.
        let locks = unsafe { load::<u8>(self.0, offset!(sock_userlocks)) } as u32;
        locks >> offset!(sock_userlocks_shift) & 2 != 0
    }

    /// Whether the kernel chose the socket's port (`SOCK_BINDPORT_LOCK`, bit 3 of `sk_userlocks`, is not set).
    #[inline(always)]
    pub fn port_chosen(self) -> bool {
        // SAFETY: see `state`.
        let locks = unsafe { load::<u8>(self.0, offset!(sock_userlocks)) } as u32;
        locks >> offset!(sock_userlocks_shift) & 8 == 0
    }

    /// Whether the socket has no BPF storage of any kind: cheaper than looking up ours.
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

    /// Data received since the connection started, bytes.
    #[inline(always)]
    pub fn data_received(self) -> u64 {
        self.bytes_received().saturating_sub(self.sock().fin_received() as u64)
    }

    /// Whether the socket is part of an MPTCP connection, which applications read instead of this socket. For a
    /// connecting socket this is set before it connects; for an accepted one it is settled before it is established
    /// (`net/mptcp/subflow.c`).
    #[inline(always)]
    pub fn is_mptcp(self) -> bool {
        // SAFETY: the offset is present and comes from the kernel's BTF, as `load` requires.
        present(offset!(tcp_is_mptcp)) && unsafe { load::<u8>(self.0, offset!(tcp_is_mptcp)) != 0 }
    }

    /// Bytes in the out-of-order queue that the SACK blocks name: all of them, unless there are more than four holes.
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

    /// Reads everything that a snapshot shows of the socket itself. This takes no lock, so a FIN may be seen that is
    /// not in the `rcv_nxt` that was read: the received bytes are then one byte short until the next pass. If the read
    /// comes between the two steps of the kernel (`rcv_nxt` advances, then `tcp_fin` sets `SOCK_DONE`), they are one
    /// too many until then; the group's total makes up for it with the next byte.
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

    /// Samples the receive queue.
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
    /// The segment at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// Payload bytes of a segment that TCP has accepted for parsing, from its control block (`tcp_v4_fill_cb`).
    #[inline(always)]
    pub fn payload(self) -> u32 {
        let block = offset!(skb_cb);
        // SAFETY: see `load`; the control block is inside `struct sk_buff`.
        unsafe {
            let seq = load::<u32>(self.0, block + offset!(cb_seq));
            let end = load::<u32>(self.0, block + offset!(cb_end_seq));
            let flags = load::<u8>(self.0, block + offset!(cb_flags)) as u32;
            // `end_seq` counts SYN (flag 2) and FIN (flag 1) as one each.
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

    /// Thread id in the initial PID namespace.
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

    /// All ones for a kernel thread, otherwise zero.
    #[inline(always)]
    fn kernel_mask(self) -> u64 {
        // SAFETY: see `tid`.
        let flags: u32 = unsafe { load(self.0, offset!(task_flags)) };
        ((flags & PF_KTHREAD != 0) as u64).wrapping_neg()
    }

    /// The name of the task's thread group. For a kernel thread, only the part before `/`, because each CPU has a
    /// thread of its own.
    #[inline(always)]
    pub fn process(self) -> Name {
        // SAFETY: see `tid`; the group leader outlives its threads.
        let all = unsafe { load::<Name>(load(self.0, offset!(task_leader)), offset!(task_comm)) };
        let before = name::before_slash(all);
        let mask = self.kernel_mask();
        [before[0] & mask | all[0] & !mask, before[1] & mask | all[1] & !mask]
    }

    /// The task's thread-group id; 0 for kernel threads, which are not processes.
    #[inline(always)]
    pub fn process_id(self) -> u32 {
        self.tgid() & !(self.kernel_mask() as u32)
    }

    /// Time on a CPU, ns; up to date when `sched_switch` fires for the task that leaves the CPU.
    #[inline(always)]
    pub fn exec_ns(self) -> u64 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_exec)) }
    }

    /// Time runnable but not running, ns; 0 if the kernel does not keep it.
    #[inline(always)]
    pub fn run_delay_ns(self) -> u64 {
        if present(offset!(task_run_delay)) {
            // SAFETY: see `tid`.
            unsafe { load(self.0, offset!(task_run_delay)) }
        } else {
            0
        }
    }

    /// Id of the running task's ancestor control group (v2) that is `level` levels below the root.
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

    /// Whether the task has no BPF storage of any kind, and so is not a reader. Cheaper than looking up ours.
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

    /// What its polls are counted under: the device's name, [`VETHS`] for every veth, [`BACKLOG`] for the per-CPU
    /// backlog.
    #[inline(always)]
    pub fn name(self) -> Name {
        // SAFETY: see `load`; fields of `struct napi_struct` and `struct net_device`.
        unsafe {
            let device = load::<*const u8>(self.0, offset!(napi_dev));
            if device.is_null() {
                BACKLOG
            } else if is_veth(device) {
                VETHS
            } else {
                [load(device, offset!(device_name)), load(device, offset!(device_name) + 8)]
            }
        }
    }
}

/// Whether a `struct net_device` is a veth; false if this kernel does not show it. Devices that drive hardware have no
/// such operations, so this costs them one load.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn is_veth(device: *const u8) -> bool {
    if !present(offset!(device_link_ops)) || !present(offset!(link_ops_kind)) {
        return false;
    }
    // SAFETY: as the caller promises; both fields are present.
    let kind = unsafe {
        let operations = load::<*const u8>(device, offset!(device_link_ops));
        if operations.is_null() {
            return false;
        }
        load::<u64>(operations, offset!(link_ops_kind))
    };
    let mut name = [0; 5];
    // SAFETY: the destination is `name`. The helper checks the source, which is a string of at least 5 bytes if it is
    // this one.
    unsafe { bpf_probe_read_kernel((&raw mut name).cast(), name.len() as u32, kind as *const _) };
    name == *b"veth\0"
}

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
    pub fn photo(self, photo: &mut QueuePhoto) {
        photo.copied_seq = self.read(offset!(tcp_copied_seq));
        photo.rcv_nxt = self.rcv_nxt();
        photo.rmem = self.read(offset!(sock_rmem));
        photo.rcvbuf = self.read(offset!(sock_rcvbuf));
        photo.backlog = self.read(offset!(sock_backlog));
        photo.window = self.read(offset!(tcp_rcv_wnd));
    }
}
