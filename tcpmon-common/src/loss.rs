//! What can be lost in the kernel, each with a counter of its own that is exported as `tcpmon_lost_total{what}`.

/// Index into the per-CPU map `LOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Loss {
    /// Local storage for a socket was refused (memory, or its option-memory limit): the socket is not watched.
    SocketStorage = 0,
    /// Local storage for a reader thread was refused: its timeslices are not counted.
    ReaderStorage = 1,
    /// Every reader slot is taken: the thread's timeslices are not counted.
    ReaderSlot = 2,
    /// The ring was full at a socket's end: its last values went to the map `FALLEN` instead, under no group.
    FinalRecord = 3,
    /// The ring was full at a reader's exit: its slot is collected at the next scrape instead.
    ReaderExit = 4,
    /// The ring was full: a timeslice record of a trace is missing.
    TimesliceRecord = 5,
    /// A traced thread reads more sockets in one timeslice than are remembered: a record is missing.
    TimesliceSocket = 6,
    /// The map of drop counts is full: a drop was counted under no socket.
    DropEntry = 7,
    /// More network devices than NAPI slots: a poll was counted under the device `other`.
    NapiDevice = 8,
    /// The ring was full when a socket began to listen: until the next scrape, its unread connections have no process.
    ListenerRecord = 9,
    /// A timeslice ended while a read was being noted in it: its record is missing, its bytes are in the socket's next one.
    TimesliceEdge = 10,
    /// A connection's begin was not seen: it is counted from its first byte, but what it did until it was met is in no
    /// histogram.
    SocketBeginLate = 11,
    /// A socket's state changed in each of the snapshot's tries to copy it: its totals come with the next pass.
    SnapshotTorn = 12,
    /// More sockets than a snapshot can show: this one is counted when it ends.
    SocketIndex = 13,
    /// The ring was full when another process began to read a socket: what the former one read counts as the new one's.
    HandedOver = 14,
    /// An event lay before the one before it: the time between them was taken as nothing.
    ImpossibleTime = 15,
    /// A sequence number went backwards: the movement was taken as nothing.
    ImpossibleBytes = 16,
}

/// Number of kinds of [`Loss`].
pub const LOSSES: usize = 17;

impl Loss {
    /// All kinds in the order of their index.
    pub const ALL: [Loss; LOSSES] = [
        Loss::SocketStorage,
        Loss::ReaderStorage,
        Loss::ReaderSlot,
        Loss::FinalRecord,
        Loss::ReaderExit,
        Loss::TimesliceRecord,
        Loss::TimesliceSocket,
        Loss::DropEntry,
        Loss::NapiDevice,
        Loss::ListenerRecord,
        Loss::TimesliceEdge,
        Loss::SocketBeginLate,
        Loss::SnapshotTorn,
        Loss::SocketIndex,
        Loss::HandedOver,
        Loss::ImpossibleTime,
        Loss::ImpossibleBytes,
    ];

    /// The value of the label `what`.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::SocketStorage => "socket_storage",
            Loss::ReaderStorage => "reader_storage",
            Loss::ReaderSlot => "reader_slot",
            Loss::FinalRecord => "final_record",
            Loss::ReaderExit => "reader_exit",
            Loss::TimesliceRecord => "timeslice_record",
            Loss::TimesliceSocket => "timeslice_socket",
            Loss::DropEntry => "drop_entry",
            Loss::NapiDevice => "napi_device",
            Loss::ListenerRecord => "listener_record",
            Loss::TimesliceEdge => "timeslice_edge",
            Loss::SocketBeginLate => "socket_begin_late",
            Loss::SnapshotTorn => "snapshot_torn",
            Loss::SocketIndex => "socket_index",
            Loss::HandedOver => "handed_over",
            Loss::ImpossibleTime => "impossible_time",
            Loss::ImpossibleBytes => "impossible_bytes",
        }
    }
}
