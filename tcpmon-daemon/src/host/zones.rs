//! `/proc/zoneinfo` and `/proc/buddyinfo`: free memory of each zone, its watermarks, and how fragmented it is.

use super::file::{FileError, Parsed, Skipped, malformed, number, read};
use crate::host_state::Zone;

const ZONEINFO: &str = "/proc/zoneinfo";
const BUDDYINFO: &str = "/proc/buddyinfo";
const ABSENT_REMEDY: &str = "mount /proc";

/// The values of a zone, in the order of their lines.
const VALUES: [&str; 5] = ["free", "min", "low", "high", "managed"];

/// The zones that have memory, in the order of node and address. Without `/proc/buddyinfo`, they have no free blocks.
///
/// # Errors
/// `/proc/zoneinfo` cannot be read or parsed.
pub fn zones(page_bytes: u64) -> Result<Parsed<Vec<Zone>>, FileError> {
    let Parsed { mut value, mut skipped } = parse(&read(ZONEINFO, ABSENT_REMEDY)?, page_bytes)?;
    skipped.keep_parsed(read(BUDDYINFO, ABSENT_REMEDY).and_then(|text| add_free_blocks(&mut value, &text)));
    Ok(Parsed { value, skipped })
}

/// The zones of `/proc/zoneinfo` without their free blocks. Zones that have no memory are left out, and a zone that
/// lacks a value is skipped.
///
/// # Errors
/// [`FileError::Malformed`]: no zone can be used.
pub fn parse(text: &str, page_bytes: u64) -> Result<Parsed<Vec<Zone>>, FileError> {
    let (mut zones, mut skipped) = (Vec::new(), Skipped::default());
    let mut lines = text.lines().peekable();
    while let Some(first) = lines.next() {
        let mut rest = std::iter::from_fn(|| lines.next_if(|line| heading(line).is_none()));
        let zone = zone(first, &mut rest, page_bytes, &mut skipped);
        // A zone without memory may still have watermarks.
        zones.extend(skipped.keep(zone).filter(|zone| zone.managed_bytes > 0));
        rest.for_each(drop);
    }
    skipped.parsed((!zones.is_empty()).then_some(zones), || malformed(ZONEINFO, "it has no zone with memory"))
}

/// A zone, from its first line and those up to the next first line that can be recognized.
fn zone<'a>(
    first: &str,
    rest: impl Iterator<Item = &'a str>,
    page_bytes: u64,
    skipped: &mut Skipped,
) -> Result<Zone, FileError> {
    let Some((node, zone, _)) = heading(first) else {
        return Err(malformed(ZONEINFO, format!("the first line of a zone is {first:?}")));
    };
    let mut values = [None; VALUES.len()];
    let mut next = 0;
    for line in rest {
        let mut words = line.split_ascii_whitespace();
        // The lines of the per-CPU lists have a colon after their names (`high:`).
        let (name, value) = match [words.next(), words.next(), words.next()] {
            [Some("pages"), Some("free"), value] => ("free", value),
            [Some(name), value, None] => (name, value),
            _ => continue,
        };
        let Some(place) = VALUES.iter().position(|known| *known == name) else { continue };
        if place < next {
            // They would be taken for values of this zone.
            skipped.add(malformed(ZONEINFO, format!("the values of another zone follow node {node}, zone {zone}")));
            break;
        }
        (values[place], next) = (value, place + 1);
    }
    let bytes = |place: usize| {
        let name = format!("{} of node {node}, zone {zone}", VALUES[place]);
        number(ZONEINFO, &name, values[place]).map(|pages: u64| pages.saturating_mul(page_bytes))
    };
    Ok(Zone {
        node,
        zone: zone.to_owned(),
        free_bytes: bytes(0)?,
        min_bytes: bytes(1)?,
        low_bytes: bytes(2)?,
        high_bytes: bytes(3)?,
        managed_bytes: bytes(4)?,
        free_blocks: Vec::new(),
    })
}

/// Adds the counts of `/proc/buddyinfo` to the zones that they belong to. A line that cannot be parsed is skipped.
///
/// # Errors
/// [`FileError::Malformed`]: no line can be used.
pub fn add_free_blocks(zones: &mut [Zone], text: &str) -> Result<Parsed<()>, FileError> {
    let mut skipped = Skipped::default();
    let rows: Vec<_> = text.lines().filter_map(|line| skipped.keep(free_blocks(line))).collect();
    let any = (!rows.is_empty()).then_some(());
    for (node, name, blocks) in rows {
        if let Some(zone) = zones.iter_mut().find(|zone| (zone.node, &*zone.zone) == (node, name)) {
            zone.free_blocks = blocks;
        }
    }
    skipped.parsed(any, || malformed(BUDDYINFO, "it is empty"))
}

/// Node, zone and its counts.
fn free_blocks(line: &str) -> Result<(u32, &str, Vec<u64>), FileError> {
    let (node, zone, blocks) =
        heading(line).ok_or_else(|| malformed(BUDDYINFO, format!("a line names no zone: {line:?}")))?;
    let blocks = blocks.map(|word| number(BUDDYINFO, &format!("a count of node {node}, zone {zone}"), Some(word)));
    Ok((node, zone, blocks.collect::<Result<_, _>>()?))
}

/// Node, zone, and what follows: `Node 0, zone   Normal ...`.
fn heading(line: &str) -> Option<(u32, &str, std::str::SplitAsciiWhitespace<'_>)> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone ")?;
    let mut words = rest.split_ascii_whitespace();
    Some((node.parse().ok()?, words.next()?, words))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn zone(zone: &str, pages: [u64; 5], free_blocks: &[u64]) -> Zone {
        let [managed_bytes, free_bytes, min_bytes, low_bytes, high_bytes] = pages.map(|pages| pages * 4096);
        let (node, zone, free_blocks) = (0, zone.to_owned(), free_blocks.to_vec());
        Zone { node, zone, managed_bytes, free_bytes, min_bytes, low_bytes, high_bytes, free_blocks }
    }

    fn both(zoneinfo: &str, buddyinfo: &str) -> Vec<Zone> {
        let mut zones = parsed(zoneinfo).0;
        let skipped = add_free_blocks(&mut zones, buddyinfo).expect("captured").skipped;
        assert_eq!(skipped.to_string(), "");
        zones
    }

    /// The zones, and the sentence on what was skipped.
    fn parsed(text: &str) -> (Vec<Zone>, String) {
        let Parsed { value, skipped } = parse(text, 4096).expect("a zone can be used");
        (value, skipped.to_string())
    }

    /// Captured on 5.10 and 7.2.
    const CAPTURED: [(&str, &str); 2] = [
        (include_str!("captured/5.10/proc_zoneinfo"), include_str!("captured/5.10/proc_buddyinfo")),
        (include_str!("captured/7.2/proc_zoneinfo"), include_str!("captured/7.2/proc_buddyinfo")),
    ];

    #[test]
    fn zones_of_captured_kernels_are_parsed() {
        // 5.10: no boost, no promo, no cma.
        assert_eq!(
            both(CAPTURED[0].0, CAPTURED[0].1),
            [
                zone("DMA", [3977, 3945, 23, 28, 33], &[1, 0, 0, 1, 2, 0, 1, 0, 1, 1, 3]),
                zone("DMA32", [114_054, 100_701, 647, 808, 969], &[23, 6, 2, 2, 4, 8, 6, 9, 6, 2, 94]),
            ]
        );
        // 7.2: the zone Movable has watermarks but no memory; the per-CPU lists have high_min and high_max.
        assert_eq!(
            both(CAPTURED[1].0, CAPTURED[1].1),
            [
                zone("DMA", [3840, 3808, 23, 28, 33], &[0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 3]),
                zone("DMA32", [113_472, 92_304, 631, 788, 945], &[2, 2, 2, 8, 16, 18, 12, 6, 7, 4, 84]),
            ]
        );
    }

    /// Written by hand, from the format string of zoneinfo_show_print(): no captured kernel has two nodes.
    fn two_nodes() -> String {
        let zone = |node, pages| {
            format!(
                "Node {node}, zone   Normal\n  pages free     {pages}\n        min      1\n        low      2\n        \
                 high     3\n        managed  9\n        protection: (0, 0)\n  pagesets\n    cpu: 0\n              \
                 high:  77\n"
            )
        };
        zone(0, 5) + &zone(1, 6)
    }

    #[test]
    fn free_blocks_go_to_the_zone_of_the_same_node_and_name() {
        let rows = "Node 1, zone   Normal 1 2 3\nNode 0, zone   Normal 4 5\nNode 0, zone  Movable 6\n";
        assert_eq!(
            both(&two_nodes(), rows),
            [zone("Normal", [9, 5, 1, 2, 3], &[4, 5]), Zone { node: 1, ..zone("Normal", [9, 6, 1, 2, 3], &[1, 2, 3]) }]
        );
        assert!(both(&two_nodes(), "Node 0, zone Normal 1\n")[1].free_blocks.is_empty());
    }

    #[test]
    fn a_zone_without_all_values_is_skipped_and_named_and_the_other_is_there() {
        let [first, second] = [0, 1].map(|at| both(&two_nodes(), "Node 9, zone Normal 1\n").remove(at));
        for (from, to, left, part) in [
            ("Node 0, zone   Normal", "x", &second, "the first line of a zone is \"x\""),
            (
                "low      2\n        high     3\n        managed  9\n",
                "",
                &second,
                "low of node 0, zone Normal is missing",
            ),
            ("free     6", "free     x", &first, "free of node 1, zone Normal is \"x\", which is not a number"),
            ("Node 1, zone   Normal", "x", &first, "the values of another zone follow node 0, zone Normal"),
            // The first value of the second zone that is left would fill the gap of the first zone.
            ("managed  9\n", "", &second, "managed of node 0, zone Normal is missing"),
        ] {
            let (taken, skipped) = parsed(&two_nodes().replacen(from, to, 1));
            assert_eq!(taken, std::slice::from_ref(left), "{part}");
            let sentence = format!("skipped 1 entry: cannot parse /proc/zoneinfo: {part}: report this, ");
            assert!(skipped.starts_with(&sentence), "{skipped}");
        }
    }

    #[test]
    fn a_value_of_a_zone_without_a_first_line_is_never_that_of_the_zone_before() {
        let text = two_nodes().replace("Node 1, zone   Normal", "x").replacen("  pages free     5\n", "", 1);
        let error = parse(&text, 4096).expect_err("both are doubtful").to_string();
        assert!(error.contains("the values of another zone follow node 0"), "{error}");
    }

    #[test]
    fn files_without_a_usable_entry_are_refused() {
        for (text, part) in [
            (String::new(), "zoneinfo: it has no zone with memory"),
            ("x\n".into(), "the first line of a zone is \"x\""),
            (two_nodes().replace("low ", "lax "), "low of node 0, zone Normal is missing"),
            (two_nodes().replace("managed  9", "managed  0"), "no zone with memory"),
        ] {
            let error = parse(&text, 4096).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        for (text, part) in [("", "buddyinfo: it is empty"), ("x\n", "buddyinfo: a line names no zone: \"x\"")] {
            let error = add_free_blocks(&mut parsed(&two_nodes()).0, text).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_bad_row_of_buddyinfo_costs_the_blocks_of_its_zone() {
        for (row, part) in [
            ("x", "a line names no zone: \"x\""),
            ("Node 1, zone Normal -1", "a count of node 1, zone Normal is \"-1\""),
        ] {
            let mut zones = parsed(&two_nodes()).0;
            let rows = format!("{row}\nNode 0, zone Normal 1 2\n");
            let skipped = add_free_blocks(&mut zones, &rows).expect("a row is left").skipped.to_string();
            assert!(
                skipped.starts_with(&format!("skipped 1 entry: cannot parse /proc/buddyinfo: {part}")),
                "{skipped}"
            );
            assert_eq!((&*zones[0].free_blocks, &*zones[1].free_blocks), (&[1, 2][..], &[][..]));
        }
    }

    #[test]
    fn this_host_s_watermarks_are_in_order_and_each_zone_has_blocks() {
        let Parsed { value, skipped } = zones(4096).expect("this host");
        assert_eq!(skipped.to_string(), "");
        for zone in value {
            assert!(zone.min_bytes <= zone.low_bytes && zone.low_bytes <= zone.high_bytes, "{zone:?}");
            assert!(!zone.zone.is_empty() && zone.free_blocks.len() >= 10, "{zone:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parsers(
            text in "(?s).{0,200}", page_bytes: u64,
            lines in "((Node [0-9], zone [A-Z]|pages free|min|low|high|managed|x)( [0-9]{1,20})?\n){0,12}",
        ) {
            let _ = parse(&text, page_bytes);
            let _ = parse(&lines, page_bytes);
            let mut zones = parsed(&two_nodes()).0;
            let _ = add_free_blocks(&mut zones, &text);
            let _ = add_free_blocks(&mut zones, &lines);
        }

        #[test]
        fn a_bad_line_costs_only_its_zone(which in 0..2_usize, at: prop::sample::Index, garbage in "[g-z#: ]{0,20}") {
            let (zoneinfo, buddyinfo) = CAPTURED[which];
            let before = both(zoneinfo, buddyinfo);
            let (mut after, skipped) = parsed(&replaced(zoneinfo, at, &garbage));
            add_free_blocks(&mut after, buddyinfo).expect("captured");
            // Most lines do not matter, and zones without memory have values, too.
            prop_assert!(after.iter().all(|zone| before.contains(zone)) && after.len() + 1 >= before.len());
            prop_assert!(after == before || skipped.starts_with("skipped 1 entry: "), "{}", skipped);

            let mut after = parsed(zoneinfo).0;
            let rows = replaced(buddyinfo, at, &garbage);
            let skipped = add_free_blocks(&mut after, &rows).expect("a row is left").skipped;
            prop_assert!(skipped.to_string().starts_with("skipped 1 entry: "), "{}", skipped);
            let bad = after.iter().zip(&before).filter(|(after, before)| after != before);
            prop_assert!(bad.clone().count() == 1 && bad.clone().all(|(zone, _)| zone.free_blocks.is_empty()));
        }
    }

    /// A text with one line replaced.
    fn replaced(text: &str, at: prop::sample::Index, garbage: &str) -> String {
        let mut lines: Vec<_> = text.lines().collect();
        let at = at.index(lines.len());
        lines[at] = garbage;
        lines.join("\n") + "\n"
    }
}
