//! The page as protobuf, which alone tells since when a series counts.
//!
//! OpenMetrics could: but a Prometheus that is not told to use its `_created` lines takes each for one more series.

use std::fmt;

use prometheus_client::{
    encoding::prometheus_protobuf::{self, prometheus_data_model::MetricFamily},
    registry::Registry,
};
use prost::Message as _;

use super::{EncodeError, collect::Page, families};

/// The page that the registry has been given, each family with its length before it.
pub(super) fn write(page: &Page, registry: &Registry) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::new();
    for family in encode(page, registry)? {
        family.encode_length_delimited(&mut bytes).map_err(prometheus_protobuf::EncodeError::from)?;
    }
    Ok(bytes)
}

/// The families of that page.
pub(super) fn encode(page: &Page, registry: &Registry) -> Result<Vec<MetricFamily>, fmt::Error> {
    let mut shown = prometheus_protobuf::encode(registry)?;
    let read = families().map(|family| (family.read)(page)).filter(|samples| !samples.is_empty());
    for (family, samples) in shown.iter_mut().zip(read) {
        for (metric, sample) in family.metric.iter_mut().zip(samples) {
            let Some(group) = sample.group else { continue };
            let (counter, histogram) = (metric.counter.as_mut(), metric.histogram.as_mut());
            let counter = counter.map(|counter| &mut counter.start_timestamp);
            if let Some(start) = counter.or(histogram.map(|histogram| &mut histogram.start_timestamp)) {
                let since_1970 = page.identity.since_1970(group.born);
                let start = start.insert(Default::default());
                (start.seconds, start.nanos) = (since_1970.as_secs() as i64, since_1970.subsec_nanos() as i32);
            }
        }
    }
    Ok(shown)
}
