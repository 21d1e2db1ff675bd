//! Network devices as rtnetlink lists them.
//!
//! Only what is used is decoded. The kernel passes on some names exactly as they were set, in any encoding. An
//! attribute that is not as expected is left out, and the rest is used.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt as _};

use netlink_packet_core::{NlaBuffer, NlasIterator};
use netlink_sys::protocols::NETLINK_ROUTE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::netlink::{self, Object};

/// Message types (`linux/rtnetlink.h`).
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;

/// Attributes (`linux/if_link.h`).
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_PARENT_DEV_NAME: u16 = 56;
/// Within `IFLA_LINKINFO`.
const IFLA_INFO_KIND: u16 = 1;

/// Operational states (`linux/if.h`) of a device that works: some drivers never say more than "unknown".
const WORKING: [u8; 2] = [0, 6];

/// `struct ifinfomsg`.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct InterfaceInfo {
    family: u8,
    padding: u8,
    device_type: u16,
    index: u32,
    flags: u32,
    change: u32,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    /// Its name as shown to users.
    pub(crate) name: String,
    /// Its name in requests to the kernel, which may be any bytes.
    pub(crate) system_name: OsString,
    /// Bytes; `None` if the kernel does not say.
    pub(crate) mtu: Option<u32>,
    /// Its queueing discipline; empty if the kernel does not say.
    pub(crate) qdisc: String,
    /// It belongs to a device on a bus.
    pub(crate) is_on_a_bus: bool,
    pub(crate) is_up: bool,
    pub(crate) is_veth: bool,
    /// `None` if the kernel does not say.
    pub(crate) counters: Option<LinkStats>,
}

/// The first counters of `struct rtnl_link_stats64`, under the kernel's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct LinkStats {
    pub(crate) rx_packets: u64,
    pub(crate) tx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_errors: u64,
    pub(crate) tx_errors: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
    pub(crate) multicast: u64,
    pub(crate) collisions: u64,
    pub(crate) rx_length_errors: u64,
    pub(crate) rx_over_errors: u64,
    pub(crate) rx_crc_errors: u64,
    pub(crate) rx_frame_errors: u64,
    pub(crate) rx_fifo_errors: u64,
    pub(crate) rx_missed_errors: u64,
}

/// The devices could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the network devices over rtnetlink: {0}: {remedy}", remedy = netlink::remedy(.0))]
pub(crate) struct ListError(#[source] io::Error);

/// All devices of the calling thread's network namespace; and how many answers cannot be parsed.
///
/// # Errors
/// rtnetlink does not answer.
pub(crate) fn list() -> Result<(Vec<Link>, u64), ListError> {
    netlink::list(InterfaceInfo::default()).map_err(ListError)
}

/// What is missing if so many answers cannot be parsed; empty if that is nothing.
pub(crate) fn skipped(answers: u64) -> String {
    if answers == 0 {
        return String::new();
    }
    format!("skipped {answers} answers of rtnetlink with devices that cannot be parsed: report this")
}

impl Object for Link {
    type Request = InterfaceInfo;
    const PROTOCOL: isize = NETLINK_ROUTE;
    const REQUEST: u16 = RTM_GETLINK;
    const ANSWER: u16 = RTM_NEWLINK;

    fn decode(payload: &[u8]) -> Option<Self> {
        let (info, attributes) = InterfaceInfo::read_from_prefix(payload).ok()?;
        Some(Self::new(&info, attributes))
    }
}

impl Link {
    fn new(info: &InterfaceInfo, attributes: &[u8]) -> Self {
        let mut link = Self { index: info.index, ..Self::default() };
        // After an attribute whose length is wrong, the next one cannot be found.
        for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
            link.set(&attribute);
        }
        link
    }

    fn set(&mut self, attribute: &NlaBuffer<&[u8]>) {
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFNAME => {
                self.name = shown_name(value);
                self.system_name = OsString::from_vec(before_zero(value).to_vec());
            }
            IFLA_MTU => self.mtu = u32::read_from_bytes(value).ok(),
            IFLA_QDISC => self.qdisc = text(value),
            IFLA_OPERSTATE => self.is_up = value.first().is_some_and(|state| WORKING.contains(state)),
            IFLA_LINKINFO => {
                let mut info = NlasIterator::new(value).map_while(Result::ok);
                self.is_veth = info.any(|part| part.kind() == IFLA_INFO_KIND && text(part.value()) == "veth");
            }
            IFLA_STATS64 => self.counters = LinkStats::read_from_prefix(value).ok().map(|(stats, _)| stats),
            IFLA_PARENT_DEV_NAME => self.is_on_a_bus = true,
            _ => {}
        }
    }
}

/// A name, which ends with a zero.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(before_zero(value)).into_owned()
}

fn before_zero(value: &[u8]) -> &[u8] {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    &value[..end]
}

/// The name of a device, which may end with a zero, as text: bytes that are not UTF-8, and backslashes, are written as
/// `\xff`. No two names become the same text, which would make two series with the same labels.
pub(crate) fn shown_name(name: &[u8]) -> String {
    let shown = |byte: &u8| format!("\\x{byte:02x}");
    let chunks = before_zero(name).utf8_chunks();
    let parts = chunks.flat_map(|chunk| {
        let valid = chunk.valid().replace('\\', "\\x5c");
        [valid, chunk.invalid().iter().map(shown).collect()]
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::netlink::tests::decoded;

    const IFLA_IFALIAS: u16 = 20;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// The device with index 7 and these attributes.
    fn link(attributes: &[Vec<u8>]) -> Link {
        let mut payload = InterfaceInfo { index: 7, ..InterfaceInfo::default() }.as_bytes().to_vec();
        payload.extend(attributes.concat());
        decoded(RTM_NEWLINK, &payload).expect("a device")
    }

    #[test]
    fn a_device_has_what_its_attributes_say() {
        let mut stats = LinkStats { rx_missed_errors: 5, ..LinkStats::default() }.as_bytes().to_vec();
        stats.extend([0; 72]);
        let kind = attribute(IFLA_INFO_KIND, b"veth\0");
        let found = link(&[
            attribute(IFLA_IFNAME, b"eth0\0"),
            attribute(IFLA_MTU, &9000_u32.to_ne_bytes()),
            attribute(IFLA_QDISC, b"mq\0"),
            attribute(IFLA_OPERSTATE, &[6]),
            attribute(IFLA_LINKINFO, &kind),
            attribute(IFLA_STATS64, &stats),
            attribute(IFLA_PARENT_DEV_NAME, b"0000:00:03.0\0"),
        ]);
        let counters = Some(LinkStats { rx_missed_errors: 5, ..LinkStats::default() });
        let (name, system_name, qdisc) = ("eth0".to_owned(), "eth0".into(), "mq".to_owned());
        let (mtu, is_on_a_bus, is_up, is_veth) = (Some(9000), true, true, true);
        let expected = Link { index: 7, name, system_name, mtu, qdisc, is_on_a_bus, is_up, is_veth, counters };
        assert_eq!(found, expected);
        assert_eq!(link(&[]), Link { index: 7, ..Link::default() });
    }

    #[test]
    fn an_attribute_that_is_not_as_expected_costs_nothing_else() {
        let found = link(&[
            attribute(IFLA_IFALIAS, b"B\xfcro\0"),
            attribute(IFLA_MTU, b"12"),
            attribute(IFLA_STATS64, b"short"),
            attribute(IFLA_LINKINFO, b"\xff\xff\xff\xff"),
            attribute(IFLA_IFNAME, b"eth0\0"),
        ]);
        let (name, system_name) = ("eth0".to_owned(), "eth0".into());
        assert_eq!(found, Link { index: 7, name, system_name, ..Link::default() });
        // The length of the last one is wrong.
        let found = link(&[attribute(IFLA_IFNAME, b"eth1\0"), vec![255, 255, 4, 0]]);
        assert_eq!(found.name, "eth1");
    }

    #[test]
    fn a_name_that_is_not_utf_8_is_kept_for_requests_and_looks_like_no_other() {
        let names: [(&[u8], &str); 5] = [
            (b"eth\xff", "eth\\xff"),
            (b"eth\xfe", "eth\\xfe"),
            (b"eth\\xff", "eth\\x5cxff"),
            (b"\xe2\x82\xff0", "\\xe2\\x82\\xff0"),
            ("b\u{fc}ro".as_bytes(), "b\u{fc}ro"),
        ];
        for (bytes, shown) in names {
            let found = link(&[attribute(IFLA_IFNAME, &[bytes, b"\0"].concat())]);
            assert_eq!((&*found.name, found.system_name.into_vec()), (shown, bytes.to_vec()));
        }
    }

    #[test]
    fn this_host_has_a_loopback_device() {
        let (links, others) = list().expect("rtnetlink answers");
        assert_eq!(others, 0, "answers that cannot be parsed");
        let lo = links.iter().find(|link| link.name == "lo").expect("lo");
        assert_eq!((lo.index, lo.is_on_a_bus, lo.is_veth), (1, false, false));
    }
}
