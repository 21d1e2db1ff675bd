//! `kfree_skb`: a packet was dropped; matters where the kernel names the TCP socket that it was for.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::drops::DropKey;

use crate::{
    kernel::{self, Sock, offset},
    maps,
};

#[btf_tracepoint(function = "kfree_skb")]
pub fn kfree_skb(ctx: BtfTracePointContext) -> i32 {
    count(&ctx);
    0
}

#[inline(always)]
fn count(ctx: &BtfTracePointContext) -> Option<()> {
    let sock = kernel::argument::<3>(ctx, offset!(kfree_skb_sock))?;
    let reason = kernel::argument::<2>(ctx, offset!(kfree_skb_reason))? as u32;
    let sock = Sock::new(sock as *const u8)?;
    if sock.tcp()?.is_mptcp() {
        return None;
    }
    maps::count_drop(&DropKey { cookie: sock.cookie(), reason, padding: 0 });
    None
}
