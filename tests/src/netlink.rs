//! One netlink request and its answers. The daemon has its own code for this, and the tests do not use it: the daemon
//! must not be compared with itself.

use std::fmt::Debug;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_core::{
    NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// More than the kernel puts into one datagram.
const DATAGRAM: usize = 1 << 16;

/// Requests all objects of a kind.
pub(crate) fn dump<M>(protocol: SockProtocol, request: M) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    ask(protocol, request, NLM_F_DUMP)
}

/// Sends a request, and collects its answers until the kernel says that it is done, or acknowledges the request.
pub(crate) fn ask<M>(protocol: SockProtocol, request: M, flags: u16) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    send(socket.as_raw_fd(), &bytes, MsgFlags::empty())?;

    let mut answers = Vec::new();
    let mut datagram = vec![0; DATAGRAM];
    loop {
        let length = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::MSG_TRUNC)?;
        let mut rest = datagram.get(..length).ok_or_else(|| Error::other("a datagram is longer than any"))?;
        while !rest.is_empty() {
            let message = NetlinkBuffer::new_checked(rest).map_err(|error| Error::other(error.to_string()))?;
            let answer = NetlinkMessage::<M>::deserialize(rest).map_err(|error| Error::other(error.to_string()))?;
            rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
            match answer.payload {
                NetlinkPayload::InnerMessage(object) => answers.push(object),
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
        }
    }
}
