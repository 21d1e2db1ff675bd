//! tcpmon's eBPF programs: this file only wires them together.
//!
//! `tcpmon-daemon/build.rs` builds it for `bpfel-unknown-none`. On the host it is an empty program, so that the
//! workspace can be checked without the eBPF toolchain.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
// For what Rust cannot express here: a compiler barrier, an atomic addition, half of an address.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod kernel;
#[cfg(target_arch = "bpf")]
mod look;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod owners;
#[cfg(target_arch = "bpf")]
mod probes;
#[cfg(target_arch = "bpf")]
mod reader;
#[cfg(target_arch = "bpf")]
mod seed;
#[cfg(target_arch = "bpf")]
mod socket;
#[cfg(target_arch = "bpf")]
mod store;
#[cfg(target_arch = "bpf")]
mod trace;
#[cfg(target_arch = "bpf")]
mod traced;

// Several helpers are available to GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[expect(unsafe_code, reason = "the kernel looks for the license in a section of this name")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // No path in the programs panics. The verifier refuses a program that reaches an endless loop.
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
