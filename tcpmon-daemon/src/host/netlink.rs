//! One netlink request and its answers, for any netlink protocol.

use std::fmt::Debug;
use std::io::{Error, ErrorKind, Result};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable};
use netlink_sys::{Socket, SocketAddr};

/// Number of times that a list is requested that changes each time while the kernel sends it.
const TRIES: u32 = 5;

/// Requests all objects of a kind.
///
/// # Errors
/// As [`exchange`], and if the kernel's list changes all the time.
pub fn dump<M>(protocol: isize, message: M) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug + Clone + Into<NetlinkPayload<M>>,
{
    for _ in 0..TRIES {
        let answers = request(protocol, message.clone(), NLM_F_DUMP)?;
        if !answers.interrupted {
            return Ok(answers.messages);
        }
    }
    Err(Error::new(ErrorKind::Interrupted, format!("the list changed {TRIES} times while the kernel sent it")))
}

/// Sends one request with these flags in addition to REQUEST, and collects the answers to it.
///
/// # Errors
/// The system's error, or that of the kernel's error message.
pub fn exchange<M>(protocol: isize, message: M, flags: u16) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug + Into<NetlinkPayload<M>>,
{
    Ok(request(protocol, message, flags)?.messages)
}

fn request<M>(protocol: isize, message: M, flags: u16) -> Result<Answers<M>>
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

    let mut answers = Answers::default();
    while !answers.add(&socket.recv_from_full()?.0)? {}
    Ok(answers)
}

/// The answers to a request.
#[derive(Debug)]
pub(crate) struct Answers<M> {
    pub(super) messages: Vec<M>,
    /// The kernel's list changed while it was sent, so that objects may be missing or be there twice.
    interrupted: bool,
}

impl<M> Default for Answers<M> {
    fn default() -> Self {
        Self { messages: Vec::new(), interrupted: false }
    }
}

impl<M: NetlinkDeserializable> Answers<M> {
    /// Adds what is in a datagram of the kernel. True if no more follow.
    pub(crate) fn add(&mut self, datagram: &[u8]) -> Result<bool> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let answer = NetlinkMessage::<M>::deserialize(rest).map_err(|error| Error::other(error.to_string()))?;
            self.interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => self.messages.push(message),
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::Error(error) => match error.code {
                    None => return Ok(true),
                    Some(code) => return Err(Error::from_raw_os_error(code.get().saturating_neg())),
                },
                _ => {}
            }
            let length = (answer.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroI32;

    use netlink_packet_core::{DoneMessage, ErrorMessage, NLM_F_MULTIPART};

    use super::*;
    use crate::host::link::LinkMessage;

    type LinkAnswers = Answers<LinkMessage>;

    fn bytes(payload: NetlinkPayload<LinkMessage>, flags: u16) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn a_list_that_changed_while_it_was_sent_is_marked() {
        let link = || NetlinkPayload::InnerMessage(LinkMessage::List);
        let done = || NetlinkPayload::Done(DoneMessage::default());
        let mut whole = LinkAnswers::default();
        assert!(!whole.add(&bytes(link(), NLM_F_MULTIPART)).unwrap());
        assert!(whole.add(&bytes(done(), NLM_F_MULTIPART)).unwrap());
        assert!(!whole.interrupted && whole.messages.len() == 1);
        let mut changed = LinkAnswers::default();
        changed.add(&bytes(link(), NLM_F_MULTIPART | NLM_F_DUMP_INTR)).unwrap();
        assert!(changed.add(&bytes(done(), NLM_F_MULTIPART)).unwrap() && changed.interrupted);
    }

    #[test]
    fn an_error_of_the_kernel_is_that_of_the_system() {
        let error = |code| {
            let mut error = ErrorMessage::default();
            error.code = NonZeroI32::new(code);
            LinkAnswers::default().add(&bytes(NetlinkPayload::Error(error), 0))
        };
        assert!(error(0).unwrap());
        assert_eq!(error(-libc::ENODEV).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        // No error has this number, whose negation does not exist.
        error(i32::MIN).unwrap_err();
    }
}
