//! Receivers that do not keep up, each for one reason.

use crate::Namespace;
use crate::lab::Lab;
use crate::traffic::{Between, Hog, Reader, Sender, Traffic};

/// A reader that does not keep up with its sender.
#[derive(Debug)]
pub struct SlowReader {
    _sender: Sender,
    reader: Reader,
    _hogs: Vec<Hog>,
    lab: Lab,
}

impl SlowReader {
    /// Sleeps between reads while its sender gives all it can: 64 KiB every 5 ms, about 13 MB/s. Its buffer is full and
    /// its window closed most of the time.
    #[track_caller]
    pub fn with_full_buffer(comm: &str) -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm(comm).between(Between::Sleep(5_000)).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).spawn();
        Self { _sender: sender, reader, _hogs: Vec::new(), lab }
    }

    /// Its application gave its socket a small buffer, which does not grow any more: 8,000 bytes (`SO_RCVBUF` of 4,000),
    /// into which 100 kB/s come.
    #[track_caller]
    pub fn with_small_buffer(comm: &str) -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm(comm).receive_buffer(4_000).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address());
        let sender = sender.rate(100_000).message(1_000).spawn();
        Self { _sender: sender, reader, _hogs: Vec::new(), lab }
    }

    /// Could keep up and does not get this CPU: it runs there at nice 19 beside two hogs at nice 0, and gets about 1/140.
    #[track_caller]
    pub fn starved(comm: &str, cpu: usize) -> Self {
        let lab = Lab::new();
        let hogs = (0..2).map(|_| Traffic::hog(cpu, 0)).collect();
        let reader = Traffic::reader(lab.receiver()).comm(comm).cpu(cpu).nice(19).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).rate(20_000_000).spawn();
        Self { _sender: sender, reader, _hogs: hogs, lab }
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
