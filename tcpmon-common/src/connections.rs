//! Connections that start to open, as the programs see them: the kernel counts the same.

/// Index into the per-CPU map `CONNECTIONS`: connections that the kernel started to open.
pub const CONNECTIONS_OPENED: u32 = 0;
/// Of these, those that failed before they sent anything: the kernel does not count them.
pub const CONNECTIONS_UNSENT: u32 = 1;
/// Number of counts.
pub const COUNTS: u32 = 2;
