//! Lists objects of the kernel over netlink, and decodes only the fields that are used.

use std::{
    convert::Infallible,
    fmt::Debug,
    io::{Error, ErrorKind, Result},
};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use zerocopy::{Immutable, IntoBytes};

/// Maximum number of times that a list is requested if it changes each time while the kernel sends it.
const TRIES: u32 = 5;

/// An object that the kernel lists.
pub(crate) trait Object: Debug + Sized {
    /// The payload of a request.
    type Request: Copy + Debug + IntoBytes + Immutable;
    /// The netlink protocol.
    const PROTOCOL: isize;
    /// Type of a message that asks for the list.
    const REQUEST: u16;
    /// Type of a message with an object.
    const ANSWER: u16;

    /// Decodes the payload of a message; `None` if it is too short.
    fn decode(payload: &[u8]) -> Option<Self>;
}

/// All objects that are asked for, as the calling thread's network namespace has them, and the number of other messages
/// that came.
///
/// # Errors
/// The system's error, or that of the kernel's error message, and if the kernel's list changes all the time.
pub(crate) fn list<O: Object>(request: O::Request) -> Result<(Vec<O>, u64)> {
    for _ in 0..TRIES {
        let answers = answers_to(request)?;
        if !answers.interrupted {
            return Ok((answers.objects, answers.others));
        }
    }
    Err(Error::new(ErrorKind::Interrupted, format!("the list changed {TRIES} times while the kernel sent it")))
}

/// What to do about an error of a netlink socket.
pub(crate) fn remedy(error: &Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EAFNOSUPPORT) => "allow AF_NETLINK sockets",
        Some(libc::EMFILE) => "raise the limit of open files (LimitNOFILE= in a systemd unit, or `ulimit -n`)",
        Some(libc::ENFILE) => "raise fs.file-max",
        Some(libc::ENOBUFS | libc::ENOMEM) => "the kernel has no memory for its answer: free some",
        None if error.kind() == ErrorKind::Interrupted => "try again",
        _ => "report this with the output of `uname -a`",
    }
}

fn answers_to<O: Object>(request: O::Request) -> Result<Answers<O>> {
    let mut socket = Socket::new(O::PROTOCOL)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(Message::<O>::Request(request)));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Answers::default();
    while !answers.add(&socket.recv_from_full()?.0)? {}
    Ok(answers)
}

/// A message to the kernel or from it.
#[derive(Debug)]
enum Message<O: Object> {
    /// The request for a list.
    Request(O::Request),
    /// An object.
    Object(O),
    /// Something that was not asked for, or is too short.
    Other,
}

impl<O: Object> NetlinkSerializable for Message<O> {
    fn message_type(&self) -> u16 {
        O::REQUEST
    }

    fn buffer_len(&self) -> usize {
        size_of::<O::Request>()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        // Nothing else is sent.
        if let Self::Request(request) = self {
            buffer.copy_from_slice(request.as_bytes());
        }
    }
}

impl<O: Object> NetlinkDeserializable for Message<O> {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> std::result::Result<Self, Infallible> {
        let object = (header.message_type == O::ANSWER).then(|| O::decode(payload)).flatten();
        Ok(object.map_or(Self::Other, Self::Object))
    }
}

/// The answers to a request.
#[derive(Debug)]
pub(crate) struct Answers<O> {
    pub(super) objects: Vec<O>,
    /// Other messages.
    others: u64,
    /// The kernel's list changed while it was sent, so that objects may be missing or be there twice.
    interrupted: bool,
}

impl<O> Default for Answers<O> {
    fn default() -> Self {
        Self { objects: Vec::new(), others: 0, interrupted: false }
    }
}

impl<O: Object> Answers<O> {
    /// Adds the messages in a datagram from the kernel. True if no more follow.
    pub(crate) fn add(&mut self, datagram: &[u8]) -> Result<bool> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let answer =
                NetlinkMessage::<Message<O>>::deserialize(rest).map_err(|error| Error::other(error.to_string()))?;
            self.interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(Message::Object(object)) => self.objects.push(object),
                NetlinkPayload::InnerMessage(Message::Request(_) | Message::Other) => self.others += 1,
                // With an error code, the kernel has aborted the list.
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(Error::from_raw_os_error(done.code.saturating_neg()));
                }
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
pub(super) mod tests {
    use std::num::NonZeroI32;

    use netlink_packet_core::{DoneMessage, ErrorMessage, NLM_F_MULTIPART};

    use super::*;

    /// The object in a message of this type.
    pub(in crate::host) fn decoded<O: Object>(message_type: u16, payload: &[u8]) -> Option<O> {
        let mut header = NetlinkHeader::default();
        header.message_type = message_type;
        let Ok(message) = Message::deserialize(&header, payload);
        if let Message::Object(object) = message { Some(object) } else { None }
    }

    /// An object that has a number.
    #[derive(Debug)]
    struct Number;

    impl Object for Number {
        type Request = u32;
        const PROTOCOL: isize = 0;
        const REQUEST: u16 = 18;
        const ANSWER: u16 = 18;

        fn decode(payload: &[u8]) -> Option<Self> {
            (payload.len() >= size_of::<u32>()).then_some(Self)
        }
    }

    fn bytes(payload: NetlinkPayload<Message<Number>>, flags: u16) -> Vec<u8> {
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
        let link = || NetlinkPayload::InnerMessage(Message::Request(7));
        let done = || NetlinkPayload::Done(DoneMessage::default());
        let mut whole = Answers::<Number>::default();
        assert!(!whole.add(&bytes(link(), NLM_F_MULTIPART)).unwrap());
        assert!(whole.add(&bytes(done(), NLM_F_MULTIPART)).unwrap());
        assert!(!whole.interrupted && whole.objects.len() == 1);
        let mut changed = Answers::<Number>::default();
        changed.add(&bytes(link(), NLM_F_MULTIPART | NLM_F_DUMP_INTR)).unwrap();
        assert!(changed.add(&bytes(done(), NLM_F_MULTIPART)).unwrap() && changed.interrupted);
    }

    #[test]
    fn the_remedy_is_that_of_the_error() {
        let of = |number| remedy(&Error::from_raw_os_error(number));
        assert_eq!([libc::EPERM, libc::EAFNOSUPPORT].map(of), ["allow AF_NETLINK sockets"; 2]);
        assert!(of(libc::EMFILE).contains("LimitNOFILE=") && of(libc::ENOBUFS).contains("no memory"));
        assert!(of(libc::EINVAL).contains("report this"));
        assert_eq!(remedy(&ErrorKind::Interrupted.into()), "try again");
    }

    #[test]
    fn an_error_of_the_kernel_is_that_of_the_system() {
        let error = |code| {
            let mut error = ErrorMessage::default();
            error.code = NonZeroI32::new(code);
            Answers::<Number>::default().add(&bytes(NetlinkPayload::Error(error), 0))
        };
        assert!(error(0).unwrap());
        assert_eq!(error(-libc::ENODEV).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        // There is no such error number: it cannot be negated.
        error(i32::MIN).unwrap_err();
        let done = |code| {
            let mut done = DoneMessage::default();
            done.code = code;
            Answers::<Number>::default().add(&bytes(NetlinkPayload::Done(done), NLM_F_MULTIPART))
        };
        assert!(done(0).unwrap());
        assert_eq!(done(-libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
