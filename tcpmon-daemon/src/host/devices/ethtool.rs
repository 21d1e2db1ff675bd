//! The ethtool ioctl: what a driver reports about itself. Its statistics are available in no other way.

#![expect(unsafe_code, reason = "the ethtool ioctl has no safe wrapper")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use zerocopy::IntoBytes;

use crate::host_state::{Channels, Coalescing, Ring};

/// Maximum number of statistics that are read of one device; a NIC of 100 Gbit/s with a queue per CPU has thousands.
const MAX_STATISTICS: usize = 65_536;

/// `ETH_GSTRING_LEN`: length of the name of one statistic, bytes.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / size_of::<u32>();

/// Words of the longest header, that of `struct ethtool_gstrings`.
const HEADER_WORDS: usize = 3;

/// Words for a request and its answer: room for the longest answer, the names of all statistics. Zeroed memory of this
/// size comes straight from the kernel, so only what an answer fills is ever resident.
const BUFFER_WORDS: usize = HEADER_WORDS + MAX_STATISTICS * NAME_WORDS;

/// `ETH_SS_STATS`: the set of the statistics' names.
const STATISTICS_NAME_SET: u32 = 1;

/// `ETH_SS_FEATURES`: the set of the offloads' names. The kernel knows fewer than this many.
const FEATURE_NAME_SET: u32 = 4;
const MAX_FEATURES: usize = 1024;

/// Commands of `linux/ethtool.h`. All of them only read, and require no capability.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum EthtoolCommand {
    Link = 0x01,
    DriverInfo = 0x03,
    Coalescing = 0x0e,
    RingParameters = 0x10,
    PauseParameters = 0x12,
    Names = 0x1b,
    Statistics = 0x1d,
    Flags = 0x25,
    Gro = 0x2b,
    NameCount = 0x37,
    Features = 0x3a,
    Channels = 0x3c,
}

/// `ETH_FLAG_LRO`.
const LRO_FLAG: u32 = 1 << 15;

/// `SPEED_UNKNOWN`.
const UNKNOWN_SPEED: u32 = u32::MAX;

/// What matters here about a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    pub(crate) name: String,
    /// Number of its statistics.
    pub(crate) statistics: usize,
}

/// Memory for one answer at a time.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u32>);

impl Default for Buffer {
    fn default() -> Self {
        Self(vec![0; BUFFER_WORDS])
    }
}

/// Queries the drivers of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Ethtool<'a> {
    socket: OwnedFd,
    buffer: &'a mut Buffer,
}

impl<'a> Ethtool<'a> {
    /// Opens a socket for the requests. Any socket will do; this family is needed for the list of devices anyway.
    pub(crate) fn open(buffer: &'a mut Buffer) -> Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, buffer })
    }

    /// Name of the driver and number of its statistics.
    pub(crate) fn driver(&mut self, device: &OsStr) -> Result<Driver> {
        Ok(driver_in(self.request_from_driver(device, EthtoolCommand::DriverInfo, [0, 0])?))
    }

    /// Size of the receive ring; `None` if the driver has none.
    pub(crate) fn receive_ring(&mut self, device: &OsStr) -> Result<Option<Ring>> {
        let answer = optional(self.request_from_driver(device, EthtoolCommand::RingParameters, [0, 0]))?;
        Ok(answer.and_then(|answer| ring_in(answer, 0)))
    }

    /// Size of the transmit ring; `None` if the driver has none.
    pub(crate) fn transmit_ring(&mut self, device: &OsStr) -> Result<Option<Ring>> {
        let answer = optional(self.request_from_driver(device, EthtoolCommand::RingParameters, [0, 0]))?;
        Ok(answer.and_then(|answer| ring_in(answer, 3)))
    }

    /// Speed of the link, bit/s; 0 if the driver does not know it.
    pub(crate) fn bits_per_second(&mut self, device: &OsStr) -> Result<u64> {
        let answer = self.request_from_driver(device, EthtoolCommand::Link, [0, 0])?;
        // struct ethtool_cmd: cmd; supported; advertising; speed (16 bits), duplex, port; four bytes; maxtxpkt;
        // maxrxpkt; speed_hi (16 bits): Mbit/s.
        let speed = answer[7] << 16 | answer[3] & 0xffff;
        Ok(if speed == UNKNOWN_SPEED || speed == 0xffff { 0 } else { u64::from(speed) * 1_000_000 })
    }

    /// Whether the device sends pause frames when its ring fills; `None` if its driver has no flow control.
    pub(crate) fn sends_pause_frames(&mut self, device: &OsStr) -> Result<Option<bool>> {
        // struct ethtool_pauseparam: cmd; autoneg; rx_pause; tx_pause.
        let answer = optional(self.request_from_driver(device, EthtoolCommand::PauseParameters, [0, 0]))?;
        Ok(answer.map(|answer| answer[3] != 0))
    }

    /// Whether generic receive offload is on.
    pub(crate) fn has_gro(&mut self, device: &OsStr) -> Result<bool> {
        // struct ethtool_value: cmd; data.
        Ok(self.request_from_driver(device, EthtoolCommand::Gro, [0, 0])?[1] != 0)
    }

    /// Whether large receive offload is on.
    pub(crate) fn has_lro(&mut self, device: &OsStr) -> Result<bool> {
        Ok(self.request_from_driver(device, EthtoolCommand::Flags, [0, 0])?[1] & LRO_FLAG != 0)
    }

    /// How many receive queues the device has; `None` if its driver does not let them be set.
    pub(crate) fn channels(&mut self, device: &OsStr) -> Result<Option<Channels>> {
        Ok(optional(self.request_from_driver(device, EthtoolCommand::Channels, [0, 0]))?.map(channels_in))
    }

    /// When the device interrupts; `None` if its driver does not say.
    pub(crate) fn coalescing(&mut self, device: &OsStr) -> Result<Option<Coalescing>> {
        Ok(optional(self.request_from_driver(device, EthtoolCommand::Coalescing, [0, 0]))?.map(coalescing_in))
    }

    /// Whether each offload is on, by the kernel's name; those that the device cannot have are left out.
    pub(crate) fn features(&mut self, device: &OsStr) -> Result<BTreeMap<String, bool>> {
        // struct ethtool_sset_info: cmd; reserved; a mask of 64 bits; for each set in it, the number of its names.
        let [low, high] = [1 << FEATURE_NAME_SET, 0];
        self.buffer.0[3] = high;
        let answer = self.request_from_driver(device, EthtoolCommand::NameCount, [0, low])?;
        let count = if answer[2] == 0 { 0 } else { answer[4] };
        if count as usize > MAX_FEATURES {
            return Err(Error::other(format!("the kernel has {count} offloads, the limit is {MAX_FEATURES}")));
        }
        let answer = self.request_from_driver(device, EthtoolCommand::Names, [FEATURE_NAME_SET, count])?;
        let names = names_in(answer, count)?;
        let answer = self.request_from_driver(device, EthtoolCommand::Features, [count.div_ceil(32), 0])?;
        let features = names.into_iter().enumerate();
        Ok(features.filter_map(|(at, name)| Some((name, feature_in(answer, at)?))).collect())
    }

    /// Names of the statistics in the order of [`Ethtool::statistics`].
    pub(crate) fn names(&mut self, device: &OsStr, count: usize) -> Result<Vec<String>> {
        let requested = checked_count(count)?;
        let answer = self.request_from_driver(device, EthtoolCommand::Names, [STATISTICS_NAME_SET, requested])?;
        names_in(answer, requested)
    }

    /// The statistics.
    pub(crate) fn statistics(&mut self, device: &OsStr, count: usize) -> Result<Vec<u64>> {
        let requested = checked_count(count)?;
        let answer = self.request_from_driver(device, EthtoolCommand::Statistics, [requested, 0])?;
        statistics_in(answer, requested)
    }

    /// Sends a command, with the two words that follow it in its structure. Returns the structure as the kernel left
    /// it.
    fn request_from_driver(&mut self, device: &OsStr, command: EthtoolCommand, words: [u32; 2]) -> Result<&[u32]> {
        let name = request_name(device)?;
        const SIOCETHTOOL: libc::Ioctl = 0x8946;
        let buffer = &mut self.buffer.0;
        buffer[0] = command as u32;
        buffer[1..HEADER_WORDS].copy_from_slice(&words);
        let ifru_data = buffer.as_mut_ptr().cast();
        let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data } };
        // SAFETY: SIOCETHTOOL reads an ifreq with a NUL-terminated name, and reads and writes the command's structure,
        // to which ifru_data points; request and buffer outlive the call. The structures of fixed size (at most 196
        // bytes) fit into the buffer. Those of Names and Statistics end in as many elements as the driver has
        // statistics. Newer kernels (net/ethtool/ioctl.c, ethtool_get_stats, ethtool_get_strings) send none if that is
        // not the requested number. Older kernels send them all; for them, the buffer has room for MAX_STATISTICS
        // however few are requested, because a driver may get more queues between the request for the number and this
        // one.
        let outcome = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &request) };
        if outcome == 0 { Ok(buffer) } else { Err(Error::last_os_error()) }
    }
}

/// The name of a device as a request has it, with a zero at its end.
fn request_name(device: &OsStr) -> Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    if device.len() >= name.len() {
        return Err(Error::new(ErrorKind::InvalidInput, "the device name is too long"));
    }
    for (slot, byte) in name.iter_mut().zip(device.as_bytes()) {
        *slot = *byte as libc::c_char;
    }
    Ok(name)
}

/// Nothing if the driver does not answer this at all.
fn optional<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The count as the kernel takes it; an error if it is too large.
fn checked_count(count: usize) -> Result<u32> {
    if count > MAX_STATISTICS {
        return Err(Error::other(format!("the driver has {count} statistics, the limit is {MAX_STATISTICS}")));
    }
    Ok(count as u32)
}

/// `struct ethtool_drvinfo`: cmd; driver, version, fw_version, bus_info, erom_version (32 bytes each); 12 bytes
/// reserved; n_priv_flags; n_stats.
fn driver_in(answer: &[u32]) -> Driver {
    Driver { name: text(answer[1..9].as_bytes()), statistics: answer[45] as usize }
}

/// `struct ethtool_ringparam`: cmd; rx, rx_mini, rx_jumbo, tx: first the maximum sizes, then the current ones. `None`
/// if the ring with this place among the four cannot have any entry.
fn ring_in(answer: &[u32], place: usize) -> Option<Ring> {
    let ring = Ring { entries: u64::from(answer[5 + place]), max_entries: u64::from(answer[1 + place]) };
    (ring.max_entries > 0).then_some(ring)
}

/// `struct ethtool_channels`: cmd; max_rx, max_tx, max_other, max_combined; the same for what is in use.
fn channels_in(answer: &[u32]) -> Channels {
    let queues = u64::from(answer[5]) + u64::from(answer[8]);
    Channels { queues, max_queues: u64::from(answer[1].max(answer[4])) }
}

/// `struct ethtool_coalesce`: cmd; rx_coalesce_usecs, rx_max_coalesced_frames; 7 others; use_adaptive_rx_coalesce.
fn coalescing_in(answer: &[u32]) -> Coalescing {
    Coalescing { is_adaptive: answer[10] != 0, usecs: u64::from(answer[1]), packets: u64::from(answer[2]) }
}

/// Whether the offload with this number is on; `None` if the device cannot have it. `struct ethtool_gfeatures`: cmd;
/// size; for each 32 offloads what can be changed, is wanted, is on, and never changes.
fn feature_in(answer: &[u32], at: usize) -> Option<bool> {
    let [available, _, active, _] = [0, 1, 2, 3].map(|word| answer[2 + at / 32 * 4 + word] & 1 << (at % 32) != 0);
    (available || active).then_some(active)
}

/// `struct ethtool_gstrings`: cmd; string_set; len; the names.
fn names_in(answer: &[u32], requested: u32) -> Result<Vec<String>> {
    check_unchanged(requested, answer[2])?;
    let names = answer[HEADER_WORDS..][..requested as usize * NAME_WORDS].as_bytes();
    Ok(names.chunks_exact(NAME_BYTES).map(text).collect())
}

/// `struct ethtool_stats`: cmd; n_stats; the values.
fn statistics_in(answer: &[u32], requested: u32) -> Result<Vec<u64>> {
    check_unchanged(requested, answer[1])?;
    let (values, _) = answer[2..].as_bytes().as_chunks();
    Ok(values[..requested as usize].iter().map(|value| u64::from_ne_bytes(*value)).collect())
}

/// Decodes any words as the answers of a driver with at most 32 statistics.
#[cfg(feature = "full")]
pub(crate) fn decode_any(words: &[u32]) -> (Driver, Vec<String>, Vec<u64>) {
    let mut answer = [0; HEADER_WORDS + 32 * NAME_WORDS];
    let length = words.len().min(answer.len());
    answer[..length].copy_from_slice(&words[..length]);
    let driver = driver_in(&answer);
    let names = names_in(&answer, answer[2].min(32)).unwrap_or_default();
    let statistics = statistics_in(&answer, answer[1].min(32)).unwrap_or_default();
    (driver, names, statistics)
}

/// An error if the driver no longer has as many statistics as it reported.
fn check_unchanged(requested: u32, sent: u32) -> Result<()> {
    if sent == requested { Ok(()) } else { Err(Error::other("the number of statistics changed during the read")) }
}

/// A string that ends at its first NUL or at the end of the field.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_statistics_are_not_requested() {
        let mut buffer = Buffer::default();
        let mut ethtool = Ethtool::open(&mut buffer).unwrap();
        let (lo, count) = (OsStr::new("lo"), MAX_STATISTICS + 1);
        for outcome in [ethtool.statistics(lo, count).map(drop), ethtool.names(lo, count).map(drop)] {
            assert_eq!(outcome.unwrap_err().to_string(), "the driver has 65537 statistics, the limit is 65536");
        }
    }

    #[test]
    fn a_missing_device_is_distinguished_from_one_without_a_ring() {
        let mut buffer = Buffer::default();
        let mut ethtool = Ethtool::open(&mut buffer).unwrap();
        let mut ring = |device: &str| ethtool.receive_ring(device.as_ref());
        assert_eq!(ring("lo").unwrap(), None);
        assert_eq!(ring("not-a-device").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(ring("name-of-16-bytes").unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_request_has_the_bytes_of_the_name_whatever_they_are() {
        let name = request_name(OsStr::from_bytes(b"\xff0")).unwrap();
        assert_eq!(name[..3], [0xff_u8 as libc::c_char, b'0' as libc::c_char, 0]);
    }

    #[test]
    fn drivers_of_this_host_have_a_name_for_each_statistic() {
        let mut buffer = Buffer::default();
        let mut ethtool = Ethtool::open(&mut buffer).unwrap();
        let entries = std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().path());
        for path in entries.filter(|path| path.join("device/driver").exists()) {
            let device = path.file_name().unwrap();
            let driver = ethtool.driver(device).unwrap();
            let module = std::fs::read_link(path.join("device/driver")).unwrap();
            assert_eq!(driver.name, module.file_name().unwrap().to_str().unwrap());
            if driver.statistics > 0 {
                let names = ethtool.names(device, driver.statistics).unwrap();
                assert!(names.len() == driver.statistics && names.iter().all(|name| !name.is_empty()), "{names:?}");
                assert_eq!(ethtool.statistics(device, driver.statistics).unwrap().len(), driver.statistics);
                // Newer kernels report that the number is wrong; older ones send what there is.
                assert!(ethtool.statistics(device, driver.statistics + 1).is_err());
            }
        }
    }

    /// The members of structures of `include/uapi/linux/ethtool.h` (Linux 6.1), in its order; all are `__u32`.
    const RING_PARAMETERS: &str = "cmd rx_max_pending rx_mini_max_pending rx_jumbo_max_pending tx_max_pending \
                                   rx_pending rx_mini_pending rx_jumbo_pending tx_pending";
    const CHANNELS: &str = "cmd max_rx max_tx max_other max_combined rx_count tx_count other_count combined_count";
    const COALESCE: &str = "cmd rx_coalesce_usecs rx_max_coalesced_frames rx_coalesce_usecs_irq \
                            rx_max_coalesced_frames_irq tx_coalesce_usecs tx_max_coalesced_frames \
                            tx_coalesce_usecs_irq tx_max_coalesced_frames_irq stats_block_coalesce_usecs \
                            use_adaptive_rx_coalesce use_adaptive_tx_coalesce pkt_rate_low rx_coalesce_usecs_low \
                            rx_max_coalesced_frames_low tx_coalesce_usecs_low tx_max_coalesced_frames_low \
                            pkt_rate_high rx_coalesce_usecs_high rx_max_coalesced_frames_high \
                            tx_coalesce_usecs_high tx_max_coalesced_frames_high rate_sample_interval";

    /// Such a structure, in which the named members have these values, and each other one another value.
    fn structure(members: &str, values: &[(&str, u32)]) -> Vec<u32> {
        let named = |member: &str| values.iter().find(|(name, _)| *name == member).map(|(_, value)| *value);
        let found = members.split(' ').filter(|member| named(member).is_some()).count();
        assert_eq!(found, values.len(), "{values:?}");
        members.split(' ').zip(1000..).map(|(member, other)| named(member).unwrap_or(other)).collect()
    }

    #[test]
    fn the_receive_ring_and_the_transmit_ring_are_told_apart() {
        let sizes = [("rx_max_pending", 8192), ("tx_max_pending", 4096), ("rx_pending", 1024), ("tx_pending", 512)];
        let read = |place| ring_in(&structure(RING_PARAMETERS, &sizes), place);
        assert_eq!(read(0), Some(Ring { entries: 1024, max_entries: 8192 }));
        assert_eq!(read(3), Some(Ring { entries: 512, max_entries: 4096 }));
        assert_eq!(ring_in(&structure(RING_PARAMETERS, &[("tx_max_pending", 0)]), 3), None);
    }

    #[test]
    fn receive_queues_are_those_of_their_own_and_those_that_also_send() {
        let read = |values: &[(&str, u32)]| {
            let channels = channels_in(&structure(CHANNELS, values));
            (channels.queues, channels.max_queues)
        };
        assert_eq!(read(&[("rx_count", 3), ("combined_count", 4), ("max_rx", 8), ("max_combined", 16)]), (7, 16));
        assert_eq!(read(&[("rx_count", 2), ("combined_count", 0), ("max_rx", 8), ("max_combined", 0)]), (2, 8));
    }

    #[test]
    fn coalescing_is_that_of_received_packets_at_any_rate() {
        let read = |is_adaptive: u32| {
            let values = [
                ("rx_coalesce_usecs", 8),
                ("rx_max_coalesced_frames", 128),
                ("use_adaptive_rx_coalesce", is_adaptive),
                ("use_adaptive_tx_coalesce", 1 - is_adaptive),
            ];
            coalescing_in(&structure(COALESCE, &values))
        };
        assert_eq!(read(0), Coalescing { is_adaptive: false, usecs: 8, packets: 128 });
        assert_eq!(read(1), Coalescing { is_adaptive: true, usecs: 8, packets: 128 });
    }

    #[test]
    fn an_offload_is_on_or_off_or_the_device_cannot_have_it() {
        // struct ethtool_gfeatures of that header: cmd, size, and `size` blocks of available, requested, active,
        // never_changed. The offload with number 40 is bit 8 of the second block; all other bits say the opposite.
        let read = |available: bool, active: bool| {
            let bit = |is_set: bool| -> u32 { if is_set { 1 << 8 } else { !(1 << 8) } };
            let other = |is_set: bool| if is_set { 0 } else { u32::MAX };
            let first = [other(available), other(active), other(active), other(active)];
            let second = [bit(available), bit(!active), bit(active), bit(!active)];
            feature_in(&[&[0x3a, 2][..], &first, &second].concat(), 40)
        };
        assert_eq!(read(true, true), Some(true));
        assert_eq!(read(true, false), Some(false));
        // `ethtool -k` calls it "on [fixed]".
        assert_eq!(read(false, true), Some(true));
        assert_eq!(read(false, false), None);
    }

    #[test]
    fn text_ends_at_the_first_nul_or_with_the_field() {
        assert_eq!(text(b"rx_missed\0\0junk"), "rx_missed");
        assert_eq!(text(b"as-long-as-the-field"), "as-long-as-the-field");
    }
}
