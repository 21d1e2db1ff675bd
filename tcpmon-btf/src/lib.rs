//! What tcpmon relies on in a kernel: types by name ([`Btf`]), the offsets that its programs need ([`layout`]), and
//! what can be attached ([`plan`]).
//!
//! Everything here is computed from the bytes of a kernel's BTF. Nothing does I/O or uses eBPF, so other tools and
//! tests can ask the same questions about kernels that do not run here.

mod btf;
pub mod layout;
pub mod plan;

pub use btf::{Argument, ArgumentKind, Blob, Btf, BtfError, Field, TypeRecord, kind};
