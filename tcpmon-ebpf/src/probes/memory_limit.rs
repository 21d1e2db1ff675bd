//! `sock_exceed_buf_limit`: a socket asked for memory that `tcp_mem` or its control group's limit did not allow.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::tracepoint::sock_exceed_buf_limit::{KIND, SOCK};

use crate::{kernel::Sock, maps};

#[btf_tracepoint(function = "sock_exceed_buf_limit")]
pub fn sock_exceed_buf_limit(ctx: BtfTracePointContext) -> i32 {
    count(&ctx);
    0
}

#[inline(always)]
fn count(ctx: &BtfTracePointContext) -> Option<()> {
    // Ignore other protocols: they have their own limits.
    Sock::argument::<{ SOCK.position }>(ctx).tcp()?;
    maps::count_memory_limit(ctx.arg::<u64>(KIND.position) as u32);
    None
}
