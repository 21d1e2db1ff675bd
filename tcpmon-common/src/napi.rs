//! NAPI polls per network device.

use crate::name::Name;

/// Device slots per CPU; the slot after them collects every further device as `other`.
pub const NAPI_SLOTS: u32 = 256;

/// What one CPU did for one device: value of the per-CPU map `NAPI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout))]
#[repr(C)]
pub struct NapiDevice {
    /// The device's name, padded with zeros; all zeros in a free slot.
    pub name: Name,
    /// Polls.
    pub polls: u64,
    /// Work done: packets, or whatever unit the driver uses for its budget.
    pub packets: u64,
    /// Polls that used their whole budget.
    pub exhausted: u64,
}

/// The name given to polls that belong to no device: the per-CPU backlog (loopback, RPS, veth without GRO).
pub const BACKLOG: Name = [u64::from_le_bytes(*b"backlog\0"), 0];

/// The name given to polls of veths: each container has one called `eth0`, and pods keep bringing new names.
pub const VETHS: Name = [u64::from_le_bytes(*b"veth*\0\0\0"), 0];

const _: () = assert!(size_of::<NapiDevice>() == 40);
