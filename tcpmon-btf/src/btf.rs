//! The kernel's types by name, read from the kernel's own description of them (BTF).
//!
//! Rust has no CO-RE. So offsets, sizes, enum values and tracepoint signatures are looked up here by name, at start, in
//! `/sys/kernel/btf/vmlinux`. What the kernel does not have is `None`, which the caller must treat as a fact about this
//! kernel.
//!
//! The format is that of `include/uapi/linux/btf.h`. Since Linux 7.1 it has counts of 24 bits instead of 16, kinds of 7
//! bits instead of 5, and an optional section with the length of each kind, which lets the parser skip unknown kinds.
//!
//! The parser is total on any bytes: it does not panic, and its time and memory are bounded by the length of the input.
//! The input stays borrowed; 4 bytes per type are allocated. It supports only little-endian 64-bit kernels.
//!
//! On 5.5 MB (6.18.44, release) parsing takes 1.1 ms, a field 20 us, a tracepoint or function 0.2 ms, as measured by
//!
//! `cargo test --release -p tcpmon-btf --test btf_parser -- --ignored --nocapture`.

mod blob;
#[cfg(test)]
mod tests;

pub use blob::{Blob, BtfError, TypeRecord, kind};

use blob::word;

const POINTER_BYTES: u64 = 8;
/// Longest chain of typedefs and qualifiers that is followed; the longest in kernels 5.10 to 7.3 is 7.
const MAX_CHAIN: usize = 64;
/// Deepest nesting of anonymous members that is searched; the deepest in kernels 5.10 to 7.3 is 7.
const MAX_NESTING: usize = 32;
/// Members that are searched for each field before giving up; the largest structure in kernels 5.10 to 7.3 has 273.
const MAX_MEMBERS: usize = 1 << 16;

/// Where a field is in its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the outermost structure. For a bit field, to the byte that holds its lowest bit.
    pub offset: u32,
    /// Bytes of the whole field, with all elements of an array. For a bit field, the bytes that its bits touch.
    pub size: u32,
    /// For bit fields only: lowest bit within the byte at `offset` (0 to 7), and number of bits.
    pub bits: Option<(u8, u8)>,
}

/// One argument of a tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument<'a> {
    /// The name in `TP_PROTO`, if the kernel has `__traceiter_NAME` with the same prototype.
    pub name: Option<&'a str>,
    /// The argument's type, without typedefs and qualifiers.
    pub kind: ArgumentKind<'a>,
}

/// The type of an argument, without typedefs and qualifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind<'a> {
    /// A pointer, and what it points to: the bare name of a type (`sock`, `char`), `void`, or empty if that has no
    /// name.
    Pointer(&'a str),
    /// An integer or bool.
    Integer {
        /// Bytes.
        size: u32,
        /// Whether the C type is signed.
        signed: bool,
    },
    /// An enum and its name; empty if it has none.
    Enum(&'a str),
    /// Anything else: a structure by value, a float.
    Other,
}

/// A member of a structure or union.
#[derive(Clone, Copy)]
struct Member {
    name: u32,
    type_id: u32,
    /// Bits from the start of the outermost structure.
    bit: u64,
    /// Number of bits of a bit field, else 0.
    bit_size: u8,
}

/// The types of one kernel.
pub struct Btf<'a> {
    blob: Blob<'a>,
}

impl<'a> Btf<'a> {
    /// Parses a whole blob; see [`Blob::parse`].
    ///
    /// # Errors
    /// If the input is not little-endian BTF of version 1, is truncated, or holds a kind of unknown length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        Ok(Self { blob: Blob::parse(bytes)? })
    }

    /// The undecoded types.
    pub fn blob(&self) -> &Blob<'a> {
        &self.blob
    }

    /// Where the field `path` (member names separated by dots) is in the struct or union named `structure`.
    ///
    /// Members of anonymous structures and unions count as members of the type that encloses them. `None`: this kernel
    /// has no such structure or no such field. A path does not lead through pointers or arrays.
    pub fn field(&self, structure: &str, path: &str) -> Option<Field> {
        let mut container = self.blob.record(self.blob.structure(structure)?)?;
        let mut budget = MAX_MEMBERS;
        let mut bit = 0;
        let mut names = path.split('.').peekable();
        while let Some(name) = names.next() {
            let member = self.member(container, name, bit, MAX_NESTING, &mut budget)?;
            if names.peek().is_none() {
                return self.field_of(member);
            }
            container = self.blob.record(self.skip_qualifiers(member.type_id)?)?;
            bit = member.bit;
        }
        None
    }

    /// Size in bytes of the struct or union of this name.
    pub fn size_of(&self, structure: &str) -> Option<u32> {
        Some(self.blob.record(self.blob.structure(structure)?)?.size_or_type)
    }

    /// The value of an enumerator: of the enum of this name, or with `None` of the first enum that has it.
    ///
    /// Unsigned 64-bit values above `i64::MAX` wrap. In enums of kernels built before about 6.1, negative 32-bit values
    /// appear as unsigned ones, because the BTF of these kernels does not distinguish the two.
    pub fn enumerator(&self, enum_name: Option<&str>, name: &str) -> Option<i64> {
        let find =
            |record| self.values(record).find(|(offset, _)| self.blob.is_named(*offset, name)).map(|(_, value)| value);
        match enum_name {
            Some(enum_name) => find(self.enumeration(enum_name)?),
            None => (1..=self.blob.count()).filter_map(|id| self.blob.record(id)).filter(is_enum).find_map(find),
        }
    }

    /// Names and values of the enum of this name, in the order of declaration; values as in [`Btf::enumerator`].
    pub fn enumerators(&self, enum_name: &str) -> Option<Vec<(&'a str, i64)>> {
        let values = self.values(self.enumeration(enum_name)?);
        Some(values.map(|(name, value)| (self.blob.string(name), value)).collect())
    }

    /// The arguments of a tracepoint as a `tp_btf` program sees them: without the leading `void *__data`.
    ///
    /// `None`: this kernel has no such tracepoint.
    pub fn tracepoint(&self, name: &str) -> Option<Vec<Argument<'a>>> {
        let typedef = self.blob.find(kind::TYPEDEF, &format!("btf_trace_{name}"))?;
        let pointer = self.blob.record(self.skip_qualifiers(typedef)?)?;
        let prototype = self.parameters(pointer.size_or_type)?;
        // The typedef's prototype has only types; the function that calls the programs has the names.
        let names: Vec<(u32, u32)> = self
            .blob
            .find(kind::FUNC, &format!("__traceiter_{name}"))
            .and_then(|id| self.parameters(self.blob.record(id)?.size_or_type))
            .map_or_else(Vec::new, Iterator::collect);
        let name_of = |index: usize, type_id| {
            let (name, same_type) = names.get(index)?;
            (*same_type == type_id).then(|| self.blob.string(*name)).filter(|name| !name.is_empty())
        };
        let arguments = prototype.enumerate().skip(1);
        let argument =
            |(index, (_, type_id))| Argument { name: name_of(index, type_id), kind: self.argument_kind(type_id) };
        Some(arguments.map(argument).collect())
    }

    /// Whether the kernel has a function of this name in its BTF, static functions included.
    pub fn has_function(&self, name: &str) -> bool {
        self.blob.find(kind::FUNC, name).is_some()
    }

    /// The enum of this name that has values; an enum without values is a forward declaration.
    fn enumeration(&self, name: &str) -> Option<TypeRecord<'a>> {
        (1..=self.blob.count())
            .filter_map(|id| self.blob.record(id))
            .find(|record| is_enum(record) && record.count > 0 && self.blob.is_named(record.name, name))
    }

    /// Name offsets and values of an enum.
    fn values(&self, record: TypeRecord<'a>) -> impl Iterator<Item = (u32, i64)> + use<'a> {
        let TypeRecord { kind, flag: signed, tail, .. } = record;
        tail.chunks_exact(if kind == kind::ENUM { 8 } else { 12 }).filter_map(move |value| {
            let low = word(value, 4)?;
            let wide = match (word(value, 8), signed) {
                (Some(high), _) => (u64::from(high) << 32 | u64::from(low)).cast_signed(),
                (None, true) => i64::from(low.cast_signed()),
                (None, false) => i64::from(low),
            };
            Some((word(value, 0)?, wide))
        })
    }

    /// Name offsets and type ids of a prototype's parameters.
    fn parameters(&self, prototype: u32) -> Option<impl Iterator<Item = (u32, u32)> + use<'a>> {
        let record = self.blob.record(prototype).filter(|record| record.kind == kind::FUNC_PROTO)?;
        Some(record.tail.chunks_exact(8).filter_map(|parameter| Some((word(parameter, 0)?, word(parameter, 4)?))))
    }

    fn argument_kind(&self, type_id: u32) -> ArgumentKind<'a> {
        let Some(record) = self.skip_qualifiers(type_id).and_then(|id| self.blob.record(id)) else {
            return ArgumentKind::Other;
        };
        match record.kind {
            kind::PTR => ArgumentKind::Pointer(match self.skip_qualifiers(record.size_or_type) {
                Some(0) => "void",
                pointee => {
                    pointee.and_then(|id| self.blob.record(id)).map_or("", |record| self.blob.string(record.name))
                }
            }),
            kind::INT => {
                let signed = word(record.tail, 0).is_some_and(|encoding| encoding >> 24 & 1 == 1);
                ArgumentKind::Integer { size: record.size_or_type, signed }
            }
            kind::ENUM | kind::ENUM64 => ArgumentKind::Enum(self.blob.string(record.name)),
            _ => ArgumentKind::Other,
        }
    }

    /// Finds the member of this name, also in anonymous members. `start` is the bit at which the container itself
    /// starts.
    fn member(
        &self,
        container: TypeRecord<'a>,
        name: &str,
        start: u64,
        nesting: usize,
        budget: &mut usize,
    ) -> Option<Member> {
        for member in members(container) {
            *budget = budget.checked_sub(1)?;
            let member = Member { bit: start + member.bit, ..member };
            if member.name != 0 {
                if self.blob.is_named(member.name, name) {
                    return Some(member);
                }
            } else if let Some(nesting) = nesting.checked_sub(1)
                && let Some(inner) = self.skip_qualifiers(member.type_id).and_then(|id| self.blob.record(id))
                && let Some(found) = self.member(inner, name, member.bit, nesting, budget)
            {
                return Some(found);
            }
        }
        None
    }

    fn field_of(&self, member: Member) -> Option<Field> {
        let (mut bit, mut bit_size) = (member.bit, u64::from(member.bit_size));
        // Before `flag` (Linux 5.0), the integer type itself showed that the member was a bit field.
        let integer = self.skip_qualifiers(member.type_id).and_then(|id| self.blob.record(id));
        if bit_size == 0
            && let Some(integer) = integer.filter(|record| record.kind == kind::INT)
            && let Some(encoding) = word(integer.tail, 0)
            && u64::from(encoding & 0xff) != u64::from(integer.size_or_type) * 8
        {
            (bit, bit_size) = (bit + u64::from(encoding >> 16 & 0xff), u64::from(encoding & 0xff));
        }
        let (size, bits) = match (bit % 8, bit_size) {
            (0, 0) => (self.size(member.type_id)?, None),
            (_, 0) => return None,
            (low, width) => ((low + width).div_ceil(8), Some((low as u8, width as u8))),
        };
        Some(Field { offset: u32::try_from(bit / 8).ok()?, size: u32::try_from(size).ok()?, bits })
    }

    /// Size of a type in bytes.
    fn size(&self, mut id: u32) -> Option<u64> {
        let mut count = 1u64;
        for _ in 0..MAX_CHAIN {
            id = self.skip_qualifiers(id)?;
            let record = self.blob.record(id)?;
            let size = match record.kind {
                kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                    u64::from(record.size_or_type)
                }
                kind::PTR => POINTER_BYTES,
                kind::ARRAY => {
                    count = count.checked_mul(u64::from(word(record.tail, 8)?))?;
                    id = word(record.tail, 0)?;
                    continue;
                }
                _ => return None,
            };
            return count.checked_mul(size);
        }
        None
    }

    /// Follows typedefs, const, volatile, restrict and type tags. `None` if the chain does not end.
    fn skip_qualifiers(&self, mut id: u32) -> Option<u32> {
        for _ in 0..MAX_CHAIN {
            match self.blob.record(id) {
                Some(TypeRecord {
                    kind: kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG,
                    size_or_type,
                    ..
                }) => id = size_or_type,
                _ => return Some(id),
            }
        }
        None
    }
}

fn is_enum(record: &TypeRecord<'_>) -> bool {
    matches!(record.kind, kind::ENUM | kind::ENUM64)
}

/// The members of a structure or union, bits counted from its own start; nothing for other kinds.
fn members(container: TypeRecord<'_>) -> impl Iterator<Item = Member> {
    let is_structure = matches!(container.kind, kind::STRUCT | kind::UNION);
    let tail = if is_structure { container.tail } else { &[] };
    tail.chunks_exact(12).filter_map(move |member| {
        let offset = word(member, 8)?;
        let (bit, bit_size) = if container.flag { (offset & 0xff_ffff, (offset >> 24) as u8) } else { (offset, 0) };
        Some(Member { name: word(member, 0)?, type_id: word(member, 4)?, bit: u64::from(bit), bit_size })
    })
}
