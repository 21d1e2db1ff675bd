//! What the harness tells its `traffic` processes and what they answer: one JSON value on the command line, then one a
//! line on stdin and stdout.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Which thread reads which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Threads {
    /// The main thread, in blocking calls, one connection after another.
    Sequential,
    /// A thread for each connection, in blocking calls; the main thread only accepts.
    PerFlow,
    /// The main thread, all connections in one epoll loop.
    Epoll,
    /// So many threads (the main thread is one) share one epoll set and take turns: each reads one chunk of whatever
    /// connection is ready and passes on, like a work-stealing runtime at its worst.
    Turns(usize),
}

/// How bytes leave the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// `recv`.
    Recv,
    /// `recv` with `MSG_PEEK`, then `recv` again.
    PeekFirst,
    /// `splice` by way of a pipe into `/dev/null`.
    Splice,
}

/// What a reader does between two reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Between {
    /// Nothing.
    Nothing,
    /// Sleeps, microseconds.
    Sleep(u64),
    /// Burns CPU, microseconds.
    Spin(u64),
}

/// What both kinds of process share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessPlan {
    /// Name of the process and its threads, at most 15 bytes; empty keeps `traffic`.
    pub comm: String,
    /// Pins all threads to a CPU.
    pub cpu: Option<usize>,
    /// Nice value.
    pub nice: i32,
    /// Moves no byte until told.
    pub paused: bool,
    /// Notes each call that moved bytes.
    pub log: bool,
}

/// A reader's plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderPlan {
    /// See [`ProcessPlan`].
    pub process: ProcessPlan,
    /// Address to listen at.
    pub bind: IpAddr,
    /// First port; 0 lets the kernel choose.
    pub port: u16,
    /// Number of ports from there on.
    pub ports: u16,
    /// Ends after so many connections have ended; `None` stays until told.
    pub connections: Option<u64>,
    /// See [`Threads`].
    pub threads: Threads,
    /// See [`Method`].
    pub method: Method,
    /// Most bytes of one read.
    pub chunk: usize,
    /// See [`Between`].
    pub between: Between,
    /// `SO_RCVBUF` as given to the kernel, which doubles it.
    pub receive_buffer: Option<usize>,
    /// Shuts the writing side down before the first read.
    pub half_closed: bool,
    /// Closes each connection as soon as it is accepted.
    pub close_at_once: bool,
    /// Listens with `TCP_FASTOPEN`.
    pub fast_open: bool,
    /// A socket filter drops one in so many data segments, at random.
    pub drop_one_in: Option<u32>,
}

/// A sender's plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SenderPlan {
    /// See [`ProcessPlan`].
    pub process: ProcessPlan,
    /// Address to connect to, with the first port.
    pub to: SocketAddr,
    /// Number of ports from there on, used in turn.
    pub ports: u16,
    /// Connections in total.
    pub connections: u64,
    /// Connections at a time, a thread for each.
    pub parallel: u64,
    /// Bytes of each connection; `None` sends until told to finish.
    pub bytes: Option<u64>,
    /// Bytes of one write.
    pub message: usize,
    /// Bytes per second of each connection.
    pub rate: Option<u64>,
    /// `SO_SNDBUF` as given to the kernel, which doubles it.
    pub send_buffer: Option<usize>,
    /// Congestion control by name.
    pub congestion: Option<String>,
    /// The first data travel with the SYN.
    pub fast_open: bool,
    /// The first data travel with the handshake's last ACK.
    pub data_with_ack: bool,
    /// Waits for the other side to close before the connection counts as ended.
    pub await_close: bool,
    /// Keeps each connection open after its bytes until told to finish.
    pub hold_open: bool,
    /// Closes with a RST, once all data is acknowledged.
    pub reset: bool,
}

/// A hog's plan.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HogPlan {
    /// The CPU it keeps busy.
    pub cpu: usize,
    /// Its nice value.
    pub nice: i32,
}

/// A plan for bursts of UDP datagrams.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BurstPlan {
    /// Where to; nobody needs to listen there.
    pub to: SocketAddr,
    /// The CPU that a burst has for itself (`SCHED_FIFO`).
    pub cpu: usize,
    /// Datagrams of one burst.
    pub datagrams: u32,
    /// Payload of one datagram, bytes.
    pub payload: usize,
    /// Time from the end of a burst to the next, milliseconds.
    pub pause_ms: u64,
    /// Most bursts.
    pub bursts: u32,
}

/// An order, answered by one [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Moves no more bytes; answered when no thread will.
    Pause,
    /// Goes on without limit.
    Resume,
    /// Moves so many bytes on each connection, then pauses; answered when done, with the bytes that were moved.
    Move(u64),
    /// Peeks at up to so many bytes of each connection, from a thread that reads nothing; answered with the bytes seen.
    Peek(u64),
    /// Writes a byte on each connection, from a thread that does nothing else; answered with the bytes written.
    Say,
    /// Reads what has come on each connection, from a thread that does nothing else; answered with the bytes read.
    Hear,
    /// Shuts the writing side of each connection down.
    ShutdownWrite,
    /// Closes the connections after the bytes written so far, and makes no more (senders only).
    Finish,
    /// Answers with a report.
    Report,
    /// Exits at once.
    Exit,
}

/// A line of stdout.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The first: listening at this port, or connected.
    Ready(u16),
    /// An order is carried out; the number is the order's.
    Done(u64),
    /// The answer to [`Order::Report`].
    Report(Report),
    /// The last: the plan, or the order to exit, is carried out.
    Finished(Report),
    /// It cannot be done; the process ends.
    Failed(String),
}

/// What a process has done so far, by its own count.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Its process.
    pub pid: u32,
    /// Threads that moved bytes, in the order of their first call.
    pub tids: Vec<u32>,
    /// Bytes read, or written to the kernel.
    pub bytes: u64,
    /// Calls that moved bytes.
    pub calls: u64,
    /// Connections that have ended.
    pub connections: u64,
    /// Those of them that ended with an error, such as a reset.
    pub broken: u64,
    /// `CLOCK_MONOTONIC` after the first call that moved bytes; 0 when there was none.
    pub first_ns: u64,
    /// The same of the last.
    pub last_ns: u64,
    /// Each call, when asked for.
    pub log: Vec<Call>,
}

/// One call that moved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `CLOCK_MONOTONIC` after the call.
    pub at_ns: u64,
    /// Thread that made it.
    pub tid: u32,
    /// Number of the connection, from 0, in the order of their beginning.
    pub connection: u64,
    /// Bytes it moved.
    pub bytes: u64,
}
