//! `/proc/net/softnet_stat`: what each CPU did with received packets.

use std::collections::BTreeMap;

use super::{
    file::{FileError, Parsed, Skipped, malformed, read},
    monotonic::{CounterWidth, MonotonicTotals},
};
use crate::host_state::Softnet;

const STAT: &str = "/proc/net/softnet_stat";

/// Column of the CPU's number, counted from 0 (since Linux 5.10, commit 7d58e6555870).
const CPU: usize = 12;

/// Totals of all CPUs. The kernel's counters have 32 bits and wrap.
#[derive(Debug, Default)]
pub struct SoftnetCounters {
    totals: MonotonicTotals<(u32, usize)>,
    /// Every CPU that was ever online, by its number.
    seen: BTreeMap<u32, Softnet>,
}

impl SoftnetCounters {
    /// The CPUs, in the order of their numbers. A CPU that has gone offline keeps its totals: the kernel keeps them,
    /// too, and shows them again when the CPU is back. A CPU whose line is skipped also keeps its totals.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn read(&mut self) -> Result<Parsed<Vec<Softnet>>, FileError> {
        let Parsed { value, skipped } = parse(&read(STAT, "mount /proc")?)?;
        Ok(Parsed { value: self.advance(value), skipped })
    }

    fn advance(&mut self, online: Vec<Softnet>) -> Vec<Softnet> {
        for mut counters in online {
            let Softnet { cpu, processed, dropped, time_squeezed } = &mut counters;
            for (column, value) in [processed, dropped, time_squeezed].into_iter().enumerate() {
                *value = self.totals.advance((*cpu, column), *value, CounterWidth::Bits32);
            }
            self.seen.insert(counters.cpu, counters);
        }
        self.seen.values().copied().collect()
    }
}

/// The counters as the kernel has them. A line that cannot be parsed is skipped.
///
/// # Errors
/// [`FileError::Malformed`]: no line can be used.
pub fn parse(text: &str) -> Result<Parsed<Vec<Softnet>>, FileError> {
    let mut skipped = Skipped::default();
    let cpus: Vec<_> = text.lines().filter_map(|line| skipped.keep(cpu(line))).collect();
    skipped.parsed((!cpus.is_empty()).then_some(cpus), || malformed(STAT, "it is empty"))
}

/// The number of CPUs that are online, of which each has a line; 0 if the kernel does not say.
pub(crate) fn online_cpus() -> u32 {
    read(STAT, "mount /proc").map_or(0, |text| u32::try_from(text.lines().count()).unwrap_or(u32::MAX))
}

fn cpu(line: &str) -> Result<Softnet, FileError> {
    let columns = line
        .split_ascii_whitespace()
        .map(|word| u32::from_str_radix(word, 16))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| malformed(STAT, format!("a line is not hexadecimal: {line:?}")))?;
    let (Some([processed, dropped, time_squeezed]), Some(cpu)) = (columns.first_chunk(), columns.get(CPU)) else {
        return Err(malformed(STAT, format!("a line has fewer than {} columns: {line:?}", CPU + 1)));
    };
    let [processed, dropped, time_squeezed] = [*processed, *dropped, *time_squeezed].map(u64::from);
    Ok(Softnet { cpu: *cpu, processed, dropped, time_squeezed })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn softnet(cpu: u32, processed: u64, dropped: u64, time_squeezed: u64) -> Softnet {
        Softnet { cpu, processed, dropped, time_squeezed }
    }

    /// The counters, and the sentence on what was skipped.
    fn parsed(text: &str) -> (Vec<Softnet>, String) {
        let Parsed { value, skipped } = parse(text).expect("some lines can be used");
        (value, skipped.to_string())
    }

    const CAPTURED: [&str; 2] = [
        include_str!("captured/5.10/proc_net_softnet_stat"), // 13 columns
        include_str!("captured/6.12/proc_net_softnet_stat"), // 15 columns
    ];

    #[test]
    fn each_line_is_the_cpu_that_it_names() {
        let (taken, skipped) = parsed(CAPTURED[0]);
        assert_eq!(taken, [softnet(0, 0x440d, 0x1b08, 0xf1), softnet(1, 0x55da, 0x132f, 0x8d)]);
        assert_eq!(skipped, "");
        let (taken, _) = parsed(CAPTURED[1]);
        assert_eq!(taken, [softnet(0, 0x687e, 0x5180, 0x22d), softnet(1, 0xae3, 0, 0x90)]);
    }

    #[test]
    fn a_table_without_a_good_line_is_refused_with_the_reason() {
        for (text, part) in [
            ("", "softnet_stat: it is empty"),
            ("0 0 0 0 0 0 0 0 0 0 0 0\n", "a line has fewer than 13 columns: \"0 0 "),
            ("0 0 0 0 x 0 0 0 0 0 0 0 0\n0\n", "a line is not hexadecimal: \"0 0 0 0 x "),
            ("0 0 0 0 100000000 0 0 0 0 0 0 0 0\n", "is not hexadecimal"),
        ] {
            let error = parse(text).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn totals_continue_when_the_kernel_counter_wraps() {
        let mut counters = SoftnetCounters::default();
        let wrap = u64::from(u32::MAX);
        counters.advance(vec![softnet(3, wrap, wrap - 1, 7)]);
        let taken = counters.advance(vec![softnet(3, 1, 0, 8)]);
        assert_eq!(taken, [softnet(3, wrap + 2, wrap + 1, 8)]);
    }

    #[test]
    fn a_cpu_that_is_offline_keeps_its_totals_and_goes_on_from_there() {
        let mut counters = SoftnetCounters::default();
        let wrap = u64::from(u32::MAX);
        counters.advance(vec![softnet(0, 1, 0, 0), softnet(1, wrap, 2, 3)]);
        counters.advance(vec![softnet(0, 1, 0, 0), softnet(1, 9, 2, 3)]);
        let kept = softnet(1, wrap + 10, 2, 3);
        assert_eq!(counters.advance(vec![softnet(0, 2, 0, 0)]), [softnet(0, 2, 0, 0), kept]);
        let back = counters.advance(vec![softnet(0, 2, 0, 0), softnet(1, 10, 2, 4)]);
        assert_eq!(back, [softnet(0, 2, 0, 0), softnet(1, wrap + 11, 2, 4)]);
    }

    #[test]
    fn a_cpu_whose_line_is_skipped_once_keeps_its_totals() {
        let mut counters = SoftnetCounters::default();
        let mut read = |text: &str| counters.advance(parsed(text).0);
        let before = read(CAPTURED[0]);
        let first_line = CAPTURED[0].lines().next().expect("two CPUs");
        assert_eq!(read(&CAPTURED[0].replace(first_line, "?")), before);
        assert_eq!(read(CAPTURED[0]), before);
    }

    #[test]
    fn this_host_lists_the_cpus_that_are_online_and_does_not_run_backwards() {
        let mut counters = SoftnetCounters::default();
        let [before, after] = [(); 2].map(|()| counters.read().expect("this host").value);
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").expect("/proc");
        let numbers = cpuinfo.lines().filter_map(|line| line.strip_prefix("processor\t: ")?.parse().ok());
        assert_eq!(before.iter().map(|cpu| cpu.cpu).collect::<Vec<_>>(), numbers.collect::<Vec<u32>>());
        assert!(before.iter().zip(&after).all(|(before, after)| before.processed <= after.processed));
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parser(text in "(?s).{0,200}", rows in "([0-9a-g]{1,9}[ \n]){0,40}") {
            let _ = parse(&text);
            let _ = parse(&rows);
        }

        #[test]
        fn a_bad_line_costs_only_itself(which in 0..2_usize, line in 0..2_usize, garbage in "[g-z# ]{0,20}") {
            let mut expected = parsed(CAPTURED[which]).0;
            expected.remove(line);
            let mut lines: Vec<_> = CAPTURED[which].lines().collect();
            lines[line] = &garbage;
            let (taken, skipped) = parsed(&format!("{}\n", lines.join("\n")));
            prop_assert_eq!(taken, expected);
            prop_assert!(skipped.starts_with("skipped 1 entry: cannot parse /proc/net/softnet_stat: "), "{}", skipped);
        }
    }
}
