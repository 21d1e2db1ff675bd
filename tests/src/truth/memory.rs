//! Memory as the kernel accounts for it: that of TCP, for all network namespaces together, and that of the page
//! allocator.

use std::collections::BTreeMap;
use std::fs;

use crate::must;

/// Memory of all TCP sockets of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpMemory {
    /// Pages in use; each CPU may hold back up to 1 MiB on top of what sockets use.
    pub pages: u64,
    /// Whether TCP is under memory pressure.
    pub pressure: bool,
}

/// The TCP line of `/proc/net/sockstat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sockstat {
    /// Number of sockets that no process holds.
    pub orphans: u64,
    /// Number of sockets in all network namespaces; those in TIME_WAIT are not counted.
    pub allocated: u64,
    /// Pages in use, not including what each CPU holds back, as in [`TcpMemory`].
    pub pages: u64,
}

/// A zone of `/proc/zoneinfo` in pages, with its line of `/proc/buddyinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Pages that the page allocator manages.
    pub managed: u64,
    /// Free pages.
    pub free: u64,
    /// Watermarks: min, low, high.
    pub watermarks: [u64; 3],
    /// Free blocks of 2^index pages.
    pub free_blocks: Vec<u64>,
}

/// Bytes per page, from `smaps`.
pub fn page_bytes() -> u64 {
    let text = read("/proc/self/smaps");
    let line = text.lines().find_map(|line| line.strip_prefix("KernelPageSize:"));
    number(line.and_then(|line| line.split_ascii_whitespace().next()), "KernelPageSize") * 1024
}

/// The TCP line of `/proc/net/sockstat`.
pub fn sockstat() -> Sockstat {
    let text = read("/proc/net/sockstat");
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let field = |name| number(words.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1]), name);
    Sockstat { orphans: field("orphan"), allocated: field("alloc"), pages: field("mem") }
}

/// Time in which some tasks, and in which all tasks, waited for memory, in microseconds; `None` if the kernel has no
/// PSI.
pub fn memory_stalls_us() -> Option<[u64; 2]> {
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    let totals: Vec<u64> = text.lines().map(|line| number(line.split("total=").nth(1), "total")).collect();
    totals.try_into().ok()
}

/// The zones that have memory, by node and name, both as the kernel writes them.
pub fn zones() -> BTreeMap<(String, String), Zone> {
    parse_zones(&read("/proc/zoneinfo"), &read("/proc/buddyinfo"))
}

fn parse_zones(zoneinfo: &str, buddyinfo: &str) -> BTreeMap<(String, String), Zone> {
    let mut zones = BTreeMap::<_, Zone>::new();
    let mut here = Default::default();
    for line in zoneinfo.lines().chain(buddyinfo.lines()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let ["Node", node, "zone", zone, blocks @ ..] = &words[..] {
            here = (node.trim_end_matches(',').to_owned(), (*zone).to_owned());
            let blocks = blocks.iter().map(|word| number(Some(word), "a count of free blocks"));
            zones.entry(here.clone()).or_default().free_blocks = blocks.collect();
            continue;
        }
        let zone = zones.entry(here.clone()).or_default();
        match words[..] {
            ["pages", "free", pages] => zone.free = number(Some(pages), "free"),
            ["managed", pages] => zone.managed = number(Some(pages), "managed"),
            ["min", pages] => zone.watermarks[0] = number(Some(pages), "min"),
            ["low", pages] => zone.watermarks[1] = number(Some(pages), "low"),
            ["high", pages] => zone.watermarks[2] = number(Some(pages), "high"),
            _ => {}
        }
    }
    zones.retain(|_, zone| zone.managed > 0);
    zones
}

/// The TCP line of `/proc/net/protocols`.
pub fn tcp_memory() -> TcpMemory {
    let text = read("/proc/net/protocols");
    parse(&text).unwrap_or_else(|| panic!("no line of TCP in /proc/net/protocols:\n{text}"))
}

/// The columns are: name, object size, sockets, pages, memory pressure.
fn parse(text: &str) -> Option<TcpMemory> {
    let mut words = text.lines().find_map(|line| line.strip_prefix("TCP "))?.split_ascii_whitespace();
    let pages = words.nth(2)?.parse().ok()?;
    Some(TcpMemory { pages, pressure: words.next()? == "yes" })
}

fn number(word: Option<&str>, name: &str) -> u64 {
    must(word.unwrap_or_default().parse(), format!("reading {name}, which is {word:?}"))
}

fn read(path: &str) -> String {
    must(fs::read_to_string(path), format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_tcp_is_read_and_not_that_of_tcpv6() {
        let text = "protocol  size sockets  memory press maxhdr\n\
                    TCPv6     2432      0     246   no     192\n\
                    TCP       2304      1     300   yes    192\n";
        assert_eq!(parse(text), Some(TcpMemory { pages: 300, pressure: true }));
        assert_eq!(parse("UDP 1 2 3 no"), None);
    }

    #[test]
    fn a_zone_has_its_own_lines_and_not_those_of_a_cpu() {
        let zoneinfo = "Node 0, zone   Normal\n  pages free     5\n        min      1\n        low      2\n        \
                        high     3\n        managed  9\n  pagesets\n    cpu: 0\n              high:  77\n\
                        Node 0, zone  Movable\n  pages free     0\n        managed  0\n";
        let zones = parse_zones(zoneinfo, "Node 0, zone   Normal      4      5 \n");
        let normal = Zone { managed: 9, free: 5, watermarks: [1, 2, 3], free_blocks: vec![4, 5] };
        assert_eq!(zones, [(("0".to_owned(), "Normal".to_owned()), normal)].into());
    }
}
