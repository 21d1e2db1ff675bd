//! Network devices: rtnetlink and ethtool, which answer for the network namespace of this process, and sysfs, which may
//! show another one.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use super::{cpu_list, file};
use crate::{
    doctor::facts::{DeviceFacts, Fact, PcieLink, PcieRate},
    host::{
        Buffer, Ethtool,
        link::{self, Link},
        qdisc::{self, Qdisc},
    },
};

/// The user named a device that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("--device {name}: no such device in this network namespace, which has {known}")]
pub struct NoDevice {
    name: String,
    known: String,
}

/// The offload with which a device merges packets itself.
const GRO_HW: &str = "rx-gro-hw";

/// The kernel's names of all offloads that are facts of their own.
const OWN_FACTS: [&str; 3] = ["rx-gro", "rx-lro", GRO_HW];

/// A device whose facts are gathered.
struct Interface(Link);

/// The named devices, or all that are on a bus and up; and why some may be missing.
pub(super) fn all(named: &[String]) -> Result<(Vec<DeviceFacts>, Option<String>), NoDevice> {
    let (mut links, missing) = match link::list() {
        Ok((links, 0)) => (links, None),
        Ok((links, others)) => (links, Some(link::skipped(others))),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    links.sort_by(|a, b| a.name.cmp(&b.name));
    let known = || links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    for name in named {
        if missing.is_none() && !links.iter().any(|link| link.name == *name) {
            return Err(NoDevice { name: name.clone(), known: known() });
        }
    }
    let is_examined =
        |link: &Link| if named.is_empty() { link.is_on_a_bus && link.is_up } else { named.contains(&link.name) };
    let qdiscs = qdisc::list();
    Ok((links.into_iter().filter(is_examined).map(|link| Interface(link).facts(&qdiscs)).collect(), missing))
}

impl Interface {
    fn facts(&self, qdiscs: &Qdiscs) -> DeviceFacts {
        let features = answer(&self.0.system_name, &|ethtool, name| ethtool.features(name));
        DeviceFacts {
            name: self.0.name.clone(),
            driver: answer(&self.0.system_name, &|ethtool, name| Ok(ethtool.driver(name)?.name)).into(),
            speed: answer(&self.0.system_name, &|ethtool, name| ethtool.bits_per_second(name))
                .and_then(|speed| if speed > 0 { Ok(speed) } else { Err("its driver reports no speed".into()) })
                .into(),
            mtu: self.0.mtu.map(u64::from).ok_or("rtnetlink does not report it").into(),
            qdisc: Fact::Known(self.0.qdisc.clone()),
            queue_qdiscs: queue_qdiscs(&self.0, qdiscs).into(),
            ring: answer(&self.0.system_name, &|ethtool, name| ethtool.receive_ring(name)).into(),
            tx_ring: answer(&self.0.system_name, &|ethtool, name| ethtool.transmit_ring(name)).into(),
            gro: answer(&self.0.system_name, &|ethtool, name| ethtool.has_gro(name)).into(),
            lro: answer(&self.0.system_name, &|ethtool, name| ethtool.has_lro(name)).into(),
            gro_hw: features.as_ref().map(|features| features.get(GRO_HW).copied()).map_err(String::clone).into(),
            offloads: features.map(other_offloads).into(),
            channels: answer(&self.0.system_name, &|ethtool, name| ethtool.channels(name)).into(),
            coalescing: answer(&self.0.system_name, &|ethtool, name| ethtool.coalescing(name)).into(),
            pcie: self.read(|device| Ok(device.pcie())),
            flow_control: answer(&self.0.system_name, &|ethtool, name| ethtool.sends_pause_frames(name)).into(),
            numa_node: self
                .read(|device| device.bus("numa_node").map_or(Ok(None), |path| Ok(file(path)?.parse().ok()))),
            local_cpus: self
                .read(|device| device.bus("local_cpulist").map_or(Ok(Vec::new()), |path| cpu_list(&file(path)?))),
            rx_queues: self.read(|device| Ok(device.receive_queues()?.len() as u64)),
            rps: self.read(Sysfs::has_rps),
            interrupts: self.read(Sysfs::interrupts),
            iommu: self.read(|device| device.bus("iommu_group/type").map_or(Ok(None), |path| file(path).map(Some))),
        }
    }

    /// Reads from sysfs, if that shows this device.
    fn read<T>(&self, read: impl FnOnce(&Sysfs) -> Result<T, String>) -> Fact<T> {
        let folder = PathBuf::from("/sys/class/net").join(&self.0.system_name);
        let index = file(folder.join("ifindex"));
        if index.is_ok_and(|index| index == self.0.index.to_string()) {
            read(&Sysfs(folder)).into()
        } else {
            Fact::Unknown("/sys shows the devices of another network namespace".into())
        }
    }
}

/// The offloads that are no facts of their own.
fn other_offloads(mut features: BTreeMap<String, bool>) -> BTreeMap<String, bool> {
    features.retain(|name, _| !OWN_FACTS.contains(&&**name));
    features
}

/// Queueing disciplines and the number of answers that cannot be parsed, or why rtnetlink does not list them.
type Qdiscs = io::Result<(Vec<Qdisc>, u64)>;

/// Number of the device's transmit queues by queueing discipline, if its own is one of [`qdisc::OF_QUEUES`]; otherwise
/// empty.
fn queue_qdiscs(link: &Link, qdiscs: &Qdiscs) -> Result<BTreeMap<String, u64>, String> {
    if !qdisc::OF_QUEUES.contains(&&*link.qdisc) {
        return Ok(BTreeMap::new());
    }
    let (qdiscs, skipped) =
        qdiscs.as_ref().map_err(|error| format!("rtnetlink does not list queueing disciplines ({error})"))?;
    let found = qdisc::below_root(qdiscs, link.index);
    match (found.is_empty(), skipped) {
        (false, _) => Ok(found),
        (true, 0) => Err(format!("rtnetlink lists no queueing discipline below {}", link.qdisc)),
        (true, skipped) => Err(format!(
            "rtnetlink lists no queueing discipline below {}, and {skipped} of its answers cannot be parsed: report \
             this",
            link.qdisc
        )),
    }
}

type Question<'a, T> = &'a dyn Fn(&mut Ethtool<'_>, &OsStr) -> io::Result<T>;

/// Asks the driver of a device.
fn answer<T>(device: &OsStr, question: Question<'_, T>) -> Result<T, String> {
    let mut buffer = Buffer::default();
    let answer = Ethtool::open(&mut buffer).and_then(|mut ethtool| question(&mut ethtool, device));
    answer.map_err(|error| format!("its driver does not say ({error})"))
}

/// A device's folder in sysfs.
struct Sysfs(PathBuf);

impl Sysfs {
    /// A file of the device on the bus: the device itself, or the device that it is a part of, as with virtio.
    fn bus(&self, file: &str) -> Option<PathBuf> {
        let device = fs::canonicalize(self.0.join("device")).ok()?;
        [Some(device.as_path()), device.parent()]
            .into_iter()
            .flatten()
            .map(|folder| folder.join(file))
            .find(|path| path.exists())
    }

    /// Its link on the PCI Express bus, if sysfs knows all of it.
    fn pcie(&self) -> Option<PcieLink> {
        let speed = self.bus("current_link_speed")?;
        let device = speed.parent()?;
        let (now, own) = (link_rate(device, "current")?, link_rate(device, "max")?);
        // `max_link_*` describe one end of a link (drivers/pci/pci-sysfs.c, max_link_width_show). The other end is the
        // port above, which some virtual machines do not show.
        let port = device.parent().and_then(|port| link_rate(port, "max"));
        let most = port.map_or(own, |port| PcieRate {
            gigatransfers: own.gigatransfers.min(port.gigatransfers),
            lanes: own.lanes.min(port.lanes),
        });
        Some(PcieLink { now, most })
    }

    fn receive_queues(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.0.join("queues");
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(names
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rx-")))
            .collect())
    }

    /// Whether the mask of at least one queue has a CPU.
    fn has_rps(&self) -> Result<bool, String> {
        let masks =
            self.receive_queues()?.iter().map(|queue| file(queue.join("rps_cpus"))).collect::<Result<Vec<_>, _>>();
        Ok(masks?.iter().any(|mask| mask.chars().any(|digit| !['0', ','].contains(&digit))))
    }

    /// The CPUs that handle each of its interrupts; those that are not in use have none and are left out.
    fn interrupts(&self) -> Result<BTreeMap<u64, Vec<u64>>, String> {
        let numbers: Vec<u64> = match (self.bus("msi_irqs"), self.bus("irq")) {
            (Some(folder), _) => {
                let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
                entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
            }
            (None, Some(number)) => file(number)?.parse().into_iter().filter(|number| *number != 0).collect(),
            (None, None) => Vec::new(),
        };
        let mut interrupts = BTreeMap::new();
        for number in numbers {
            let folder = PathBuf::from(format!("/proc/irq/{number}"));
            let list = file(folder.join("effective_affinity_list")).or_else(|_| file(folder.join("smp_affinity_list")));
            // An interrupt that nobody has requested has no folder.
            let cpus = list.map_or(Ok(Vec::new()), |list| cpu_list(&list))?;
            if !cpus.is_empty() {
                interrupts.insert(number, cpus);
            }
        }
        Ok(interrupts)
    }
}

/// The rate at which a device or a port on the PCI Express bus runs (`current`), or its highest rate (`max`).
fn link_rate(folder: &Path, which: &str) -> Option<PcieRate> {
    let read = |what: &str| file(folder.join(format!("{which}_link_{what}"))).ok();
    Some(PcieRate {
        gigatransfers: gigatransfers(&read("speed")?)?,
        // 0 and 255 stand for an unknown number.
        lanes: read("width")?.parse().ok().filter(|lanes| (1..=32).contains(lanes))?,
    })
}

/// The number in a text such as `8.0 GT/s PCIe`; none in `Unknown`.
fn gigatransfers(speed: &str) -> Option<f64> {
    let number: f64 = speed.split_once(" GT/s")?.0.parse().ok()?;
    (0.0..1000.0).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::doctor::gather::tests::tree;

    const CARD: [(&str, &str); 4] = [
        ("port/card/current_link_speed", "2.5 GT/s PCIe\n"),
        ("port/card/current_link_width", "4\n"),
        ("port/card/max_link_speed", "16.0 GT/s PCIe\n"),
        ("port/card/max_link_width", "16\n"),
    ];

    /// The link of a network device whose `device` is this folder, with these files on the bus.
    fn link_of(device: &str, files: &[(&str, &str)]) -> Option<PcieLink> {
        let tree = tree(files);
        let (bus, class) = (tree.path().join(device), tree.path().join("eth0"));
        fs::create_dir_all(&bus).expect("the device");
        fs::create_dir(&class).expect("its class folder");
        symlink(&bus, class.join("device")).expect("its link to the bus");
        Sysfs(class).pcie()
    }

    fn link(now: (f64, u64), most: (f64, u64)) -> Option<PcieLink> {
        let rate = |(gigatransfers, lanes)| PcieRate { gigatransfers, lanes };
        Some(PcieLink { now: rate(now), most: rate(most) })
    }

    #[test]
    fn a_link_on_a_bus_can_as_much_as_the_slower_of_its_ends() {
        let with = |port: &[(&str, &str)]| link_of("port/card", &[&CARD[..], port].concat());
        // The card without a port above it.
        assert_eq!(with(&[]), link((2.5, 4), (16.0, 16)));
        let slot = [("port/max_link_speed", "8.0 GT/s PCIe\n"), ("port/max_link_width", "8\n")];
        assert_eq!(with(&slot), link((2.5, 4), (8.0, 8)));
        let slot = [("port/max_link_speed", "32.0 GT/s PCIe\n"), ("port/max_link_width", "8\n")];
        assert_eq!(with(&slot), link((2.5, 4), (16.0, 8)));
        let slot = [("port/max_link_speed", "8.0 GT/s PCIe\n"), ("port/max_link_width", "32\n")];
        assert_eq!(with(&slot), link((2.5, 4), (8.0, 16)));
        let unknown = [("port/max_link_speed", "Unknown\n"), ("port/max_link_width", "255\n")];
        assert_eq!(with(&unknown), link((2.5, 4), (16.0, 16)));
        // As with virtio: the device is a part of the device on the bus.
        let slot = [("port/max_link_speed", "8.0 GT/s PCIe\n"), ("port/max_link_width", "8\n")];
        assert_eq!(link_of("port/card/virtio0", &[&CARD[..], &slot].concat()), link((2.5, 4), (8.0, 8)));
    }

    #[test]
    fn a_link_on_a_bus_that_sysfs_does_not_know_is_none() {
        assert_eq!(link_of("port/card", &[]), None);
        for (place, text) in [(0, "Unknown\n"), (1, "0\n"), (1, "255\n"), (2, "Unknown\n"), (3, "0\n"), (3, "x\n")] {
            let mut files = CARD;
            files[place].1 = text;
            assert_eq!(link_of("port/card", &files), None, "{files:?}");
        }
        assert_eq!(link_of("port/card", &CARD[..3]), None);
    }

    /// A link with this queueing discipline, of the device with this index.
    fn link_with(qdisc: &str, index: u32) -> Link {
        Link { index, qdisc: qdisc.into(), ..Link::default() }
    }

    #[test]
    fn queue_qdiscs_of_mq_are_an_error_if_rtnetlink_does_not_list_them() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        assert_eq!(queue_qdiscs(&link_with("fq", 1), &refused()), Ok(BTreeMap::new()));
        let reason = queue_qdiscs(&link_with("mq", 1), &refused()).expect_err("no list");
        assert!(reason.starts_with("rtnetlink does not list queueing disciplines (Operation not supp"), "{reason}");
        let reason = queue_qdiscs(&link_with("mq", 1), &Ok((Vec::new(), 0))).expect_err("an empty list");
        assert_eq!(reason, "rtnetlink lists no queueing discipline below mq");
    }

    #[test]
    fn an_answer_that_cannot_be_parsed_costs_only_a_device_that_has_no_other() {
        let listed = Ok((qdisc::tests::captured(), 1));
        let found = queue_qdiscs(&link_with("mq", 5), &listed);
        assert_eq!(found, Ok(BTreeMap::from([("pfifo_fast".to_owned(), 3)])));
        let reason = queue_qdiscs(&link_with("mq", 7), &listed).expect_err("it has none");
        assert_eq!(
            reason,
            "rtnetlink lists no queueing discipline below mq, and 1 of its answers cannot be parsed: report this"
        );
    }

    #[test]
    fn loopback_segments_by_itself_and_has_no_rings() {
        let lo = Interface(Link { index: 1, name: "lo".into(), system_name: "lo".into(), ..Link::default() });
        let facts = lo.facts(&Ok((Vec::new(), 0)));
        let offloads = facts.offloads.get().expect("the kernel knows them");
        assert_eq!(offloads.get("tx-checksum-ip-generic"), Some(&true), "{offloads:?}");
        assert!(offloads.contains_key("tx-tcp-segmentation") && offloads.contains_key("tx-generic-segmentation"));
        // The device cannot have these.
        assert!(!offloads.contains_key("rx-vlan-filter") && facts.gro_hw == Fact::Known(None), "{offloads:?}");
        // They have facts of their own.
        assert!(!offloads.keys().any(|name| OWN_FACTS.contains(&&**name)), "{offloads:?}");
        assert_eq!((facts.ring, facts.tx_ring), (Fact::Known(None), Fact::Known(None)));
    }

    #[test]
    fn speeds_of_a_bus_are_read_as_kernels_write_them() {
        assert_eq!(gigatransfers("8.0 GT/s PCIe"), Some(8.0));
        assert_eq!(gigatransfers("2.5 GT/s"), Some(2.5));
        assert_eq!(gigatransfers("5 GT/s"), Some(5.0));
        assert_eq!((gigatransfers("Unknown"), gigatransfers("Unknown speed")), (None, None));
        assert_eq!((gigatransfers("NaN GT/s"), gigatransfers("-1 GT/s")), (None, None));
    }
}
