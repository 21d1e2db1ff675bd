//! Tests of the offset resolver on 14 kernels, 5.10 to 7.3: compares every offset that is passed to the programs with a
//! table that was read from the same kernels by other means.
#![allow(clippy::unwrap_used, reason = "a test ends where its claim does")]

use std::{fs, path::PathBuf};

use tcpmon_btf::{Btf, layout, plan};
use tcpmon_common::settings::{ABSENT, Layout};

const EXPECTED: &str = include_str!("fixtures/btf/expected.tsv");

fn with_layout(label: &str, check: impl FnOnce(&Btf<'_>, Layout)) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/btf/{label}.btf"));
    let bytes = fs::read(path).unwrap();
    let btf = Btf::parse(&bytes).unwrap();
    let layout = layout::resolve(&btf).unwrap_or_else(|missing| panic!("{label}: {missing}"));
    check(&btf, layout);
}

/// The table's offset of a field, without its size; `None` if the table has the field as absent.
fn expected(label: &str, structure: &str, field: &str) -> Option<u32> {
    let mut rows = EXPECTED.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t'));
    let column = rows.next().unwrap().position(|cell| cell == label).unwrap();
    let row = rows
        .find(|row| {
            let mut cells = row.clone();
            (cells.next(), cells.next()) == (Some(structure), Some(field))
        })
        .unwrap_or_else(|| panic!("no row {structure}.{field}"));
    let cell = row.clone().nth(column).unwrap();
    cell.split([':', '.']).next().unwrap().parse().ok()
}

fn labels() -> Vec<&'static str> {
    EXPECTED.lines().find(|line| !line.starts_with('#')).unwrap().split('\t').skip(2).collect()
}

#[test]
fn every_kernel_resolves_to_the_offsets_of_the_table() {
    assert!(labels().len() >= 14);
    for label in labels() {
        with_layout(label, |_, layout| {
            let rows = [
                ("sock", "sk_rcvbuf", layout.sock_rcvbuf),
                ("sock", "sk_backlog.rmem_alloc", layout.sock_rmem),
                ("sock", "sk_backlog.len", layout.sock_backlog),
                ("sock", "sk_lock.owned", layout.sock_owned),
                ("sock", "__sk_common.skc_refcnt", layout.sock_references),
                ("sock", "sk_userlocks", layout.sock_userlocks),
                ("sock", "__sk_common.skc_state", layout.sock_state),
                ("sock", "__sk_common.skc_flags", layout.sock_flags),
                ("sock", "__sk_common.skc_cookie", layout.sock_cookie),
                ("inet_sock", "inet_sport", layout.sock_local_port),
                ("sock", "__sk_common.skc_net.net", layout.sock_net),
                ("socket", "sk", layout.socket_sock),
                ("tcp_sock", "rcv_nxt", layout.tcp_rcv_nxt),
                ("tcp_sock", "copied_seq", layout.tcp_copied_seq),
                ("tcp_sock", "rcv_wnd", layout.tcp_rcv_wnd),
                ("tcp_sock", "rcv_wup", layout.tcp_rcv_wup),
                ("tcp_sock", "tsoffset", layout.tcp_tsoffset),
                ("tcp_sock", "tcp_usec_ts", layout.tcp_usec_ts),
                ("tcp_sock", "bytes_received", layout.tcp_bytes_received),
                ("tcp_sock", "selective_acks", layout.tcp_sacks),
                ("tcp_sock", "is_mptcp", layout.tcp_is_mptcp),
                ("tcp_sock", "rx_opt.num_sacks", layout.tcp_sack_count),
                ("inet_connection_sock", "icsk_ack.rcv_mss", layout.tcp_mss),
                ("sk_buff", "data", layout.skb_data),
                ("sk_buff", "cb", layout.skb_cb),
                ("tcp_skb_cb", "end_seq", layout.cb_end_seq),
                ("tcp_skb_cb", "tcp_flags", layout.cb_flags),
                ("task_struct", "tgid", layout.task_tgid),
                ("task_struct", "group_leader", layout.task_leader),
                ("task_struct", "bpf_storage", layout.task_storage),
                ("task_struct", "se.sum_exec_runtime", layout.task_exec),
                ("task_struct", "sched_info.run_delay", layout.task_run_delay),
                ("task_struct", "cgroups", layout.task_cgroups),
                ("css_set", "dfl_cgrp", layout.css_set_cgroup),
                ("cgroup", "kn", layout.cgroup_node),
                ("kernfs_node", "id", layout.node_id),
                ("napi_struct", "dev", layout.napi_dev),
                ("net_device", "name", layout.device_name),
                ("net", "ns.inum", layout.net_inum),
                ("net", "ipv4.sysctl_tcp_moderate_rcvbuf", layout.net_autotuning),
                ("sock", "sk_rcvlowat", layout.sock_rcvlowat),
            ];
            for (structure, field, offset) in rows {
                let expected = expected(label, structure, field).unwrap_or(ABSENT);
                assert_eq!(offset, expected, "{label}: {structure}.{field}");
            }
            let old = expected(label, "task_struct", "state");
            assert_eq!(Some(layout.task_state), old.or(expected(label, "task_struct", "__state")), "{label}");
        });
    }
}

#[test]
fn arguments_are_found_where_each_kernel_has_them() {
    for label in labels() {
        with_layout(label, |_, layout| {
            let old = label == "5.10";
            assert_eq!(layout.sched_switch_state, if old { ABSENT } else { 3 }, "{label}");
            assert_eq!((layout.sock_done_bit, layout.sock_dead_bit), (1, 0), "{label}");
            // In all of them, it is the second of the four bits before `sk_type` (`include/net/sock.h`).
            assert_ne!(layout.sock_kernel, ABSENT, "{label}");
            assert_eq!(layout.sock_kernel_bit, 1, "{label}");
        });
    }
}

#[test]
fn programs_are_preempted_only_where_neither_tracepoints_nor_rcu_prevent_it() {
    let preemptible = |label, version| {
        let mut answer = None;
        with_layout(label, |btf, _| answer = Some(plan::preemptible(btf, version)));
        answer.unwrap()
    };
    for label in labels() {
        let expected = ["7.0", "7.1", "7.2", "7.3rc7", "7.3"].contains(&label);
        assert_eq!(preemptible(label, "#1 SMP PREEMPT_DYNAMIC Debian"), expected, "{label}");
        assert!(preemptible(label, "#1 SMP PREEMPT_RT Debian"), "{label}");
    }
}

#[test]
fn drop_reasons_carry_the_kernels_own_names_and_numbers() {
    let number = |label: &str, name: &str| {
        let mut found = None;
        with_layout(label, |btf, _| {
            found = layout::drop_reasons(btf).into_iter().find(|(_, known)| known == name).map(|(number, _)| number);
        });
        found
    };
    // From kernel-data/enum_skb_drop_reason.tsv: the numbers differ between kernels, the names do not.
    assert_eq!(number("6.1", "no_socket"), Some(2));
    assert_eq!(number("6.12", "no_socket"), Some(3));
    assert_eq!(number("5.10", "no_socket"), None);
    for label in ["6.1", "6.12", "7.3"] {
        assert!(number(label, "proto_mem").is_some(), "{label}");
    }
}
