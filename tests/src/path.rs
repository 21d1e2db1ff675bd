//! A long path between two namespaces: two TUN devices, and a thread that hands each packet from one to the other after
//! a delay. (The kernels here have no netem.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;

use crate::{Namespace, fifo::become_fifo, must};

/// Maximum bytes in flight; what exceeds it is lost, as in a router.
const MOST_BYTES: usize = 64 << 20;

/// A packet that carries data and not only an acknowledgement is longer than this.
const MORE_THAN_AN_ACK: usize = 100;

/// How long the thread waits at most before it checks whether it has to end.
const PATIENCE: Duration = Duration::from_millis(20);

/// What a path does to packets.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// Time from one end to the other, the same in both directions.
    pub one_way: Duration,
    /// One in this many data packets from the sender is lost; 0 for none.
    pub lose_every: u64,
}

/// The thread that carries packets. It ends when this is dropped, and the devices with it.
#[derive(Debug)]
pub(crate) struct Path {
    ends: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Path {
    /// Connects a sender's and a receiver's namespace through a new device in each, with the name given beside it.
    pub(crate) fn new(sender: (&Namespace, &str), receiver: (&Namespace, &str), delay: Delay) -> Self {
        let open = |(namespace, name): (&Namespace, &str)| {
            namespace.run(|| must(tun(name), "making a TUN device (load the kernel module tun)"))
        };
        let devices = [open(sender), open(receiver)];
        let (ends, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (end, count) = (Arc::clone(&ends), Arc::clone(&lost));
        let carry = move || must(carry(&devices, delay, &end, &count), "carrying packets");
        let thread = thread::Builder::new().name("path".to_owned()).spawn(carry);
        Self { ends, lost, thread: Some(must(thread, "starting a thread")) }
    }

    /// Packets lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed, and the test fails because packets are missing.
            let _ = thread.join();
        }
    }
}

/// A packet on its way: when it is due, its number (packets that are due at the same time keep their order), where it
/// goes, and its bytes.
type Packet = Reverse<(Instant, u64, usize, Vec<u8>)>;

fn carry(devices: &[File; 2], delay: Delay, ends: &AtomicBool, lost: &AtomicU64) -> io::Result<()> {
    // Otherwise the kernel may wake the thread 50 us late, or the thread may wait for a CPU that the ends occupy.
    set_timerslack(1)?;
    become_fifo()?;
    let mut packets = BinaryHeap::<Packet>::new();
    let (mut number, mut bytes, mut with_data) = (0, 0, 0);
    let mut buffer = vec![0; 65_536];
    while !ends.load(Ordering::Relaxed) {
        let wait = packets.peek().map_or(PATIENCE, |packet| packet.0.0.saturating_duration_since(Instant::now()));
        let mut fds = devices.each_ref().map(|device| PollFd::new(device.as_fd(), PollFlags::POLLIN));
        ppoll(&mut fds, Some(TimeSpec::from_duration(wait.min(PATIENCE))), None)?;
        for (from, device) in devices.iter().enumerate() {
            while let Some(length) = whole(device, &mut buffer)? {
                number += 1;
                let has_data = from == 0 && length > MORE_THAN_AN_ACK;
                with_data += u64::from(has_data);
                let unlucky = has_data && delay.lose_every != 0 && with_data % delay.lose_every == 0;
                if unlucky || bytes + length > MOST_BYTES {
                    lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                bytes += length;
                packets.push(Reverse((Instant::now() + delay.one_way, number, 1 - from, buffer[..length].to_vec())));
            }
        }
        while packets.peek().is_some_and(|packet| packet.0.0 <= Instant::now()) {
            let Some(Reverse((_, _, to, packet))) = packets.pop() else { break };
            bytes -= packet.len();
            // A device that is not up yet takes no packets.
            if let Err(error) = (&devices[to]).write(&packet)
                && error.raw_os_error() != Some(libc::EIO)
            {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Reads one packet, if there is one.
fn whole(mut device: &File, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match device.read(buffer) {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        // The device is not up yet.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a TUN device in the calling thread's namespace. It disappears with the descriptor.
#[expect(unsafe_code, reason = "no library here has this ioctl")]
fn tun(name: &str) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: a structure of integers and arrays of them, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the request lives until the call returns.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}
