//! Emulated NICs in a virtual machine, and frames that arrive faster than the NICs' rings are emptied.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::{device, must};

/// Prefix that `cargo xtask vm` gives to the hardware addresses of the NICs that may be flooded; the last byte is their
/// number.
const HARDWARE: &str = "52:54:00:74:63:";
/// The addresses are from the range for benchmarks (RFC 2544), with a network for each NIC.
const NETWORK: [u8; 2] = [198, 18];
/// The discard port: any receiver discards the datagram.
const PORT: u16 = 9;

/// A NIC whose other end is `cargo xtask vm`, which floods it once, on a request sent through it.
#[derive(Debug)]
pub struct Nic {
    device: String,
    number: u8,
}

impl Nic {
    /// The NIC with this driver, if this machine has one.
    pub fn find(driver: &str) -> Option<Self> {
        let devices = must(fs::read_dir("/sys/class/net"), "listing the network devices");
        devices.flatten().map(|entry| entry.path()).find_map(|path| {
            let number = read(&path.join("address"))?;
            let number = u8::from_str_radix(number.strip_prefix(HARDWARE)?, 16).ok()?;
            let of = fs::read_link(path.join("device/driver")).ok()?;
            let device = path.file_name()?.to_string_lossy().into_owned();
            (of.file_name()? == driver).then_some(Self { device, number })
        })
    }

    /// The device name.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// A counter of rtnetlink, as `ip -s -s link` shows it.
    #[track_caller]
    pub fn counter(&self, name: &str) -> u64 {
        let path = self.sysfs().join("statistics").join(name);
        let text = read(&path).unwrap_or_else(|| panic!("reading {}", path.display()));
        must(text.parse(), format!("reading {}", path.display()))
    }

    /// A counter of the driver, by its name in `ethtool -S`; the sum if several have that name.
    #[track_caller]
    pub fn driver_counter(&self, name: &str) -> u64 {
        let output = must(Command::new("ethtool").args(["-S", &self.device]).output(), "running ethtool");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = text.lines().filter_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix(':'));
        let values: Vec<u64> = values.map(|value| must(value.trim().parse(), &text)).collect();
        assert!(!values.is_empty(), "ethtool -S {} has no {name}: {text}", self.device);
        values.iter().sum()
    }

    /// Opens packet sockets that receive each arriving frame, which makes frames more expensive for the CPU.
    #[track_caller]
    pub fn listeners(&self, count: usize) -> Vec<OwnedFd> {
        let open = || socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll);
        (0..count).map(|_| must(open(), "opening a packet socket")).collect()
    }

    /// Sets the NIC up and requests `frames` frames of `bytes` bytes, sent as fast as possible. They carry a protocol
    /// that nothing handles. Returns when the first has arrived.
    #[track_caller]
    pub fn flood(&self, frames: u32, bytes: u16) {
        let mtu = u32::from(bytes).max(1_500);
        must(fs::write(self.sysfs().join("mtu"), mtu.to_string()), format!("setting the MTU of {}", self.device));
        must(device::set_up(&self.device), format!("setting {} up", self.device));
        let [a, b] = NETWORK;
        let here = Ipv4Addr::new(a, b, self.number, 1);
        must(device::add_address(&self.device, here.into(), 24), format!("giving {} an address", self.device));
        let socket = must(UdpSocket::bind((here, 0)), "binding to the NIC's address");
        must(socket.set_broadcast(true), "allowing broadcasts");
        let everybody = (Ipv4Addr::new(a, b, self.number, 255), PORT);
        // Nothing leaves until the carrier is up.
        crate::eventually(super::DEADLINE, "the flood begins", || {
            let request = format!("flood {frames} {bytes}");
            must(socket.send_to(request.as_bytes(), everybody), "asking for the flood");
            if self.counter("rx_packets") > 0 { Ok(()) } else { Err("nothing has arrived") }
        });
    }

    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/class/net").join(&self.device)
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
