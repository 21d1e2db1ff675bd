//! What tcpmon looks up in a kernel's BTF, and a little more. After a change: `cargo xtask btf-fixture --all`.

/// What a fixture holds, as far as the kernel has it.
pub struct Wanted {
    /// Structures, and the members that they keep: all where none is named.
    pub structures: &'static [(&'static str, &'static [&'static str])],
    /// Fields deeper than one level.
    pub nested: &'static [(&'static str, &'static [&'static str])],
    pub enums: &'static [&'static str],
    /// Anonymous enums, each given by one of its enumerators.
    pub enumerators: &'static [&'static str],
    pub tracepoints: &'static [&'static str],
    pub functions: &'static [&'static str],
}

pub const WANTED: Wanted = Wanted {
    structures: &[
        ("bpf_iter__bpf_sk_storage_map", &[]),
        ("bpf_iter__task_file", &[]),
        ("bpf_iter__tcp", &[]),
        ("bpf_iter_meta", &[]),
        (
            "cgroup",
            &["ancestor_ids", "ancestors", "kn", "level", "self"],
        ),
        ("css_set", &["dfl_cgrp", "subsys"]),
        ("file", &["f_inode", "private_data"]),
        ("gro_node", &["bitmask", "cached_napi_id", "rx_count"]),
        ("inet_connection_sock", &[]),
        (
            "inet_sock",
            &["inet_dport", "inet_saddr", "inet_sport", "tos"],
        ),
        ("kernfs_node", &["__parent", "id", "name", "parent"]),
        ("napi_struct", &[]),
        ("net", &["ifindex", "net_cookie", "ns"]),
        (
            "net_device",
            &[
                "_rx",
                "flags",
                "ifindex",
                "mtu",
                "name",
                "nd_net",
                "num_rx_queues",
                "real_num_rx_queues",
            ],
        ),
        ("ns_common", &[]),
        ("nsproxy", &["net_ns", "pid_ns_for_children"]),
        (
            "sched_entity",
            &[
                "exec_start",
                "prev_sum_exec_runtime",
                "sum_exec_runtime",
                "vruntime",
            ],
        ),
        ("sched_info", &[]),
        ("sk_buff", &[]),
        (
            "skb_shared_info",
            &["frag_list", "gso_segs", "gso_size", "nr_frags"],
        ),
        ("sock", &[]),
        ("sock_cgroup_data", &[]),
        ("sock_common", &[]),
        ("socket", &[]),
        (
            "task_struct",
            &[
                "__state",
                "bpf_storage",
                "cgroups",
                "comm",
                "cpu",
                "exit_state",
                "flags",
                "group_leader",
                "nivcsw",
                "nsproxy",
                "nvcsw",
                "on_cpu",
                "on_rq",
                "parent",
                "pid",
                "prio",
                "real_parent",
                "sched_info",
                "se",
                "signal",
                "start_boottime",
                "start_time",
                "state",
                "stime",
                "tgid",
                "thread_info",
                "utime",
            ],
        ),
        ("tcp_options_received", &[]),
        ("tcp_sack_block", &[]),
        ("tcp_skb_cb", &[]),
        ("tcp_sock", &[]),
    ],
    nested: &[
        (
            "inet_connection_sock",
            &["icsk_ack.pending", "icsk_ack.lrcvtime", "icsk_ack.rcv_mss"],
        ),
        ("napi_struct", &["gro.rx_count"]),
        ("net", &["ns.inum"]),
        ("net_device", &["nd_net.net"]),
        (
            "sock",
            &[
                "__sk_common.skc_bound_dev_if",
                "__sk_common.skc_cookie",
                "__sk_common.skc_daddr",
                "__sk_common.skc_dport",
                "__sk_common.skc_family",
                "__sk_common.skc_flags",
                "__sk_common.skc_net.net",
                "__sk_common.skc_num",
                "__sk_common.skc_rcv_saddr",
                "__sk_common.skc_state",
                "__sk_common.skc_v6_daddr",
                "__sk_common.skc_v6_rcv_saddr",
                "sk_backlog.len",
                "sk_backlog.rmem_alloc",
                "sk_cgrp_data.cgroup",
                "sk_lock.owned",
                "sk_receive_queue.next",
                "sk_receive_queue.qlen",
            ],
        ),
        (
            "task_struct",
            &[
                "sched_info.last_queued",
                "sched_info.pcount",
                "sched_info.run_delay",
                "se.sum_exec_runtime",
                "thread_info.cpu",
            ],
        ),
        (
            "tcp_sock",
            &[
                "rack.rtt_us",
                "rcv_rtt_est.rtt_us",
                "rcvq_space.seq",
                "rcvq_space.space",
                "rcvq_space.time",
                "rx_opt.num_sacks",
                "rx_opt.rcv_wscale",
            ],
        ),
    ],
    enums: &[
        "bpf_attach_type",
        "bpf_map_type",
        "skb_drop_reason",
        "sock_flags",
    ],
    enumerators: &["TCP_ESTABLISHED"],
    tracepoints: &[
        "inet_sock_set_state",
        "kfree_skb",
        "napi_poll",
        "sched_process_exit",
        "sched_switch",
        "sched_waking",
        "sched_wakeup",
        "sched_wakeup_new",
        "sock_exceed_buf_limit",
        "tcp_destroy_sock",
        "tcp_probe",
        "tcp_rcv_space_adjust",
        "tcp_rcvbuf_grow",
    ],
    functions: &[
        "bpf_get_current_task_btf",
        "bpf_get_socket_ptr_cookie",
        "bpf_iter_bpf_sk_storage_map",
        "bpf_iter_task_file",
        "bpf_iter_tcp",
        "bpf_loop",
        "bpf_sk_storage_get_tracing",
        "bpf_skc_to_tcp_sock",
        "bpf_sock_from_file",
        "bpf_task_storage_get",
    ],
};

/// The members that a structure keeps, none standing for all; `None` if it is not wanted.
pub fn kept_members(structure: &str) -> Option<&'static [&'static str]> {
    WANTED
        .structures
        .iter()
        .find(|(name, _)| *name == structure)
        .map(|(_, kept)| *kept)
}
