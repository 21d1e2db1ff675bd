//! Counts of connections at their start and end. Comparing the sums reveals connections that no program saw.

/// Connections that the kernel started to open (`SYN_SENT` or `SYN_RECV`).
pub const CONNECTIONS_OPENED: u32 = 0;
/// Connections for which counting has started.
pub const CONNECTIONS_STARTED: u32 = 1;
/// Those of [`CONNECTIONS_STARTED`] whose end was seen.
pub const CONNECTIONS_ENDED: u32 = 2;
/// Number of counts. The constants above are indexes into the per-CPU map `CONNECTIONS`.
pub const COUNTS: u32 = 3;
