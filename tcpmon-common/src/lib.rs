//! What tcpmon's eBPF programs and its daemon share: one file per record.
//!
//! Every type here is `repr(C)`, has explicit padding and is valid for any bytes, so that a record crosses the kernel
//! boundary exactly as it is in memory. Both sides run on the same little-endian host.
#![no_std]
// For an atomic addition, which Rust cannot express for eBPF.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

pub mod causes;
pub mod connections;
pub mod copy;
pub mod counters;
pub mod drops;
pub mod fold;
pub mod header;
pub mod histogram;
pub mod ignored;
pub mod look;
pub mod loss;
pub mod memory_limit;
pub mod name;
pub mod napi;
pub mod owner;
pub mod reader;
pub mod settings;
pub mod socket;
pub mod store;
pub mod tcp_state;
pub mod timeslice;
pub mod tracepoint;

/// Tells aya that the records may be copied from and to maps as bytes.
#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
mod pod {
    macro_rules! pod {
        ($($record:path),+) => {
            $(
                // SAFETY: `repr(C)`, without implicit padding (sizes are asserted); any bytes are a valid value.
                unsafe impl aya::Pod for $record {}
            )+
        };
    }
    pod!(crate::drops::DropKey, crate::napi::NapiDevice, crate::reader::ReaderSlot, crate::settings::Settings);
}
