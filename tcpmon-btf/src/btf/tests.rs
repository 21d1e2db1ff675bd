//! Tests on blobs made by hand; tests on whole kernels are in `tests/btf_parser.rs`.
#![allow(clippy::unwrap_used, reason = "a test ends where its claim does")]

use super::*;

/// Builds a blob.
struct Maker {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Maker {
    fn new() -> Self {
        Self { types: vec![], strings: vec![0], count: 0 }
    }

    fn name(&mut self, name: &str) -> u32 {
        let offset = self.strings.len() as u32;
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        if name.is_empty() { 0 } else { offset }
    }

    /// Adds a type; `count` is bits 0 to 23 of the info word, with bit 31 for the flag.
    fn add(&mut self, kind: u8, name: &str, count: u32, size_or_type: u32, tail: &[u32]) -> u32 {
        let head = [self.name(name), count | u32::from(kind) << 24, size_or_type];
        self.types.extend(head.iter().chain(tail).flat_map(|word| word.to_le_bytes()));
        self.count += 1;
        self.count
    }

    fn int(&mut self, name: &str, size: u32) -> u32 {
        self.add(kind::INT, name, 0, size, &[size * 8])
    }

    /// Members are name, type, and offset word.
    fn structure(&mut self, name: &str, size: u32, flag: bool, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> = members.iter().flat_map(|member| [self.name(member.0), member.1, member.2]).collect();
        self.add(kind::STRUCT, name, members.len() as u32 | u32::from(flag) << 31, size, &tail)
    }

    /// Values are name and words.
    fn enumeration(&mut self, kind: u8, name: &str, flag: bool, values: &[(&str, &[u32])]) -> u32 {
        let mut tail = vec![];
        for (name, words) in values {
            tail.push(self.name(name));
            tail.extend(*words);
        }
        self.add(kind, name, values.len() as u32 | u32::from(flag) << 31, 4, &tail)
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_with_layout(&[])
    }

    fn bytes_with_layout(&self, layout: &[u8]) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let header = [0x0001_eb9f, 32, 0, types, types, strings, types + strings, layout.len() as u32];
        let header = header.iter().flat_map(|word| word.to_le_bytes());
        header.chain(self.types.iter().chain(&self.strings).chain(layout).copied()).collect()
    }
}

fn field(offset: u32, size: u32) -> Option<Field> {
    Some(Field { offset, size, bits: None })
}

#[test]
fn a_field_is_found_through_qualifiers_and_anonymous_members() {
    let mut maker = Maker::new();
    let int = maker.int("int", 4);
    let inner = maker.structure("", 8, false, &[("first", int, 0), ("second", int, 32)]);
    let nested = maker.structure("", 16, false, &[("", inner, 64)]);
    let constant = maker.add(kind::CONST, "", 0, nested, &[]);
    let typedef = maker.add(kind::TYPEDEF, "nested_t", 0, constant, &[]);
    maker.structure("outer", 48, false, &[("lock", typedef, 64), ("", nested, 192)]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    assert_eq!(btf.field("outer", "second"), field(36, 4));
    assert_eq!(btf.field("outer", "lock.second"), field(20, 4));
    assert_eq!(btf.field("outer", "lock"), field(8, 16));
    assert_eq!(btf.size_of("outer"), Some(48));
}

#[test]
fn absent_fields_types_and_functions_are_not_found() {
    let mut maker = Maker::new();
    let int = maker.int("int", 4);
    let pointer = maker.add(kind::PTR, "", 0, 3, &[]);
    maker.structure("socket", 16, false, &[("number", int, 0), ("next", pointer, 64)]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    for path in ["", ".", "numbe", "numbers", "number.", "number.x", ".number", "next.number"] {
        assert_eq!(btf.field("socket", path), None, "{path}");
    }
    assert_eq!(btf.field("", "number"), None);
    assert_eq!(btf.field("int", "number"), None);
    assert_eq!(btf.size_of("sock"), None);
    assert_eq!(btf.enumerators("socket"), None);
    assert_eq!(btf.tracepoint("socket"), None);
    assert!(!btf.has_function("socket"));
}

#[test]
fn arrays_and_pointers_have_their_sizes() {
    let mut maker = Maker::new();
    let int = maker.int("int", 4);
    let pointer = maker.add(kind::PTR, "", 0, 0, &[]);
    let row = maker.add(kind::ARRAY, "", 0, 0, &[pointer, int, 3]);
    let table = maker.add(kind::ARRAY, "", 0, 0, &[row, int, 5]);
    let open = maker.add(kind::ARRAY, "", 0, 0, &[int, int, 0]);
    let huge = maker.add(kind::ARRAY, "", 0, 0, &[table, int, u32::MAX]);
    let members = [("pointer", pointer, 0), ("table", table, 64), ("open", open, 1024), ("huge", huge, 1024)];
    maker.structure("arrays", 128, false, &members);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    assert_eq!(btf.field("arrays", "pointer"), field(0, 8));
    assert_eq!(btf.field("arrays", "table"), field(8, 120));
    assert_eq!(btf.field("arrays", "open"), field(128, 0));
    assert_eq!(btf.field("arrays", "huge"), None);
}

#[test]
fn a_bit_field_is_the_bytes_and_bits_that_it_touches() {
    let mut maker = Maker::new();
    let int = maker.int("int", 4);
    let nibble = maker.add(kind::INT, "old", 0, 4, &[2 << 16 | 4]);
    maker.structure("new", 8, true, &[("wscale", int, 4 << 24 | 12), ("wide", int, 10 << 24 | 30), ("whole", int, 32)]);
    maker.structure("old", 8, false, &[("shifted", nibble, 8), ("odd", int, 3)]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    let bits = |offset, size, bits| Some(Field { offset, size, bits: Some(bits) });
    assert_eq!(btf.field("new", "wscale"), bits(1, 1, (4, 4)));
    assert_eq!(btf.field("new", "wide"), bits(3, 2, (6, 10)));
    assert_eq!(btf.field("new", "whole"), field(4, 4));
    assert_eq!(btf.field("old", "shifted"), bits(1, 1, (2, 4)));
    assert_eq!(btf.field("old", "odd"), None);
}

#[test]
fn enumerators_keep_their_sign_and_width() {
    let mut maker = Maker::new();
    maker.enumeration(kind::ENUM, "reason", false, &[]);
    maker.enumeration(kind::ENUM, "reason", false, &[("NONE", &[0]), ("TOP", &[u32::MAX])]);
    maker.enumeration(kind::ENUM, "", true, &[("MINUS", &[u32::MAX]), ("NONE", &[7])]);
    maker.enumeration(kind::ENUM64, "wide", false, &[("BIG", &[5, 1])]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    assert_eq!(btf.enumerators("reason"), Some(vec![("NONE", 0), ("TOP", 0xffff_ffff)]));
    assert_eq!(btf.enumerator(Some("reason"), "TOP"), Some(0xffff_ffff));
    assert_eq!(btf.enumerator(Some("reason"), "MINUS"), None);
    assert_eq!(btf.enumerator(None, "MINUS"), Some(-1));
    assert_eq!(btf.enumerator(None, "NONE"), Some(0));
    assert_eq!(btf.enumerator(Some("wide"), "BIG"), Some(0x1_0000_0005));
}

#[test]
fn a_tracepoint_has_the_types_of_its_typedef_and_the_names_of_its_iterator() {
    let mut maker = Maker::new();
    let void = maker.add(kind::PTR, "", 0, 0, &[]);
    let forward = maker.add(kind::FWD, "sock", 0, 0, &[]);
    let constant = maker.add(kind::CONST, "", 0, forward, &[]);
    let sock = maker.add(kind::PTR, "", 0, constant, &[]);
    let reason = maker.enumeration(kind::ENUM, "reason", false, &[]);
    let int = maker.add(kind::INT, "int", 0, 4, &[1 << 24 | 32]);
    let tail = [0, void, 0, sock, 0, void, 0, reason, 0, int];
    let prototype = maker.add(kind::FUNC_PROTO, "", 5, 0, &tail);
    let pointer = maker.add(kind::PTR, "", 0, prototype, &[]);
    maker.add(kind::TYPEDEF, "btf_trace_drop", 0, pointer, &[]);
    maker.add(kind::TYPEDEF, "btf_trace_nameless", 0, pointer, &[]);
    maker.add(kind::TYPEDEF, "btf_trace_nonsense", 0, sock, &[]);
    let names = ["__data", "sk", "location", "", "kind"].map(|name| maker.name(name));
    let types = [void, sock, void, reason, reason];
    let tail: Vec<u32> = names.into_iter().zip(types).flat_map(|(name, id)| [name, id]).collect();
    let prototype = maker.add(kind::FUNC_PROTO, "", 5, int, &tail);
    maker.add(kind::FUNC, "__traceiter_drop", 0, prototype, &[]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    let arguments = [
        Argument { name: Some("sk"), kind: ArgumentKind::Pointer("sock") },
        Argument { name: Some("location"), kind: ArgumentKind::Pointer("void") },
        Argument { name: None, kind: ArgumentKind::Enum("reason") },
        // `__traceiter_drop` has another type here, so its name may belong to another argument.
        Argument { name: None, kind: ArgumentKind::Integer { size: 4, signed: true } },
    ];
    assert_eq!(btf.tracepoint("drop").unwrap(), arguments);
    let nameless = arguments.map(|argument| Argument { name: None, ..argument });
    assert_eq!(btf.tracepoint("nameless").unwrap(), nameless);
    assert_eq!(btf.tracepoint("nonsense"), None);
    assert!(btf.has_function("__traceiter_drop"));
}

#[test]
fn types_that_refer_to_themselves_end() {
    let mut maker = Maker::new();
    maker.add(kind::TYPEDEF, "btf_trace_loop", 0, 1, &[]);
    maker.add(kind::ARRAY, "", 0, 0, &[2, 2, 1]);
    let members = [("", 3, 0); 100];
    maker.structure(
        "itself",
        8,
        false,
        &[members.as_slice(), &[("loop", 1, 0), ("array", 2, 0), ("me", 3, 8)]].concat(),
    );
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();

    assert_eq!(btf.tracepoint("loop"), None);
    for path in ["loop", "array", "absent", "loop.me"] {
        assert_eq!(btf.field("itself", path), None, "{path}");
    }
}

#[test]
fn a_blob_for_another_machine_or_of_another_version_is_refused() {
    let bytes = Maker::new().bytes();
    let error = |bytes: &[u8]| Btf::parse(bytes).err();
    assert_eq!(error(&bytes), None);
    assert_eq!(error(b""), Some(BtfError::NotBtf));
    assert_eq!(error(b"\x7fELF, not BTF"), Some(BtfError::NotBtf));
    assert_eq!(error(&[&[0xeb, 0x9f], &bytes[2..]].concat()), Some(BtfError::BigEndian));
    assert_eq!(error(&[&[0x9f, 0xeb, 2], &bytes[3..]].concat()), Some(BtfError::Version(2)));
}

#[test]
fn a_blob_that_is_cut_short_is_refused_wherever_the_cut_is() {
    let mut maker = Maker::new();
    maker.int("int", 4);
    let bytes = maker.bytes();
    assert!(Btf::parse(&bytes).is_ok());
    for length in 0..bytes.len() {
        assert!(Btf::parse(&bytes[..length]).is_err(), "{length} bytes");
    }

    // A type with more members than there are bytes, and half a type.
    maker.add(kind::STRUCT, "greedy", 0xff_ffff, 4, &[]);
    assert_eq!(Btf::parse(&maker.bytes()).err(), Some(BtfError::TruncatedType(2)));
    maker.types.truncate(maker.types.len() - 8);
    assert_eq!(Btf::parse(&maker.bytes()).err(), Some(BtfError::TruncatedType(2)));
}

#[test]
fn an_unknown_kind_is_refused_unless_the_blob_tells_its_length() {
    let mut maker = Maker::new();
    maker.add(20, "new", 2, 0, &[1, 2, 3, 4, 5]);
    let int = maker.int("int", 4);
    maker.structure("known", 4, false, &[("member", int, 0)]);
    let refused = Some(BtfError::UnknownKind { kind: 20, id: 1 });
    assert_eq!(Btf::parse(&maker.bytes()).err(), refused);
    assert_eq!(Btf::parse(&maker.bytes_with_layout(&[0; 80])).err(), refused);

    // Kind 20: 4 bytes once, and 8 bytes for each of 2 elements.
    let bytes = maker.bytes_with_layout(&[&[0; 80], [4, 8, 0, 0].as_slice()].concat());
    assert_eq!(Btf::parse(&bytes).unwrap().field("known", "member"), field(0, 4));
}

#[test]
fn an_enum_may_have_more_than_65535_values() {
    let mut maker = Maker::new();
    let int = maker.int("int", 4);
    let values = vec![("", [3].as_slice()); 70_000];
    maker.enumeration(kind::ENUM, "many", false, &[values.as_slice(), &[("LAST", &[9])]].concat());
    maker.structure("after", 4, false, &[("member", int, 0)]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.enumerator(Some("many"), "LAST"), Some(9));
    assert_eq!(btf.field("after", "member"), field(0, 4));
}

#[test]
fn names_may_be_missing_endless_or_no_text() {
    let mut maker = Maker::new();
    let int = maker.int("int", 4);
    maker.add(kind::ENUM, "names", 3, 4, &[1_000_000, 1, 0, 2, 5, 3]);
    maker.structure("s", 4, false, &[("m", int, 0)]);
    maker.strings.extend([0xff; 2000]);
    let bytes = maker.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.enumerators("names"), Some(vec![("", 1), ("", 2), ("names", 3)]));
    assert_eq!(btf.field("s", "m"), field(0, 4));
    let strings = maker.strings.len() as u32;
    assert_eq!(btf.blob().string(strings - 1), "");
    assert_eq!(btf.blob().string(strings - 2000), "");
}
