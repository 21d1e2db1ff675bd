//! Sockets that are left out on purpose.

/// Why, as exported in `tcpmon_sockets_ignored_total{why}`: the index into the per-CPU map `IGNORED`.
pub const IGNORED_WHY: [&str; 1] = ["mptcp"];
