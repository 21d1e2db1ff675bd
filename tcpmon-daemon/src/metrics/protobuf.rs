//! The metrics page as protobuf, the only format that reports when a series started to count.
//!
//! OpenMetrics could, but a Prometheus that is not configured to use the `_created` lines takes each of them for
//! another series, and they are 30 % more text.

use std::{fmt, io::Write};

use prometheus_client::{
    encoding::prometheus_protobuf::{self, prometheus_data_model::MetricFamily},
    registry::Registry,
};
use prost::Message as _;

use super::{EncodeError, Family, collect::Part, families, family::Scope, page::Page};

/// Writes the page, with each family's length before it. The encoder keeps all metrics that it is given in memory, so
/// it gets some groups of one family at a time. Protobuf allows this: the repeated fields of a message may be sent in
/// parts.
pub(super) fn write(page: &Page, sink: &mut impl Write) -> Result<(), EncodeError> {
    let (mut bytes, mut length) = (Vec::new(), Vec::new());
    for family in families() {
        bytes.clear();
        length.clear();
        if family.scope == Scope::Group {
            page.parts().try_for_each(|part| append(&mut bytes, part, family))?;
        } else {
            append(&mut bytes, page.clone(), family)?;
        }
        if !bytes.is_empty() {
            prost::encode_length_delimiter(bytes.len(), &mut length).map_err(prometheus_protobuf::EncodeError::from)?;
            sink.write_all(&length)?;
            sink.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Appends one part of a family. Only the first part has more than the metrics.
fn append(bytes: &mut Vec<u8>, page: Page, family: &'static Family) -> Result<(), EncodeError> {
    if let Some(mut part) = encode_part(page, family)? {
        if !bytes.is_empty() {
            part = MetricFamily { metric: part.metric, ..MetricFamily::default() };
        }
        part.encode(bytes).map_err(prometheus_protobuf::EncodeError::from)?;
    }
    Ok(())
}

fn encode_part(page: Page, family: &'static Family) -> Result<Option<MetricFamily>, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Part { page: page.clone(), family }));
    let mut shown = prometheus_protobuf::encode(&registry)?.pop();
    let metrics = shown.iter_mut().flat_map(|family| &mut family.metric);
    for (metric, sample) in metrics.zip((family.read)(&page)) {
        let since_1970 = match sample.group {
            Some(group) => Some(page.identity.since_1970(group.born)),
            None => page.identity.started.filter(|_| family.starts_with_tcpmon()),
        };
        let Some(since_1970) = since_1970 else { continue };
        let (counter, histogram) = (metric.counter.as_mut(), metric.histogram.as_mut());
        let counter = counter.map(|counter| &mut counter.start_timestamp);
        if let Some(start) = counter.or(histogram.map(|histogram| &mut histogram.start_timestamp)) {
            let start = start.insert(Default::default());
            (start.seconds, start.nanos) = (since_1970.as_secs() as i64, since_1970.subsec_nanos() as i32);
        }
    }
    Ok(shown)
}
