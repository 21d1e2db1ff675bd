//! The veths of pods: a host can have hundreds, which come and go. The first ones have metrics of their own; all others
//! are one device.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::host_state::Device;

/// Maximum number of veths with metrics of their own.
const MAX_NAMED: usize = 64;

/// Name of the device that stands for all others.
const OTHERS: &str = "veth*";

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Veths {
    /// By index of the device, for as long as it exists.
    places: HashMap<u32, ShownAs>,
    /// Sums of the counters of all others, including removed devices.
    sums: BTreeMap<String, u64>,
}

/// How a device is shown. This does not change while the device exists: otherwise, its counts would be shown twice.
#[derive(Debug)]
enum ShownAs {
    Named,
    /// Among the others, with its part of their sums, by counter.
    Summed(HashMap<String, u64>),
}

impl Veths {
    /// All veths of a reading as they are shown. They are given with their indexes and with totals that never decrease.
    pub(super) fn merge(&mut self, mut veths: Vec<(u32, Device)>) -> Vec<Device> {
        let living: HashSet<u32> = veths.iter().map(|(index, _)| *index).collect();
        self.places.retain(|index, _| living.contains(index));
        let mut named = self.places.values().filter(|place| matches!(place, ShownAs::Named)).count();
        // The oldest ones first: they are the most likely to stay.
        veths.sort_by_key(|(index, _)| *index);
        let mut shown = Vec::new();
        for (index, device) in veths {
            let place = self.places.entry(index).or_insert_with(|| {
                if named >= MAX_NAMED {
                    return ShownAs::Summed(HashMap::new());
                }
                named += 1;
                ShownAs::Named
            });
            match place {
                ShownAs::Named => shown.push(device),
                ShownAs::Summed(counted) => {
                    for (counter, total) in device.overruns {
                        let before = counted.insert(counter.clone(), total).unwrap_or(0);
                        *self.sums.entry(counter).or_default() += total.saturating_sub(before);
                    }
                }
            }
        }
        if !self.sums.is_empty() {
            let overruns = self.sums.iter().map(|(counter, sum)| (counter.clone(), *sum)).collect();
            shown.push(Device { name: OTHERS.to_owned(), overruns, ring: None });
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Devices with these indexes and counts.
    fn veths(counts: impl IntoIterator<Item = (u32, u64)>) -> Vec<(u32, Device)> {
        let device = |(index, count)| {
            let overruns = vec![("tx_dropped".to_owned(), count)];
            (index, Device { name: format!("veth{index}"), overruns, ring: None })
        };
        counts.into_iter().map(device).collect()
    }

    fn count(shown: &[Device], name: &str) -> Option<u64> {
        shown.iter().find(|device| device.name == name).map(|device| device.overruns[0].1)
    }

    #[test]
    fn up_to_64_veths_keep_their_names() {
        let shown = Veths::default().merge(veths((1..=64).map(|index| (index, 7))));
        assert_eq!((shown.len(), count(&shown, "veth64"), count(&shown, OTHERS)), (64, Some(7), None));
    }

    #[test]
    fn of_70_veths_six_are_summed_and_those_that_were_named_first_keep_their_names() {
        let mut veths_of_host = Veths::default();
        veths_of_host.merge(veths((11..=70).map(|index| (index, 1))));
        // Older ones by their index, which have come from another namespace.
        let shown = veths_of_host.merge(veths((1..=70).map(|index| (index, 2))));
        assert_eq!(shown.len(), 65);
        assert_eq!((count(&shown, "veth70"), count(&shown, "veth4"), count(&shown, "veth5")), (Some(2), Some(2), None));
        assert_eq!(count(&shown, OTHERS), Some(6 * 2));
    }

    #[test]
    fn the_sum_keeps_the_counts_of_removed_devices() {
        let mut veths_of_host = Veths::default();
        let all = |count| (1..=70).map(move |index| (index, count));
        assert_eq!(count(&veths_of_host.merge(veths(all(10))), OTHERS), Some(60));
        let shown = veths_of_host.merge(veths(all(15).filter(|(index, _)| *index < 68)));
        assert_eq!(count(&shown, OTHERS), Some(60 + 3 * 5));
        // A device with a reused index is another device, and its count starts again.
        assert_eq!(count(&veths_of_host.merge(veths(all(16))), OTHERS), Some(75 + 3 + 3 * 16));
        let shown = veths_of_host.merge(veths([(1, 20)]));
        assert_eq!((shown.len(), count(&shown, OTHERS)), (2, Some(126)));
        // Places are free again, but not for devices that were summed before.
        let shown = veths_of_host.merge(veths([(1, 20), (71, 4)]));
        assert_eq!((count(&shown, "veth71"), count(&shown, OTHERS)), (Some(4), Some(126)));
    }

    proptest! {
        /// Everything that was counted is shown, by name or in the sum, except for named devices that are gone.
        #[test]
        fn the_sum_never_decreases_and_counts_nothing_twice(
            readings in proptest::collection::vec(proptest::collection::btree_map(1..100u32, 0..50u64, 60..99), 1..8),
        ) {
            let mut veths_of_host = Veths::default();
            let mut totals: BTreeMap<u32, u64> = BTreeMap::new();
            let (mut counted, mut gone_named, mut before) = (0, 0, Vec::<Device>::new());
            for reading in readings {
                for (index, total) in totals.extract_if(.., |index, _| !reading.contains_key(index)) {
                    let was_named = count(&before, &format!("veth{index}")).is_some();
                    gone_named += if was_named { total } else { 0 };
                }
                for (index, by) in reading {
                    *totals.entry(index).or_default() += by;
                    counted += by;
                }
                let shown = veths_of_host.merge(veths(totals.clone()));
                prop_assert!(shown.len() <= MAX_NAMED + 1 && count(&before, OTHERS) <= count(&shown, OTHERS));
                let sum: u64 = shown.iter().map(|device| device.overruns[0].1).sum();
                prop_assert_eq!(sum + gone_named, counted);
                before = shown;
            }
        }
    }
}
