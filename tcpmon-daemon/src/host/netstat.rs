//! `/proc/net/netstat`: TCP and IP counters of one network namespace, and their sums over all.

use std::collections::HashMap;

use super::file::{FileError, Parsed, Skipped, malformed, read};

const NETSTAT: &str = "/proc/net/netstat";
const SNMP: &str = "/proc/net/snmp";

/// The file of the calling thread's network namespace (`/proc/net` is that of the process).
pub const OF_THREAD: &str = "/proc/thread-self/net/netstat";

/// The same for `/proc/net/snmp`.
pub const SNMP_OF_THREAD: &str = "/proc/thread-self/net/snmp";

/// Counters of one network namespace, by the kernel's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netstat<'a> {
    /// `TcpExt`.
    pub tcp: Vec<(&'a str, u64)>,
    /// `IpExt`.
    pub ip: Vec<(&'a str, u64)>,
}

/// Reads such a file: [`OF_THREAD`], or that of any other process.
///
/// # Errors
/// [`FileError::Unreadable`].
pub fn text(file: &str) -> Result<String, FileError> {
    read(file, "mount /proc; if it is another process's file, that process has ended")
}

/// The kernel's counts of connections that it started to open, from the text of `/proc/net/snmp`.
///
/// # Errors
/// [`FileError::Malformed`]: it has neither.
pub fn connection_opens(text: &str) -> Result<Parsed<Vec<(&str, u64)>>, FileError> {
    let mut parsed = table(SNMP, text, "Tcp:")?;
    parsed.value.retain(|(name, _)| matches!(*name, "ActiveOpens" | "PassiveOpens"));
    let opens = (!parsed.value.is_empty()).then_some(parsed.value);
    parsed.skipped.parsed(opens, || malformed(SNMP, "it has neither ActiveOpens nor PassiveOpens"))
}

/// The counters in such a file. Negative values are not counters and are left out. A value that cannot be parsed is
/// skipped, and so is a table that does not have one value for each name.
///
/// # Errors
/// [`FileError::Malformed`]: neither table can be used.
pub fn parse(text: &str) -> Result<Parsed<Netstat<'_>>, FileError> {
    let mut skipped = Skipped::default();
    let [tcp, ip] = ["TcpExt:", "IpExt:"].map(|title| skipped.keep_parsed(table(NETSTAT, text, title)));
    let any = tcp.is_some() || ip.is_some();
    let counters = Netstat { tcp: tcp.unwrap_or_default(), ip: ip.unwrap_or_default() };
    skipped.parsed(any.then_some(counters), || malformed(NETSTAT, "it is empty"))
}

/// A table of two lines that start with the same title: the names, and the values.
fn table<'a>(file: &'static str, text: &'a str, title: &str) -> Result<Parsed<Vec<(&'a str, u64)>>, FileError> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(title));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return Err(malformed(file, format!("it does not have two lines {title:?}")));
    };
    let (names, values) = (names.split_ascii_whitespace(), values.split_ascii_whitespace());
    let counts = (names.clone().count(), values.clone().count());
    // It cannot be known which value is missing or surplus.
    if counts.0 != counts.1 {
        return Err(malformed(file, format!("{title} has {} names and {} values", counts.0, counts.1)));
    }
    let mut skipped = Skipped::default();
    let mut counters = Vec::with_capacity(counts.0);
    for (name, value) in names.zip(values) {
        match value.parse() {
            Ok(value) => counters.push((name, value)),
            Err(_) if value.parse::<i64>().is_ok() => {}
            Err(_) => skipped.add(malformed(file, format!("{title} {name} is {value:?}, which is not a number"))),
        }
    }
    Ok(Parsed { value: counters, skipped })
}

/// Sums over network namespaces, which start at zero and never decrease: see [`InitialValues`]. What a removed
/// namespace has added stays.
#[derive(Debug, Default)]
pub struct NamespaceSums {
    /// Names and sums, in the order in which the names were first seen.
    sums: Vec<(String, u64)>,
    /// Position of a name in `sums`.
    positions: HashMap<String, usize>,
    namespaces: HashMap<u64, NamespaceCounters>,
    round: u64,
}

/// How many namespaces are remembered after they were last found. One that only descriptors hold open is not found
/// until a process enters it again, and must not count as new then.
const MAX_GONE: usize = 128;

/// How the first values of a namespace are counted, each when it is first read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialValues {
    /// The namespace may be older than tcpmon: the values are its baseline. Hosts with many containers are covered over
    /// several samples, and otherwise each sample would show a step of everything that happened since boot.
    Baseline,
    /// The namespace has counted nothing before tcpmon started: everything is added.
    Counts,
}

#[derive(Debug)]
struct NamespaceCounters {
    first: InitialValues,
    /// The last values that were read, at the positions of `sums`; `None` if there was none yet.
    last: Vec<Option<u64>>,
    /// The last round in which it was found.
    round: u64,
}

impl NamespaceSums {
    /// Adds the counters of the namespace with this number, which no other namespace will ever have. A counter that is
    /// missing for a while continues from its last value. `first` is used only in the first call for a namespace.
    pub fn add(&mut self, number: u64, first: InitialValues, counters: &[(&str, u64)]) {
        let new = || NamespaceCounters { first, last: Vec::new(), round: self.round };
        let namespace = self.namespaces.entry(number).or_insert_with(new);
        namespace.round = self.round;
        for (position, (name, value)) in counters.iter().enumerate() {
            // All namespaces list their counters in the same order, so a name is rarely looked up.
            let place = match self.sums.get(position) {
                Some((here, _)) if here == name => position,
                _ => self.positions.get(*name).copied().unwrap_or_else(|| {
                    self.sums.push(((*name).to_owned(), 0));
                    self.positions.insert((*name).to_owned(), self.sums.len() - 1);
                    self.sums.len() - 1
                }),
            };
            if namespace.last.len() <= place {
                namespace.last.resize(self.sums.len(), None);
            }
            let base = match namespace.first {
                InitialValues::Baseline => *value,
                InitialValues::Counts => 0,
            };
            let before = namespace.last[place].replace(*value).unwrap_or(base);
            let sum = &mut self.sums[place].1;
            *sum = sum.saturating_add(value.saturating_sub(before));
        }
    }

    /// Whether this namespace was read before.
    pub fn has(&self, number: u64) -> bool {
        self.namespaces.contains_key(&number)
    }

    /// The namespace still exists, though it was not read this time.
    pub fn keep(&mut self, number: u64) {
        if let Some(namespace) = self.namespaces.get_mut(&number) {
            namespace.round = self.round;
        }
    }

    /// Ends a round: of the namespaces that were not found in it, those that were found last are remembered. Returns
    /// the sums, sorted by name.
    pub fn end_round(&mut self) -> Vec<(String, u64)> {
        let gone = self.namespaces.iter().filter(|(_, namespace)| namespace.round < self.round);
        let mut gone: Vec<_> = gone.map(|(number, namespace)| (namespace.round, *number)).collect();
        gone.sort_unstable();
        for (_, number) in gone.iter().rev().skip(MAX_GONE) {
            self.namespaces.remove(number);
        }
        self.round += 1;
        let mut sums = self.sums.clone();
        sums.sort_unstable();
        sums
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NETSTAT_6_12: &str = include_str!("captured/6.12/proc_net_netstat");
    const NETSTAT_7_2: &str = include_str!("captured/7.2/proc_net_netstat");

    /// The counters, and the sentence on what was skipped.
    fn parsed(text: &str) -> (Netstat<'_>, String) {
        let Parsed { value, skipped } = parse(text).expect("a table can be used");
        (value, skipped.to_string())
    }

    fn value(counters: &[(&str, u64)], name: &str) -> Option<u64> {
        counters.iter().find(|(here, _)| *here == name).map(|(_, value)| *value)
    }

    #[test]
    fn each_name_has_the_value_below_it() {
        for (text, acks, octets, names) in
            [(NETSTAT_6_12, 1145, 78_776_772, (131, 18)), (NETSTAT_7_2, 1232, 98_141_631, (135, 18))]
        {
            let taken = parsed(text).0;
            assert_eq!(value(&taken.tcp, "TCPPureAcks"), Some(acks));
            assert_eq!(value(&taken.ip, "InOctets"), Some(octets));
            assert_eq!((taken.tcp.len(), taken.ip.len()), names);
            // The third table, MPTcpExt, is ignored.
            assert_eq!(value(&taken.tcp, "MPCapableSYNRX"), None);
        }
    }

    #[test]
    fn values_below_zero_are_left_out_and_64_bits_are_kept() {
        let text = "TcpExt: A B C\nTcpExt: 1 -1 18446744073709551615\nIpExt: D\nIpExt: 5\n";
        let (taken, skipped) = parsed(text);
        assert_eq!(taken, Netstat { tcp: vec![("A", 1), ("C", u64::MAX)], ip: vec![("D", 5)] });
        assert_eq!(skipped, "");
    }

    #[test]
    fn a_table_whose_names_and_values_differ_in_number_is_skipped_and_the_other_is_there() {
        for (table, part) in [
            ("", "it does not have two lines \"TcpExt:\""),
            ("TcpExt: A\n", "it does not have two lines \"TcpExt:\""),
            ("TcpExt: A B\nTcpExt: 1\n", "TcpExt: has 2 names and 1 values"),
            ("TcpExt: A\nTcpExt: 1 2\n", "TcpExt: has 1 names and 2 values"),
        ] {
            let text = format!("{table}IpExt: D\nIpExt: 5\n");
            let (taken, skipped) = parsed(&text);
            assert_eq!(taken, Netstat { tcp: vec![], ip: vec![("D", 5)] });
            let sentence = format!("skipped 1 entry: cannot parse /proc/net/netstat: {part}: report this, ");
            assert!(skipped.starts_with(&sentence), "{skipped}");
            let error = parse(table).expect_err("no table is left").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_value_that_is_no_number_costs_its_counter() {
        let (taken, skipped) = parsed("TcpExt: A B C\nTcpExt: 1 x 3\nIpExt: D\nIpExt: 5\n");
        assert_eq!(taken, Netstat { tcp: vec![("A", 1), ("C", 3)], ip: vec![("D", 5)] });
        assert!(skipped.contains("/proc/net/netstat: TcpExt: B is \"x\", which is not a number"), "{skipped}");
    }

    #[test]
    fn opens_are_those_of_tcp_and_a_bad_value_costs_one_of_them() {
        let opens = |text| connection_opens(text).map(|parsed| (parsed.value, parsed.skipped.to_string()));
        let names = "Ip: X\nIp: 9\nTcp: MaxConn ActiveOpens PassiveOpens InSegs\n";
        let text = format!("{names}Tcp: -1 5 7 9\n");
        assert_eq!(opens(&text).expect("both"), (vec![("ActiveOpens", 5), ("PassiveOpens", 7)], String::new()));
        let text = format!("{names}Tcp: -1 x 7 9\n");
        let (left, skipped) = opens(&text).expect("one");
        assert_eq!(left, [("PassiveOpens", 7)]);
        assert!(skipped.contains("/proc/net/snmp: Tcp: ActiveOpens is \"x\""), "{skipped}");
        let error = opens("Tcp: InSegs\nTcp: 9\n").expect_err("none").to_string();
        assert!(error.contains("/proc/net/snmp: it has neither ActiveOpens nor PassiveOpens"), "{error}");
    }

    #[test]
    fn this_host_has_both_tables() {
        let text = text(OF_THREAD).expect("this host");
        let (taken, skipped) = parsed(&text);
        assert_eq!(skipped, "");
        assert!(value(&taken.tcp, "TCPRcvCollapsed").is_some() && value(&taken.ip, "InOctets").is_some());
    }

    /// One round over these namespaces, all of which are younger than tcpmon; returns the sums after it.
    fn round(sums: &mut NamespaceSums, namespaces: &[(u64, &[(&str, u64)])]) -> Vec<(String, u64)> {
        for (number, counters) in namespaces {
            sums.add(*number, InitialValues::Counts, counters);
        }
        sums.end_round()
    }

    #[track_caller]
    fn same(sums: Vec<(String, u64)>, expected: &[(&str, u64)]) {
        let sums: Vec<_> = sums.iter().map(|(name, sum)| (name.as_str(), *sum)).collect();
        assert_eq!(sums, expected);
    }

    #[test]
    fn sums_follow_all_namespaces_and_are_in_the_order_of_names() {
        let mut sums = NamespaceSums::default();
        same(round(&mut sums, &[(1, &[("b", 10), ("a", 1)]), (2, &[("b", 5), ("a", 0)])]), &[("a", 1), ("b", 15)]);
        same(round(&mut sums, &[(1, &[("b", 12), ("a", 1)]), (2, &[("b", 6), ("a", 9)])]), &[("a", 10), ("b", 18)]);
    }

    #[test]
    fn the_counts_of_a_namespace_before_tcpmon_are_its_baseline() {
        let mut sums = NamespaceSums::default();
        sums.add(1, InitialValues::Baseline, &[("a", 1000), ("b", 0)]);
        same(sums.end_round(), &[("a", 0), ("b", 0)]);
        // Another old namespace, which was left for this sample, and a new one.
        sums.add(1, InitialValues::Baseline, &[("a", 1001), ("b", 2)]);
        sums.add(2, InitialValues::Baseline, &[("a", 5000), ("b", 5000)]);
        sums.add(3, InitialValues::Counts, &[("a", 30), ("b", 0)]);
        same(sums.end_round(), &[("a", 31), ("b", 2)]);
        sums.add(2, InitialValues::Baseline, &[("a", 5100), ("b", 5000)]);
        same(sums.end_round(), &[("a", 131), ("b", 2)]);
    }

    #[test]
    fn sums_never_decrease_when_namespaces_appear_vanish_or_reset() {
        let mut sums = NamespaceSums::default();
        same(round(&mut sums, &[(1, &[("a", 10)]), (2, &[("a", 100)])]), &[("a", 110)]);
        same(round(&mut sums, &[(1, &[("a", 11)])]), &[("a", 111)]);
        // Namespace 1 decreases and increases again, and there is another one.
        same(round(&mut sums, &[(1, &[("a", 4)]), (3, &[("a", 7)])]), &[("a", 118)]);
        same(round(&mut sums, &[(1, &[("a", 6)]), (3, &[("a", 7)])]), &[("a", 120)]);
    }

    #[test]
    fn a_namespace_that_was_unreadable_once_is_not_new_afterwards() {
        let mut sums = NamespaceSums::default();
        round(&mut sums, &[(1, &[("a", 10)])]);
        sums.keep(1);
        sums.keep(9);
        same(sums.end_round(), &[("a", 10)]);
        same(round(&mut sums, &[(1, &[("a", 12)]), (9, &[("a", 1)])]), &[("a", 13)]);
    }

    #[test]
    fn a_namespace_that_was_not_found_for_a_while_counts_from_where_it_was() {
        let mut sums = NamespaceSums::default();
        round(&mut sums, &[(1, &[("a", 10)])]);
        round(&mut sums, &[]);
        same(round(&mut sums, &[(1, &[("a", 12)])]), &[("a", 12)]);
        // Of many that are gone, the first ones are forgotten.
        for number in 2..=MAX_GONE as u64 + 2 {
            round(&mut sums, &[(number, &[("a", 0)])]);
        }
        assert_eq!((sums.namespaces.len(), sums.namespaces.contains_key(&1)), (MAX_GONE + 1, false));
    }

    #[test]
    fn names_may_differ_from_one_namespace_to_the_next() {
        let mut sums = NamespaceSums::default();
        round(&mut sums, &[(1, &[("a", 1), ("b", 2)]), (2, &[("b", 3), ("c", 4), ("a", 5)])]);
        same(round(&mut sums, &[(1, &[("b", 3)]), (2, &[("c", 5)])]), &[("a", 6), ("b", 6), ("c", 5)]);
    }

    #[test]
    fn a_counter_that_was_skipped_counts_from_where_it_was_or_from_its_first_value() {
        let mut sums = NamespaceSums::default();
        let mut at = |counters: &[(&str, u64)]| {
            // Old, and new.
            sums.add(1, InitialValues::Baseline, counters);
            sums.add(2, InitialValues::Counts, counters);
            sums.end_round()
        };
        same(at(&[("b", 100)]), &[("b", 100)]);
        // `a` was skipped before: all of it is counted only where it began at zero.
        same(at(&[("a", 1000), ("b", 101)]), &[("a", 1000), ("b", 102)]);
        same(at(&[("a", 1001)]), &[("a", 1002), ("b", 102)]);
        same(at(&[("a", 1001), ("b", 104)]), &[("a", 1002), ("b", 108)]);
        // A table that could not be used at first.
        let mut sums = NamespaceSums::default();
        sums.add(1, InitialValues::Baseline, &[]);
        sums.end_round();
        same(round(&mut sums, &[(1, &[("a", 7)])]), &[("a", 0)]);
    }

    proptest! {
        #[test]
        fn a_bad_line_costs_only_its_table(which in 0..2_usize, line in 0..4_usize, garbage in "[g-z# ]{0,20}") {
            let captured = [NETSTAT_6_12, NETSTAT_7_2][which];
            let mut expected = parsed(captured).0;
            let mut lines: Vec<_> = captured.lines().collect();
            if lines[line].starts_with("TcpExt:") { expected.tcp.clear() } else { expected.ip.clear() }
            lines[line] = &garbage;
            let text = lines.join("\n");
            let (taken, skipped) = parsed(&text);
            prop_assert_eq!(taken, expected);
            prop_assert!(skipped.starts_with("skipped 1 entry: cannot parse /proc/net/netstat: "), "{}", skipped);
        }

        #[test]
        fn no_text_can_panic_the_parser(text in "(?s).{0,200}", names in "[a-c ]{0,20}", values in "[0-9 -]{0,20}") {
            let _ = parse(&text);
            let lines = format!("TcpExt: {names}\nTcpExt: {values}\nIpExt: {names}\nIpExt: {values}\n");
            if let Ok(Parsed { value: taken, .. }) = parse(&lines) {
                prop_assert!(taken.tcp.len() <= names.split_whitespace().count());
            }
        }

        #[test]
        fn sums_never_go_backwards(
            rounds in prop::collection::vec(
                prop::collection::vec((0u64..4, any::<bool>(), "[a-d]", any::<u64>()), 0..12),
                1..12,
            ),
        ) {
            let mut sums = NamespaceSums::default();
            let mut before: HashMap<String, u64> = HashMap::new();
            for round in rounds {
                for (number, old, name, value) in &round {
                    let first = if *old { InitialValues::Baseline } else { InitialValues::Counts };
                    sums.add(*number, first, &[(name, *value)]);
                }
                let after: HashMap<String, u64> = sums.end_round().into_iter().collect();
                prop_assert!(before.iter().all(|(name, sum)| after.get(name) >= Some(sum)));
                before = after;
            }
        }
    }
}
