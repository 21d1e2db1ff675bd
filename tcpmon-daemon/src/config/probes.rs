//! Keys below `probes`: which of the optional programs are attached.

use serde::{Deserialize, Serialize};

use super::keys::table;

table! {
    /// The probes that can be switched off to reduce the cost. All are on by default.
    #[derive(Copy)]
    Probes, "probes.";
    profile: ProbeProfile = ProbeProfile::Full, "full|light", "full, or light, which switches off the probes below";
    sched_switch: bool = true, "true|false",
        "Whether to count the readers' timeslices (runs a program at every context switch)";
    napi_poll: bool = true, "true|false",
        "Whether to count NAPI polls and the packets of each (runs a program at every poll)";
    kfree_skb: bool = true, "true|false",
        "Whether to count received segments that the kernel drops, by the kernel's reason";
}

/// A choice of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeProfile {
    /// All probes that are not switched off by their own keys.
    Full,
    /// None of these probes, whatever their keys say. Segments, reads, and begin and end of connections remain.
    Light,
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
