//! Collects what a trace's records become before it is written to the output.

use std::io;

use crate::{
    output::Output,
    trailer::{Ending, Trailer},
};

/// Bytes of a batch.
const BATCH: usize = 64 * 1024;

/// An output that is written to in batches of whole records. When it accepts no more, it is cut back to the last batch,
/// and the records that this costs are counted.
#[derive(Debug)]
pub struct BatchedOutput<O: Output> {
    output: O,
    /// What is to be written next.
    buffer: Vec<u8>,
    /// Records in the buffer.
    buffered: u64,
    /// What the output has accepted before the buffer.
    before: u64,
    /// Records in the output and the buffer.
    records: u64,
    /// Records that the output has not accepted.
    refused: u64,
    failed: bool,
}

impl<O: Output> BatchedOutput<O> {
    /// An output that nothing has been written to.
    pub fn new(output: O) -> Self {
        let buffer = Vec::with_capacity(2 * BATCH);
        Self { output, buffer, buffered: 0, before: 0, records: 0, refused: 0, failed: false }
    }

    /// Adds what is not a record.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier write has failed"));
        }
        self.buffer.extend(bytes);
        Ok(())
    }

    /// Adds a record.
    pub fn record(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.add(bytes) {
            self.refused += 1;
            return Err(error);
        }
        self.records += 1;
        self.buffered += 1;
        if self.buffer.len() >= BATCH { self.drain() } else { Ok(()) }
    }

    /// Writes everything to the output. After an error, what was in the buffer is lost.
    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.output.flush()
    }

    /// Ends the trace after `last`, which is not a record, and returns the trailer that describes it.
    pub fn finish(&mut self, ending: &Ending, last: impl FnOnce(&Trailer) -> Vec<u8>) -> io::Result<Trailer> {
        if self.failed || self.flush().is_err() {
            return Ok(Trailer::new(ending, self.records, self.refused));
        }
        let trailer = Trailer::new(ending, self.records, self.refused);
        self.buffer = last(&trailer);
        self.flush()?;
        Ok(trailer)
    }

    fn drain(&mut self) -> io::Result<()> {
        let written = self.output.write_all(&self.buffer);
        let buffered = std::mem::take(&mut self.buffered);
        match &written {
            Ok(()) => self.before += self.buffer.len() as u64,
            Err(_) => {
                self.failed = true;
                self.records -= buffered;
                self.refused += buffered;
                // A pipe keeps what it has accepted.
                let _ = self.output.cut(self.before);
            }
        }
        self.buffer.clear();
        written
    }
}
