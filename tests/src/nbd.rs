//! A network block device: its data arrive over TCP and are read by the kernel's own threads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{eventually, must};

const DEVICE: &str = "/dev/nbd0";
/// `include/uapi/linux/nbd.h`.
const SET_SOCK: u32 = 0xab00;
const SET_BLOCK_BYTES: u32 = 0xab01;
const DO_IT: u32 = 0xab03;
const CLEAR_SOCK: u32 = 0xab04;
const SET_BLOCKS: u32 = 0xab07;
const DISCONNECT: u32 = 0xab08;
const REPLY_MAGIC: [u8; 4] = 0x6744_6698_u32.to_be_bytes();
/// `NBD_CMD_READ` and `NBD_CMD_DISC`.
const READ: u16 = 0;
const DISCONNECTED: u16 = 2;
const BLOCK_BYTES: u64 = 4096;
const DEADLINE: Duration = Duration::from_secs(20);

/// An open device, all of whose bytes are zero.
#[derive(Debug)]
pub struct Nbd {
    device: File,
    kernel: JoinHandle<io::Result<i32>>,
    server: JoinHandle<io::Result<u64>>,
}

impl Nbd {
    /// Whether this kernel has network block devices (the module `nbd`).
    pub fn exists() -> bool {
        Path::new(DEVICE).exists()
    }

    /// Starts the device: the kernel reads from its end of a connection, and a thread serves the other end.
    #[track_caller]
    pub fn start(kernels_end: TcpStream, mut other_end: TcpStream, bytes: u64) -> Self {
        let device = must(OpenOptions::new().read(true).write(true).open(DEVICE), format!("opening {DEVICE}"));
        let set = |what, value: u64| must(ioctl(device.as_raw_fd(), what, value), format!("setting up {DEVICE}"));
        set(SET_BLOCK_BYTES, BLOCK_BYTES);
        set(SET_BLOCKS, bytes / BLOCK_BYTES);
        set(SET_SOCK, kernels_end.as_raw_fd() as u64);
        let running = must(device.try_clone(), format!("opening {DEVICE}"));
        Self {
            device,
            kernel: thread::spawn(move || ioctl(running.as_raw_fd(), DO_IT, 0)),
            server: thread::spawn(move || serve(&mut other_end)),
        }
    }

    /// Reads the whole device, disconnects it, and returns how many bytes were sent to the kernel over TCP.
    #[track_caller]
    pub fn read_all(mut self) -> u64 {
        eventually(DEADLINE, "the device has its size", || match must(self.device.seek(SeekFrom::End(0)), DEVICE) {
            0 => Err("0 bytes"),
            bytes => Ok(bytes),
        });
        must(self.device.rewind(), DEVICE);
        must(io::copy(&mut self.device, &mut io::sink()), format!("reading {DEVICE}"));
        must(ioctl(self.device.as_raw_fd(), DISCONNECT, 0), format!("ending {DEVICE}"));
        let sent = must(self.server.join().expect("the server has not panicked"), format!("serving {DEVICE}"));
        must(self.kernel.join().expect("the thread has not panicked"), format!("running {DEVICE}"));
        must(ioctl(self.device.as_raw_fd(), CLEAR_SOCK, 0), format!("ending {DEVICE}"));
        sent
    }
}

/// Answers each read request with zeros until told to disconnect; returns how many bytes it has sent.
fn serve(stream: &mut TcpStream) -> io::Result<u64> {
    let mut sent = 0;
    loop {
        // Magic, flags and command, cookie, offset, length.
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let (cookie, length) =
            (&request[8..16], u32::from_be_bytes([request[24], request[25], request[26], request[27]]));
        match u16::from_be_bytes([request[6], request[7]]) {
            READ => {
                let mut answer = [&REPLY_MAGIC, &[0; 4], cookie].concat();
                answer.resize(answer.len() + length as usize, 0);
                stream.write_all(&answer)?;
                sent += answer.len() as u64;
            }
            DISCONNECTED => return Ok(sent),
            command => return Err(io::Error::other(format!("command {command} is not served"))),
        }
    }
}

#[expect(unsafe_code, reason = "ioctls of a device that no crate knows")]
fn ioctl(device: RawFd, what: u32, value: u64) -> io::Result<i32> {
    // SAFETY: these ioctls take a number.
    let result = unsafe { libc::ioctl(device, what.into(), value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
