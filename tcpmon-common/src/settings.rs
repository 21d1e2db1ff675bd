//! What user space passes to the programs once, before they are loaded, as one read-only global.
//!
//! The verifier treats these values as constants: a branch on an absent field costs nothing and loads no instruction.

/// The running kernel has no such field.
pub const ABSENT: u32 = u32::MAX;

/// Byte offsets from the running kernel's BTF; [`ABSENT`] if the kernel has no such field. The first sixteen are what
/// every segment and read needs: one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Layout {
    /// `sk_buff.cb`
    pub skb_cb: u32,
    /// `tcp_skb_cb.seq`
    pub cb_seq: u32,
    /// `tcp_skb_cb.end_seq`
    pub cb_end_seq: u32,
    /// `tcp_skb_cb.tcp_flags`
    pub cb_flags: u32,
    /// `sock.__sk_common.skc_cookie`
    pub sock_cookie: u32,
    /// `sock.sk_rcvbuf`
    pub sock_rcvbuf: u32,
    /// `sock.sk_rcvlowat`
    pub sock_rcvlowat: u32,
    /// `sock.sk_backlog.rmem_alloc`
    pub sock_rmem: u32,
    /// `sock.__sk_common.skc_state`
    pub sock_state: u32,
    /// `sock.__sk_common.skc_flags`
    pub sock_flags: u32,
    /// Number of the bit `SOCK_DONE` in `sock.__sk_common.skc_flags`.
    pub sock_done_bit: u32,
    /// Number of the bit `SOCK_DEAD` in the same field.
    pub sock_dead_bit: u32,
    /// The byte that holds `sock.sk_kern_sock`.
    pub sock_kernel: u32,
    /// Number of that bit within the byte.
    pub sock_kernel_bit: u32,
    /// `sock.sk_lock.owned`
    pub sock_owned: u32,
    /// `tcp_sock.rcv_nxt`
    pub tcp_rcv_nxt: u32,
    /// `tcp_sock.copied_seq`
    pub tcp_copied_seq: u32,
    /// `tcp_sock.rcv_wnd`
    pub tcp_rcv_wnd: u32,
    /// `inet_connection_sock.icsk_ack.rcv_mss`
    pub tcp_mss: u32,
    /// `task_struct.pid`
    pub task_tid: u32,
    /// `sock.sk_backlog.len`
    pub sock_backlog: u32,
    /// The byte that holds the lowest bit of `sock.sk_userlocks`.
    pub sock_userlocks: u32,
    /// Number of that lowest bit within the byte.
    pub sock_userlocks_shift: u32,
    /// `sock.__sk_common.skc_family`
    pub sock_family: u32,
    /// `sock.sk_type`
    pub sock_type: u32,
    /// `sock.sk_protocol`
    pub sock_protocol: u32,
    /// `inet_sock.inet_sport`, big-endian; unlike `skc_num`, it is still set when the socket is destroyed
    pub sock_local_port: u32,
    /// `sock.__sk_common.skc_dport`, big-endian
    pub sock_remote_port: u32,
    /// `sock.__sk_common.skc_rcv_saddr`
    pub sock_local_v4: u32,
    /// `sock.__sk_common.skc_daddr`
    pub sock_remote_v4: u32,
    /// `sock.__sk_common.skc_v6_rcv_saddr`
    pub sock_local_v6: u32,
    /// `sock.__sk_common.skc_v6_daddr`
    pub sock_remote_v6: u32,
    /// `sock.__sk_common.skc_net.net`
    pub sock_net: u32,
    /// `sock.__sk_common.skc_refcnt`
    pub sock_references: u32,
    /// `net.ns.inum`
    pub net_inum: u32,
    /// `net.ipv4.sysctl_tcp_moderate_rcvbuf`, a byte
    pub net_autotuning: u32,
    /// `socket.sk`
    pub socket_sock: u32,
    /// `tcp_sock.bytes_received`
    pub tcp_bytes_received: u32,
    /// `tcp_sock.data_segs_in`
    pub tcp_data_segs_in: u32,
    /// `tcp_sock.segs_out`
    pub tcp_segs_out: u32,
    /// `tcp_sock.tsorted_sent_queue.next`
    pub tcp_sent_queue: u32,
    /// `tcp_sock.selective_acks`
    pub tcp_sacks: u32,
    /// `tcp_sock.rx_opt.num_sacks`
    pub tcp_sack_count: u32,
    /// `tcp_sock.rcv_rtt_est.rtt_us`
    pub tcp_rcv_rtt: u32,
    /// `tcp_sock.rcvq_space.time`
    pub tcp_rcvq_time: u32,
    /// `tcp_sock.rcv_wup`
    pub tcp_rcv_wup: u32,
    /// `tcp_sock.rx_opt.ts_recent`
    pub tcp_ts_recent: u32,
    /// `sk_buff.data`
    pub skb_data: u32,
    /// `tcp_sock.tsoffset`
    pub tcp_tsoffset: u32,
    /// The byte that holds `tcp_sock.tcp_usec_ts` (Linux 6.7).
    pub tcp_usec_ts: u32,
    /// Number of that bit within the byte.
    pub tcp_usec_ts_bit: u32,
    /// `tcp_sock.srtt_us`
    pub tcp_srtt: u32,
    /// `tcp_sock.rtt_min.s[0].v`
    pub tcp_rtt_min: u32,
    /// `tcp_sock.advmss`
    pub tcp_advmss: u32,
    /// `sock.__sk_common.skc_prot`
    pub sock_prot: u32,
    /// `proto.memory_pressure`
    pub proto_memory_pressure: u32,
    /// `tcp_sock.rcv_ssthresh`
    pub tcp_rcv_ssthresh: u32,
    /// `tcp_sock.window_clamp`
    pub tcp_window_clamp: u32,
    /// `tcp_sock.is_mptcp`
    pub tcp_is_mptcp: u32,
    /// `task_struct.tgid`
    pub task_tgid: u32,
    /// `task_struct.group_leader`
    pub task_leader: u32,
    /// `task_struct.comm`
    pub task_comm: u32,
    /// `task_struct.bpf_storage`
    pub task_storage: u32,
    /// `task_struct.se.sum_exec_runtime`
    pub task_exec: u32,
    /// `task_struct.sched_info.run_delay`
    pub task_run_delay: u32,
    /// `task_struct.__state`, or `state` on older kernels
    pub task_state: u32,
    /// `napi_struct.dev`
    pub napi_dev: u32,
    /// `net_device.name`
    pub device_name: u32,
    /// Position of `prev_state` among the arguments of `sched_switch`; [`ABSENT`] if the kernel does not pass it.
    pub sched_switch_state: u32,
    /// `task_struct.flags`
    pub task_flags: u32,
    /// `net_device.rtnl_link_ops`
    pub device_link_ops: u32,
    /// `rtnl_link_ops.kind`
    pub link_ops_kind: u32,
    /// `task_struct.cgroups`; this and the next three are all there, or none is.
    pub task_cgroups: u32,
    /// `css_set.dfl_cgrp`
    pub css_set_cgroup: u32,
    /// `cgroup.kn`
    pub cgroup_node: u32,
    /// `kernfs_node.id`
    pub node_id: u32,
}

/// Number of a helper that no kernel has. Before loading, each call of it is replaced by one that casts the known TCP
/// socket in register 1 to the type whose BTF id is in register 2.
pub const CAST_CALL: u32 = 0x7463_706d;

/// No trace: the daemon.
pub const TRACE_NONE: u32 = 0;
/// A trace of totals only.
pub const TRACE_TOTALS: u32 = 1;
/// A trace that also sends each timeslice.
pub const TRACE_TIMESLICES: u32 = 2;

/// Largest number of control groups to which one trace can be limited.
pub const FILTER_CGROUPS: usize = 8;

/// Largest number of ranges in [`Settings::ephemeral_ports`].
pub const EPHEMERAL_RANGES: usize = 8;

/// A range that contains no port: an unused entry of [`Settings::ephemeral_ports`].
pub const NO_PORTS: [u16; 2] = [1, 0];

/// Everything that is passed to the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct Settings {
    /// Offsets in the kernel's structures.
    pub layout: Layout,
    /// A `TRACE_` constant: whether this is a trace, and what it sends.
    pub trace: u32,
    /// 1 if the tracepoint `tcp_rcvbuf_grow` announces growth; 0 if growth is inferred from `sk_rcvbuf`.
    pub grow_announced: u16,
    /// 1 if `sched_switch` counts the readers' timeslices; 0 if each read adds the reader's times since the last one.
    pub timeslices: u16,
    /// If not 0, trace only thread groups in the map `FILTER_TGIDS`.
    pub filter_tgids: u16,
    /// If not 0, trace only thread groups whose name is in the map `FILTER_COMMS`.
    pub filter_comms: u16,
    /// If not 0, trace only sockets with a port in the map `FILTER_PORTS`.
    pub filter_ports: u32,
    /// If not 0, trace only threads in or below one of the first `filter_cgroups` entries of `cgroups`.
    pub filter_cgroups: u32,
    /// BTF id of `struct tcp_sock`.
    pub tcp_sock_type: u32,
    /// 64 minus the binary logarithm of the number of buckets in the table of states.
    pub table_shift: u32,
    /// 1 if user space can run the program that looks at sockets; otherwise each event stores in the state what it has
    /// seen.
    pub can_look: u32,
    /// `CLOCK_MONOTONIC` when tcpmon started, ns.
    pub began_ns: u64,
    /// Ids of control groups (cgroup v2).
    pub cgroups: [u64; FILTER_CGROUPS],
    /// Their depths below the root.
    pub cgroup_levels: [u32; FILTER_CGROUPS],
    /// First and last ports of ranges in which servers choose ports themselves; [`NO_PORTS`] in unused entries.
    pub ephemeral_ports: [[u16; 2]; EPHEMERAL_RANGES],
}

const _: () = assert!(size_of::<Layout>() == 76 * 4);
const _: () = assert!(size_of::<Settings>() == 76 * 4 + 32 + 8 + 64 + 32 + 32);
