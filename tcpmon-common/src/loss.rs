//! What can be lost in the kernel. Each kind has its own counter, which is exported as `tcpmon_lost_total{what}`
//! ([`Loss::SocketFoundLate`], which loses nothing, as `tcpmon_sockets_found_late_total`).

/// Index into the per-CPU map `LOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Loss {
    /// No state was free in the store, so the socket is not watched. The next event tries again, and counts again if
    /// there is still none.
    SocketState = 0,
    /// Local storage for a reader thread was refused: its timeslices are not counted.
    ReaderStorage = 1,
    /// Every reader slot is taken: the thread's timeslices are not counted.
    ReaderSlot = 2,
    /// Both of the socket's buckets in the table of states were full, so the socket is not watched. The next event
    /// tries again.
    SocketTable = 3,
    /// The ring was full at a reader's exit: its slot is collected at the next scrape instead.
    ReaderExit = 4,
    /// The ring was full: a timeslice record of a trace is missing.
    TimesliceRecord = 5,
    /// A traced thread read more sockets in one timeslice than the trace remembers: a record is missing.
    TimesliceSocket = 6,
    /// The map of drop counts was full: a drop is missing from the counts by socket and reason.
    DropEntry = 7,
    /// There are more network devices than NAPI slots: a poll was counted under the device `other`.
    NapiDevice = 8,
    /// The ring was full when a socket started to listen: until the next pass, its connections have no process before
    /// they are first read.
    ListenerRecord = 9,
    /// A timeslice ended while a read was being recorded in it: its record is missing, and its bytes are in the
    /// socket's next one.
    TimesliceEdge = 10,
    /// A connection's start was not seen. It is counted from its first byte (or from the first unread one: see
    /// `start_late` in the programs), but what it did before it was first seen is in no histogram.
    SocketFoundLate = 11,
    /// No state was free when another process started to read a socket: what the previous process read is counted for
    /// the new one.
    HandedOver = 12,
    /// An event was earlier than the previous one: the time between them was treated as 0.
    ImpossibleTime = 13,
    /// A sequence number went backwards: the change was treated as 0.
    ImpossibleBytes = 14,
    /// The trace already follows as many processes as it can: a process that a traced one started is not traced.
    FollowedProcess = 15,
}

/// Number of kinds of [`Loss`].
pub const LOSSES: usize = 16;

impl Loss {
    /// All kinds in the order of their index.
    pub const ALL: [Loss; LOSSES] = [
        Loss::SocketState,
        Loss::ReaderStorage,
        Loss::ReaderSlot,
        Loss::SocketTable,
        Loss::ReaderExit,
        Loss::TimesliceRecord,
        Loss::TimesliceSocket,
        Loss::DropEntry,
        Loss::NapiDevice,
        Loss::ListenerRecord,
        Loss::TimesliceEdge,
        Loss::SocketFoundLate,
        Loss::HandedOver,
        Loss::ImpossibleTime,
        Loss::ImpossibleBytes,
        Loss::FollowedProcess,
    ];

    /// The value of the label `what`.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::SocketState => "socket_state",
            Loss::ReaderStorage => "reader_storage",
            Loss::ReaderSlot => "reader_slot",
            Loss::SocketTable => "socket_table",
            Loss::ReaderExit => "reader_exit",
            Loss::TimesliceRecord => "timeslice_record",
            Loss::TimesliceSocket => "timeslice_socket",
            Loss::DropEntry => "drop_entry",
            Loss::NapiDevice => "napi_device",
            Loss::ListenerRecord => "listener_record",
            Loss::TimesliceEdge => "timeslice_edge",
            Loss::SocketFoundLate => "socket_found_late",
            Loss::HandedOver => "handed_over",
            Loss::ImpossibleTime => "impossible_time",
            Loss::ImpossibleBytes => "impossible_bytes",
            Loss::FollowedProcess => "followed_process",
        }
    }
}
