//! The form that the Perfetto UI and its trace processor read. `docs/trace-format.md` describes the tracks.

mod message;
mod write;

pub use write::PerfettoWriter;

/// The numbers of records that the ends of the traces in a file state.
#[cfg(test)]
pub(crate) fn records_at_end(bytes: &[u8]) -> Vec<u64> {
    use message::{Annotated, PacketList};
    use prost::Message as _;

    let packets = PacketList::decode(bytes).expect("whole packets").packet;
    let events = packets.into_iter().filter_map(|packet| packet.track_event);
    let ends = events.filter(|event| event.name.as_deref() == Some("end of the trace"));
    let about = ends.flat_map(|event| event.debug_annotations);
    let records = about.filter(|about| about.name.as_deref() == Some("records"));
    records.map(|about| if let Some(Annotated::Integer(records)) = about.value { records } else { u64::MAX }).collect()
}
