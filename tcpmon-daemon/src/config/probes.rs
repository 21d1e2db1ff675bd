//! Keys below `probes`: which programs are attached of those that tcpmon can do without.

use serde::{Deserialize, Serialize};

/// The probes that can be switched off, for less cost. All are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Probes {
    /// NAPI polls.
    pub napi_poll: bool,
    /// Drops of received segments.
    pub kfree_skb: bool,
}

impl Default for Probes {
    fn default() -> Self {
        Self { napi_poll: true, kfree_skb: true }
    }
}

impl Probes {
    /// The probes that are switched off, by their names.
    pub fn switched_off(&self) -> Vec<&'static str> {
        let Self { napi_poll, kfree_skb } = *self;
        [("napi_poll", napi_poll), ("kfree_skb", kfree_skb)]
            .into_iter()
            .filter(|(_, on)| !on)
            .map(|(name, _)| name)
            .collect()
    }
}
