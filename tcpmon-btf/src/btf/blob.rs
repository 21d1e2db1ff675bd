//! The frame of a BTF blob: header, sections, and where each type starts. The meaning of the types is not examined.

use std::{error, fmt};

/// Values of the field `kind` of a [`TypeRecord`].
pub mod kind {
    #![allow(missing_docs, reason = "the kernel's BTF_KIND_ constants, by the kernel's names")]
    pub const INT: u8 = 1;
    pub const PTR: u8 = 2;
    pub const ARRAY: u8 = 3;
    pub const STRUCT: u8 = 4;
    pub const UNION: u8 = 5;
    pub const ENUM: u8 = 6;
    pub const FWD: u8 = 7;
    pub const TYPEDEF: u8 = 8;
    pub const VOLATILE: u8 = 9;
    pub const CONST: u8 = 10;
    pub const RESTRICT: u8 = 11;
    pub const FUNC: u8 = 12;
    pub const FUNC_PROTO: u8 = 13;
    pub const VAR: u8 = 14;
    pub const DATASEC: u8 = 15;
    pub const FLOAT: u8 = 16;
    pub const DECL_TAG: u8 = 17;
    pub const TYPE_TAG: u8 = 18;
    pub const ENUM64: u8 = 19;
}

const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 12;
/// Longest name that is read; the kernel's own limit is 512.
const MAX_NAME_BYTES: usize = 1024;

/// Why a blob cannot be used at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BtfError {
    /// The magic number is not 0xeb9f in either byte order.
    NotBtf,
    /// The blob describes a big-endian machine.
    BigEndian,
    /// The version is not 1.
    Version(u8),
    /// The header, or a section that it points to, is not within the blob.
    Truncated,
    /// The record of this type id runs past the end of the type section.
    TruncatedType(u32),
    /// A kind that this parser does not know and whose length the blob does not state.
    UnknownKind {
        /// `BTF_KIND_` number.
        kind: u8,
        /// Type id of the first record of that kind.
        id: u32,
    },
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBtf => f.write_str("kernel BTF has no BTF magic: use /sys/kernel/btf/vmlinux as it is"),
            Self::BigEndian => f.write_str("kernel BTF is big-endian: run on a little-endian machine"),
            Self::Version(version) => {
                write!(f, "kernel BTF has version {version}, not 1: update tcpmon")
            }
            Self::Truncated => f.write_str("kernel BTF has sections beyond its end: read the file whole"),
            Self::TruncatedType(id) => {
                write!(f, "type {id} of the kernel BTF runs past the type section: read the file whole")
            }
            Self::UnknownKind { kind, id } => {
                write!(f, "type {id} of the kernel BTF is of the unknown kind {kind}: update tcpmon")
            }
        }
    }
}

impl error::Error for BtfError {}

/// A type as it is stored in the blob.
#[derive(Debug, Clone, Copy)]
pub struct TypeRecord<'a> {
    /// Offset of the name in the strings.
    pub name: u32,
    /// One of the constants in [`kind`], or a newer one.
    pub kind: u8,
    /// Number of members, values or parameters; the linkage of a FUNC.
    pub count: u32,
    /// For a structure: offsets contain bit sizes. For an enum: it is signed. For a forward declaration: it is a union.
    pub flag: bool,
    /// Size in bytes, or the id of the type that this one refers to, depending on the kind.
    pub size_or_type: u32,
    /// The bytes that follow, depending on the kind.
    pub tail: &'a [u8],
}

/// A parsed blob. Ids count from 1; 0 is `void`.
pub struct Blob<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where in `types` the record of id `index + 1` starts.
    starts: Vec<u32>,
    /// Ids of the named structures and unions, with which most lookups start.
    structures: Vec<u32>,
}

impl<'a> Blob<'a> {
    /// Checks the frame of a whole blob (not the meaning of the types) and finds the types in it: 1 ms for 5.5 MB.
    ///
    /// # Errors
    /// If the input is not little-endian BTF of version 1, is truncated, or holds a kind of unknown length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        match bytes {
            [0x9f, 0xeb, 1, ..] => {}
            [0x9f, 0xeb, version, ..] => return Err(BtfError::Version(*version)),
            [0xeb, 0x9f, ..] => return Err(BtfError::BigEndian),
            _ => return Err(BtfError::NotBtf),
        }
        let header_bytes = word(bytes, 4).ok_or(BtfError::Truncated)? as usize;
        let header = bytes.get(..header_bytes).ok_or(BtfError::Truncated)?;
        if header.len() < HEADER_BYTES {
            return Err(BtfError::Truncated);
        }
        // Each section is an offset from the end of the header, and a length. A section that a shorter header does not
        // have is empty.
        let section = |at| {
            let offset = word(header, at).unwrap_or(0) as usize;
            let length = word(header, at + 4).unwrap_or(0) as usize;
            let start = header_bytes.checked_add(offset).ok_or(BtfError::Truncated)?;
            let end = start.checked_add(length).ok_or(BtfError::Truncated)?;
            bytes.get(start..end).ok_or(BtfError::Truncated)
        };
        let (types, strings, layout) = (section(8)?, section(16)?, section(24)?);

        // A record of vmlinux takes 25 bytes on average (5.10 to 7.3).
        let mut starts = Vec::with_capacity(types.len() / 24);
        let mut structures = Vec::new();
        let mut at = 0;
        while at < types.len() {
            let id = starts.len() as u32 + 1;
            let info = word(types, at + 4).ok_or(BtfError::TruncatedType(id))?;
            let (kind, count, _) = unpack(info);
            let tail = tail_bytes(kind, count, layout).ok_or(BtfError::UnknownKind { kind, id })?;
            let end = tail.checked_add(at + RECORD_BYTES).filter(|end| *end <= types.len());
            starts.push(at as u32);
            if matches!(kind, kind::STRUCT | kind::UNION) && word(types, at) != Some(0) {
                structures.push(id);
            }
            at = end.ok_or(BtfError::TruncatedType(id))?;
        }
        Ok(Self { types, strings, starts, structures })
    }

    /// The highest type id.
    pub fn count(&self) -> u32 {
        self.starts.len() as u32
    }

    /// The type with this id; `None` for 0 (`void`) and for ids that do not exist.
    pub fn record(&self, id: u32) -> Option<TypeRecord<'a>> {
        let index = id.checked_sub(1)? as usize;
        let start = *self.starts.get(index)? as usize;
        let end = self.starts.get(index + 1).map_or(self.types.len(), |next| *next as usize);
        let (kind, count, flag) = unpack(word(self.types, start + 4)?);
        Some(TypeRecord {
            name: word(self.types, start)?,
            kind,
            count,
            flag,
            size_or_type: word(self.types, start + 8)?,
            tail: self.types.get(start + RECORD_BYTES..end)?,
        })
    }

    /// The string at this offset; empty if there is none or if it is not UTF-8.
    pub fn string(&self, offset: u32) -> &'a str {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        let rest = rest.get(..MAX_NAME_BYTES).unwrap_or(rest);
        let length = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        str::from_utf8(rest.get(..length).unwrap_or_default()).unwrap_or_default()
    }

    /// Id of the first type of this kind and name.
    pub fn find(&self, kind: u8, name: &str) -> Option<u32> {
        (1..=self.count()).find(|id| {
            let start = self.starts.get(*id as usize - 1).map_or(0, |start| *start as usize);
            word(self.types, start + 4).is_some_and(|info| unpack(info).0 == kind)
                && word(self.types, start).is_some_and(|offset| self.is_named(offset, name))
        })
    }

    /// Id of the struct or union of this name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        let is_named = |id: &u32| self.record(*id).is_some_and(|record| self.is_named(record.name, name));
        self.structures.iter().copied().find(is_named)
    }

    /// Whether the string at `offset` equals `name`. An empty `name` matches nothing.
    pub fn is_named(&self, offset: u32, name: &str) -> bool {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        !name.is_empty() && rest.strip_prefix(name.as_bytes()).is_some_and(|after| after.first() == Some(&0))
    }
}

/// Kind, count and flag of a record.
fn unpack(info: u32) -> (u8, u32, bool) {
    ((info >> 24 & 0x7f) as u8, info & 0xff_ffff, info >> 31 == 1)
}

/// Number of bytes that follow a record. `layout` has 4 bytes per kind: the bytes that occur once, the bytes per
/// element, and flags of 16 bits.
fn tail_bytes(kind: u8, count: u32, layout: &[u8]) -> Option<usize> {
    let (once, each) = match kind {
        kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => (0, 0),
        kind::FUNC | kind::FLOAT | kind::TYPE_TAG => (0, 0),
        kind::INT | kind::VAR | kind::DECL_TAG => (4, 0),
        kind::ARRAY => (12, 0),
        kind::ENUM | kind::FUNC_PROTO => (0, 8),
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => (0, 12),
        _ => match layout.chunks_exact(4).nth(usize::from(kind)) {
            Some([once, each, ..]) if kind != 0 => (usize::from(*once), usize::from(*each)),
            _ => return None,
        },
    };
    each.checked_mul(count as usize)?.checked_add(once)
}

/// The little-endian word at `at`.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}
