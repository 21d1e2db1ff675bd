//! Typed reads of kernel memory: the only place that knows offsets and raw pointers of the kernel.
//!
//! Every accessor is a plain load through a BTF-typed pointer, at an offset that the verifier knows as a constant and
//! checks against the type. A load that faults reads zero. An [`ABSENT`] field must not be read: callers branch on
//! [`present`] first, and the verifier removes the branch that is not taken.
#![expect(unsafe_code, reason = "loads through kernel pointers, at offsets that the verifier checks")]

mod maybe_freed;
mod napi;
mod skb;
mod sock;
mod task;

use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use tcpmon_common::settings::{ABSENT, Settings};

pub use self::{
    maybe_freed::{Cast, MaybeFreedSock, Probed},
    napi::Napi,
    skb::Skb,
    sock::{Sock, TcpSock, open_socket, sock_ops_cookie, sock_ops_tcp, tell},
    task::Task,
};

/// What user space found out about this kernel; filled in before loading.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = {
    // SAFETY: `Settings` is made of integers only, for which zero is a value.
    unsafe { core::mem::zeroed() }
};

/// Reads a setting. The read is volatile because the compiler sees only the zeros of the initializer.
#[inline(always)]
pub fn constant<T: Copy>(setting: &'static T) -> T {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::read_volatile(setting) }
}

/// Reads one setting by its path.
macro_rules! setting {
    ($($field:tt)+) => {
        $crate::kernel::constant(&$crate::kernel::SETTINGS.$($field)+)
    };
}
pub(crate) use setting;

/// Reads the offset of one field.
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::constant(&$crate::kernel::SETTINGS.layout.$field)
    };
}
pub(crate) use offset;

/// Whether the running kernel has the field.
#[inline(always)]
pub fn present(offset: u32) -> bool {
    offset != ABSENT
}

/// Whether this kernel passes the state of the previous thread to `sched_switch`.
#[inline(always)]
pub fn sched_switch_passes_state() -> bool {
    present(offset!(sched_switch_state))
}

/// Loads a value directly through a typed kernel pointer.
///
/// # Safety
/// The verifier knows `base` as a pointer to a kernel object; `offset` comes from the BTF of that object's type and is
/// present.
#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: as the caller promises; the verifier checks offset and size against the object's type.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
}

/// `CLOCK_MONOTONIC`, ns. The most expensive primitive here: call it at most once per program.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// A compiler barrier: the compiler moves no memory access across it. It generates no instruction, so it only orders
/// accesses as seen by interrupts on this CPU; for other CPUs, see [`shared_barrier`].
#[inline(always)]
pub fn barrier() {
    // SAFETY: an empty statement.
    unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
}

/// The negative of a value, hidden from the compiler: it turns expressions that it understands into branches.
#[inline(always)]
pub fn negative(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: an instruction on a register.
    unsafe { core::arch::asm!("{0} = -{0}", inout(reg) value, options(pure, nomem, nostack, preserves_flags)) };
    value
}

/// Sets all bytes to zero, word by word: for an assignment of zeros, the compiler calls a loop over single bytes.
///
/// # Safety
/// All zeros is a valid value.
#[inline(always)]
pub unsafe fn zero<T>(value: *mut T) {
    const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>()) && align_of::<T>() == align_of::<u64>()) };
    let mut word = 0;
    while word < size_of::<T>() / size_of::<u64>() {
        // SAFETY: the word is inside the value, which is aligned as a word is.
        unsafe { value.cast::<u64>().add(word).write_volatile(0) };
        word += 1;
    }
}

/// A full barrier: other CPUs see the stores before it before the loads after it are done.
#[inline(always)]
pub fn full_barrier() {
    let mut word = 0_u64;
    fetch_add(&raw mut word, 0);
}

/// Adds to a word of the stack or of a map, and returns its previous value: atomic for all CPUs, and a full barrier.
/// Without the fetch, the addition would be no barrier on arm64 (`Documentation/atomic_t.txt`: only operations with a
/// result are ordered).
#[inline(always)]
pub fn fetch_add(word: *mut u64, value: u64) -> u64 {
    let mut value = value;
    // SAFETY: the verifier checks the address. Rust has no such operation for eBPF.
    unsafe {
        core::arch::asm!(
            "{1} = atomic_fetch_add((u64 *)({0} + 0), {1})",
            in(reg) word, inout(reg) value, options(nostack)
        );
    }
    value
}

/// Keeps stores in order among themselves, and loads among themselves, for other CPUs. x86-64 does so anyway (TSO).
#[inline(always)]
pub fn shared_barrier() {
    if cfg!(bpf_target_arch = "x86_64") {
        barrier();
    } else {
        full_barrier();
    }
}

/// The CPU that the program runs on.
#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_smp_processor_id() }
}
