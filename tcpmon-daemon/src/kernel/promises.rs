//! What `docs/invariants.md` promises about the cost of the programs, as read from their object code.

use std::collections::BTreeSet;

use object::{File, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};

use super::OBJECT;

/// `enum bpf_func_id`.
const KTIME_GET_NS: u32 = 5;
const RINGBUF_OUTPUT: [u32; 2] = [130, 131];
/// `enum bpf_map_type`: the kinds of hash table.
const HASHES: [u32; 5] = [1, 5, 9, 10, 13];
/// Opcode of a call.
const CALL: u8 = 0x85;

/// What a program refers to.
struct Code {
    /// Helpers, one for each call in the code.
    helpers: Vec<u32>,
    /// Maps, with their types.
    maps: BTreeSet<(String, u32)>,
}

impl Code {
    fn of(tracepoint: &str) -> Self {
        Self::of_section(&format!("tp_btf/{tracepoint}"))
    }

    fn of_section(name: &str) -> Self {
        let file = File::parse(OBJECT).expect("this build has the programs: run `cargo xtask setup`");
        let section = file.section_by_name(name).expect("the program");
        let code = section.data().expect("its instructions");
        let is_helper = |word: &&[u8]| word[0] == CALL && word[1] >> 4 == 0;
        let number = |word: &[u8]| u32::from_le_bytes(word[4..8].try_into().expect("four bytes"));
        let helpers = code.chunks_exact(8).filter(is_helper).map(number).collect();

        let definitions = file.section_by_name("maps").expect("the maps");
        let map = |target: RelocationTarget| {
            let RelocationTarget::Symbol(index) = target else { return None };
            let symbol = file.symbol_by_index(index).ok()?;
            (symbol.section_index() == Some(definitions.index())).then_some(())?;
            let at = symbol.address() as usize;
            // The first member of `struct bpf_map_def` is the type.
            let kind = definitions.data().ok()?.get(at..at + 4)?.try_into().ok()?;
            Some((symbol.name().ok()?.to_owned(), u32::from_le_bytes(kind)))
        };
        let maps = section.relocations().filter_map(|(_, relocation)| map(relocation.target())).collect();
        Self { helpers, maps }
    }

    fn calls(&self, helper: u32) -> usize {
        self.helpers.iter().filter(|called| **called == helper).count()
    }

    fn hashes(&self) -> Vec<&str> {
        self.maps.iter().filter(|(_, kind)| HASHES.contains(kind)).map(|(name, _)| name.as_str()).collect()
    }
}

#[test]
fn the_packet_path_and_sched_switch_look_up_no_hash() {
    for tracepoint in ["tcp_probe", "sched_switch"] {
        let code = Code::of(tracepoint);
        assert!(code.maps.len() > 1 && code.hashes().is_empty(), "{tracepoint}: {:?}", code.maps);
    }
    // The functions that they call are in a section that all programs share; only changes of readers use a hash map
    // there.
    assert_eq!(Code::of_section(".text").hashes(), ["FILTER_COMMS", "FILTER_TGIDS"]);
    // A check of the test itself: it finds hash maps where there are some.
    assert_eq!(Code::of("tcp_rcv_space_adjust").hashes(), ["FILTER_PORTS"]);
}

#[test]
fn a_segment_reads_the_clock_once_and_once_more_if_it_starts_the_counting() {
    assert_eq!(Code::of("tcp_probe").calls(KTIME_GET_NS), 2);
}

#[test]
fn a_segment_sends_no_record() {
    let sends = |tracepoint| RINGBUF_OUTPUT.map(|helper| Code::of(tracepoint).calls(helper)).iter().sum::<usize>();
    assert_eq!(sends("tcp_probe"), 0);
    assert!(sends("sched_switch") > 0, "the test finds records where they are sent");
}

/// On kernels that refuse an iterator whose program could write to a map element, all of our iterators must still load.
#[test]
fn no_iterator_visits_maps() {
    let file = File::parse(OBJECT).expect("this build has the programs: run `cargo xtask setup`");
    let sections = file.sections().filter_map(|section| Some(section.name().ok()?.to_owned()));
    let iterators: BTreeSet<_> = sections.filter(|name| name.starts_with("iter")).collect();
    assert_eq!(iterators, ["iter/task_file".to_owned()].into());
}
