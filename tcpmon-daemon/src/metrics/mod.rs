//! All metrics, each defined once. Values are taken from what was [`Observed`] at scrape time; nothing is kept between
//! scrapes.

mod collect;
mod drops;
mod family;
mod format;
mod groups;
mod histogram;
mod host;
mod identity;
mod page;
mod process;
mod protobuf;
mod tcpmon;
mod text;
mod units;
mod usage;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
};

use prometheus_client::{
    encoding::{prometheus_protobuf, text as openmetrics},
    registry::Registry,
};

pub use self::{
    drops::effect as drop_effect,
    family::{Family, FamilyType, Scope},
    format::{Coding, Format},
    identity::Identity,
};
use self::{page::Page, usage::Usage};
use crate::model::snapshot::Observed;

/// All families, in the order in which they are shown and documented.
pub fn families() -> impl Iterator<Item = &'static Family> {
    [
        groups::FAMILIES,
        groups::TIMESLICE_FAMILIES,
        host::NETWORK_FAMILIES,
        host::MEMORY_FAMILIES,
        tcpmon::FAMILIES,
        process::FAMILIES,
    ]
    .into_iter()
    .flatten()
}

/// The metrics page could not be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// As text.
    #[error("cannot write the metrics as text: {0}")]
    Text(#[from] fmt::Error),
    /// As protobuf.
    #[error("cannot write the metrics as protobuf: {0}")]
    Protobuf(#[from] prometheus_protobuf::EncodeError),
    /// The sink did not accept the data.
    #[error("cannot keep the metrics: {0}")]
    Sink(#[from] io::Error),
}

/// Writes the metrics page for a scrape, piece by piece: at 10,000 groups it has 90 MB.
///
/// # Errors
/// Those of the encoders and of the sink; the page's content causes none.
pub fn encode(
    identity: &Arc<Identity>,
    observed: Observed,
    format: Format,
    sink: &mut impl Write,
) -> Result<(), EncodeError> {
    write(Page::new(Arc::clone(identity), Usage::read(), observed), format, sink)
}

fn write(page: Page, format: Format, sink: &mut impl Write) -> Result<(), EncodeError> {
    if format == Format::Protobuf {
        return protobuf::write(&page, sink);
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page));
    let mut sink = text::Utf8::new(sink);
    let written = match format {
        Format::Text => openmetrics::encode(&mut text::ClassicText::new(&mut sink), &registry),
        _ => openmetrics::encode(&mut sink, &registry),
    };
    // The encoder's error does not include the sink's error, so the sink's is returned first.
    sink.finish()?;
    Ok(written?)
}
