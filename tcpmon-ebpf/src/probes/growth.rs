//! `tcp_rcvbuf_grow` (6.16 and newer): a round of dynamic right-sizing found that the buffer should grow.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::tracepoint::tcp_rcvbuf_grow::SOCK;

use crate::{kernel::Sock, socket};

#[btf_tracepoint(function = "tcp_rcvbuf_grow")]
pub fn tcp_rcvbuf_grow(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::argument::<{ SOCK.position }>(&ctx);
    // The socket's next event shows whether the buffer really grew: it may be at its limit, or its size may be fixed.
    if let Some(state) = socket::known(sock) {
        state.grow_from = sock.rcvbuf();
    }
    0
}
