//! Samples for tests.

use std::{net::SocketAddr, sync::Arc};

use crate::model::{
    live::{LiveGroup, LiveHost, LiveReader, LiveSample, LiveSocket, LiveTotals},
    snapshot::GroupGauges,
};

/// A connection with this index.
pub(crate) fn socket(index: u32) -> Arc<LiveSocket> {
    Arc::new(LiveSocket {
        index,
        cookie: 1000 + u64::from(index),
        monotonic_ns: 0,
        process: "xrootd".into(),
        service: "local:1094".into(),
        cgroup: None,
        tgid: 4711,
        tid: 4712,
        netns: 4_026_531_840,
        local: SocketAddr::from(([10, 0, 0, 1], 1094)),
        remote: SocketAddr::from(([192, 168, 100, 7], 40_000 + index as u16)),
        state: 1,
        rcv_rtt_us: 40_000,
        gauges: GroupGauges { sockets: 1, limit_bytes: 131_072, window_bytes: 65_536, ..GroupGauges::default() },
        totals: LiveTotals::default(),
    })
}

/// A complete sample with this many connections of one group, whose reader sleeps.
pub(crate) fn sample(sockets: u32) -> LiveSample {
    LiveSample {
        pass: 1,
        monotonic_ns: 1,
        complete: true,
        groups: vec![LiveGroup {
            process: "xrootd".into(),
            service: "local:1094".into(),
            cgroup: None,
            gauges: GroupGauges { sockets: sockets.into(), ..GroupGauges::default() },
            totals: LiveTotals::default(),
        }],
        sockets: (0..sockets).map(socket).collect(),
        alive: vec![(1 << sockets.min(63)) - 1],
        readers: vec![LiveReader { tid: 4712, ..LiveReader::default() }],
        slots: vec![1],
        host: LiveHost { ring_overruns: Some(0), softnet_dropped: Some(0), ..LiveHost::default() },
    }
}

/// The sample, taken at this second.
pub(crate) fn at(second: u64, mut sample: LiveSample) -> LiveSample {
    (sample.pass, sample.monotonic_ns) = (second, second * 1_000_000_000);
    sample.sockets.iter_mut().for_each(|socket| Arc::make_mut(socket).monotonic_ns = sample.monotonic_ns);
    sample
}

impl LiveSample {
    /// A connection, to be modified.
    pub(crate) fn socket_mut(&mut self, number: usize) -> &mut LiveSocket {
        Arc::make_mut(&mut self.sockets[number])
    }
}
