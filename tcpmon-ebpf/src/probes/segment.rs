//! `tcp_probe`: a segment reaches `tcp_rcv_established`, before it is queued.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    fold::Trigger,
    settings::TRACE_NONE,
    tracepoint::tcp_probe::{SKB, SOCK},
};

use crate::{
    kernel::{Skb, Sock, setting},
    socket,
};

#[btf_tracepoint(function = "tcp_probe")]
pub fn tcp_probe(ctx: BtfTracePointContext) -> i32 {
    segment(&ctx);
    0
}

#[inline(always)]
fn segment(ctx: &BtfTracePointContext) -> Option<()> {
    let skb = Skb::argument::<{ SKB.position }>(ctx);
    // A pure ACK changes nothing on the receiving side.
    let (bytes, end) = skb.payload();
    if bytes == 0 {
        return None;
    }
    let tcp = Sock::argument::<{ SOCK.position }>(ctx).known_tcp()?;
    let state = if setting!(trace) == TRACE_NONE { socket::watched(tcp)? } else { socket::watched_by_trace(tcp)? };
    let seen = socket::sample(state, tcp).with_segment(end);
    socket::event(state, |state| socket::fold(state, &seen, Trigger::Segment, || socket::path(tcp, skb, seen.now_ns)));
    None
}
