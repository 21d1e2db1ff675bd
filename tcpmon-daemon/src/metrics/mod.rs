//! Every metric, defined once and taken from what was [`Seen`] at scrape time; nothing is kept between scrapes.

mod collect;
mod drops;
mod family;
mod format;
mod groups;
mod histogram;
mod host;
mod identity;
mod itself;
mod process;
mod protobuf;
mod text;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use prometheus_client::{
    encoding::{prometheus_protobuf, text as openmetrics},
    registry::Registry,
};

use self::{collect::Page, process::Process};
pub use self::{
    family::{Family, Kind, Scope},
    format::Format,
    identity::Identity,
};
use crate::model::snapshot::Seen;

/// All families, in the order in which they are exposed and documented.
pub fn families() -> impl Iterator<Item = &'static Family> {
    [
        groups::FAMILIES,
        groups::TIMESLICE_FAMILIES,
        host::NETWORK_FAMILIES,
        host::MEMORY_FAMILIES,
        itself::FAMILIES,
        process::FAMILIES,
    ]
    .into_iter()
    .flatten()
}

/// The page could not be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// As text.
    #[error("cannot write the metrics as text: {0}")]
    Text(#[from] fmt::Error),
    /// As protobuf.
    #[error("cannot write the metrics as protobuf: {0}")]
    Protobuf(#[from] prometheus_protobuf::EncodeError),
}

/// The page of metrics that a scrape gets.
///
/// # Errors
/// None that a page can cause: the encoders' own.
pub fn encode(identity: &Arc<Identity>, seen: Seen, format: Format) -> Result<Vec<u8>, EncodeError> {
    let Seen { snapshot, host } = seen;
    write(Page { identity: Arc::clone(identity), process: Process::read(), snapshot, host }, format)
}

fn write(page: Page, format: Format) -> Result<Vec<u8>, EncodeError> {
    let size = page.likely_size();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page.clone()));
    if format == Format::Protobuf {
        return protobuf::write(&page, &registry);
    }
    let mut text = String::with_capacity(size);
    openmetrics::encode(&mut text, &registry)?;
    Ok(match format {
        Format::Text => text::from_openmetrics(&text),
        _ => text,
    }
    .into_bytes())
}
