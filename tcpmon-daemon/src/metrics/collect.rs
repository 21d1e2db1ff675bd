//! Passes the families of one metrics page to prometheus-client's encoders.

use std::{borrow::Cow, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use super::{
    families,
    family::{Family, FamilyType, Sample, Value},
    histogram::Histogram,
    page::Page,
};
use crate::model::snapshot::GroupKey;

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
    let samples = if page.has(family) { (family.read)(page) } else { Vec::new() };
    if samples.is_empty() {
        return Ok(());
    }
    let unit = (!family.unit.is_empty()).then(|| Unit::Other(family.unit.to_owned()));
    let kind = match family.kind {
        FamilyType::Counter => MetricType::Counter,
        FamilyType::Gauge => MetricType::Gauge,
        FamilyType::Histogram => MetricType::Histogram,
        FamilyType::Info => MetricType::Info,
    };
    let mut encoder = encoder.encode_descriptor(family.stem(), family.help, unit.as_ref(), kind)?;
    for sample in &samples {
        let labels =
            SeriesLabels { group: sample.group.map(|group| &*group.key), names: family.labels, values: &sample.labels };
        if family.kind == FamilyType::Info {
            encoder.encode_info(&labels)?;
        } else if labels.is_empty() {
            write_value(family.kind, sample, &mut encoder)?;
        } else {
            write_value(family.kind, sample, &mut encoder.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn write_value(kind: FamilyType, sample: &Sample<'_>, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    match (kind, sample.value) {
        (FamilyType::Counter, Value::Integer(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        (FamilyType::Counter, Value::Real(value)) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        (FamilyType::Gauge, Value::Integer(value)) => encoder.encode_gauge(&value),
        (FamilyType::Gauge, Value::Real(value)) => encoder.encode_gauge(&value),
        (FamilyType::Histogram, Value::Distribution(distribution)) => Histogram::from(distribution).encode(encoder),
        // The test that encodes every family makes sure that types and values match.
        (kind, value) => {
            debug_assert!(false, "{value:?} is no value of a {kind:?}");
            Err(fmt::Error)
        }
    }
}

/// SeriesLabels of one series.
struct SeriesLabels<'a> {
    group: Option<&'a GroupKey>,
    names: &'static [&'static str],
    values: &'a [Cow<'a, str>; 3],
}

impl SeriesLabels<'_> {
    fn is_empty(&self) -> bool {
        self.group.is_none() && self.names.is_empty()
    }
}

impl EncodeLabelSet for SeriesLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            ("process", group.process.as_str()).encode(encoder.encode_label())?;
            ("service", group.service.as_str()).encode(encoder.encode_label())?;
            if let Some(cgroup) = &group.cgroup {
                ("cgroup", cgroup.label.as_str()).encode(encoder.encode_label())?;
            }
        }
        for (name, value) in self.names.iter().zip(self.values) {
            (*name, value.as_ref()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}
