//! `tcp_probe`: a segment reaches `tcp_rcv_established`, before it is queued.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::fold;

use crate::{
    kernel::{self, Skb, Sock},
    socket,
};

#[btf_tracepoint(function = "tcp_probe")]
pub fn tcp_probe(ctx: BtfTracePointContext) -> i32 {
    segment(&ctx);
    0
}

#[inline(always)]
fn segment(ctx: &BtfTracePointContext) -> Option<()> {
    // A pure acknowledgement changes nothing on the receiving side.
    if Skb::argument::<1>(ctx).payload() == 0 {
        return None;
    }
    let tcp = Sock::argument::<0>(ctx).tcp()?;
    let now = kernel::now_ns();
    let state = socket::watched(tcp, now)?;
    let folded = socket::fold(state, tcp, now);
    state.counters.segments += 1;
    fold::observe(&mut state.counters.segment_fill, folded.fill, 1);
    None
}
