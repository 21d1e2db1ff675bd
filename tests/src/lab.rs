//! A lab: two namespaces, one for the sender and one for the receiver, and the veth pair between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::device::{Offload, add_address, add_usec_route, add_veth, set_offload, set_up};
use crate::path::{Delay, Path};
use crate::{Namespace, must};

static LABS: AtomicU32 = AtomicU32::new(0);

/// Options for a lab's wire.
#[derive(Clone, Copy, Debug)]
pub struct LabOptions {
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// Whether segments pass through the receiver's NAPI (TSO off at the sender, GRO on at the receiver), as with a
    /// real NIC. Otherwise they go through the CPU backlog, in pieces of up to 64 KiB.
    pub napi: bool,
    /// A long path instead of the veth pair; its MTU is 1500.
    pub delay: Option<Delay>,
}

impl Default for LabOptions {
    fn default() -> Self {
        Self { mtu: 1500, napi: false, delay: None }
    }
}

/// A sender's and a receiver's end with a wire between them. They disappear with the last holder, however that ends.
#[derive(Debug)]
pub struct Lab {
    sender: End,
    receiver: End,
    path: Option<Path>,
}

/// One end of the wire. Dereferences to its [`Namespace`].
#[derive(Clone, Debug)]
pub struct End {
    namespace: Namespace,
    /// Name of its device, which no other lab uses.
    pub device: String,
    /// Its IPv4 address, 10.77.x.1 (sender) or 10.77.x.2 (receiver); x differs between labs.
    pub v4: Ipv4Addr,
    /// Its IPv6 address, fd00:77:x::1 or fd00:77:x::2.
    pub v6: Ipv6Addr,
}

impl Lab {
    /// A lab with the default wire: MTU 1500, the kernel's default offloads.
    pub fn new() -> Self {
        Self::with(LabOptions::default())
    }

    /// A lab with other options for the wire.
    pub fn with(options: LabOptions) -> Self {
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let network = (process.wrapping_add(number) % 254 + 1) as u8;
        let end = |letter: char, host: u8| End {
            namespace: Namespace::new(),
            device: format!("t{letter}{process}x{number}"),
            v4: Ipv4Addr::new(10, 77, network, host),
            v6: Ipv6Addr::new(0xfd00, 0x77, network.into(), 0, 0, 0, 0, host.into()),
        };
        let (sender, receiver) = (end('s', 1), end('r', 2));
        let path =
            options.delay.map(|delay| Path::new((&sender, &sender.device), (&receiver, &receiver.device), delay));
        if path.is_none() {
            let made = sender.run(|| add_veth(&sender.device, &receiver.device, &receiver, options.mtu));
            must(made, "making a veth pair");
        }
        let lab = Self { sender, receiver, path };
        let (sender, receiver) = (&lab.sender, &lab.receiver);
        for end in [sender, receiver] {
            end.run(|| {
                must(set_up("lo"), "setting lo up");
                must(set_up(&end.device), format!("setting {} up", end.device));
                must(add_address(&end.device, IpAddr::V4(end.v4), 24), "adding an IPv4 address");
                must(add_address(&end.device, IpAddr::V6(end.v6), 64), "adding an IPv6 address");
            });
        }
        if options.napi {
            sender.run(|| must(set_offload(&sender.device, Offload::Tso, false), "turning TSO off"));
            receiver.run(|| must(set_offload(&receiver.device, Offload::Gro, true), "turning GRO on"));
        }
        lab
    }

    /// The sender's end.
    pub fn sender(&self) -> &End {
        &self.sender
    }

    /// The receiver's end.
    pub fn receiver(&self) -> &End {
        &self.receiver
    }

    /// A lab with a long path, of this time from one end to the other.
    pub fn long(one_way: Duration) -> Self {
        Self::with(LabOptions { delay: Some(Delay { one_way, lose_every: 0 }), ..LabOptions::default() })
    }

    /// Both ends on the loopback device of one namespace, whose segments have 64 KiB.
    pub fn loopback() -> Self {
        let end = End::alone();
        Self { sender: end.clone(), receiver: end, path: None }
    }

    /// Packets that the long path has lost.
    pub fn lost(&self) -> u64 {
        self.path.as_ref().map_or(0, Path::lost)
    }

    /// Sets a sysctl at both ends.
    pub fn set_sysctl(&self, name: &str, value: &str) {
        self.sender.set_sysctl(name, value);
        self.receiver.set_sysctl(name, value);
    }

    /// Makes the receiver use timestamps in microseconds. Returns whether the kernel can (Linux 6.7).
    pub fn use_usec_timestamps(&self) -> bool {
        let (sender, receiver) = (&self.sender, &self.receiver);
        match receiver.run(|| add_usec_route(&receiver.device, sender.v4)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => false,
            added => {
                must(added, "adding a route with timestamps in microseconds");
                true
            }
        }
    }

    /// Makes room for 100,000 connections: wide port range, long queues, reuse of TIME_WAIT ports.
    pub fn allow_many_connections(&self) {
        for (name, value) in [
            ("net.ipv4.ip_local_port_range", "1024 65535"),
            ("net.ipv4.tcp_tw_reuse", "1"),
            ("net.ipv4.tcp_max_syn_backlog", "65535"),
            ("net.core.somaxconn", "65535"),
        ] {
            self.set_sysctl(name, value);
        }
    }

    /// Lets clients send data with the SYN (TCP Fast Open), without a cookie, from the first connection on.
    pub fn allow_fast_open(&self) {
        // Client 1, server 2, no cookie: 4 at the client, 0x200 at the server.
        self.set_sysctl("net.ipv4.tcp_fastopen", "519");
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl End {
    /// The host as an end: the caller's namespace with its loopback device and addresses.
    pub fn host() -> Self {
        Self {
            namespace: Namespace::current(),
            device: "lo".to_owned(),
            v4: Ipv4Addr::LOCALHOST,
            v6: Ipv6Addr::LOCALHOST,
        }
    }

    /// A namespace that has only its loopback device.
    pub fn alone() -> Self {
        let alone = Self { namespace: Namespace::new(), ..Self::host() };
        alone.run(|| must(set_up("lo"), "setting lo up"));
        alone
    }
}

impl std::ops::Deref for End {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}
