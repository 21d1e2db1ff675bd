//! All metrics, each defined once. Values are taken from what was [`Observed`] at scrape time; nothing is kept between
//! scrapes.

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
    io::{self, Write},
    sync::Arc,
};

pub use self::{
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
    /// As protobuf.
    #[error("cannot write the metrics as protobuf: {0}")]
    Protobuf(#[from] prost::EncodeError),
    /// The sink did not accept the data.
    #[error("cannot keep the metrics: {0}")]
    Sink(#[from] io::Error),
}

/// Writes the metrics page for a scrape, piece by piece: at 10,000 groups, it is 90 MB.
///
/// # Errors
/// Those of the encoder and of the sink; the page's content causes none.
pub fn encode(
    identity: &Arc<Identity>,
    observed: Observed,
    format: Format,
    sink: &mut impl Write,
) -> Result<(), EncodeError> {
    write(&Page::new(Arc::clone(identity), Usage::read(), observed), format, sink)
}

fn write(page: &Page, format: Format, sink: &mut impl Write) -> Result<(), EncodeError> {
    match format {
        Format::Protobuf => protobuf::write(page, sink),
        Format::Text | Format::OpenMetrics => Ok(text::write(page, format, sink)?),
    }
}
