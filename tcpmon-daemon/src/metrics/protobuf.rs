//! The metrics page as protobuf, the only format that reports when a series started to count.
//!
//! OpenMetrics could, but a Prometheus that is not configured to use the `_created` lines takes each of them for
//! another series, and they make the text 30 % longer.

pub(super) mod message;

use std::io::Write;

use prost::Message as _;

use self::message::{
    BucketSpan, ClassicBucket, CounterValue, GaugeValue, HistogramValue, LabelPair, Metric, MetricFamily, MetricType,
    Timestamp,
};
use super::{
    EncodeError, Family, FamilyType, families,
    family::{Sample, Scope, Value},
    histogram::Histogram,
    page::Page,
};

/// Writes the page, with each family's length before it. Writes some groups of one family at a time, because the
/// messages of all groups together take much memory. Protobuf allows this: the repeated fields of a message may be sent
/// in parts.
pub(super) fn write(page: &Page, sink: &mut impl Write) -> Result<(), EncodeError> {
    let (mut bytes, mut length) = (Vec::new(), Vec::new());
    for family in families() {
        bytes.clear();
        length.clear();
        if family.scope == Scope::Group {
            page.parts().try_for_each(|part| append(&mut bytes, &part, family))?;
        } else {
            append(&mut bytes, page, family)?;
        }
        if !bytes.is_empty() {
            prost::encode_length_delimiter(bytes.len(), &mut length)?;
            sink.write_all(&length)?;
            sink.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Appends one part of a family. Only the first part has more than the series.
fn append(bytes: &mut Vec<u8>, page: &Page, family: &'static Family) -> Result<(), prost::EncodeError> {
    let metric: Vec<Metric> = page.samples(family).iter().map(|sample| metric(page, family, sample)).collect();
    if metric.is_empty() {
        return Ok(());
    }
    let part = MetricFamily { metric, ..MetricFamily::default() };
    if !bytes.is_empty() {
        return part.encode(bytes);
    }
    let kind = match family.kind {
        FamilyType::Counter => MetricType::Counter,
        FamilyType::Gauge | FamilyType::Info => MetricType::Gauge,
        FamilyType::Histogram => MetricType::Histogram,
    };
    let (name, help, unit) = (family.name.to_owned(), family.help.to_owned(), family.unit.to_owned());
    MetricFamily { name, help, kind: kind.into(), unit, ..part }.encode(bytes)
}

fn metric(page: &Page, family: &'static Family, sample: &Sample<'_>) -> Metric {
    let label = sample.labels(family).map(|(name, value)| LabelPair { name: name.into(), value: value.into() });
    let mut metric = Metric { label: label.collect(), ..Metric::default() };
    let mut number = |value| match family.kind {
        FamilyType::Counter => {
            metric.counter = Some(CounterValue { value, start_timestamp: start(page, family, sample) });
        }
        _ => metric.gauge = Some(GaugeValue { value }),
    };
    match sample.value {
        Value::Integer(value) => number(value as f64),
        Value::Real(value) => number(value),
        Value::Distribution(distribution) => {
            let histogram = HistogramValue::from(&Histogram::from(distribution));
            metric.histogram = Some(HistogramValue { start_timestamp: start(page, family, sample), ..histogram });
        }
    }
    metric
}

/// When the series started to count; `None` if that was before tcpmon.
fn start(page: &Page, family: &Family, sample: &Sample<'_>) -> Option<Timestamp> {
    let since_1970 = match sample.group {
        Some(group) => Some(page.identity.since_1970(group.born)),
        None => page.identity.started.filter(|_| family.starts_with_tcpmon()),
    };
    since_1970.map(|time| Timestamp { seconds: time.as_secs() as i64, nanos: time.subsec_nanos() as i32 })
}

/// Both the classic and the native form.
impl From<&Histogram> for HistogramValue {
    fn from(histogram: &Histogram) -> Self {
        let bucket = histogram
            .cumulative()
            .map(|(upper_bound, cumulative_count)| ClassicBucket { cumulative_count, upper_bound });
        let span = BucketSpan { offset: histogram.first, length: histogram.native.len() as u32 };
        let before = [0].iter().chain(&histogram.native);
        let deltas = histogram.native.iter().zip(before).map(|(count, before)| count.wrapping_sub(*before) as i64);
        Self {
            sample_count: histogram.count,
            sample_sum: histogram.sum,
            bucket: bucket.collect(),
            schema: 0,
            zero_threshold: histogram.zero_threshold,
            zero_count: histogram.zero_count,
            positive_span: (!histogram.native.is_empty()).then_some(span).into_iter().collect(),
            positive_delta: deltas.collect(),
            start_timestamp: None,
        }
    }
}
