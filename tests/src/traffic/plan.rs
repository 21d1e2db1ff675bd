//! The messages between the harness and its `traffic` processes: one JSON value on the command line, then one per line
//! on stdin and stdout.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Which thread reads which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Threads {
    /// The main thread, with blocking calls, one connection after another.
    Sequential,
    /// A thread for each connection, with blocking calls; the main thread only accepts.
    PerFlow,
    /// A process for each connection, which the main process accepts and forks for. What they read is in no report, and
    /// they end with the main process.
    Fork,
    /// The main thread, with all connections in one epoll loop.
    Epoll,
    /// This many threads (including the main thread) share one epoll set and take turns: each reads one chunk of any
    /// ready connection and hands over, like a work-stealing runtime at its worst.
    Turns(usize),
}

/// How bytes are taken out of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// `recv`.
    Recv,
    /// `recv` with `MSG_PEEK`, then `recv` again.
    PeekFirst,
    /// `splice` through a pipe into `/dev/null`.
    Splice,
    /// io_uring, whose worker threads make the reads.
    Uring,
}

/// Port of a reader that lets the kernel choose its port: tcpmon shows all such ports as one service.
pub const KERNELS_CHOICE: u16 = u16::MAX;

/// What a reader does between two reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Between {
    /// Nothing.
    Nothing,
    /// Sleeps for this many microseconds.
    Sleep(u64),
    /// Burns CPU for this many microseconds.
    Spin(u64),
    /// Answers with 200 bytes, which the sender does not read.
    Answer,
}

/// Settings that both kinds of process have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessPlan {
    /// Name of the process and its threads, at most 15 bytes, or empty; with `None` it stays `traffic`.
    pub comm: Option<String>,
    /// CPU to which all threads are pinned.
    pub cpu: Option<usize>,
    /// Nice value.
    pub nice: i32,
    /// Whether it moves no byte until told to.
    pub paused: bool,
    /// Whether it records each call that moved bytes.
    pub log: bool,
}

/// A reader's plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReaderPlan {
    /// See [`ProcessPlan`].
    pub process: ProcessPlan,
    /// Address to listen on.
    pub bind: IpAddr,
    /// First port; 0 picks a free one, [`KERNELS_CHOICE`] lets the kernel choose.
    pub port: u16,
    /// Number of ports, starting with the first one.
    pub ports: u16,
    /// Number of ended connections after which it ends; with `None` it stays until told to end.
    pub connections: Option<u64>,
    /// See [`Threads`].
    pub threads: Threads,
    /// See [`Method`].
    pub method: Method,
    /// Maximum number of bytes in one read.
    pub chunk: usize,
    /// See [`Between`].
    pub between: Between,
    /// `SO_RCVBUF` as given to the kernel, which doubles it.
    pub receive_buffer: Option<usize>,
    /// Whether it shuts down its writing side before the first read.
    pub half_closed: bool,
    /// Whether it closes each connection as soon as it is accepted.
    pub close_at_once: bool,
    /// Whether it listens with `TCP_FASTOPEN`.
    pub fast_open: bool,
    /// Whether it listens with `TCP_DEFER_ACCEPT`.
    pub defer_accept: bool,
    /// A socket filter drops one in this many data segments, at random.
    pub drop_one_in: Option<u32>,
}

/// The plan of the program that a reader executes on [`Order::Exec`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecPlan {
    /// The reader's plan, as before.
    pub reader: ReaderPlan,
    /// Descriptor of the inherited connection.
    pub descriptor: i32,
}

/// A sender's plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SenderPlan {
    /// See [`ProcessPlan`].
    pub process: ProcessPlan,
    /// Address to connect to, with the first port.
    pub to: SocketAddr,
    /// Number of ports, starting with the first one; they are used in turn.
    pub ports: u16,
    /// Number of connections in total.
    pub connections: u64,
    /// Number of connections at a time, with a thread for each.
    pub parallel: u64,
    /// Bytes to send on each connection; with `None` it sends until told to finish.
    pub bytes: Option<u64>,
    /// Bytes in one write.
    pub message: usize,
    /// Bytes per second on each connection.
    pub rate: Option<u64>,
    /// `SO_SNDBUF` as given to the kernel, which doubles it.
    pub send_buffer: Option<usize>,
    /// Congestion control by name.
    pub congestion: Option<String>,
    /// Whether the first data travel with the SYN.
    pub fast_open: bool,
    /// Whether the first data travel with the handshake's last ACK.
    pub data_with_ack: bool,
    /// Whether a connection counts as ended only after the other side has closed it.
    pub await_close: bool,
    /// Whether each connection stays open after its bytes until told to finish.
    pub hold_open: bool,
    /// Whether it closes with a RST once all data are acknowledged.
    pub reset: bool,
}

/// A hog's plan.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HogPlan {
    /// The CPU that it keeps busy.
    pub cpu: usize,
    /// Its nice value.
    pub nice: i32,
}

/// A wrong clock's plan.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ClockPlan {
    /// Seconds by which the wall clock is ahead; negative if it is behind.
    pub seconds: i64,
}

/// A plan for bursts of UDP datagrams.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BurstPlan {
    /// Destination; nothing needs to listen there.
    pub to: SocketAddr,
    /// The CPU that a burst has for itself (`SCHED_FIFO`).
    pub cpu: usize,
    /// Number of datagrams in one burst.
    pub datagrams: u32,
    /// Payload of one datagram in bytes.
    pub payload: usize,
    /// Time from the end of one burst to the start of the next, in milliseconds.
    pub pause_ms: u64,
    /// Maximum number of bursts.
    pub bursts: u32,
}

/// An order, answered by one [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Stops moving bytes; answered when no thread will move any more.
    Pause,
    /// Resumes without limit.
    Resume,
    /// Moves this many bytes on each connection, then pauses; answered when done, with the bytes that were moved.
    Move(u64),
    /// Peeks at up to this many bytes of each connection, from a thread that does not read; answered with the bytes
    /// seen.
    Peek(u64),
    /// Writes a byte on each connection, from a thread that does nothing else; answered with the bytes written.
    SendByte,
    /// Reads what has arrived on each connection, from a thread that does nothing else; answered with the bytes read.
    Receive,
    /// Shuts down the writing side of each connection.
    ShutdownWrite,
    /// Renames the process to `renamed`.
    Rename,
    /// Executes another program, `traffic`, from a thread that is not the first one. That program continues to read
    /// from the first connection, paused (readers only).
    Exec,
    /// Closes the connections after the bytes written so far, and makes no more (senders only).
    Finish,
    /// Answers with a report.
    Report,
    /// Exits at once.
    Exit,
}

/// A line on stdout.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The first line: it listens on this port, or is connected.
    Ready(u16),
    /// An order has been carried out; the number is the order's result.
    Done(u64),
    /// The answer to [`Order::Report`].
    Report(Report),
    /// The last line: the plan, or the order to exit, has been carried out.
    Finished(Report),
    /// It cannot be done; the process ends.
    Failed(String),
}

/// What a process has done so far, by its own count.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The process id.
    pub pid: u32,
    /// Threads that moved bytes, in the order of their first call.
    pub tids: Vec<u32>,
    /// Bytes read, or bytes written to the kernel.
    pub bytes: u64,
    /// Number of calls that moved bytes.
    pub calls: u64,
    /// Number of connections that have ended.
    pub connections: u64,
    /// Number of those that ended with an error, such as a reset.
    pub broken: u64,
    /// `CLOCK_MONOTONIC` after the first call that moved bytes; 0 if there was none.
    pub first_ns: u64,
    /// The same for the last call.
    pub last_ns: u64,
    /// Each call, if requested.
    pub log: Vec<Call>,
}

/// One call that moved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// `CLOCK_MONOTONIC` after the call.
    pub at_ns: u64,
    /// Thread that made the call.
    pub tid: u32,
    /// Number of the connection, from 0, in the order in which the connections started.
    pub connection: u64,
    /// Bytes that the call moved.
    pub bytes: u64,
}
