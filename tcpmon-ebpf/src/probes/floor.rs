//! Empty programs on every tracepoint that the daemon uses: they show the cost of being attached at all. Only `cargo
//! xtask bench` loads them.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

macro_rules! empty {
    ($($name:ident on $tracepoint:literal;)+) => {
        $(
            #[btf_tracepoint(function = $tracepoint)]
            pub fn $name(_ctx: BtfTracePointContext) -> i32 {
                0
            }
        )+
    };
}

empty! {
    floor_inet_sock_set_state on "inet_sock_set_state";
    floor_tcp_destroy_sock on "tcp_destroy_sock";
    floor_sched_switch on "sched_switch";
    floor_tcp_rcv_space_adjust on "tcp_rcv_space_adjust";
    floor_tcp_probe on "tcp_probe";
    floor_tcp_rcvbuf_grow on "tcp_rcvbuf_grow";
    floor_kfree_skb on "kfree_skb";
    floor_napi_poll on "napi_poll";
    floor_sock_exceed_buf_limit on "sock_exceed_buf_limit";
}
