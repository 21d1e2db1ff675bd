//! `tcp_rcvbuf_grow` (6.16 on): a round of dynamic right-sizing found that the buffer should grow.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::{kernel::Sock, maps};

#[btf_tracepoint(function = "tcp_rcvbuf_grow")]
pub fn tcp_rcvbuf_grow(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::argument::<0>(&ctx);
    // Whether it really grew is seen at the socket's next event: the limit may be reached or fixed.
    if let Some(state) = maps::socket(sock) {
        state.grow_from = sock.rcvbuf();
    }
    0
}
