//! Connections that start to open, as the programs see them: the kernel counts the same.

/// Index into the per-CPU map `CONNECTIONS`: connections that the kernel started to open.
pub const CONNECTIONS_OPENED: u32 = 0;
/// Number of counts.
pub const COUNTS: u32 = 1;
