//! `napi_poll`: a driver (or the per-CPU backlog) has polled its receive ring.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tcpmon_common::{
    loss::Loss,
    napi::NAPI_SLOTS,
    tracepoint::napi_poll::{BUDGET, NAPI, WORK},
};

use crate::{kernel::Napi, maps};

/// Slots that are tried for a name before its polls count as `other`.
const PROBES: u32 = 4;

#[btf_tracepoint(function = "napi_poll")]
pub fn napi_poll(ctx: BtfTracePointContext) -> i32 {
    poll(&ctx);
    0
}

#[inline(always)]
fn poll(ctx: &BtfTracePointContext) -> Option<()> {
    let name = Napi::argument::<{ NAPI.position }>(ctx).name();
    let work = ctx.arg::<u64>(WORK.position) as i32;
    let budget = ctx.arg::<u64>(BUDGET.position) as i32;
    // Names differ in only a few characters. The multiplication carries these differences to the top bits (a
    // multiplicative hash).
    let hash = (name[0] ^ name[1].rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;

    let mut probe = 0;
    while probe < PROBES {
        let device = maps::napi((hash as u32 + probe) % NAPI_SLOTS)?;
        if device.name[0] == 0 && device.name[1] == 0 {
            device.name = name;
        }
        if device.name[0] == name[0] && device.name[1] == name[1] {
            count(device, work, budget);
            return None;
        }
        probe += 1;
    }
    maps::count_loss(Loss::NapiDevice);
    count(maps::napi(NAPI_SLOTS)?, work, budget);
    None
}

#[inline(always)]
fn count(device: &mut tcpmon_common::napi::NapiDevice, work: i32, budget: i32) {
    device.polls += 1;
    if work > 0 {
        device.packets += work as u64;
    }
    device.exhausted += (work >= budget) as u64;
}
