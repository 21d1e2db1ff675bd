//! Counts of connections at their begin and at their end, by which one that no program saw shows itself.

/// Connections that the kernel began to open: `SYN_SENT` or `SYN_RECV`; by the first program on the tracepoint.
pub const LIVES_OPENED: u32 = 0;
/// The same by its twin.
pub const LIVES_OPENED_AGAIN: u32 = 1;
/// Connections that counting began for.
pub const LIVES_BEGUN: u32 = 2;
/// Of these, those whose end was seen.
pub const LIVES_ENDED: u32 = 3;
/// Number of counts; index into the per-CPU map `LIVES`.
pub const LIVES: u32 = 4;
