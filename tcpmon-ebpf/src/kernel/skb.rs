//! `struct sk_buff`.

use aya_ebpf::programs::BtfTracePointContext;

use super::{load, offset};

/// `struct sk_buff *` that TCP receives.
#[derive(Clone, Copy)]
pub struct Skb(*const u8);

impl Skb {
    /// The segment at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// Payload bytes of a segment that TCP has accepted for parsing, and the sequence number behind them, from its
    /// control block (`tcp_v4_fill_cb`).
    #[inline(always)]
    pub fn payload(self) -> (u32, u32) {
        let block = offset!(skb_cb);
        // SAFETY: see `load`; the control block is inside `struct sk_buff`.
        unsafe {
            let seq = load::<u32>(self.0, block + offset!(cb_seq));
            let end = load::<u32>(self.0, block + offset!(cb_end_seq));
            let flags = load::<u8>(self.0, block + offset!(cb_flags)) as u32;
            // `end_seq` counts SYN (flag 2) and FIN (flag 1) as one each.
            (end.wrapping_sub(seq).wrapping_sub(flags & 1).wrapping_sub(flags >> 1 & 1), end)
        }
    }
}
