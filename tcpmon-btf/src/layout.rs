//! Offsets, argument positions and constants of the running kernel, by name, from its BTF.

use tcpmon_common::{
    settings::{ABSENT, Layout},
    tracepoint::sched_switch::PREV_STATE,
};

use crate::Btf;

/// A name that tcpmon needs and that this kernel does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Missing {
    /// For example `tcp_sock.copied_seq`.
    pub what: String,
}

/// Resolves everything that the programs must know about the kernel.
///
/// # Errors
/// The first required field or flag that is missing. Optional ones become [`ABSENT`].
pub fn resolve(btf: &Btf<'_>) -> Result<Layout, Missing> {
    let lookup = Lookup(btf);
    let required = |structure, path| lookup.required(structure, path);
    let optional = |structure, path| lookup.optional(structure, path);
    let sock = |path| required("sock", path);
    let tcp = |path| required("tcp_sock", path);
    let task = |path| required("task_struct", path);

    let kernel_owned = btf.field("sock", "sk_kern_sock");
    // A bit field up to 6.1, a separate byte since.
    let userlocks = btf.field("sock", "sk_userlocks");
    let usec_ts = btf.field("tcp_sock", "tcp_usec_ts");
    let cgroup = lookup.cgroup().unwrap_or([ABSENT; 4]);
    Ok(Layout {
        sock_rcvbuf: sock("sk_rcvbuf")?,
        sock_rcvlowat: sock("sk_rcvlowat")?,
        sock_rmem: sock("sk_backlog.rmem_alloc")?,
        sock_backlog: sock("sk_backlog.len")?,
        sock_owned: sock("sk_lock.owned")?,
        sock_kernel: kernel_owned.as_ref().map_or(ABSENT, |field| field.offset),
        sock_kernel_bit: kernel_owned.and_then(|field| field.bits).map_or(0, |(bit, _)| u32::from(bit)),
        sock_flags: sock("__sk_common.skc_flags")?,
        sock_userlocks: userlocks.as_ref().map_or(ABSENT, |field| field.offset),
        sock_userlocks_shift: userlocks.and_then(|field| field.bits).map_or(0, |(shift, _)| u32::from(shift)),
        sock_references: sock("__sk_common.skc_refcnt")?,
        sock_state: sock("__sk_common.skc_state")?,
        sock_family: sock("__sk_common.skc_family")?,
        sock_type: sock("sk_type")?,
        sock_protocol: sock("sk_protocol")?,
        sock_local_port: required("inet_sock", "inet_sport")?,
        sock_remote_port: sock("__sk_common.skc_dport")?,
        sock_local_v4: sock("__sk_common.skc_rcv_saddr")?,
        sock_remote_v4: sock("__sk_common.skc_daddr")?,
        sock_local_v6: sock("__sk_common.skc_v6_rcv_saddr")?,
        sock_remote_v6: sock("__sk_common.skc_v6_daddr")?,
        sock_net: sock("__sk_common.skc_net.net")?,
        sock_cookie: sock("__sk_common.skc_cookie")?,
        net_inum: required("net", "ns.inum")?,
        net_autotuning: required("net", "ipv4.sysctl_tcp_moderate_rcvbuf")?,
        socket_sock: required("socket", "sk")?,
        tcp_mss: required("inet_connection_sock", "icsk_ack.rcv_mss")?,
        tcp_rcv_nxt: tcp("rcv_nxt")?,
        tcp_copied_seq: tcp("copied_seq")?,
        tcp_rcv_wnd: tcp("rcv_wnd")?,
        tcp_bytes_received: tcp("bytes_received")?,
        tcp_data_segs_in: tcp("data_segs_in")?,
        tcp_segs_out: tcp("segs_out")?,
        tcp_sent_queue: tcp("tsorted_sent_queue")?,
        tcp_sacks: tcp("selective_acks")?,
        tcp_sack_count: tcp("rx_opt.num_sacks")?,
        tcp_rcv_rtt: tcp("rcv_rtt_est.rtt_us")?,
        tcp_rcvq_time: tcp("rcvq_space.time")?,
        tcp_rcv_wup: tcp("rcv_wup")?,
        tcp_ts_recent: tcp("rx_opt.ts_recent")?,
        skb_data: required("sk_buff", "data")?,
        tcp_tsoffset: tcp("tsoffset")?,
        tcp_usec_ts: usec_ts.as_ref().map_or(ABSENT, |field| field.offset),
        tcp_usec_ts_bit: usec_ts.and_then(|field| field.bits).map_or(0, |(bit, _)| u32::from(bit)),
        tcp_srtt: tcp("srtt_us")?,
        tcp_rtt_min: tcp("rtt_min.s")? + required("minmax_sample", "v")?,
        tcp_advmss: tcp("advmss")?,
        sock_prot: sock("__sk_common.skc_prot")?,
        proto_memory_pressure: required("proto", "memory_pressure")?,
        tcp_rcv_ssthresh: tcp("rcv_ssthresh")?,
        tcp_window_clamp: tcp("window_clamp")?,
        tcp_is_mptcp: optional("tcp_sock", "is_mptcp"),
        skb_cb: required("sk_buff", "cb")?,
        cb_seq: required("tcp_skb_cb", "seq")?,
        cb_end_seq: required("tcp_skb_cb", "end_seq")?,
        cb_flags: required("tcp_skb_cb", "tcp_flags")?,
        task_tid: task("pid")?,
        task_tgid: task("tgid")?,
        task_leader: task("group_leader")?,
        task_comm: task("comm")?,
        task_storage: optional("task_struct", "bpf_storage"),
        task_exec: task("se.sum_exec_runtime")?,
        task_run_delay: optional("task_struct", "sched_info.run_delay"),
        task_state: task("__state").or_else(|_| task("state"))?,
        napi_dev: required("napi_struct", "dev")?,
        device_name: required("net_device", "name")?,
        sock_done_bit: lookup.sock_flag("SOCK_DONE")?,
        sock_dead_bit: lookup.sock_flag("SOCK_DEAD")?,
        sched_switch_state: lookup.sched_switch_state(),
        task_flags: task("flags")?,
        device_link_ops: optional("net_device", "rtnl_link_ops"),
        link_ops_kind: optional("rtnl_link_ops", "kind"),
        task_cgroups: cgroup[0],
        css_set_cgroup: cgroup[1],
        cgroup_node: cgroup[2],
        node_id: cgroup[3],
    })
}

/// Looks up numbers for the layout.
struct Lookup<'a>(&'a Btf<'a>);

impl Lookup<'_> {
    /// The offset of a field that every kernel must have.
    fn required(&self, structure: &str, path: &str) -> Result<u32, Missing> {
        let field = self.0.field(structure, path);
        field.map(|field| field.offset).ok_or_else(|| Missing { what: format!("{structure}.{path}") })
    }

    /// The offset of a field, or [`ABSENT`].
    fn optional(&self, structure: &str, path: &str) -> u32 {
        self.0.field(structure, path).map_or(ABSENT, |field| field.offset)
    }

    /// The fields on the way from a task to the id of its control group; a kernel without control groups lacks some.
    fn cgroup(&self) -> Result<[u32; 4], Missing> {
        Ok([
            self.required("task_struct", "cgroups")?,
            self.required("css_set", "dfl_cgrp")?,
            self.required("cgroup", "kn")?,
            self.required("kernfs_node", "id")?,
        ])
    }

    /// The position of the previous thread's state in the arguments of `sched_switch`, or [`ABSENT`]. `plan` compares
    /// the arguments that exist with what the programs take.
    fn sched_switch_state(&self) -> u32 {
        let arguments = self.0.tracepoint("sched_switch");
        let has_state = arguments.is_some_and(|arguments| arguments.len() > PREV_STATE.position);
        if has_state { PREV_STATE.position as u32 } else { ABSENT }
    }

    /// The number of a bit in `sk_flags`.
    fn sock_flag(&self, name: &str) -> Result<u32, Missing> {
        let bit = self.0.enumerator(Some("sock_flags"), name).and_then(|bit| u32::try_from(bit).ok());
        bit.ok_or_else(|| Missing { what: format!("enum sock_flags.{name}") })
    }
}

/// Names of the kernel's `enum skb_drop_reason`, in lower case and without `SKB_DROP_REASON_`, by number.
pub fn drop_reasons(btf: &Btf<'_>) -> Vec<(u32, String)> {
    btf.enumerators("skb_drop_reason")
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(name, number)| {
            let number = u32::try_from(number).ok()?;
            let name = name.trim_start_matches("SKB_DROP_REASON_").trim_start_matches("SKB_").to_lowercase();
            Some((number, name))
        })
        .collect()
}
