//! Passes the families of one metrics page to prometheus-client's encoders.

use std::{borrow::Cow, fmt, ops::Range, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use super::{
    Identity, families,
    family::{Family, Kind, Sample, Value},
    histogram::Histogram,
    process::Process,
};
use crate::model::{
    host::Host,
    snapshot::{Group, GroupKey, Seen, Snapshot},
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
    pub(super) process: Option<Process>,
    /// The groups that are on this page; all of them if `None`.
    pub(super) shown: Option<Range<usize>>,
}

/// Number of groups encoded at a time where the encoder keeps all of them in memory: a group's histogram takes about 3
/// kB.
const PART: usize = 256;

impl Page {
    pub(super) fn new(identity: Arc<Identity>, process: Option<Process>, seen: Seen) -> Self {
        let Seen { snapshot, host } = seen;
        Self { snapshot, host, identity, process, shown: None }
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

/// One family of a page.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) page: Page,
    pub(super) family: &'static Family,
}

impl Collector for Part {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        write(self.family, &self.page, &mut encoder)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        families().try_for_each(|family| write(family, self, &mut encoder))
    }
}

fn write(family: &Family, page: &Page, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let samples = (family.read)(page);
    if samples.is_empty() {
        return Ok(());
    }
    let unit = (!family.unit.is_empty()).then(|| Unit::Other(family.unit.to_owned()));
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
        Kind::Info => MetricType::Info,
    };
    let mut encoder = encoder.encode_descriptor(family.stem(), family.help, unit.as_ref(), kind)?;
    for sample in &samples {
        let labels =
            Labels { group: sample.group.map(|group| &group.key), names: family.labels, values: &sample.labels };
        if family.kind == Kind::Info {
            encoder.encode_info(&labels)?;
        } else if labels.is_empty() {
            write_value(family.kind, sample, &mut encoder)?;
        } else {
            write_value(family.kind, sample, &mut encoder.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn write_value(kind: Kind, sample: &Sample<'_>, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    match (kind, sample.value) {
        (Kind::Counter, Value::Integer(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        (Kind::Counter, Value::Real(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        (Kind::Gauge, Value::Integer(value)) => encoder.encode_gauge(&value),
        (Kind::Gauge, Value::Real(value)) => encoder.encode_gauge(&value),
        (Kind::Histogram, Value::Fill(fill)) => Histogram::from(fill).encode(encoder),
        (Kind::Histogram, Value::Durations(times)) => Histogram::from(times).encode(encoder),
        // The test that encodes every family makes sure that types and values match.
        (kind, value) => {
            debug_assert!(false, "{value:?} is no value of a {kind:?}");
            Err(fmt::Error)
        }
    }
}

/// Labels of one series.
struct Labels<'a> {
    group: Option<&'a GroupKey>,
    names: &'static [&'static str],
    values: &'a [Cow<'a, str>; 3],
}

impl Labels<'_> {
    fn is_empty(&self) -> bool {
        self.group.is_none() && self.names.is_empty()
    }
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            ("process", group.process.as_str()).encode(encoder.encode_label())?;
            ("service", group.service.as_str()).encode(encoder.encode_label())?;
            if let Some(cgroup) = &group.cgroup {
                ("cgroup", cgroup.as_str()).encode(encoder.encode_label())?;
            }
        }
        for (name, value) in self.names.iter().zip(self.values) {
            (*name, value.as_ref()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}
