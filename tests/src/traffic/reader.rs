//! A reader: its builder and the orders that it takes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Deref;

use super::plan::{Between, KERNELS_CHOICE, Method, Order, ProcessPlan, ReaderPlan, Threads};
use super::running::Running;
use crate::lab::End;

/// Builds a reader. Defaults: IPv4, a port that was free a moment ago, one connection read to its end by the main
/// thread in chunks of 64 KiB.
#[derive(Clone, Debug)]
#[must_use]
pub struct ReaderBuilder {
    end: End,
    address: IpAddr,
    plan: ReaderPlan,
}

impl ReaderBuilder {
    pub(super) fn new(end: &End) -> Self {
        let address = IpAddr::V4(end.v4);
        let plan = ReaderPlan {
            process: ProcessPlan::default(),
            bind: address,
            port: 0,
            ports: 1,
            connections: Some(1),
            threads: Threads::Sequential,
            method: Method::Recv,
            chunk: 64 << 10,
            between: Between::Nothing,
            receive_buffer: None,
            half_closed: false,
            close_at_once: false,
            fast_open: false,
            defer_accept: false,
            drop_one_in: None,
        };
        Self { end: end.clone(), address, plan }
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

    /// Starts paused: it accepts, but reads nothing until told to.
    pub fn paused(mut self) -> Self {
        self.plan.process.paused = true;
        self
    }

    /// Records the time, thread and bytes of each read in its report.
    pub fn log_reads(mut self) -> Self {
        self.plan.process.log = true;
        self
    }

    /// Listens on this port.
    pub fn port(mut self, port: u16) -> Self {
        self.plan.port = port;
        self
    }

    /// Lets the kernel choose its port or ports.
    pub fn port_of_the_kernels_choice(mut self) -> Self {
        self.plan.port = KERNELS_CHOICE;
        self
    }

    /// Listens on this many ports, starting with [`ReaderBuilder::port`].
    pub fn ports(mut self, ports: u16) -> Self {
        self.plan.ports = ports;
        self
    }

    /// Listens on the end's IPv6 address.
    pub fn ipv6(mut self) -> Self {
        self.address = IpAddr::V6(self.end.v6);
        self.plan.bind = self.address;
        self
    }

    /// Listens on `::` while its [`Reader::address`] stays the IPv4 one, so that connections are IPv4 on IPv6 sockets.
    pub fn mapped(mut self) -> Self {
        self.plan.bind = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        self
    }

    /// Finishes after this many connections have ended.
    pub fn connections(mut self, connections: u64) -> Self {
        self.plan.connections = Some(connections);
        self
    }

    /// Stays until [`exit`](super::Running::exit), however many connections end.
    pub fn until_exit(mut self) -> Self {
        self.plan.connections = None;
        self
    }

    /// Which thread reads which connection.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.plan.threads = threads;
        self
    }

    /// How bytes are taken out of the kernel.
    pub fn method(mut self, method: Method) -> Self {
        self.plan.method = method;
        self
    }

    /// Maximum number of bytes in one read.
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.plan.chunk = bytes;
        self
    }

    /// What it does between two reads.
    pub fn between(mut self, between: Between) -> Self {
        self.plan.between = between;
        self
    }

    /// `SO_RCVBUF` (the kernel doubles it), which turns off autotuning.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.plan.receive_buffer = Some(bytes);
        self
    }

    /// Shuts down its writing side before it reads.
    pub fn half_closed(mut self) -> Self {
        self.plan.half_closed = true;
        self
    }

    /// Closes each connection as soon as it is accepted, without reading.
    pub fn close_at_once(mut self) -> Self {
        self.plan.close_at_once = true;
        self
    }

    /// Accepts data with the SYN; see [`crate::Lab::allow_fast_open`].
    pub fn fast_open(mut self) -> Self {
        self.plan.fast_open = true;
        self
    }

    /// Lets a connection complete only when its first data come (`TCP_DEFER_ACCEPT`).
    pub fn defer_accept(mut self) -> Self {
        self.plan.defer_accept = true;
        self
    }

    /// Drops one in `n` data segments at random with a filter on the socket, before TCP sees them.
    pub fn drop_one_in(mut self, n: u32) -> Self {
        self.plan.drop_one_in = Some(n);
        self
    }

    /// Starts it and waits until it listens.
    #[track_caller]
    pub fn spawn(self) -> Reader {
        let (running, port) = Running::spawn(&self.end, "reader", &self.plan);
        Reader { running, address: SocketAddr::new(self.address, port) }
    }
}

/// A running reader. Killed when dropped.
#[derive(Debug)]
pub struct Reader {
    running: Running,
    address: SocketAddr,
}

impl Deref for Reader {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Reader {
    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its first port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits for the first connection if there is none, reads exactly this many bytes from each one (fewer if it ends),
    /// then pauses. Returns the bytes read.
    #[track_caller]
    pub fn read(&self, bytes: u64) -> u64 {
        self.order(Order::Move(bytes))
    }

    /// Peeks at up to this many bytes of each connection, from a thread that never reads. Returns the bytes seen.
    #[track_caller]
    pub fn peek(&self, bytes: u64) -> u64 {
        self.order(Order::Peek(bytes))
    }

    /// Renames the process to `renamed`.
    #[track_caller]
    pub fn rename(&self) {
        self.order(Order::Rename);
    }

    /// The thread of [`Running::receive`] executes another program, `traffic`, which continues to read from the first
    /// connection. It is paused, and its counts start at zero.
    #[track_caller]
    pub fn exec(&self) {
        self.order(Order::Exec);
    }

    /// Shuts down the writing side of each connection.
    #[track_caller]
    pub fn shutdown_write(&self) {
        self.order(Order::ShutdownWrite);
    }
}
