//! One accepted connection, and a read from it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, types};
use nix::fcntl::{SpliceFFlags, splice};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::pipe;
use socket2::Socket;
use tcpmon_tests::traffic::plan::{Between, Method, ReaderPlan};

use crate::session::{Session, lock};

/// See the module documentation.
pub struct Connection {
    /// The connection's number, from 0.
    pub number: u64,
    /// The connection's socket.
    pub socket: Arc<Socket>,
    session: &'static Session,
    method: Method,
    between: Between,
    pipe: Option<Pipe>,
    ring: Option<Mutex<IoUring>>,
}

/// Result of a read.
pub enum Outcome {
    /// This many bytes were read.
    Bytes(u64),
    /// The read was interrupted, or there was nothing to read yet: try again.
    Again,
    /// The end of the stream (true), or an error (false).
    End(bool),
}

struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    sink: File,
}

impl Connection {
    /// Prepares an accepted socket according to the plan.
    pub fn new(session: &'static Session, plan: &ReaderPlan, number: u64, socket: Socket) -> io::Result<Self> {
        let socket = Arc::new(socket);
        session.begin(number, &socket);
        if plan.half_closed {
            socket.shutdown(Shutdown::Write)?;
        }
        Ok(Self {
            number,
            socket,
            session,
            method: plan.method,
            between: plan.between,
            pipe: if plan.method == Method::Splice { Some(Pipe::new()?) } else { None },
            ring: if plan.method == Method::Uring { Some(Mutex::new(IoUring::new(1)?)) } else { None },
        })
    }

    /// Reads at most `allowance` bytes, and no more than fit in the buffer. Counts them, and does what the plan asks
    /// for between two reads.
    pub fn read(&self, allowance: u64, buffer: &mut [u8]) -> Outcome {
        let most = usize::try_from(allowance).map_or(buffer.len(), |allowance| allowance.min(buffer.len()));
        match self.take(&mut buffer[..most]) {
            Ok(0) => Outcome::End(true),
            Ok(bytes) => {
                self.session.count(self.number, bytes);
                match self.between {
                    Between::Nothing => {}
                    Between::Sleep(us) => thread::sleep(Duration::from_micros(us)),
                    Between::Spin(us) => spin(Duration::from_micros(us)),
                    Between::Answer => drop(self.socket.send(&[0; 200])),
                }
                Outcome::Bytes(bytes as u64)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Outcome::Again,
            Err(_) => Outcome::End(false),
        }
    }

    fn take(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(pipe) = &self.pipe {
            return pipe.drain(&self.socket, buffer.len());
        }
        let socket = self.socket.as_raw_fd();
        if let Some(ring) = &self.ring {
            return receive(&mut lock(ring), socket, buffer);
        }
        if self.method == Method::PeekFirst {
            recv(socket, buffer, MsgFlags::MSG_PEEK)?;
        }
        Ok(recv(socket, buffer, MsgFlags::empty())?)
    }
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (out, into) = pipe()?;
        Ok(Self { out, into, sink: File::options().write(true).open("/dev/null")? })
    }

    fn drain(&self, socket: &Socket, most: usize) -> io::Result<usize> {
        let taken = splice(socket, None, &self.into, None, most, SpliceFFlags::SPLICE_F_MOVE)?;
        let mut left = taken;
        while left > 0 {
            match splice(&self.out, None, &self.sink, None, left, SpliceFFlags::SPLICE_F_MOVE) {
                Ok(passed) => left -= passed,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(taken)
    }
}

/// Receives through a worker thread of the ring. Returns only when that is done, because the kernel writes to the
/// buffer.
#[expect(unsafe_code, reason = "the ring takes the buffer as an address")]
fn receive(ring: &mut IoUring, socket: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let receive = opcode::Recv::new(types::Fd(socket), buffer.as_mut_ptr(), length).build().flags(Flags::ASYNC);
    // SAFETY: the buffer outlives the request, for whose completion the loop below waits.
    unsafe { ring.submission().push(&receive) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => drop(outcome?),
        }
        if let Some(done) = ring.completion().next() {
            let result = done.result();
            return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        }
    }
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
