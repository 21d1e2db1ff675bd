//! `/proc/zoneinfo` and `/proc/buddyinfo`: free memory of each zone, its watermarks, and how fragmented it is.

use super::file::{FileError, malformed, number, read};
use crate::model::host::Zone;

const ZONEINFO: &str = "/proc/zoneinfo";
const BUDDYINFO: &str = "/proc/buddyinfo";
const ABSENT_REMEDY: &str = "mount /proc";

/// The zones that have memory, in the order of node and address; and the error of `/proc/buddyinfo`, if any: then no
/// zone has free blocks.
///
/// # Errors
/// `/proc/zoneinfo` cannot be read or parsed.
pub fn zones(page_bytes: u64) -> Result<(Vec<Zone>, Option<FileError>), FileError> {
    let mut zones = parse(&read(ZONEINFO, ABSENT_REMEDY)?, page_bytes)?;
    let buddyinfo_error = read(BUDDYINFO, ABSENT_REMEDY).and_then(|text| add_free_blocks(&mut zones, &text)).err();
    Ok((zones, buddyinfo_error))
}

/// The zones of `/proc/zoneinfo` without their free blocks. Zones that have no memory are left out.
///
/// # Errors
/// [`FileError::Malformed`].
pub fn parse(text: &str, page_bytes: u64) -> Result<Vec<Zone>, FileError> {
    let mut zones = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((node, zone, _)) = heading(line) else {
            return Err(malformed(ZONEINFO, format!("{line:?} is not the first line of a zone")));
        };
        let (mut free, mut min, mut low, mut high, mut managed) = (None, None, None, None, None);
        while let Some(line) = lines.next_if(|line| heading(line).is_none()) {
            let mut words = line.split_ascii_whitespace();
            // The lines of the per-CPU lists have a colon after their names (`high:`).
            let (place, value) = match [words.next(), words.next(), words.next()] {
                [Some("pages"), Some("free"), value] => (&mut free, value),
                [Some("min"), value, None] => (&mut min, value),
                [Some("low"), value, None] => (&mut low, value),
                [Some("high"), value, None] => (&mut high, value),
                [Some("managed"), value, None] => (&mut managed, value),
                _ => continue,
            };
            *place = value;
        }
        let bytes = |name: &str, value: Option<&str>| {
            let pages: u64 = number(ZONEINFO, &format!("{name} of node {node}, zone {zone}"), value)?;
            Ok(pages.saturating_mul(page_bytes))
        };
        let zone = Zone {
            node,
            zone: zone.to_owned(),
            managed_bytes: bytes("managed", managed)?,
            free_bytes: bytes("free", free)?,
            min_bytes: bytes("min", min)?,
            low_bytes: bytes("low", low)?,
            high_bytes: bytes("high", high)?,
            free_blocks: Vec::new(),
        };
        // A zone without memory may still have watermarks.
        if zone.managed_bytes > 0 {
            zones.push(zone);
        }
    }
    if zones.is_empty() { Err(malformed(ZONEINFO, "it has no zone with memory")) } else { Ok(zones) }
}

/// Adds the counts of `/proc/buddyinfo` to the zones that they belong to.
///
/// # Errors
/// [`FileError::Malformed`]: then no zone is changed.
pub fn add_free_blocks(zones: &mut [Zone], text: &str) -> Result<(), FileError> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let Some((node, zone, blocks)) = heading(line) else {
            return Err(malformed(BUDDYINFO, format!("{line:?} names no zone")));
        };
        let blocks = blocks.map(|word| number(BUDDYINFO, &format!("a count of node {node}, zone {zone}"), Some(word)));
        rows.push((node, zone, blocks.collect::<Result<Vec<u64>, _>>()?));
    }
    for zone in zones {
        if let Some(row) = rows.iter_mut().find(|(node, name, _)| (*node, *name) == (zone.node, &zone.zone)) {
            zone.free_blocks = std::mem::take(&mut row.2);
        }
    }
    Ok(())
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
        let mut zones = parse(zoneinfo, 4096).expect("captured");
        add_free_blocks(&mut zones, buddyinfo).expect("captured");
        zones
    }

    #[test]
    fn zones_of_captured_kernels_are_parsed() {
        // 5.10: no boost, no promo, no cma.
        assert_eq!(
            both(include_str!("captured/5.10/proc_zoneinfo"), include_str!("captured/5.10/proc_buddyinfo")),
            [
                zone("DMA", [3977, 3945, 23, 28, 33], &[1, 0, 0, 1, 2, 0, 1, 0, 1, 1, 3]),
                zone("DMA32", [114_054, 100_701, 647, 808, 969], &[23, 6, 2, 2, 4, 8, 6, 9, 6, 2, 94]),
            ]
        );
        // 7.2: the zone Movable has watermarks but no memory; the per-CPU lists have high_min and high_max.
        assert_eq!(
            both(include_str!("captured/7.2/proc_zoneinfo"), include_str!("captured/7.2/proc_buddyinfo")),
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
        assert!(both(&two_nodes(), "")[1].free_blocks.is_empty());
    }

    #[test]
    fn missing_and_malformed_values_are_named_with_their_zone() {
        for (text, part) in [
            (String::new(), "zoneinfo: it has no zone with memory"),
            ("x\n".into(), "\"x\" is not the first line of a zone"),
            (two_nodes().replace("low ", "lax "), "low of node 0, zone Normal is missing"),
            (two_nodes().replace("free     6", "free     x"), "free of node 1, zone Normal is \"x\""),
            (two_nodes().replace("managed  9", "managed  0"), "no zone with memory"),
        ] {
            let error = parse(&text, 4096).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        let mut zones = parse(&two_nodes(), 4096).expect("by hand");
        for (text, part) in [
            ("Node 0, zone Normal 1\nx\n", "buddyinfo: \"x\" names no zone"),
            ("Node 0, zone Normal 1\nNode 1, zone Normal -1\n", "a count of node 1, zone Normal is \"-1\""),
        ] {
            let error = add_free_blocks(&mut zones, text).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
            assert!(zones[0].free_blocks.is_empty());
        }
    }

    #[test]
    fn this_host_s_watermarks_are_in_order_and_each_zone_has_blocks() {
        let (zones, buddyinfo_error) = zones(4096).expect("this host");
        assert!(buddyinfo_error.is_none(), "{buddyinfo_error:?}");
        for zone in zones {
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
            let mut zones = parse(&two_nodes(), page_bytes).expect("by hand");
            let _ = add_free_blocks(&mut zones, &text);
            let _ = add_free_blocks(&mut zones, &lines);
        }
    }
}
