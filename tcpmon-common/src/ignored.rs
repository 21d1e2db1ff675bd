//! Sockets that are deliberately ignored.

/// Reasons, as exported in `tcpmon_sockets_ignored_total{why}`. The position is the index into the per-CPU map
/// `IGNORED`.
pub const IGNORED_WHY: [&str; 1] = ["mptcp"];
