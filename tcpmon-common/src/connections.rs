//! Counts of connections that start to open, as the programs see them. The kernel keeps the same count, so that the
//! two can be compared.

/// Index into the per-CPU map `CONNECTIONS`: connections that the kernel started to open.
pub const CONNECTIONS_OPENED: u32 = 0;
/// Those among them that failed before they sent anything: the kernel does not count these.
pub const CONNECTIONS_UNSENT: u32 = 1;
/// Number of counts.
pub const COUNTS: u32 = 2;
