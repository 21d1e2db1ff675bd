//! The other ends of a machine's emulated NICs: sockets of this host from which frames come when the machine asks for
//! them (`tests/src/fault/nic.rs`). Nothing leaves this host.

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

/// What QEMU calls the NICs that are flooded.
const NICS: [&str; 5] = ["rtl8139", "vmxnet3", "pcnet", "virtio-net-pci", "e1000"];
/// The address of each, and its number.
const HARDWARE: [u8; 5] = [0x52, 0x54, 0x00, 0x74, 0x63];

/// What a flood may be at most, whatever the machine asks for.
const MOST_FRAMES: u32 = 400_000;
const MOST_BYTES: usize = 9_000;
const LONGEST: Duration = Duration::from_secs(30);
/// Frames a millisecond: more than an emulated CPU can take.
const PACE: u32 = 100;

/// How long a wire waits before it looks whether the machine has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Ethernet's, and those of IPv4 and UDP before a request.
const ETHERNET_HEADER: usize = 14;
const REQUEST_AT: usize = ETHERNET_HEADER + 20 + 8;
/// For experiments (IEEE 802): nobody listens to it.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The wires of one machine. They are taken away when this is dropped.
pub struct Wires {
    folder: tempfile::TempDir,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Wires {
    /// Lays them.
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

    /// What QEMU is told of them.
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
            // It has no other way to end than to be told.
            let _ = thread.join();
        }
    }
}

fn machine_end(nic: &str) -> String {
    format!("{nic}-machine")
}

/// Waits for the first request and does as it says, until the machine ends.
fn serve(socket: &UnixDatagram, machine: &Path, ended: &AtomicBool) {
    let mut frame = [0; MOST_BYTES];
    while !ended.load(Ordering::Relaxed) {
        // Nothing within the time, or nobody there yet.
        let Ok(length) = socket.recv(&mut frame) else { continue };
        if let Some(flood) = Flood::asked_for(&frame[..length]) {
            flood.send(socket, machine, ended);
            return;
        }
    }
}

/// What a machine asks for.
#[derive(Debug, PartialEq, Eq)]
struct Flood {
    to: [u8; 6],
    frames: u32,
    bytes: usize,
}

impl Flood {
    /// `flood FRAMES BYTES` in a datagram of UDP, within what is allowed.
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
                // The machine holds back: its end is full.
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
