//! Network devices: packets that found no room in the receive ring, and the size of the ring.
//!
//! rtnetlink lists the devices with their counters. The driver is asked (over ethtool) for its name, its ring and, if
//! it is known to have the counter that matters, its statistics. A device is of interest if it is on a bus: such
//! devices have a ring of descriptors. Of all others (loopback, bridges, bonds, VLANs, tunnels, tun), only veth has
//! something like a ring, and it has no driver that could be asked.

mod drivers;
mod ethtool;
#[cfg(test)]
mod tests;
mod veths;

use std::collections::HashMap;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage, Stats64};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::monotone::{Monotone, Width};
use super::netlink::dump;
use crate::model::host::{Device, Ring};
use drivers::{Counter, Statistic, VETH};
use ethtool::{Buffer, Ethtool};
use veths::Veths;

/// Reads the devices of the calling thread's network namespace.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    totals: Monotone<Key>,
    picks: HashMap<u32, Picks>,
    veths: Veths,
    buffer: Buffer,
}

/// Result of one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The devices, sorted by name; the veths beyond the first 64 are one device.
    pub(crate) devices: Vec<Device>,
    /// What could not be read of a device, one sentence each.
    pub(crate) notes: Vec<String>,
}

/// The list of devices could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot list network devices over rtnetlink: {0}; allow sockets of the family AF_NETLINK")]
pub(crate) struct CannotList(#[source] io::Error);

/// Index and name of a device, and name of a counter. A device that is renamed, or created again under an old name,
/// starts new counters: scrapers see a reset.
type Key = (u32, String, &'static str);

/// One device as rtnetlink shows it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Link {
    index: u32,
    name: String,
    veth: bool,
    on_a_bus: bool,
    counters: Stats64,
}

/// What a driver reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answers {
    driver: String,
    ring: Option<Ring>,
    statistics: Vec<(&'static str, u64)>,
}

/// Positions of the wanted statistics among those of a driver. The names are read once and not kept: they take 32 bytes
/// each, and a large NIC has thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Picks {
    driver: String,
    count: usize,
    places: Vec<(&'static str, Vec<usize>)>,
}

/// One value of an exported counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overrun {
    counter: &'static str,
    value: u64,
    width: Width,
}

impl Devices {
    /// Reads all devices.
    ///
    /// Some drivers query their firmware for their statistics, and the kernel lets no device be changed until they have
    /// them: do not call this more often than somebody looks at the result.
    ///
    /// # Errors
    /// rtnetlink does not answer. If a single device does not answer, that is a note and not an error; its other
    /// counters are there.
    pub(crate) fn read(&mut self) -> Result<Reading, CannotList> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = dump(NETLINK_ROUTE, request).map_err(CannotList)?;
        let mut links: Vec<Link> = answers.into_iter().filter_map(Link::of_interest).collect();
        links.sort_by(|a, b| a.name.cmp(&b.name));

        let mut ethtool = Ethtool::open(&mut self.buffer).map_err(CannotList)?;
        let mut notes = Vec::new();
        // A device that was removed or renamed since the list was made is left out.
        let mut answer = |link| ask(&mut ethtool, &link, &mut self.picks, &mut notes).map(|answers| (link, answers));
        let asked: Vec<_> = links.into_iter().filter_map(&mut answer).collect();
        self.picks.retain(|index, _| asked.iter().any(|(link, _)| link.index == *index));
        Ok(Reading { devices: self.add(&asked), notes })
    }

    /// Turns the counters of one round into totals.
    fn add(&mut self, asked: &[(Link, Answers)]) -> Vec<Device> {
        let (mut devices, mut veths) = (Vec::new(), Vec::new());
        for (link, answers) in asked {
            let overruns = overruns(&answers.driver, &link.counters, &answers.statistics).into_iter();
            let overruns = overruns.map(|Overrun { counter, value, width }| {
                let key = (link.index, link.name.clone(), counter);
                (counter.to_owned(), self.totals.advance(key, value, width))
            });
            let device = Device { name: link.name.clone(), overruns: overruns.collect(), ring: answers.ring };
            if link.veth {
                veths.push((link.index, device));
            } else {
                devices.push(device);
            }
        }
        self.totals.end_round();
        devices.extend(self.veths.gather(veths));
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices
    }
}

impl Link {
    /// The device in a message, if it has a receive ring or something like it.
    fn of_interest(message: RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewLink(message) = message else { return None };
        let mut link = Self { index: message.header.index, ..Self::default() };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::ParentDevName(_) => link.on_a_bus = true,
                LinkAttribute::Stats64(counters) => link.counters = counters,
                LinkAttribute::LinkInfo(info) => link.veth = info.contains(&LinkInfo::Kind(InfoKind::Veth)),
                _ => {}
            }
        }
        (link.veth || link.on_a_bus).then_some(link)
    }
}

/// What the driver of a device reports; `None` if the device is gone.
fn ask(
    ethtool: &mut Ethtool,
    link: &Link,
    picks: &mut HashMap<u32, Picks>,
    notes: &mut Vec<String>,
) -> Option<Answers> {
    if link.veth {
        return Some(Answers { driver: VETH.to_owned(), ..Answers::default() });
    }
    let mut answers = Answers::default();
    let mut count = 0;
    match ethtool.driver(&link.name) {
        Ok(driver) => (answers.driver, count) = (driver.name, driver.statistics),
        // The driver does not report its name: it counts as unknown.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => note(notes, &link.name, "the name of its driver", error, "it counts as unknown")?,
    }
    match ethtool.receive_ring(&link.name) {
        Ok(ring) => answers.ring = ring,
        Err(error) => note(notes, &link.name, "its receive ring", error, "the size is missing")?,
    }
    let wanted = || drivers::counters(&answers.driver).iter().any(|counter| matches!(counter, Counter::Statistic(_)));
    if count > 0 && wanted() {
        let known = picks.entry(link.index).or_default();
        match read_statistics(ethtool, &link.name, &answers.driver, count, known) {
            Ok(statistics) => answers.statistics = statistics,
            Err(error) => {
                let what = format!("the statistics of its driver {}", answers.driver);
                note(notes, &link.name, &what, error, "the overruns among them are missing")?;
            }
        }
    }
    Some(answers)
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
    device: &str,
    driver: &str,
    count: usize,
    known: &mut Picks,
) -> io::Result<Vec<(&'static str, u64)>> {
    if known.driver != driver || known.count != count {
        *known = Picks::new(driver, &ethtool.names(device, count)?);
    }
    Ok(known.sums(&ethtool.statistics(device, count)?))
}

impl Picks {
    fn new(driver: &str, names: &[String]) -> Self {
        let places_of = |statistic: &Statistic| {
            let places = names.iter().enumerate().filter(|(_, name)| statistic.is(name)).map(|(place, _)| place);
            (statistic.name, places.collect::<Vec<_>>())
        };
        let first_there = |counter: &Counter| match counter {
            Counter::Statistic(names) => names.iter().map(places_of).find(|(_, places)| !places.is_empty()),
            Counter::Link(..) => None,
        };
        let places = drivers::counters(driver).iter().filter_map(first_there).collect();
        Self { driver: driver.to_owned(), count: names.len(), places }
    }

    /// Sums over the queues.
    fn sums(&self, values: &[u64]) -> Vec<(&'static str, u64)> {
        let value = |place: &usize| values.get(*place).copied().unwrap_or_default();
        let sum = |places: &[usize]| places.iter().map(value).fold(0, u64::saturating_add);
        self.places.iter().map(|(name, places)| (*name, sum(places))).collect()
    }
}

/// The counters of a device, in the order of the driver's table.
fn overruns(driver: &str, link: &Stats64, statistics: &[(&'static str, u64)]) -> Vec<Overrun> {
    let value = |counter: &Counter| match *counter {
        Counter::Link(field, width) => Some(Overrun { counter: field.name(), value: field.value(link), width }),
        Counter::Statistic(names) => statistics
            .iter()
            .find(|(name, _)| names.iter().any(|statistic| statistic.name == *name))
            .map(|&(counter, value)| Overrun { counter, value, width: Width::Bits64 }),
    };
    drivers::counters(driver).iter().filter_map(value).collect()
}
