//! Network devices of the calling thread's namespace: veth pairs, addresses, offloads.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily as SocketFamily, SockFlag, SockProtocol, SockType, socket};

use crate::namespace::Namespace;
use crate::{must, netlink};

/// An offload that ethtool(8) can turn on and off.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Offload {
    /// `ETHTOOL_STSO`: all kinds of TCP segmentation offload together.
    Tso = 0x1f,
    /// `ETHTOOL_SGRO`; on veth it also turns NAPI on.
    Gro = 0x2c,
}

/// Creates this many veth pairs in a namespace, with both ends in it: `NAMEa0` and `NAMEb0`, and so on.
#[track_caller]
pub fn add_veths(namespace: &Namespace, name: &str, pairs: u32) {
    namespace.run(|| {
        for pair in 0..pairs {
            let made = add_veth(&format!("{name}a{pair}"), &format!("{name}b{pair}"), namespace, 1500);
            must(made, "making a veth pair");
        }
    });
}

/// Creates a veth pair with one end here and the other in `there`.
pub(crate) fn add_veth(here: &str, there: &str, other: &Namespace, mtu: u32) -> Result<()> {
    let mut peer = LinkMessage::default();
    peer.attributes.push(LinkAttribute::IfName(there.to_owned()));
    peer.attributes.push(LinkAttribute::Mtu(mtu));
    peer.attributes.push(LinkAttribute::NetNsFd(std::os::fd::AsFd::as_fd(other).as_raw_fd()));
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(here.to_owned()));
    link.attributes.push(LinkAttribute::Mtu(mtu));
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    change(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
}

/// Adds an address to a device; IPv6 without duplicate address detection, so that it can be used at once.
pub(crate) fn add_address(device: &str, address: IpAddr, prefix_length: u8) -> Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.prefix_len = prefix_length;
    message.header.flags = AddressHeaderFlags::Nodad;
    message.header.index = if_nametoindex(device)?;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Adds a route to a neighbour whose connections have timestamps in microseconds (Linux 6.7; older kernels refuse it).
pub(crate) fn add_usec_route(device: &str, neighbour: Ipv4Addr) -> Result<()> {
    /// `RTAX_FEATURE_TCP_USEC_TS`
    const USEC_TIMESTAMPS: u32 = 1 << 4;
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = 32;
    message.header.table = libc::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Link;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(neighbour)));
    message.attributes.push(RouteAttribute::Oif(if_nametoindex(device)?));
    message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Features(USEC_TIMESTAMPS)]));
    change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Brings a device up.
pub fn set_up(device: &str) -> Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = if_nametoindex(device)?;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    change(RouteNetlinkMessage::SetLink(message), 0)
}

/// Adds a permanent neighbour entry with its link-layer address, so that no address resolution is needed before a
/// packet leaves.
pub(crate) fn add_neighbour(device: &str, neighbour: Ipv4Addr, link_layer: Vec<u8>) -> Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = if_nametoindex(device)?;
    message.header.state = NeighbourState::Permanent;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(neighbour)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(link_layer));
    change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Turns an offload on or off.
#[expect(unsafe_code, reason = "the ethtool ioctl has no safe wrapper")]
pub(crate) fn set_offload(device: &str, offload: Offload, on: bool) -> Result<()> {
    #[repr(C)]
    struct EthtoolValue {
        command: u32,
        data: u32,
    }
    const SIOCETHTOOL: libc::Ioctl = 0x8946;

    let socket = socket(SocketFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut value = EthtoolValue { command: offload as u32, data: u32::from(on) };
    let mut name: [libc::c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    for (slot, byte) in name.iter_mut().zip(device.bytes().take(libc::IFNAMSIZ - 1)) {
        *slot = byte as libc::c_char;
    }
    let ifru_data = std::ptr::from_mut(&mut value).cast();
    let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data } };
    // SAFETY: SIOCETHTOOL reads an ifreq with a NUL-terminated name and, behind ifru_data, an ethtool_value of this
    // layout for both commands of `Offload`; both outlive the call.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &request) };
    if outcome == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Sends a change by rtnetlink; `flags` come in addition to REQUEST and ACK, which are always set.
fn change(message: RouteNetlinkMessage, flags: u16) -> Result<()> {
    netlink::ask(SockProtocol::NetlinkRoute, message, flags | NLM_F_ACK).map(drop)
}
