//! Converts bytes from the kernel to types; no other module does. The functions are total: any bytes give a value or an
//! error.

mod timeslice;
mod total;

pub use timeslice::trace_record;
pub use total::{socket_total, thread_total};

use std::net::IpAddr;

use tcpmon_common::{
    header::{Header, KIND_FEW_STATES, KIND_LISTENER, KIND_READER_EXIT, KIND_TIMESLICE, VERSION},
    timeslice::Timeslice,
};
use zerocopy::FromBytes;

/// The family of an IPv6 socket in a record.
const AF_INET6: u16 = libc::AF_INET6 as u16;

/// A record from the ring buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The socket whose state has this index starts to listen.
    Listener {
        /// The index.
        index: u32,
    },
    /// Few free states are left in the store.
    FewStates,
    /// The reader in this slot has exited.
    ReaderExit {
        /// Index into `READERS`.
        slot: u32,
    },
    /// One timeslice of a traced reader.
    Timeslice(Box<Timeslice>),
}

/// The bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the record needs.
    #[error("the record has {got} bytes, but needs {need}")]
    Truncated {
        /// Bytes that there are.
        got: usize,
        /// Bytes that the record needs.
        need: usize,
    },
    /// A kind or version that this build does not produce.
    #[error("unknown record: kind {kind}, version {version}")]
    Unknown {
        /// `Header::kind`.
        kind: u16,
        /// `Header::version`.
        version: u16,
    },
}

/// Decodes one record of the ring buffer.
///
/// # Errors
/// If the bytes are too short, or the record's kind or version is unknown.
pub fn event(bytes: &[u8]) -> Result<Event, DecodeError> {
    let header: Header = read(bytes)?;
    match (header.version, header.kind) {
        (VERSION, KIND_LISTENER) => Ok(Event::Listener { index: header.cookie as u32 }),
        (VERSION, KIND_FEW_STATES) => Ok(Event::FewStates),
        (VERSION, KIND_READER_EXIT) => Ok(Event::ReaderExit { slot: header.cookie as u32 }),
        (VERSION, KIND_TIMESLICE) => Ok(Event::Timeslice(Box::new(read(bytes)?))),
        (version, kind) => Err(DecodeError::Unknown { kind, version }),
    }
}

/// Converts an address of a record: IPv6 takes all bytes, IPv4 the first four.
pub fn address(family: u16, bytes: [u8; 16]) -> IpAddr {
    match bytes.first_chunk::<4>() {
        Some(v4) if family != AF_INET6 => IpAddr::from(*v4),
        _ => IpAddr::from(bytes),
    }
}

/// Converts a name that is padded with zeros to text.
pub fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::read_from_prefix(bytes)
        .map(|(record, _)| record)
        .map_err(|_| DecodeError::Truncated { got: bytes.len(), need: size_of::<T>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_can_panic_the_decoders(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = event(&bytes);
            let _ = name(&bytes);
        }

        #[test]
        fn bytes_of_each_kind_decode_whatever_follows_the_header(
            kind in 0u16..7, body in proptest::collection::vec(any::<u8>(), 0..700),
        ) {
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(body);
            let needs = match kind {
                KIND_TIMESLICE => size_of::<Timeslice>(),
                KIND_LISTENER | KIND_FEW_STATES | KIND_READER_EXIT => size_of::<Header>(),
                _ => usize::MAX,
            };
            prop_assert_eq!(event(&bytes).is_ok(), bytes.len() >= needs);
        }
    }

    #[test]
    fn names_end_at_the_first_zero() {
        assert_eq!(name(b"iperf3\0\0xx"), "iperf3");
        assert_eq!(name(b"sixteen-bytes-ab"), "sixteen-bytes-ab");
        assert_eq!(name(b"\xff\0"), "\u{fffd}");
    }
}
