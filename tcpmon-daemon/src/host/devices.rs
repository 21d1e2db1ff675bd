//! Network devices: packets that found no room in the receive ring, and the size of the ring.
//!
//! rtnetlink lists the devices with their counters. ethtool queries the driver for its name, its ring and, if
//! it is known to have the counter that matters, its statistics. A device is of interest if it is on a bus: such
//! devices have a ring of descriptors. Of all others (loopback, bridges, bonds, VLANs, tunnels, tun), only veth has
//! something like a ring, and it has no driver that ethtool could query.

mod drivers;
mod ethtool;
#[cfg(test)]
mod tests;
mod veths;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;

use super::link::{self, Link, LinkStats, ListError};
use super::monotonic::{CounterWidth, MonotonicTotals};
use super::netlink;
use crate::host_state::{Device, Ring};
use drivers::{OverrunCounter, Statistic, VETH};
pub(crate) use ethtool::{Buffer, Ethtool};
use veths::Veths;

/// Reads the devices of the calling thread's network namespace.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    totals: MonotonicTotals<CounterKey>,
    positions: HashMap<u32, StatisticPositions>,
    veths: Veths,
    buffer: Buffer,
}

/// Result of one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DevicesSample {
    /// The devices, sorted by name; the veths beyond the first 64 are one device.
    pub(crate) devices: Vec<Device>,
    /// What could not be read of a device, one sentence each.
    pub(crate) notes: Vec<String>,
}

/// The devices could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevicesError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error("cannot open a socket for ethtool: {0}: {remedy}", remedy = netlink::remedy(.0))]
    Ethtool(#[source] io::Error),
}

/// Index and name of a device, and name of a counter. A device that is renamed, or created again under an old name,
/// starts new counters: scrapers see a reset.
type CounterKey = (u32, String, &'static str);

/// What a driver reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DriverReport {
    driver: String,
    ring: Option<Ring>,
    statistics: Vec<(&'static str, u64)>,
}

/// Positions of the wanted statistics among those of a driver. The names are read once and not kept: they take 32 bytes
/// each, and a large NIC has thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StatisticPositions {
    driver: String,
    count: usize,
    positions: Vec<(&'static str, Vec<usize>)>,
}

/// One value of an exported counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overrun {
    counter: &'static str,
    value: u64,
    width: CounterWidth,
}

impl Devices {
    /// Reads all devices.
    ///
    /// Some drivers query their firmware for their statistics, and the kernel holds RTNL until they have them: call
    /// this no more often than the result is used.
    ///
    /// # Errors
    /// rtnetlink does not answer. If a single device does not answer, that is a note and not an error; its other
    /// counters are there.
    pub(crate) fn read(&mut self) -> Result<DevicesSample, DevicesError> {
        let (mut links, skipped) = link::list()?;
        links.retain(has_ring);
        links.sort_by(|a, b| a.name.cmp(&b.name));

        let mut ethtool = Ethtool::open(&mut self.buffer).map_err(DevicesError::Ethtool)?;
        let mut notes: Vec<String> = Some(link::skipped(skipped)).filter(|note| !note.is_empty()).into_iter().collect();
        // A device that was removed or renamed since the list was made is left out.
        let mut answer =
            |link| query_driver(&mut ethtool, &link, &mut self.positions, &mut notes).map(|answers| (link, answers));
        let answered: Vec<_> = links.into_iter().filter_map(&mut answer).collect();
        self.positions.retain(|index, _| answered.iter().any(|(link, _)| link.index == *index));
        Ok(DevicesSample { devices: self.add(&answered), notes })
    }

    /// Turns the counters of one round into totals.
    fn add(&mut self, answered: &[(Link, DriverReport)]) -> Vec<Device> {
        let (mut devices, mut veths) = (Vec::new(), Vec::new());
        for (link, answers) in answered {
            let overruns = overruns(&answers.driver, link.counters.as_ref(), &answers.statistics).into_iter();
            let overruns = overruns.map(|Overrun { counter, value, width }| {
                let key = (link.index, link.name.clone(), counter);
                (counter.to_owned(), self.totals.advance(key, value, width))
            });
            let device = Device { name: link.name.clone(), overruns: overruns.collect(), ring: answers.ring };
            if link.is_veth {
                veths.push((link.index, device));
            } else {
                devices.push(device);
            }
        }
        // A counter that could not be read this time goes on from where it was.
        let living: HashSet<_> = answered.iter().map(|(link, _)| (link.index, link.name.as_str())).collect();
        self.totals.retain(|(index, name, _)| living.contains(&(*index, name.as_str())));
        devices.extend(self.veths.merge(veths));
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices
    }
}

/// Whether a device has a receive ring or something like it.
fn has_ring(link: &Link) -> bool {
    link.is_veth || link.is_on_a_bus
}

/// What the driver of a device reports; `None` if the device is gone.
fn query_driver(
    ethtool: &mut Ethtool,
    link: &Link,
    positions: &mut HashMap<u32, StatisticPositions>,
    notes: &mut Vec<String>,
) -> Option<DriverReport> {
    if link.is_veth {
        return Some(DriverReport { driver: VETH.to_owned(), ..DriverReport::default() });
    }
    let mut answers = DriverReport::default();
    let mut count = 0;
    match ethtool.driver(&link.system_name) {
        Ok(driver) => (answers.driver, count) = (driver.name, driver.statistics),
        // The driver does not report its name: it counts as unknown.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => note(notes, &link.name, "the name of its driver", error, "it is treated as an unknown driver")?,
    }
    match ethtool.receive_ring(&link.system_name) {
        Ok(ring) => answers.ring = ring,
        Err(error) => note(notes, &link.name, "its receive ring", error, "its size is missing")?,
    }
    let wanted =
        || drivers::counters(&answers.driver).iter().any(|counter| matches!(counter, OverrunCounter::Statistic(_)));
    if count > 0 && wanted() {
        let known = positions.entry(link.index).or_default();
        match read_statistics(ethtool, &link.system_name, &answers.driver, count, known) {
            Ok(statistics) => answers.statistics = statistics,
            Err(error) => {
                let what = format!("the statistics of its driver {}", answers.driver);
                note(notes, &link.name, &what, error, "their receive ring overruns are missing")?;
            }
        }
    }
    Some(answers)
}

/// Decodes any words as the answers of a driver, up to its receive ring.
#[cfg(feature = "full")]
pub(crate) fn decode_any(words: &[u32]) {
    let (driver, names, statistics) = ethtool::decode_any(words);
    let positions = StatisticPositions::new(&driver.name, &names);
    overruns(&driver.name, Some(&LinkStats::default()), &positions.sums(&statistics));
}

/// Notes what could not be read and what is missing because of that; `None` if the reason is that the device is gone.
fn note(notes: &mut Vec<String>, device: &str, what: &str, error: io::Error, lost: &str) -> Option<()> {
    if error.raw_os_error() == Some(libc::ENODEV) {
        return None;
    }
    notes.push(format!("{device}: cannot read {what}: {error}; {lost}"));
    Some(())
}

/// Reads the wanted statistics of a driver.
fn read_statistics(
    ethtool: &mut Ethtool,
    device: &OsStr,
    driver: &str,
    count: usize,
    known: &mut StatisticPositions,
) -> io::Result<Vec<(&'static str, u64)>> {
    if known.driver != driver || known.count != count {
        *known = StatisticPositions::new(driver, &ethtool.names(device, count)?);
    }
    Ok(known.sums(&ethtool.statistics(device, count)?))
}

impl StatisticPositions {
    fn new(driver: &str, names: &[String]) -> Self {
        let positions_of = |statistic: &Statistic| {
            let positions = names.iter().enumerate().filter(|(_, name)| statistic.is(name)).map(|(place, _)| place);
            (statistic.name, positions.collect::<Vec<_>>())
        };
        let first_present = |counter: &OverrunCounter| match counter {
            OverrunCounter::Statistic(names) => {
                names.iter().map(positions_of).find(|(_, positions)| !positions.is_empty())
            }
            OverrunCounter::Link(..) => None,
        };
        let positions = drivers::counters(driver).iter().filter_map(first_present).collect();
        Self { driver: driver.to_owned(), count: names.len(), positions }
    }

    /// Sums over the queues.
    fn sums(&self, values: &[u64]) -> Vec<(&'static str, u64)> {
        let value = |place: &usize| values.get(*place).copied().unwrap_or_default();
        let sum = |positions: &[usize]| positions.iter().map(value).fold(0, u64::saturating_add);
        self.positions.iter().map(|(name, positions)| (*name, sum(positions))).collect()
    }
}

/// The counters of a device that could be read, in the order of the driver's table.
fn overruns(driver: &str, link: Option<&LinkStats>, statistics: &[(&'static str, u64)]) -> Vec<Overrun> {
    let value = |counter: &OverrunCounter| match *counter {
        OverrunCounter::Link(field, width) => {
            link.map(|link| Overrun { counter: field.name(), value: field.value(link), width })
        }
        OverrunCounter::Statistic(names) => statistics
            .iter()
            .find(|(name, _)| names.iter().any(|statistic| statistic.name == *name))
            .map(|&(counter, value)| Overrun { counter, value, width: CounterWidth::Bits64 }),
    };
    drivers::counters(driver).iter().filter_map(value).collect()
}
