//! A sender: its builder and the orders that it takes.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;

use super::plan::{Order, ProcessPlan, Report, SenderPlan};
use super::running::Running;
use crate::lab::End;

/// Builds a sender. Defaults: one connection, as fast as possible in writes of 64 KiB until [`Sender::finish`], cubic.
/// Each write is sent at once (`TCP_NODELAY`).
#[derive(Clone, Debug)]
#[must_use]
pub struct SenderBuilder {
    end: End,
    plan: SenderPlan,
}

impl SenderBuilder {
    pub(super) fn new(end: &End) -> Self {
        let plan = SenderPlan {
            process: ProcessPlan::default(),
            to: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            ports: 1,
            connections: 1,
            parallel: 1,
            bytes: None,
            message: 64 << 10,
            rate: None,
            send_buffer: None,
            congestion: Some("cubic".to_owned()),
            fast_open: false,
            data_with_ack: false,
            await_close: false,
            hold_open: false,
            reset: false,
        };
        Self { end: end.clone(), plan }
    }

    /// Name of the process, at most 15 bytes; it may be empty.
    pub fn comm(mut self, comm: &str) -> Self {
        self.plan.process.comm = Some(comm.to_owned());
        self
    }

    /// Pins it to a CPU.
    pub fn cpu(mut self, cpu: usize) -> Self {
        self.plan.process.cpu = Some(cpu);
        self
    }

    /// Its nice value.
    pub fn nice(mut self, nice: i32) -> Self {
        self.plan.process.nice = nice;
        self
    }

    /// Starts paused: it connects, but writes nothing until [`Sender::send`] or [`resume`](super::Running::resume).
    pub fn paused(mut self) -> Self {
        self.plan.process.paused = true;
        self
    }

    /// Records the time, thread and bytes of each write in its report.
    pub fn log_writes(mut self) -> Self {
        self.plan.process.log = true;
        self
    }

    /// The address to connect to: a reader's.
    pub fn to(mut self, address: SocketAddr) -> Self {
        self.plan.to = address;
        self
    }

    /// Uses this many ports in turn, starting with that of the address.
    pub fn ports(mut self, ports: u16) -> Self {
        self.plan.ports = ports;
        self
    }

    /// Makes this many connections in total, one after another unless [`SenderBuilder::parallel`] is set.
    pub fn connections(mut self, connections: u64) -> Self {
        self.plan.connections = connections;
        self
    }

    /// Keeps this many connections at a time, each on its own thread.
    pub fn parallel(mut self, parallel: u64) -> Self {
        self.plan.parallel = parallel;
        self
    }

    /// Makes this many connections, all at once.
    pub fn flows(self, flows: u64) -> Self {
        self.connections(flows).parallel(flows)
    }

    /// Sends exactly this many bytes on each connection.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.plan.bytes = Some(bytes);
        self
    }

    /// Bytes in one write.
    pub fn message(mut self, bytes: usize) -> Self {
        self.plan.message = bytes;
        self
    }

    /// Bytes per second on each connection, held by sleeping between writes.
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.plan.rate = Some(bytes_per_second);
        self
    }

    /// `SO_SNDBUF` (the kernel doubles it).
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.plan.send_buffer = Some(bytes);
        self
    }

    /// Congestion control by name; `None` leaves the namespace's default.
    pub fn congestion(mut self, name: Option<&str>) -> Self {
        self.plan.congestion = name.map(str::to_owned);
        self
    }

    /// The first data travel with the SYN; see [`crate::Lab::allow_fast_open`].
    pub fn fast_open(mut self) -> Self {
        self.plan.fast_open = true;
        self
    }

    /// The first data travel with the handshake's last ACK.
    pub fn data_with_ack(mut self) -> Self {
        self.plan.data_with_ack = true;
        self
    }

    /// Counts a connection as ended only after the other side has closed it.
    pub fn await_close(mut self) -> Self {
        self.plan.await_close = true;
        self
    }

    /// Keeps each connection open after its bytes until [`Sender::finish`]: many open connections from few threads.
    pub fn hold_open(mut self) -> Self {
        self.plan.hold_open = true;
        self
    }

    /// Closes with a RST once all data are acknowledged, which leaves no TIME_WAIT. Such a connection is `broken` in
    /// the reader's report, although all its bytes arrive.
    pub fn reset(mut self) -> Self {
        self.plan.reset = true;
        self
    }

    /// Starts it and waits until the first connections are established.
    #[track_caller]
    pub fn spawn(self) -> Sender {
        assert_ne!(self.plan.to.port(), 0, "a sender needs an address: call to(reader.address())");
        let (running, _) = Running::spawn(&self.end, "sender", &self.plan);
        Sender { running }
    }
}

/// A running sender. Killed when dropped.
#[derive(Debug)]
pub struct Sender {
    running: Running,
}

impl Deref for Sender {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Sender {
    /// Writes exactly this many bytes on each connection, then pauses. Returns the bytes that the kernel took.
    #[track_caller]
    pub fn send(&self, bytes: u64) -> u64 {
        self.order(Order::Move(bytes))
    }

    /// Closes its connections after what was written so far, makes no more, and reports.
    #[track_caller]
    pub fn finish(&self) -> Report {
        self.running.finish()
    }
}
