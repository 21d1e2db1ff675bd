//! `struct sk_buff`.

use core::mem::MaybeUninit;

use aya_ebpf::{helpers::generated::bpf_probe_read_kernel, programs::BtfTracePointContext};

use super::{load, offset};

/// Two NOPs and the head of a timestamps option: how options begin in segments of an established connection (RFC 7323,
/// appendix A).
const TIMESTAMPS: u32 = 0x0101_080a;

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

    /// TSecr of the segment: this host's timestamp that the sender had seen last. Only for a segment that TCP is
    /// parsing, whose `data` is its TCP header.
    #[inline(always)]
    pub fn echo(self) -> Option<u32> {
        // The first words after the header of 20 bytes.
        let mut options = MaybeUninit::<[u32; 3]>::uninit();
        // SAFETY: see `load`; the destination is `options`, which the helper fills even if it fails, and it checks the
        // source.
        let (failed, options) = unsafe {
            let header = load::<u64>(self.0, offset!(skb_data));
            let size = size_of_val(&options) as u32;
            let failed = bpf_probe_read_kernel(options.as_mut_ptr().cast(), size, (header + 20) as *const _);
            (failed, options.assume_init())
        };
        if failed == 0 && options[0] == TIMESTAMPS.to_be() { Some(u32::from_be(options[2])) } else { None }
    }
}
