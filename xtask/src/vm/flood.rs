//! The other ends of a virtual machine's emulated NICs: sockets of the host, which send frames when the virtual machine
//! requests them (`tests/src/fault/nic.rs`). Nothing leaves the host.

use std::{
    io::ErrorKind,
    os::unix::net::UnixDatagram,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// QEMU's names of the NICs that are flooded.
const NICS: [&str; 5] = ["rtl8139", "vmxnet3", "pcnet", "virtio-net-pci", "e1000"];
/// The first five bytes of each NIC's MAC address; its number is the sixth.
const HARDWARE: [u8; 5] = [0x52, 0x54, 0x00, 0x74, 0x63];

/// Limits of a flood, whatever the virtual machine requests.
const MOST_FRAMES: u32 = 400_000;
const MOST_BYTES: usize = 9_000;
const LONGEST: Duration = Duration::from_secs(30);
/// Frames per millisecond: more than an emulated CPU can process.
const PACE: u32 = 100;

/// How long a socket waits before it checks whether the virtual machine has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Length of the Ethernet header, and of it with those of IPv4 and UDP, which precede a request.
const ETHERNET_HEADER: usize = 14;
const REQUEST_AT: usize = ETHERNET_HEADER + 20 + 8;
/// Reserved for experiments (IEEE 802); nothing receives it.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The sockets behind the NICs of one virtual machine. They are removed when this is dropped.
pub struct Wires {
    folder: tempfile::TempDir,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Wires {
    /// Creates the sockets and starts their threads.
    pub fn new() -> Result<Self> {
        let mut wires =
            Self { folder: tempfile::tempdir()?, ended: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        for nic in NICS {
            let (here, there) = (wires.folder.path().join(nic), wires.folder.path().join(machine_end(nic)));
            let socket = UnixDatagram::bind(&here).with_context(|| format!("cannot bind {}", here.display()))?;
            socket.set_read_timeout(Some(LOOK))?;
            socket.set_write_timeout(Some(LOOK))?;
            let ended = Arc::clone(&wires.ended);
            wires.threads.push(thread::spawn(move || serve(&socket, &there, &ended)));
        }
        Ok(wires)
    }

    /// The QEMU arguments for the NICs.
    pub fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let nics = NICS.iter().enumerate().flat_map(|(number, nic)| {
            let (here, there) = (path(nic), path(&machine_end(nic)));
            let hardware: Vec<String> = HARDWARE.iter().map(|byte| format!("{byte:02x}")).collect();
            let netdev =
                format!("dgram,id={nic},local.type=unix,local.path={there},remote.type=unix,remote.path={here}");
            let device = format!("{nic},netdev={nic},mac={}:{number:02x},romfile=", hardware.join(":"));
            ["-netdev".to_owned(), netdev, "-device".to_owned(), device]
        });
        nics.collect()
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread ends only because `ended` is set.
            let _ = thread.join();
        }
    }
}

fn machine_end(nic: &str) -> String {
    format!("{nic}-machine")
}

/// Waits for the first request and carries it out, until the virtual machine ends.
fn serve(socket: &UnixDatagram, machine: &Path, ended: &AtomicBool) {
    let mut frame = [0; MOST_BYTES];
    while !ended.load(Ordering::Relaxed) {
        // An error here means that nothing came within the time limit, or that nobody is connected yet.
        let Ok(length) = socket.recv(&mut frame) else { continue };
        if let Some(flood) = Flood::asked_for(&frame[..length]) {
            flood.send(socket, machine, ended);
            return;
        }
    }
}

/// What a virtual machine requests.
#[derive(Debug, PartialEq, Eq)]
struct Flood {
    to: [u8; 6],
    frames: u32,
    bytes: usize,
}

impl Flood {
    /// Parses `flood FRAMES BYTES` in a UDP datagram and applies the limits.
    fn asked_for(frame: &[u8]) -> Option<Self> {
        let request = std::str::from_utf8(frame.get(REQUEST_AT..)?).ok()?;
        let mut words = request.trim_end_matches('\0').split(' ');
        if words.next() != Some("flood") {
            return None;
        }
        let (frames, bytes) = (words.next()?.parse::<u32>().ok()?, words.next()?.parse::<usize>().ok()?);
        let to = frame.get(6..12)?.try_into().ok()?;
        Some(Self { to, frames: frames.min(MOST_FRAMES), bytes: bytes.clamp(ETHERNET_HEADER, MOST_BYTES) })
    }

    fn send(&self, socket: &UnixDatagram, machine: &Path, ended: &AtomicBool) {
        let mut frame = vec![0; self.bytes];
        frame[..6].copy_from_slice(&self.to);
        frame[6..12].copy_from_slice(&[0x52, 0x54, 0x00, 0x74, 0x64, 0xff]);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        let start = Instant::now();
        let mut sent = 0;
        while sent < self.frames && !ended.load(Ordering::Relaxed) && start.elapsed() < LONGEST {
            let due = start.elapsed().as_millis().saturating_mul(PACE.into());
            if u128::from(sent) >= due {
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            match socket.send_to(&frame, machine) {
                Ok(_) => sent += 1,
                // The virtual machine's end is full: this frame is retried.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_understood_and_held_within_limits() {
        let frame = |request: &str| {
            let mut frame = vec![0; REQUEST_AT];
            frame[6..12].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
            frame.extend_from_slice(request.as_bytes());
            frame
        };
        let flood = |frames, bytes| Some(Flood { to: [1, 2, 3, 4, 5, 6], frames, bytes });
        assert_eq!(Flood::asked_for(&frame("flood 10 128")), flood(10, 128));
        assert_eq!(Flood::asked_for(&frame("flood 10 128\0\0")), flood(10, 128), "padded to the shortest frame");
        assert_eq!(Flood::asked_for(&frame("flood 4000000000 60000")), flood(MOST_FRAMES, MOST_BYTES));
        assert_eq!(Flood::asked_for(&frame("other 10 128")), None);
        assert_eq!(Flood::asked_for(&frame("flood 10")), None);
        assert_eq!(Flood::asked_for(&[0; 10]), None);
    }
}
