//! Receivers that do not keep up, each for one reason.

use crate::Namespace;
use crate::lab::Lab;
use crate::traffic::{Between, Reader, Running, Sender, Traffic};

/// A reader that does not keep up with its sender.
#[derive(Debug)]
pub struct SlowReader {
    _sender: Sender,
    reader: Reader,
    _hogs: Vec<Running>,
    lab: Lab,
}

impl SlowReader {
    /// Sleeps between reads while its sender sends as fast as it can: 64 KiB every 5 ms, about 13 MB/s. Most of the
    /// time its buffer is full and its window closed.
    #[track_caller]
    pub fn with_full_buffer(comm: &str) -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm(comm).between(Between::Sleep(5_000)).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).spawn();
        Self { _sender: sender, reader, _hogs: Vec::new(), lab }
    }

    /// The application gave the socket a small buffer that cannot grow: 8,000 bytes (`SO_RCVBUF` of 4,000). It receives
    /// 100 kB/s.
    #[track_caller]
    pub fn with_small_buffer(comm: &str) -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm(comm).receive_buffer(4_000).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address());
        let sender = sender.rate(100_000).message(1_000).spawn();
        Self { _sender: sender, reader, _hogs: Vec::new(), lab }
    }

    /// Has work to do for each read, and competes for this CPU with four hogs of the same priority: it gets a fifth of
    /// it, and its sender, which sends as fast as it can, waits.
    #[track_caller]
    pub fn outnumbered(comm: &str, cpu: usize) -> Self {
        let lab = Lab::new();
        let hogs = (0..4).map(|_| Traffic::hog(cpu, 0)).collect();
        let reader = Traffic::reader(lab.receiver()).comm(comm).cpu(cpu).between(Between::Spin(1_000)).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).spawn();
        Self { _sender: sender, reader, _hogs: hogs, lab }
    }

    /// Could keep up but does not get enough CPU: it runs at nice 19 on this CPU, next to two hogs at nice 0, and gets
    /// about 1/140 of it. As it hardly needs any, its sender need not notice.
    #[track_caller]
    pub fn starved(comm: &str, cpu: usize) -> Self {
        let lab = Lab::new();
        let hogs = (0..2).map(|_| Traffic::hog(cpu, 0)).collect();
        let reader = Traffic::reader(lab.receiver()).comm(comm).cpu(cpu).nice(19).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-sender").to(reader.address()).rate(20_000_000).spawn();
        Self { _sender: sender, reader, _hogs: hogs, lab }
    }

    /// The reader's namespace. Its TCP counters belong to this connection alone.
    pub fn namespace(&self) -> &Namespace {
        self.lab.receiver()
    }

    /// The reader.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}
