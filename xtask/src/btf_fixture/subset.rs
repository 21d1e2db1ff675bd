//! The reduction itself: copies types and all that they refer to, under new ids, and assembles the BTF blob.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

use super::wanted::{WANTED, kept_members};
use tcpmon_btf::{Btf, TypeRecord, kind};

/// Structures inside structures keep their members if they have at most this many.
const SMALL_MEMBERS: u32 = 8;
/// Longest chain of typedefs and qualifiers that is followed.
const MAX_CHAIN: usize = 64;

/// What is kept of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Extent {
    /// All its members, or those that `wanted.rs` names. Types that are not structures are always kept whole.
    Whole,
    /// Only its size, because another type contains it by value.
    Hollow,
    /// Only its name, because other types only point to it.
    Name,
}

/// A blob that is being assembled.
pub struct Subset<'a> {
    original: &'a Btf<'a>,
    /// New ids by old ids. A qualifier or typedef has one new id for each extent of the type behind it.
    ids: HashMap<(u32, Extent), u32>,
    /// The words of each type, in the order of the new ids.
    records: Vec<Vec<u32>>,
    strings: Vec<u8>,
    names: HashMap<&'a str, u32>,
}

impl<'a> Subset<'a> {
    pub fn new(original: &'a Btf<'a>) -> Self {
        Self { original, ids: HashMap::new(), records: Vec::new(), strings: vec![0], names: HashMap::from([("", 0)]) }
    }

    /// Copies everything that is wanted and exists, and assembles the blob.
    pub fn cut(mut self) -> Result<Vec<u8>> {
        let blob = self.original.blob();
        for (name, _) in WANTED.structures {
            if let Some(id) = blob.structure(name) {
                self.copy_type(id, false)?;
            }
        }
        for name in WANTED.typedefs {
            if let Some(id) = blob.find(kind::TYPEDEF, name) {
                self.copy_type(id, false)?;
            }
        }
        let enums = (1..=blob.count()).filter(|id| blob.record(*id).is_some_and(|record| is_enum(&record)));
        for id in enums {
            if blob.record(id).is_some_and(|record| self.is_wanted_enum(record)) {
                self.copy_type(id, false)?;
            }
        }
        for name in WANTED.tracepoints {
            if let Some(id) = blob.find(kind::TYPEDEF, &format!("btf_trace_{name}")) {
                self.take_tracepoint(id)?;
            }
            if let Some(id) = blob.find(kind::FUNC, &format!("__traceiter_{name}")) {
                self.take_function(id)?;
            }
        }
        for name in WANTED.functions {
            if let Some(id) = blob.find(kind::FUNC, name) {
                self.take_function(id)?;
            }
        }
        Ok(self.lay_out())
    }

    /// The new id of an old type; `pointed_to` if its size is not needed.
    fn copy_type(&mut self, old: u32, pointed_to: bool) -> Result<u32> {
        let Some(extent) = self.extent(old, pointed_to)? else {
            return Ok(0);
        };
        if let Some(id) = self.ids.get(&(old, extent)) {
            return Ok(*id);
        }
        // The id is assigned before the members are copied, because they can refer back to this type.
        let id = self.push(Vec::new());
        self.ids.insert((old, extent), id);
        let words = self.rebuild(old, extent, pointed_to)?;
        self.records[id as usize - 1] = words;
        Ok(id)
    }

    fn rebuild(&mut self, old: u32, extent: Extent, pointed_to: bool) -> Result<Vec<u32>> {
        let record = self.record(old)?;
        let mut tail = words(record.tail);
        Ok(match record.kind {
            kind::PTR => {
                let target = self.copy_type(record.size_or_type, true)?;
                self.refer(record, target)
            }
            kind::TYPEDEF | kind::CONST | kind::VOLATILE | kind::RESTRICT | kind::TYPE_TAG => {
                let target = self.copy_type(record.size_or_type, pointed_to)?;
                self.refer(record, target)
            }
            kind::ARRAY => {
                let [element, index, count] = tail[..] else { bail!("type {old} is cut short") };
                let tail = vec![self.copy_type(element, false)?, self.copy_type(index, false)?, count];
                self.pack(record, tail)
            }
            kind::STRUCT | kind::UNION => match extent {
                Extent::Whole => self.rebuild_structure(record, &tail)?,
                Extent::Hollow => self.hollow(record),
                Extent::Name => {
                    let flag = record.kind == kind::UNION;
                    let forward = TypeRecord { kind: kind::FWD, flag, count: 0, ..record };
                    self.refer(forward, 0)
                }
            },
            kind::ENUM | kind::ENUM64 if self.is_wanted_enum(record) => {
                for value in tail.chunks_exact_mut(enumerator_words(record)) {
                    value[0] = self.name(value[0]);
                }
                self.pack(record, tail)
            }
            kind::ENUM | kind::ENUM64 => self.hollow(record),
            kind::INT | kind::FLOAT | kind::FWD => self.pack(record, tail),
            other => bail!("type {old} is of kind {other}, which no member can have"),
        })
    }

    fn rebuild_structure(&mut self, record: TypeRecord<'a>, tail: &[u32]) -> Result<Vec<u32>> {
        let blob = self.original.blob();
        let kept = kept_members(blob.string(record.name)).unwrap_or_default();
        let mut members = Vec::with_capacity(tail.len());
        for member in tail.chunks_exact(3) {
            let name = blob.string(member[0]);
            if name.is_empty() || kept.is_empty() || kept.contains(&name) {
                let name = self.name(member[0]);
                members.extend([name, self.copy_type(member[1], false)?, member[2]]);
            }
        }
        let count = (members.len() / 3) as u32;
        Ok(self.pack(TypeRecord { count, ..record }, members))
    }

    /// What is kept of a type, which depends on the type behind its qualifiers and typedefs. `None` if it becomes
    /// `void`.
    fn extent(&self, old: u32, pointed_to: bool) -> Result<Option<Extent>> {
        let mut base = old;
        for _ in 0..MAX_CHAIN {
            if base == 0 {
                return Ok((old != 0).then_some(Extent::Whole));
            }
            let record = self.record(base)?;
            let name = self.original.blob().string(record.name);
            return Ok(match record.kind {
                kind::TYPEDEF | kind::CONST | kind::VOLATILE | kind::RESTRICT | kind::TYPE_TAG => {
                    base = record.size_or_type;
                    continue;
                }
                kind::FUNC_PROTO => None,
                kind::STRUCT | kind::UNION if kept_members(name).is_some() => Some(Extent::Whole),
                kind::STRUCT | kind::UNION => match (name, pointed_to) {
                    ("", true) => None,
                    (_, true) => Some(Extent::Name),
                    ("", false) => Some(Extent::Whole),
                    _ if record.count <= SMALL_MEMBERS => Some(Extent::Whole),
                    _ => Some(Extent::Hollow),
                },
                _ => Some(Extent::Whole),
            });
        }
        bail!("type {old} refers to itself");
    }

    fn is_wanted_enum(&self, record: TypeRecord<'a>) -> bool {
        let blob = self.original.blob();
        let has =
            |name| words(record.tail).chunks_exact(enumerator_words(record)).any(|value| blob.is_named(value[0], name));
        match blob.string(record.name) {
            "" => WANTED.enumerators.iter().any(|name| has(name)),
            name => WANTED.enums.contains(&name),
        }
    }

    /// `typedef void (*btf_trace_NAME)(...)`
    fn take_tracepoint(&mut self, typedef: u32) -> Result<()> {
        let record = self.record(typedef)?;
        let pointer = self.record(record.size_or_type)?;
        let target = self.take_prototype(pointer.size_or_type)?;
        let words = self.refer(pointer, target);
        let target = self.push(words);
        let words = self.refer(record, target);
        self.push(words);
        Ok(())
    }

    fn take_function(&mut self, old: u32) -> Result<()> {
        let record = self.record(old)?;
        let target = self.take_prototype(record.size_or_type)?;
        let words = self.refer(record, target);
        self.push(words);
        Ok(())
    }

    fn take_prototype(&mut self, old: u32) -> Result<u32> {
        let record = self.record(old)?;
        ensure!(record.kind == kind::FUNC_PROTO, "type {old} is not a prototype");
        let size_or_type = self.copy_type(record.size_or_type, false)?;
        let mut parameters = words(record.tail);
        for parameter in parameters.chunks_exact_mut(2) {
            parameter[0] = self.name(parameter[0]);
            parameter[1] = self.copy_type(parameter[1], false)?;
        }
        let words = self.pack(TypeRecord { size_or_type, ..record }, parameters);
        Ok(self.push(words))
    }

    fn record(&self, old: u32) -> Result<TypeRecord<'a>> {
        self.original.blob().record(old).with_context(|| format!("there is no type {old}"))
    }

    /// The words of a record, with its name copied and its tail replaced.
    fn pack(&mut self, record: TypeRecord<'a>, tail: Vec<u32>) -> Vec<u32> {
        let info = u32::from(record.flag) << 31 | u32::from(record.kind) << 24 | record.count;
        let mut words = vec![self.name(record.name), info, record.size_or_type];
        words.extend(tail);
        words
    }

    /// A record that refers to another type and has no tail.
    fn refer(&mut self, record: TypeRecord<'a>, target: u32) -> Vec<u32> {
        self.pack(TypeRecord { size_or_type: target, ..record }, vec![])
    }

    /// A structure or enum reduced to its size.
    fn hollow(&mut self, record: TypeRecord<'a>) -> Vec<u32> {
        self.pack(TypeRecord { count: 0, flag: false, ..record }, vec![])
    }

    fn name(&mut self, old: u32) -> u32 {
        let name = self.original.blob().string(old);
        *self.names.entry(name).or_insert_with(|| {
            let offset = self.strings.len() as u32;
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            offset
        })
    }

    fn push(&mut self, words: Vec<u32>) -> u32 {
        self.records.push(words);
        self.records.len() as u32
    }

    fn lay_out(&self) -> Vec<u8> {
        let types: Vec<u8> = self.records.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let (types_bytes, strings_bytes) = (types.len() as u32, self.strings.len() as u32);
        // Magic; version 1 and no flags; bytes of the header; then offset and bytes of the types and of the strings.
        let header: [u32; 6] = [0x0001_eb9f, 24, 0, types_bytes, types_bytes, strings_bytes];
        let header = header.iter().flat_map(|word| word.to_le_bytes());
        header.chain(types).chain(self.strings.iter().copied()).collect()
    }
}

fn is_enum(record: &TypeRecord<'_>) -> bool {
    matches!(record.kind, kind::ENUM | kind::ENUM64)
}

fn enumerator_words(record: TypeRecord<'_>) -> usize {
    if record.kind == kind::ENUM { 2 } else { 3 }
}

/// The little-endian words of a tail.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks_exact(4).filter_map(|word| word.first_chunk());
    words.map(|word| u32::from_le_bytes(*word)).collect()
}
