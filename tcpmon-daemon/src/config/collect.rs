//! Keys below `collect`: which sources of host metrics are read.

use super::keys::table;

table! {
    /// Sources that node_exporter reads, too: a host that runs it may not need them twice. All are on by default.
    #[derive(Copy)]
    Collect, "collect.";
    softnet: bool = true, "true|false", "Whether to show softnet counters, which node_exporter has, too";
    sockstat: bool = true, "true|false", "Whether to show the number of orphan sockets, which node_exporter has, too";
    zones: bool = true, "true|false", "Whether to show memory zones and free blocks, which node_exporter can show, too";
    psi: bool = true, "true|false", "Whether to show memory pressure stalls, which node_exporter has, too";
    stat: bool = true, "true|false", "Whether to show context switches, which node_exporter has, too";
    netstat: bool = true, "true|false",
        "Whether to show TcpExt and IpExt counters, some of which node_exporter has, too";
}

impl Collect {
    /// The sources that are switched off, as `/status` names them.
    pub fn switched_off(&self) -> Vec<&'static str> {
        let Self { softnet, sockstat, zones, psi, stat, netstat } = *self;
        let sources = [
            ("softnet", softnet),
            ("sockstat", sockstat),
            ("zones", zones),
            ("psi", psi),
            ("stat", stat),
            ("netstat", netstat),
        ];
        sources.into_iter().filter(|(_, on)| !on).map(|(name, _)| name).collect()
    }
}
