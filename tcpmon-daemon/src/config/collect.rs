//! Keys below `collect`: which sources of host metrics are read.

use serde::{Deserialize, Serialize};

/// The sources that node_exporter reads, too, and which a host that runs it may not need twice. All are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Collect {
    /// `/proc/net/softnet_stat`.
    pub softnet: bool,
    /// Orphan sockets, from `/proc/net/sockstat`.
    pub sockstat: bool,
    /// `/proc/zoneinfo` and `/proc/buddyinfo`.
    pub zones: bool,
    /// `/proc/pressure/memory`.
    pub psi: bool,
    /// Context switches, from `/proc/stat`.
    pub stat: bool,
    /// `/proc/net/netstat` and `/proc/net/snmp`, in all network namespaces.
    pub netstat: bool,
}

impl Default for Collect {
    fn default() -> Self {
        Self { softnet: true, sockstat: true, zones: true, psi: true, stat: true, netstat: true }
    }
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
