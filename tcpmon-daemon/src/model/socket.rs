//! Single sockets in a snapshot, for whoever wants more than groups.

use std::net::SocketAddr;

use tcpmon_common::{
    counters::{Cells as _, Counted as _},
    socket::{LIVE_FIN, SocketCounters, SocketLive, SocketRecord, SocketTotals},
};

use super::snapshot::GroupKey;
use crate::decode;

/// One connection, as a pass found it.
#[derive(Clone, Debug, PartialEq)]
pub struct SocketSnapshot {
    /// The kernel's cookie, which no other socket has until the next boot.
    pub cookie: u64,
    /// The labels of its group.
    pub key: GroupKey,
    /// Thread-group id of its last reader; before the first read, of the process that opened it, or 0.
    pub tgid: u32,
    /// Thread id of its last reader; 0 before the first read.
    pub tid: u32,
    /// Data received and not yet read, bytes.
    pub queue_bytes: u32,
    /// What the pass read from the socket itself.
    pub live: SocketLive,
    /// Everything that was counted for it, up to the time of the pass.
    pub totals: SocketTotals,
}

impl SocketSnapshot {
    /// From the record of the pass; `counters` are its totals at the time of the pass.
    pub(super) fn new(record: &SocketRecord, key: GroupKey, counters: &SocketCounters) -> Self {
        let SocketRecord { live, state, .. } = record;
        Self {
            cookie: state.cookie,
            key,
            tgid: state.reader_tgid,
            tid: state.reader_tid,
            queue_bytes: queue_bytes(live),
            live: *live,
            totals: counters.since(&SocketCounters::ZERO),
        }
    }

    /// The local address.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(decode::address(self.live.family, self.live.local_address), self.live.local_port)
    }

    /// The remote address.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(decode::address(self.live.family, self.live.remote_address), self.live.remote_port)
    }
}

/// Data in a socket's queue, without the FIN.
pub(super) fn queue_bytes(live: &SocketLive) -> u32 {
    let queued = live.rcv_nxt.wrapping_sub(live.copied_seq).cast_signed().max(0).cast_unsigned();
    queued.saturating_sub(u32::from(live.flags & LIVE_FIN != 0))
}
