//! Tests of the BTF parser on the kernels in `fixtures/btf`, on random bytes and on damaged kernels.
#![allow(clippy::unwrap_used, reason = "a test ends where its claim does")]

use std::{fs, path::PathBuf};

use proptest::prelude::*;
use tcpmon_btf::{ArgumentKind, Btf, Field};

const EXPECTED: &str = include_str!("fixtures/btf/expected.tsv");

fn fixture(label: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/btf/{label}.btf"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Labels of the kernels, in the order of the columns.
fn labels() -> Vec<&'static str> {
    let header = EXPECTED.lines().find(|line| !line.starts_with('#')).unwrap();
    header.split('\t').skip(2).collect()
}

/// The format of the table: `offset:size`, `offset.bBIT:WIDTHb` for bit fields, `-` if absent.
fn cell(field: Option<Field>) -> String {
    match field {
        None => "-".to_string(),
        Some(Field { offset, size, bits: None }) => format!("{offset}:{size}"),
        Some(Field { offset, bits: Some((bit, width)), .. }) => format!("{offset}.b{bit}:{width}b"),
    }
}

#[test]
fn every_field_lies_where_an_independent_parser_found_it() {
    let mut absent = 0;
    for (column, label) in labels().into_iter().enumerate() {
        let bytes = fixture(label);
        let btf = Btf::parse(&bytes).unwrap();
        for row in EXPECTED.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let cells: Vec<&str> = row.split('\t').collect();
            let (structure, path, expected) = (cells[0], cells[1], cells[2 + column]);
            assert_eq!(cell(btf.field(structure, path)), expected, "{structure}.{path} in {label}");
            absent += usize::from(expected == "-");
        }
    }
    assert!(absent > 10, "the table must also say what is absent");
}

#[test]
fn tracepoints_have_the_arguments_of_their_kernel() {
    for label in labels() {
        let bytes = fixture(label);
        let btf = Btf::parse(&bytes).unwrap();
        let argument_of = |tracepoint: &str, name: &str| {
            let arguments = btf.tracepoint(tracepoint)?;
            arguments.iter().position(|argument| argument.name == Some(name))
        };
        let old = label == "5.10";
        assert_eq!(argument_of("tcp_probe", "skb"), Some(1), "{label}");
        assert_eq!(argument_of("kfree_skb", "reason"), (!old).then_some(2), "{label}");
        assert_eq!(argument_of("kfree_skb", "rx_sk"), (!old && label != "6.1").then_some(3), "{label}");
        assert_eq!(argument_of("sched_switch", "prev_state"), (!old).then_some(3), "{label}");
        let grows = !["5.10", "6.1", "6.12"].contains(&label);
        assert_eq!(argument_of("tcp_rcvbuf_grow", "time"), grows.then_some(1), "{label}");
        assert_eq!(btf.tracepoint("tcp_no_such"), None, "{label}");

        let kinds: Vec<_> = btf.tracepoint("sched_switch").unwrap().iter().map(|argument| argument.kind).collect();
        let task = ArgumentKind::Pointer("task_struct");
        assert_eq!(kinds[..3], [ArgumentKind::Integer { size: 1, signed: false }, task, task], "{label}");
    }
}

#[test]
fn enumerators_and_functions_are_those_of_their_kernel() {
    for label in labels() {
        let bytes = fixture(label);
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.enumerator(None, "TCP_ESTABLISHED"), Some(1), "{label}");
        assert_eq!(btf.enumerator(Some("sock_flags"), "SOCK_DONE"), Some(1), "{label}");
        assert_eq!(btf.enumerator(Some("bpf_map_type"), "BPF_MAP_TYPE_SK_STORAGE"), Some(24), "{label}");
        let reasons = btf.enumerators("skb_drop_reason");
        assert_eq!(reasons.is_some(), label != "5.10", "{label}");
        assert_eq!(btf.has_function("bpf_sock_from_file"), label != "5.10", "{label}");
        assert!(btf.has_function("bpf_iter_task_file"), "{label}");
    }
    let bytes = fixture("7.3");
    let reasons = Btf::parse(&bytes).unwrap().enumerators("skb_drop_reason").unwrap();
    assert!(reasons.contains(&("SKB_DROP_REASON_PROTO_MEM", 20)), "{reasons:?}");
}

/// Every kind of query, for all names that the BTF contains.
fn ask_everything(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes) else {
        return;
    };
    for id in 0..=btf.blob().count() {
        let name = btf.blob().record(id).map_or("", |record| btf.blob().string(record.name));
        btf.size_of(name);
        btf.field(name, "no_such_member");
        btf.enumerators(name);
        btf.tracepoint(name.trim_start_matches("btf_trace_"));
    }
    for row in EXPECTED.lines() {
        let mut cells = row.split('\t');
        if let (Some(structure), Some(path)) = (cells.next(), cells.next()) {
            btf.field(structure, path);
        }
    }
    btf.enumerator(None, "TCP_ESTABLISHED");
    btf.enumerator(Some("sock_flags"), "SOCK_DONE");
    btf.has_function("bpf_iter_task_file");
}

/// Names for the generated types, which refer to them by random offsets.
const STRINGS: &[u8] = b"\0a\0btf_trace_a\0__traceiter_a\0sock\0sk_rcvbuf\0";

/// Types with correct lengths and random contents: cycles, wrong references, wrong kinds.
fn made_up_types() -> impl Strategy<Value = Vec<u32>> {
    let word = prop_oneof![6 => 0..40u32, 1 => any::<u32>()];
    let tail = prop::collection::vec(word.clone(), 12);
    let record = (1..20u32, 0..=4u32, any::<bool>(), word.clone(), word, tail).prop_map(
        |(kind, count, flag, name, target, mut tail)| {
            tail.truncate(match kind {
                1 | 14 | 17 => 1,
                3 => 3,
                4 | 5 | 15 | 19 => count as usize * 3,
                6 | 13 => count as usize * 2,
                _ => 0,
            });
            let head = [name, u32::from(flag) << 31 | kind << 24 | count, target];
            head.into_iter().chain(tail).collect::<Vec<_>>()
        },
    );
    prop::collection::vec(record, 0..40).prop_map(|records| records.concat())
}

/// Puts a header before types and [`STRINGS`].
fn headed(types: &[u32]) -> Vec<u8> {
    let (types_bytes, strings_bytes) = (types.len() as u32 * 4, STRINGS.len() as u32);
    let header = [0x0001_eb9f, 24, 0, types_bytes, types_bytes, strings_bytes];
    let words = header.iter().chain(types).flat_map(|word| word.to_le_bytes());
    words.chain(STRINGS.iter().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        ask_everything(&bytes);
        ask_everything(&[b"\x9f\xeb\x01", bytes.as_slice()].concat());
    }

    #[test]
    fn no_types_make_it_panic_or_hang(types in made_up_types()) {
        let bytes = headed(&types);
        prop_assert!(Btf::parse(&bytes).is_ok());
        ask_everything(&bytes);
    }

    #[test]
    fn no_damage_to_a_kernel_makes_it_panic_or_hang(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = fixture("5.10");
        for (index, value) in damage {
            *index.get_mut(&mut bytes[..]) = value;
        }
        ask_everything(&bytes);
    }
}
