//! Queueing disciplines (qdiscs) of network devices as rtnetlink lists them.
//!
//! As in [`super::link`], only what is used is decoded.

use std::{collections::BTreeMap, convert::Infallible, io, mem::size_of};

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkPayload, NetlinkSerializable, NlasIterator};
use netlink_sys::protocols::NETLINK_ROUTE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{link::text, netlink::dump};

/// Message types (`linux/rtnetlink.h`).
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;

/// An attribute (`linux/rtnetlink.h`).
const TCA_KIND: u16 = 1;

/// The parent of a device's root, and the part of a parent that is a handle (`linux/pkt_sched.h`).
const TC_H_ROOT: u32 = u32::MAX;
const TC_H_MAJ_MASK: u32 = 0xffff_0000;

/// `struct tcmsg`.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct TrafficControl {
    family: u8,
    padding: [u8; 3],
    device: u32,
    handle: u32,
    parent: u32,
    info: u32,
}

/// One queueing discipline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Qdisc {
    /// Index of its device.
    device: u32,
    /// What its children name as their parent, with the number of their class; 0 for those that the kernel has chosen.
    handle: u32,
    /// The handle and the class that it belongs to, or [`TC_H_ROOT`].
    parent: u32,
    /// Empty if the kernel does not say.
    kind: String,
}

/// The queueing disciplines of all devices of the calling thread's network namespace.
///
/// # Errors
/// rtnetlink does not answer.
pub(crate) fn list() -> io::Result<Vec<Qdisc>> {
    let answers = dump(NETLINK_ROUTE, QdiscMessage::List)?;
    let qdiscs = answers.into_iter().filter_map(|answer| match answer {
        QdiscMessage::Qdisc(qdisc) => Some(qdisc),
        QdiscMessage::List | QdiscMessage::Other => None,
    });
    Ok(qdiscs.collect())
}

/// Number of children of a device's root by their kind: `mq` has one for each transmit queue.
pub(crate) fn below_root(qdiscs: &[Qdisc], device: u32) -> BTreeMap<String, u64> {
    let of_device = || qdiscs.iter().filter(|qdisc| qdisc.device == device);
    let mut kinds = BTreeMap::new();
    let Some(root) = of_device().find(|qdisc| qdisc.parent == TC_H_ROOT) else { return kinds };
    for qdisc in of_device().filter(|qdisc| qdisc.parent & TC_H_MAJ_MASK == root.handle) {
        *kinds.entry(qdisc.kind.clone()).or_default() += 1;
    }
    kinds
}

/// What goes to rtnetlink and comes from it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum QdiscMessage {
    /// The request for all queueing disciplines.
    List,
    /// A queueing discipline.
    Qdisc(Qdisc),
    /// Something that was not asked for, or is too short.
    Other,
}

impl From<QdiscMessage> for NetlinkPayload<QdiscMessage> {
    fn from(message: QdiscMessage) -> Self {
        Self::InnerMessage(message)
    }
}

impl NetlinkSerializable for QdiscMessage {
    fn message_type(&self) -> u16 {
        RTM_GETQDISC
    }

    fn buffer_len(&self) -> usize {
        size_of::<TrafficControl>()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(TrafficControl::default().as_bytes());
    }
}

impl NetlinkDeserializable for QdiscMessage {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(match TrafficControl::read_from_prefix(payload) {
            Ok((qdisc, attributes)) if header.message_type == RTM_NEWQDISC => {
                // After one whose length is wrong, there is no next one.
                let mut attributes = NlasIterator::new(attributes).map_while(Result::ok);
                let kind = attributes.find(|attribute| attribute.kind() == TCA_KIND);
                let kind = kind.map(|kind| text(kind.value())).unwrap_or_default();
                Self::Qdisc(Qdisc { device: qdisc.device, handle: qdisc.handle, parent: qdisc.parent, kind })
            }
            _ => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::netlink::Answers;

    /// What Linux 6.18 has sent of a veth with `mq` from `tc` and a tap device with `mq` of the kernel's own choice.
    const CAPTURED: &[u8] = include_bytes!("captured/6.18-host/rtnetlink_qdiscs");

    fn captured() -> Vec<Qdisc> {
        let mut answers = Answers::default();
        assert!(answers.add(CAPTURED).expect("an answer"), "the whole answer");
        let qdisc = |message| if let QdiscMessage::Qdisc(qdisc) = message { qdisc } else { panic!("{message:?}") };
        answers.messages.into_iter().map(qdisc).collect()
    }

    fn counts(kinds: &[(&str, u64)]) -> BTreeMap<String, u64> {
        kinds.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
    }

    #[test]
    fn the_queues_of_mq_have_what_tc_shows() {
        let qdiscs = captured();
        let roots = qdiscs.iter().filter(|qdisc| qdisc.parent == TC_H_ROOT);
        let roots: Vec<_> = roots.map(|qdisc| (qdisc.device, qdisc.handle, &*qdisc.kind)).collect();
        assert_eq!(roots, [(2, 0, "noqueue"), (3, 0x8004_0000, "mq"), (5, 0, "mq")]);
        // One queue has htb, which has a pfifo of its own, and the device has clsact: neither of these is of a queue.
        assert_eq!(below_root(&qdiscs, 3), counts(&[("htb", 1), ("pfifo", 1), ("pfifo_fast", 2)]));
        assert_eq!(below_root(&qdiscs, 5), counts(&[("pfifo_fast", 3)]));
        // The other end of the veth, whose root has no children, and no device at all.
        assert_eq!((below_root(&qdiscs, 2), below_root(&qdiscs, 99)), (counts(&[]), counts(&[])));
    }

    #[test]
    fn what_is_cut_or_was_not_asked_for_is_no_queueing_discipline() {
        let mut header = NetlinkHeader::default();
        let message = TrafficControl { device: 7, ..TrafficControl::default() };
        let decode = |header: &NetlinkHeader, payload: &[u8]| match QdiscMessage::deserialize(header, payload) {
            Ok(message) => message,
        };
        assert_eq!(decode(&header, message.as_bytes()), QdiscMessage::Other);
        header.message_type = RTM_NEWQDISC;
        assert_eq!(decode(&header, &message.as_bytes()[1..]), QdiscMessage::Other);
        let nameless = QdiscMessage::Qdisc(Qdisc { device: 7, ..Qdisc::default() });
        assert_eq!(decode(&header, message.as_bytes()), nameless);
        // The length of the attribute is wrong.
        assert_eq!(decode(&header, &[message.as_bytes(), &[255, 255, 1, 0]].concat()), nameless);
    }

    #[test]
    fn this_host_lists_its_queueing_disciplines() {
        list().expect("rtnetlink answers");
    }
}
