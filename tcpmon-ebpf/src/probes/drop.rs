//! `kfree_skb`: a packet was dropped. Only drops for which the kernel names a TCP socket are counted.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    drops::DropKey,
    tracepoint::kfree_skb::{REASON, SOCK},
};

use crate::{kernel::Sock, maps};

#[btf_tracepoint(function = "kfree_skb")]
pub fn kfree_skb(ctx: BtfTracePointContext) -> i32 {
    count(&ctx);
    0
}

#[inline(always)]
fn count(ctx: &BtfTracePointContext) -> Option<()> {
    let sock = Sock::new(ctx.arg(SOCK.position))?;
    let reason = ctx.arg::<u64>(REASON.position) as u32;
    if sock.tcp()?.is_mptcp() {
        return None;
    }
    maps::count_drop(&DropKey { cookie: sock.cookie(), reason, padding: 0 });
    None
}
