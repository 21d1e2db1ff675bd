//! Counts of connections at their start and end. Comparing the sums reveals connections that no program saw.

/// Connections that the kernel started to open (`SYN_SENT` or `SYN_RECV`).
pub const LIVES_OPENED: u32 = 0;
/// Connections for which counting has started.
pub const LIVES_BEGUN: u32 = 1;
/// Those of [`LIVES_BEGUN`] whose end was seen.
pub const LIVES_ENDED: u32 = 2;
/// Number of counts. The constants above are indexes into the per-CPU map `LIVES`.
pub const LIVES: u32 = 3;
