//! Queueing disciplines (qdiscs) of network devices as rtnetlink lists them.
//!
//! As in [`super::link`], only what is used is decoded.

use std::{collections::BTreeMap, io};

use netlink_packet_core::NlasIterator;
use netlink_sys::protocols::NETLINK_ROUTE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    link::text,
    netlink::{self, Object},
};

/// Message types (`linux/rtnetlink.h`).
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;

/// An attribute (`linux/rtnetlink.h`).
const TCA_KIND: u16 = 1;

/// The parent of a device's root, and the part of a parent that is a handle (`linux/pkt_sched.h`).
const TC_H_ROOT: u32 = u32::MAX;
const TC_H_MAJ_MASK: u32 = 0xffff_0000;

/// Kinds that send nothing themselves: they have another queueing discipline for each transmit queue.
pub(crate) const OF_QUEUES: [&str; 3] = ["mq", "mqprio", "multiq"];

/// `struct tcmsg`.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct TrafficControl {
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
    /// The number by which its children name it as their parent, together with their class; 0 for those that the kernel
    /// has chosen.
    handle: u32,
    /// The handle and the class of its parent, or [`TC_H_ROOT`].
    parent: u32,
    /// Empty if the kernel does not say.
    kind: String,
}

/// The queueing disciplines of all devices of the calling thread's network namespace; and how many answers cannot be
/// parsed.
///
/// # Errors
/// rtnetlink does not answer.
pub(crate) fn list() -> io::Result<(Vec<Qdisc>, u64)> {
    netlink::list(TrafficControl::default())
}

/// Number of children of a device's root by their kind: one of [`OF_QUEUES`] has one for each transmit queue.
pub(crate) fn below_root(qdiscs: &[Qdisc], device: u32) -> BTreeMap<String, u64> {
    let of_device = || qdiscs.iter().filter(|qdisc| qdisc.device == device);
    let mut kinds = BTreeMap::new();
    let Some(root) = of_device().find(|qdisc| qdisc.parent == TC_H_ROOT) else { return kinds };
    for qdisc in of_device().filter(|qdisc| qdisc.parent & TC_H_MAJ_MASK == root.handle) {
        *kinds.entry(qdisc.kind.clone()).or_default() += 1;
    }
    kinds
}

impl Object for Qdisc {
    type Request = TrafficControl;
    const PROTOCOL: isize = NETLINK_ROUTE;
    const REQUEST: u16 = RTM_GETQDISC;
    const ANSWER: u16 = RTM_NEWQDISC;

    fn decode(payload: &[u8]) -> Option<Self> {
        let (qdisc, attributes) = TrafficControl::read_from_prefix(payload).ok()?;
        // After an attribute whose length is wrong, the next one cannot be found.
        let mut attributes = NlasIterator::new(attributes).map_while(Result::ok);
        let kind = attributes.find(|attribute| attribute.kind() == TCA_KIND);
        let kind = kind.map(|kind| text(kind.value())).unwrap_or_default();
        Some(Self { device: qdisc.device, handle: qdisc.handle, parent: qdisc.parent, kind })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::host::netlink::{Answers, tests::decoded};

    /// What Linux 6.18 sent about a veth with `mq` from `tc` and a tap device with `mq` of the kernel's own choice.
    const CAPTURED: &[u8] = include_bytes!("captured/6.18-host/rtnetlink_qdiscs");

    /// Those that it lists: the device with the index 5 has `mq` with three queues.
    pub(crate) fn captured() -> Vec<Qdisc> {
        let mut answers = Answers::default();
        assert!(answers.add(CAPTURED).expect("an answer"), "the whole answer");
        answers.objects
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
    fn messages_that_are_cut_or_of_another_type_are_not_decoded_as_qdiscs() {
        let message = TrafficControl { device: 7, ..TrafficControl::default() };
        let decode = decoded::<Qdisc>;
        assert_eq!(decode(0, message.as_bytes()), None);
        assert_eq!(decode(RTM_NEWQDISC, &message.as_bytes()[1..]), None);
        let nameless = Some(Qdisc { device: 7, ..Qdisc::default() });
        assert_eq!(decode(RTM_NEWQDISC, message.as_bytes()), nameless);
        // The length of the attribute is wrong.
        assert_eq!(decode(RTM_NEWQDISC, &[message.as_bytes(), &[255, 255, 1, 0]].concat()), nameless);
    }

    #[test]
    fn this_host_lists_its_queueing_disciplines() {
        let (_, skipped) = list().expect("rtnetlink answers");
        assert_eq!(skipped, 0, "answers that cannot be parsed");
    }
}
