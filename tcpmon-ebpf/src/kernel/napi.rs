//! `struct napi_struct`.

use aya_ebpf::{helpers::generated::bpf_probe_read_kernel, programs::BtfTracePointContext};
use tcpmon_common::{
    name::Name,
    napi::{BACKLOG, VETHS},
};

use super::{load, offset, present};

/// `struct napi_struct *`.
#[derive(Clone, Copy)]
pub struct Napi(*const u8);

impl Napi {
    /// The NAPI instance at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// The name under which its polls are counted: the device's name, [`VETHS`] for every veth, [`BACKLOG`] for the
    /// per-CPU backlog.
    #[inline(always)]
    pub fn name(self) -> Name {
        // SAFETY: see `load`; fields of `struct napi_struct` and `struct net_device`.
        unsafe {
            let device = load::<*const u8>(self.0, offset!(napi_dev));
            if device.is_null() {
                BACKLOG
            } else if is_veth(device) {
                VETHS
            } else {
                [load(device, offset!(device_name)), load(device, offset!(device_name) + 8)]
            }
        }
    }
}

/// Whether a `struct net_device` is a veth; false if this kernel does not show it. Devices that drive hardware have no
/// such operations, so this costs them one load.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn is_veth(device: *const u8) -> bool {
    if !present(offset!(device_link_ops)) || !present(offset!(link_ops_kind)) {
        return false;
    }
    // SAFETY: as the caller promises; both fields are present.
    let kind = unsafe {
        let operations = load::<*const u8>(device, offset!(device_link_ops));
        if operations.is_null() {
            return false;
        }
        load::<u64>(operations, offset!(link_ops_kind))
    };
    let mut name = [0; 5];
    // SAFETY: the destination is `name`. The helper checks the source, which is a string of at least 5 bytes if it is
    // this one.
    unsafe { bpf_probe_read_kernel((&raw mut name).cast(), name.len() as u32, kind as *const _) };
    name == *b"veth\0"
}
