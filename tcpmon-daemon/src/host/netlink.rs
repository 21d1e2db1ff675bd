//! One netlink request and its answers, for any netlink protocol.

use std::fmt::Debug;
use std::io::{Error, Result};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable};
use netlink_sys::{Socket, SocketAddr};

/// Requests all objects of a kind.
///
/// # Errors
/// As [`exchange`].
pub fn dump<M>(protocol: isize, message: M) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug + Into<NetlinkPayload<M>>,
{
    exchange(protocol, message, NLM_F_DUMP)
}

/// Sends one request with these flags in addition to REQUEST, and collects the answers to it.
///
/// # Errors
/// The system's error, or that of the kernel's error message.
pub fn exchange<M>(protocol: isize, message: M, flags: u16) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug + Into<NetlinkPayload<M>>,
{
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, message.into());
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<M>::deserialize(rest).map_err(|error| Error::other(error.to_string()))?;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => answers.push(message),
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            let length = (answer.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}
