//! Receivers that do not keep up, each for one reason.

use crate::Namespace;
use crate::lab::Lab;
use crate::traffic::{Between, Hog, Reader, Sender, Traffic};

/// A reader that sleeps between reads while its sender gives all it can: its buffer is full and its window closed most
/// of the time.
#[derive(Debug)]
pub struct FullBuffer {
    _sender: Sender,
    reader: Reader,
    lab: Lab,
}

impl FullBuffer {
    /// Starts it under this name: 64 KiB every 5 ms, about 13 MB/s.
    #[track_caller]
    pub fn new(comm: &str) -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm(comm).between(Between::Sleep(5_000)).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).spawn();
        Self { _sender: sender, reader, lab }
    }

    /// Where it reads; its TCP counters are those of this connection alone.
    pub fn namespace(&self) -> &Namespace {
        self.lab.receiver()
    }

    /// Who reads.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}

/// A reader whose application gave its socket a small buffer, which does not grow any more.
#[derive(Debug)]
pub struct SmallBuffer {
    _sender: Sender,
    reader: Reader,
    lab: Lab,
}

impl SmallBuffer {
    /// Starts it under this name: 8,000 bytes (`SO_RCVBUF` of 4,000), into which 100 kB/s come.
    #[track_caller]
    pub fn new(comm: &str) -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm(comm).receive_buffer(4_000).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address());
        let sender = sender.rate(100_000).message(1_000).spawn();
        Self { _sender: sender, reader, lab }
    }

    /// Where it reads.
    pub fn namespace(&self) -> &Namespace {
        self.lab.receiver()
    }

    /// Who reads.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}

/// A reader that could keep up and does not get its CPU: hogs that count for far more share it.
#[derive(Debug)]
pub struct StarvedReader {
    _sender: Sender,
    reader: Reader,
    _hogs: Vec<Hog>,
    _lab: Lab,
}

impl StarvedReader {
    /// Starts it under this name on this CPU at nice 19, with two hogs at nice 0: it gets about 1/140 of the CPU.
    #[track_caller]
    pub fn new(comm: &str, cpu: usize) -> Self {
        let lab = Lab::new();
        let hogs = (0..2).map(|_| Traffic::hog(cpu, 0)).collect();
        let reader = Traffic::reader(lab.receiver()).comm(comm).cpu(cpu).nice(19).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).rate(20_000_000).spawn();
        Self { _sender: sender, reader, _hogs: hogs, _lab: lab }
    }

    /// Who reads.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}
