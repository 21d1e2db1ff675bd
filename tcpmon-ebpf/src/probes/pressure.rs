//! `sock_exceed_buf_limit`: a socket asked for memory that `tcp_mem` or its control group's limit did not allow.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::{kernel::Sock, maps};

#[btf_tracepoint(function = "sock_exceed_buf_limit")]
pub fn sock_exceed_buf_limit(ctx: BtfTracePointContext) -> i32 {
    count(&ctx);
    0
}

#[inline(always)]
fn count(ctx: &BtfTracePointContext) -> Option<()> {
    // Other protocols have limits of their own.
    Sock::argument::<0>(ctx).tcp()?;
    maps::count_limit(ctx.arg::<u64>(3) as u32);
    None
}
