//! `/proc/net/sockstat`, `/proc/net/protocols` and `tcp_mem`: memory of all TCP sockets of the host, and its limits.

use super::file::{FileError, Parsed, Skipped, malformed, number, read};
use crate::host_state::TcpMemory;

/// Orphans and memory are those of the whole host, whichever network namespace reads the file.
const SOCKSTAT: &str = "/proc/net/sockstat";
const PROTOCOLS: &str = "/proc/net/protocols";
const TCP_MEM: &str = "/proc/sys/net/ipv4/tcp_mem";
const ABSENT_REMEDY: &str = "mount /proc";

/// Use, limits and pressure.
///
/// # Errors
/// One of the files cannot be read, or nothing in them can be parsed.
pub fn memory(page_bytes: u64) -> Result<Parsed<TcpMemory>, FileError> {
    let limits = read(TCP_MEM, "run tcpmon in the host's network namespace, the only one that has this file")?;
    parse(&read(SOCKSTAT, ABSENT_REMEDY)?, &limits, &read(PROTOCOLS, ABSENT_REMEDY)?, page_bytes)
}

/// TCP sockets of the host that no process holds any more (orphans).
///
/// # Errors
/// `/proc/net/sockstat` cannot be read or parsed.
pub fn orphan_sockets() -> Result<u64, FileError> {
    sockstat(&read(SOCKSTAT, ABSENT_REMEDY)?, "orphan")
}

/// TCP sockets of the host, in all network namespaces.
///
/// # Errors
/// `/proc/net/sockstat` cannot be read or parsed.
pub fn allocated_sockets() -> Result<u64, FileError> {
    sockstat(&read(SOCKSTAT, ABSENT_REMEDY)?, "alloc")
}

/// Combines the texts of the three files. A value that cannot be parsed is skipped.
///
/// # Errors
/// [`FileError::Malformed`]: no value can be used.
pub fn parse(
    sockstat_text: &str,
    tcp_mem: &str,
    protocols: &str,
    page_bytes: u64,
) -> Result<Parsed<TcpMemory>, FileError> {
    let mut skipped = Skipped::default();
    let mut limits = tcp_mem.split_ascii_whitespace();
    let mut pages = |pages: Result<u64, _>| Some(skipped.keep(pages)?.saturating_mul(page_bytes));
    let bytes = pages(sockstat(sockstat_text, "mem"));
    let [low, pressure, max] =
        ["first", "second", "third"].map(|which| pages(number(TCP_MEM, &format!("the {which} number"), limits.next())));
    let under_pressure = skipped.keep(under_pressure(protocols));
    let memory = TcpMemory { bytes, low, pressure, max, under_pressure };
    skipped.parsed((memory != TcpMemory::default()).then_some(memory), || malformed(SOCKSTAT, "it is empty"))
}

/// A number from the line `TCP:` of `/proc/net/sockstat`, by name (`alloc`, `orphan`: sockets; `mem`: pages).
///
/// # Errors
/// [`FileError::Malformed`].
pub fn sockstat(text: &str, name: &str) -> Result<u64, FileError> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let mut words = line.unwrap_or_default().split_ascii_whitespace();
    let value = words.find(|word| *word == name).and_then(|_| words.next());
    number(SOCKSTAT, &format!("TCP {name}"), value)
}

/// The column `press` of TCP in `/proc/net/protocols`.
fn under_pressure(text: &str) -> Result<bool, FileError> {
    let mut rows = text.lines().map(str::split_ascii_whitespace);
    let column = rows.next().and_then(|mut header| header.position(|name| name == "press"));
    let column = column.ok_or_else(|| malformed(PROTOCOLS, "it has no column press"))?;
    match rows.find(|row| row.clone().next() == Some("TCP")).and_then(|mut row| row.nth(column)) {
        Some("yes") => Ok(true),
        Some("no") => Ok(false),
        other => Err(malformed(PROTOCOLS, format!("press of TCP is {other:?}, neither yes nor no"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOCKSTAT_6_12: &str = include_str!("captured/6.12/proc_net_sockstat");
    const PROTOCOLS_6_12: &str = include_str!("captured/6.12/proc_net_protocols");
    const TCP_MEM_6_12: &str = include_str!("captured/6.12/proc_sys_net_ipv4_tcp_mem");

    #[test]
    fn pages_become_bytes() {
        for page_bytes in [4096, 65_536] {
            let taken = parse(SOCKSTAT_6_12, TCP_MEM_6_12, PROTOCOLS_6_12, page_bytes).expect("6.12");
            let [bytes, low, pressure, max] = [1045, 5271, 7029, 10_542].map(|pages| Some(pages * page_bytes));
            assert_eq!(taken.value, TcpMemory { bytes, low, pressure, max, under_pressure: Some(false) });
            assert!(taken.skipped.is_empty(), "{}", taken.skipped);
        }
    }

    #[test]
    fn orphans_are_those_of_tcp() {
        assert_eq!(sockstat(SOCKSTAT_6_12, "orphan").ok(), Some(0));
        let text = "UDP: orphan 9 mem 9\nTCP: inuse 5 orphan 3 tw 2 alloc 8 mem 921\n";
        assert_eq!(sockstat(text, "orphan").ok(), Some(3));
        assert_eq!(sockstat(text, "mem").ok(), Some(921));
    }

    #[test]
    fn pressure_is_found_by_its_header_and_belongs_to_tcp_alone() {
        // Written by hand: no captured kernel was under pressure, and older ones had other columns.
        let table = |tcp: &str| format!("protocol press size\nTCPv6 no 1\nUDP NI 1\nTCP {tcp} 1\nTCPx yes 1\n");
        assert_eq!(under_pressure(&table("yes")).ok(), Some(true));
        assert_eq!(under_pressure(&table("no")).ok(), Some(false));
        for (text, part) in [
            (table("NI"), "press of TCP is Some(\"NI\")"),
            (table("no").replace("press", "stress"), "no column press"),
            ("protocol press\nUDP no\n".into(), "press of TCP is None"),
            (String::new(), "protocols: it has no column press"),
        ] {
            let error = under_pressure(&text).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_bad_value_is_named_and_costs_only_itself() {
        let all = parse(SOCKSTAT_6_12, TCP_MEM_6_12, PROTOCOLS_6_12, 4096).expect("6.12").value;
        for (sockstat, tcp_mem, protocols, left, part) in [
            ("UDP: mem 1\n", TCP_MEM_6_12, PROTOCOLS_6_12, TcpMemory { bytes: None, ..all }, "TCP mem is missing"),
            ("TCP: mem\n", TCP_MEM_6_12, PROTOCOLS_6_12, TcpMemory { bytes: None, ..all }, "TCP mem is missing"),
            ("TCP: mem -1\n", TCP_MEM_6_12, PROTOCOLS_6_12, TcpMemory { bytes: None, ..all }, "TCP mem is \"-1\""),
            (
                SOCKSTAT_6_12,
                "5271 7029\n",
                PROTOCOLS_6_12,
                TcpMemory { max: None, ..all },
                "tcp_mem: the third number is missing",
            ),
            (
                SOCKSTAT_6_12,
                "5271 x 10542\n",
                PROTOCOLS_6_12,
                TcpMemory { pressure: None, ..all },
                "the second number is \"x\"",
            ),
            (SOCKSTAT_6_12, TCP_MEM_6_12, "", TcpMemory { under_pressure: None, ..all }, "no column press"),
        ] {
            let taken = parse(sockstat, tcp_mem, protocols, 4096).expect(part);
            let skipped = taken.skipped.to_string();
            assert_eq!(taken.value, left, "{part}");
            assert!(skipped.starts_with("skipped 1 entry: ") && skipped.contains(part), "{skipped}");
        }
        let error = parse("", "", "", 4096).expect_err("nothing").to_string();
        assert!(error.contains("sockstat: TCP mem is missing"), "{error}");
    }

    #[test]
    fn this_host_s_limits_are_in_order_and_in_whole_pages() {
        let taken = memory(4096).expect("this host").value;
        let [bytes, low, pressure, max] =
            [taken.bytes, taken.low, taken.pressure, taken.max].map(|value| value.expect("this host"));
        assert!(low <= pressure && pressure <= max && max > 0, "{taken:?}");
        assert_eq!((bytes % 4096, max % 4096), (0, 0), "{taken:?}");
        orphan_sockets().expect("this host");
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parsers(text in "(?s).{0,200}", words in "[a-z0-9 \n]{0,60}", page_bytes: u64) {
            let _ = parse(&text, &text, &text, page_bytes);
            let _ = parse(&format!("TCP: mem {words}"), &words, &format!("x press\nTCP {words}"), page_bytes);
            let _ = sockstat(&format!("TCP: orphan {words}"), "orphan");
            let _ = under_pressure(&format!("{words} press\nTCP {words}"));
        }
    }
}
