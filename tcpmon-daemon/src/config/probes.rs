//! Keys below `probes`: which programs are attached of those that tcpmon can do without.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The probes that can be switched off, for less cost. All are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Probes {
    /// Which of them can be on at all.
    pub profile: ProbeProfile,
    /// Timeslices of readers.
    pub sched_switch: bool,
    /// NAPI polls.
    pub napi_poll: bool,
    /// Drops of received segments.
    pub kfree_skb: bool,
}

/// A choice of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProbeProfile {
    /// Those whose own keys do not switch them off.
    #[default]
    Full,
    /// None, whatever their own keys say: what remains are segments, reads, and the begin and end of connections.
    Light,
}

impl Default for Probes {
    fn default() -> Self {
        Self { profile: ProbeProfile::Full, sched_switch: true, napi_poll: true, kfree_skb: true }
    }
}

impl Probes {
    /// The probes that are switched off, by their names.
    pub fn switched_off(&self) -> Vec<&'static str> {
        let Self { profile, sched_switch, napi_poll, kfree_skb } = *self;
        [("sched_switch", sched_switch), ("napi_poll", napi_poll), ("kfree_skb", kfree_skb)]
            .into_iter()
            .filter(|(_, on)| !on || profile == ProbeProfile::Light)
            .map(|(name, _)| name)
            .collect()
    }
}
