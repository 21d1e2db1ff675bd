//! A receive ring that overflows.

use std::fs;
use std::net::SocketAddr;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::device::add_neighbour;
use crate::lab::{End, Lab, LabOptions};
use crate::traffic::plan::BurstPlan;
use crate::traffic::{Running, Traffic};
use crate::{Namespace, eventually, must};

/// The CPU for which a burst and the thread that empties the ring compete.
const CPU: usize = 0;
/// Packets that a veth's ring holds (`VETH_RING_SIZE`).
const RING_ENTRIES: u32 = 256;
/// Datagrams in a burst: eight times what the ring holds, a few milliseconds of one CPU.
const BURST: u32 = 8 * RING_ENTRIES;
/// At one burst a second, no fault outlives its test by more than two minutes.
const BURSTS: u32 = 120;

/// A veth's receive ring that overflows about once a second.
///
/// A veth end uses a ring of 256 packets only for packets that arrive for its NAPI. That requires GRO at that end and
/// no TSO at the other (`veth_skb_is_eligible_for_gro`). The ring overflows only if the sender outruns NAPI. So NAPI
/// has a thread of its own, on the CPU that the sender occupies (`SCHED_FIFO`) until its burst is over, and the
/// sender's socket buffer holds the whole burst. Packets that do not fit are counted by the sending device as
/// `tx_dropped`; the receiving device counts nothing.
#[derive(Debug)]
pub struct RingOverrun {
    burst: Running,
    lab: Lab,
    /// Datagrams in a burst.
    datagrams: u32,
}

impl RingOverrun {
    /// Packets that the ring holds.
    pub const ENTRIES: u32 = RING_ENTRIES;

    /// Creates the wire and the sender, which sends nothing before [`RingOverrun::begin`].
    #[track_caller]
    pub fn new() -> Self {
        Self::of(BURST, 1_000)
    }

    /// The same, with this many datagrams in a burst and this many milliseconds between bursts.
    #[track_caller]
    pub fn of(datagrams: u32, pause_ms: u64) -> Self {
        let lab = Lab::with(LabOptions { napi: true, ..LabOptions::default() });
        let (sender, receiver) = (lab.sender(), lab.receiver());
        receiver.set_device_attribute(&receiver.device, "threaded", "1");
        pin_napi_threads(&receiver.device);
        // If an address had to be resolved first, the burst would be held back, and only its end would get through.
        add_neighbour_entry(sender, receiver);
        add_neighbour_entry(receiver, sender);
        let burst = Traffic::burst(
            sender,
            BurstPlan {
                to: SocketAddr::from((receiver.v4, 9)),
                cpu: CPU,
                datagrams,
                payload: 200,
                pause_ms,
                bursts: BURSTS,
            },
        );
        Self { burst, lab, datagrams }
    }

    /// Starts the bursts; the first is over when this returns.
    #[track_caller]
    pub fn begin(&self) {
        let before = self.burst.report().calls;
        self.burst.resume();
        eventually(crate::fault::DEADLINE, "a burst is sent", || self.burst.report().calls > before);
    }

    /// Stops the bursts; none starts after this returns.
    #[track_caller]
    pub fn end(&self) {
        self.burst.pause();
    }

    /// The namespace of the sending device, which counts the packets that the ring did not take.
    pub fn namespace(&self) -> &Namespace {
        self.lab.sender()
    }

    /// The sending device.
    pub fn device(&self) -> &str {
        &self.lab.sender().device
    }

    /// Datagrams sent so far.
    pub fn sent(&self) -> u64 {
        self.burst.report().calls * u64::from(self.datagrams)
    }

    /// Packets that the ring did not take: `tx_dropped` of the sending device.
    pub fn dropped(&self) -> u64 {
        statistic(self.lab.sender(), "tx_dropped")
    }
}

impl Default for RingOverrun {
    fn default() -> Self {
        Self::new()
    }
}

/// Pins the NAPI threads of a device to the burst's CPU.
fn pin_napi_threads(device: &str) {
    let mut cpus = CpuSet::new();
    must(cpus.set(CPU), "choosing a CPU");
    let threads = napi_threads(device);
    assert!(!threads.is_empty(), "{device} has no NAPI thread: GRO must be on before `threaded` is set");
    for thread in threads {
        must(sched_setaffinity(thread, &cpus), format!("pinning the NAPI thread {thread} of {device}"));
    }
}

/// Kernel threads called `napi/DEVICE-NUMBER`; kernels before 5.17 cut the name after 15 bytes.
fn napi_threads(device: &str) -> Vec<Pid> {
    let name = format!("napi/{device}-");
    let is_named = |comm: &str| comm.starts_with(&name) || (comm.len() == 15 && name.starts_with(comm));
    let processes = must(fs::read_dir("/proc"), "listing processes").filter_map(Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| is_named(comm.trim_end())))
        .map(Pid::from_raw)
        .collect()
}

/// Gives one end the other's link-layer address.
fn add_neighbour_entry(end: &End, other: &End) {
    let link_layer = other.with_own_sys(|| read(&format!("/sys/class/net/{}/address", other.device)));
    let bytes = link_layer.split(':').map(|byte| must(u8::from_str_radix(byte, 16), "reading an address")).collect();
    end.run(|| must(add_neighbour(&end.device, other.v4, bytes), "adding a neighbour"));
}

fn statistic(end: &End, name: &str) -> u64 {
    let text = end.with_own_sys(|| read(&format!("/sys/class/net/{}/statistics/{name}", end.device)));
    must(text.parse(), format!("reading {name}"))
}

fn read(path: &str) -> String {
    must(fs::read_to_string(path), format!("reading {path}")).trim_end().to_owned()
}
