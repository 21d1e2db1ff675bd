//! What a metrics page is made from.

use std::{ops::Range, sync::Arc};

use super::{Family, family::Sample, identity::Identity, usage::Usage};
use crate::{
    host_state::Host,
    model::snapshot::{Group, Observed, Snapshot},
    status::Verdict,
};

/// All input for one metrics page.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// What the programs saw.
    pub(super) snapshot: Arc<Snapshot>,
    /// What was read about the host.
    pub(super) host: Arc<Host>,
    /// Which tcpmon made the page, and where it runs.
    pub(super) identity: Arc<Identity>,
    /// What tcpmon itself uses; `None` if `/proc` cannot be read.
    pub(super) usage: Option<Usage>,
    /// The groups that are on this page; all of them if `None`.
    pub(super) shown: Option<Range<usize>>,
}

/// Number of groups encoded at a time where the encoder keeps all of them in memory: a group's histogram takes about 3
/// kB.
const PART: usize = 256;

impl Page {
    pub(super) fn new(identity: Arc<Identity>, usage: Option<Usage>, observed: Observed) -> Self {
        let Observed { snapshot, host, .. } = observed;
        Self { snapshot, host, identity, usage, shown: None }
    }

    /// Whether everything that the family needs is switched on.
    fn has(&self, family: &Family) -> bool {
        let mut off = self.snapshot.probes.iter().filter(|probe| probe.verdict == Verdict::SwitchedOff);
        !off.any(|probe| family.sources.contains(&probe.name.as_str()))
    }

    /// The samples of a family that are on this page.
    pub(super) fn samples(&self, family: &Family) -> Vec<Sample<'_>> {
        if self.has(family) { (family.read)(self) } else { Vec::new() }
    }

    /// The groups on this page.
    pub(super) fn groups(&self) -> &[Group] {
        let all = &self.snapshot.groups;
        self.shown.as_ref().map_or(all, |shown| &all[shown.clone()])
    }

    /// Splits the page into pages with some of the groups each.
    pub(super) fn parts(&self) -> impl Iterator<Item = Self> {
        let all = self.snapshot.groups.len();
        let part = move |first: usize| Self { shown: Some(first..(first + PART).min(all)), ..self.clone() };
        (0..all).step_by(PART).map(part)
    }
}
