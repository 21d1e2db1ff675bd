//! `/proc/net/softnet_stat`: what each CPU did with received packets.

use std::collections::BTreeMap;

use super::{
    file::{FileError, malformed, number, read},
    monotonic::{CounterWidth, MonotonicTotals},
};
use crate::model::host::Softnet;

const STAT: &str = "/proc/net/softnet_stat";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Column of the CPU's number, counted from 0 (Linux 5.10, commit 7d58e6555870).
const CPU: usize = 12;

/// Totals of all CPUs. The kernel's counters have 32 bits and wrap.
#[derive(Debug, Default)]
pub struct SoftnetCounters {
    totals: MonotonicTotals<(u32, usize)>,
    /// Every CPU that was ever online, by its number.
    seen: BTreeMap<u32, Softnet>,
}

impl SoftnetCounters {
    /// The CPUs, in the order of their numbers. One that has gone offline keeps its totals: the kernel does, too, and
    /// shows them again when the CPU is back.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn read(&mut self) -> Result<Vec<Softnet>, FileError> {
        let stat = read(STAT, "mount /proc")?;
        // Only kernels before 5.10 need it: there, `parse` fails without it.
        let online = read(ONLINE, "mount /sys").unwrap_or_default();
        Ok(self.advance(parse(&stat, &online)?))
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

/// The counters as the kernel has them. If a line has no CPU number, the n-th line is that of the n-th online CPU (from
/// the text of `/sys/devices/system/cpu/online`).
///
/// # Errors
/// [`FileError::Malformed`].
pub fn parse(stat: &str, online: &str) -> Result<Vec<Softnet>, FileError> {
    let mut online = cpus(online)?;
    let mut all = Vec::new();
    for line in stat.lines() {
        let columns = line
            .split_ascii_whitespace()
            .map(|word| u32::from_str_radix(word, 16))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| malformed(STAT, format!("{line:?} is not hexadecimal")))?;
        // Every kernel has these nine columns; others were only ever added after them.
        let [processed, dropped, time_squeezed, _, _, _, _, _, _, ..] = columns[..] else {
            return Err(malformed(STAT, format!("{line:?} has fewer than 9 columns")));
        };
        let nth = online.next();
        let Some(cpu) = columns.get(CPU).copied().or(nth) else {
            return Err(malformed(STAT, format!("it has more lines than {ONLINE} has CPUs")));
        };
        let [processed, dropped, time_squeezed] = [processed, dropped, time_squeezed].map(u64::from);
        all.push(Softnet { cpu, processed, dropped, time_squeezed });
    }
    if all.is_empty() { Err(malformed(STAT, "it is empty")) } else { Ok(all) }
}

/// The number of CPUs that are online; 0 if the kernel does not say.
pub(crate) fn online_cpus() -> u32 {
    let online = read(ONLINE, "mount /sys").and_then(|list| cpus(&list).map(Iterator::count));
    online.map_or(0, |cpus| u32::try_from(cpus).unwrap_or(u32::MAX))
}

/// A list such as `0-3,8`, without allocating memory for its range.
fn cpus(list: &str) -> Result<impl Iterator<Item = u32> + use<>, FileError> {
    let mut ranges = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        ranges.push(number(ONLINE, "a CPU", Some(first))?..=number(ONLINE, "a CPU", Some(last))?);
    }
    Ok(ranges.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn softnet(cpu: u32, processed: u64, dropped: u64, time_squeezed: u64) -> Softnet {
        Softnet { cpu, processed, dropped, time_squeezed }
    }

    #[test]
    fn a_cpu_number_in_the_line_is_used() {
        // 13 columns, 15 columns.
        let taken = parse(include_str!("captured/5.10/proc_net_softnet_stat"), "").expect("5.10");
        assert_eq!(taken, [softnet(0, 0x440d, 0x1b08, 0xf1), softnet(1, 0x55da, 0x132f, 0x8d)]);
        let taken = parse(include_str!("captured/6.12/proc_net_softnet_stat"), "4-9").expect("6.12");
        assert_eq!(taken, [softnet(0, 0x687e, 0x5180, 0x22d), softnet(1, 0xae3, 0, 0x90)]);
    }

    #[test]
    fn lines_without_a_cpu_number_belong_to_the_online_cpus_in_order() {
        // Written by hand, from the format strings of Linux 2.6.32 (9), 2.6.35 (10) and 3.13 (11 columns).
        for columns in [9, 10, 11] {
            let line = |first: &str| format!("{first}{}\n", " 00000000".repeat(columns - 3));
            let text = line("0000000a 00000001 00000002") + &line("ffffffff 00000000 00000003");
            let taken = parse(&text, "0,8-9\n").expect("understood");
            assert_eq!(taken, [softnet(0, 10, 1, 2), softnet(8, 0xffff_ffff, 0, 3)], "{columns} columns");
            let error = parse(&text, "0\n").expect_err("two lines, one CPU").to_string();
            assert!(error.contains("more lines than /sys/devices/system/cpu/online has CPUs"), "{error}");
        }
    }

    #[test]
    fn malformed_tables_are_refused_with_the_reason() {
        let refused = |stat, online, part: &str| {
            let error = parse(stat, online).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        };
        refused("", "0", "softnet_stat: it is empty");
        refused("0000000a 0 0 0 0 0 0 0", "0", "fewer than 9 columns");
        refused("0000000a 0", "0", "fewer than 9 columns");
        refused("0 0 0 0 x 0 0 0 0", "0", "is not hexadecimal");
        refused("0 0 0 0 100000000 0 0 0 0", "0", "is not hexadecimal");
        refused("0 0 0 0 0 0 0 0 0", "0-x", "online: a CPU is \"x\"");
    }

    #[test]
    fn lists_of_cpus_are_ranges_and_numbers() {
        let list = |text| cpus(text).map(|cpus| cpus.take(6).collect::<Vec<_>>()).ok();
        assert_eq!(list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(list("0"), Some(vec![0]));
        assert_eq!(list("\n"), Some(vec![]));
        assert_eq!(list("0-4294967295"), Some(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(list("0--3"), None);
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
    fn this_host_lists_the_cpus_that_are_online_and_does_not_run_backwards() {
        let mut counters = SoftnetCounters::default();
        let [before, after] = [(); 2].map(|()| counters.read().expect("this host"));
        let online = cpus(&read(ONLINE, "").expect("/sys")).expect("a list");
        assert_eq!(before.iter().map(|cpu| cpu.cpu).collect::<Vec<_>>(), online.collect::<Vec<_>>());
        assert!(before.iter().zip(&after).all(|(before, after)| before.processed <= after.processed));
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parser(
            stat in "(?s).{0,200}", rows in "([0-9a-g]{1,9}[ \n]){0,40}", online in "[0-9,-]{0,20}",
        ) {
            let _ = parse(&stat, &online);
            let _ = parse(&rows, &online);
        }
    }
}
