//! Collects the bytes of a trace's records before they are written to the output.

use std::io;

use crate::{
    output::Output,
    trailer::{EndReason, Ending, LOST_TOTAL, Trailer},
};

/// Size of a batch, bytes.
const BATCH: usize = 64 * 1024;

/// An output that is written to in batches of whole records. When it accepts no more, it is cut back to the end of a
/// batch, and the records and totals that are lost with that are counted.
#[derive(Debug)]
pub struct BatchedOutput<O: Output> {
    output: O,
    /// The batch that is written next.
    buffer: Vec<u8>,
    buffered: Contents,
    /// Bytes that the output had accepted before the buffer.
    before: u64,
    /// Where the last batch with any records or totals begins in the output, and how many it contains.
    last: Option<(u64, Contents)>,
    /// Records in the output and the buffer.
    records: u64,
    /// Records and totals that the output has not accepted.
    refused: Contents,
    failed: bool,
    /// Whether the output ends with a whole batch: a pipe keeps what was written of a partial one.
    is_clean: bool,
    /// See [`failure`](Self::failure).
    failure: Option<io::Error>,
}

/// Numbers of records and totals.
#[derive(Clone, Copy, Debug, Default)]
struct Contents {
    records: u64,
    totals: u64,
}

impl Contents {
    fn add(&mut self, other: Self) {
        self.records += other.records;
        self.totals += other.totals;
    }
}

impl<O: Output> BatchedOutput<O> {
    /// An output that nothing has been written to.
    pub fn new(output: O) -> Self {
        Self {
            output,
            buffer: Vec::with_capacity(2 * BATCH),
            buffered: Contents::default(),
            before: 0,
            last: None,
            records: 0,
            refused: Contents::default(),
            failed: false,
            is_clean: true,
            failure: None,
        }
    }

    /// Adds bytes that are neither a record nor a total.
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
            self.refused.records += 1;
            return Err(error);
        }
        self.records += 1;
        self.buffered.records += 1;
        if self.buffer.len() >= BATCH { self.drain() } else { Ok(()) }
    }

    /// Adds totals of a socket or thread.
    pub fn total(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.add(bytes) {
            self.refused.totals += 1;
            return Err(error);
        }
        self.buffered.totals += 1;
        if self.buffer.len() >= BATCH { self.drain() } else { Ok(()) }
    }

    /// Writes everything to the output. After an error, what was in the buffer is lost.
    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.output.flush()
    }

    /// Ends the trace after `last`, which is neither a record nor a total, and returns the trailer that describes it.
    pub fn finish(&mut self, ending: &Ending, mut last: impl FnMut(&Trailer) -> Vec<u8>) -> io::Result<Trailer> {
        if !self.failed {
            self.failure = self.flush().err();
        }
        let mut trailer = self.trailer(ending);
        if self.is_clean
            && let Err(error) = self.end(&last(&trailer))
        {
            self.failed = true;
            // The space of a whole batch is enough for the end.
            let Some((begin, contents)) = self.last.take().filter(|_| self.is_clean) else { return Err(error) };
            self.failure = self.failure.take().or(Some(error));
            self.output.cut(begin)?;
            self.before = begin;
            self.records -= contents.records;
            self.refused.add(contents);
            trailer = self.trailer(ending);
            self.end(&last(&trailer))?;
        }
        Ok(trailer)
    }

    /// The error with which the output refused something in [`finish`](Self::finish).
    pub fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    fn trailer(&self, ending: &Ending) -> Trailer {
        let mut ending = ending.clone();
        if self.refused.records + self.refused.totals > 0 {
            ending.reason = EndReason::WriteError;
        }
        if self.refused.totals > 0 {
            *ending.lost.entry(LOST_TOTAL.into()).or_default() += self.refused.totals;
        }
        Trailer::new(&ending, self.records, self.refused.records)
    }

    /// Writes the end of the trace.
    fn end(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.output.write_all(bytes).and_then(|()| self.output.flush());
        if written.is_err() {
            self.cut_back();
        }
        written
    }

    fn drain(&mut self) -> io::Result<()> {
        let written = self.output.write_all(&self.buffer);
        let buffered = std::mem::take(&mut self.buffered);
        match &written {
            Ok(()) => {
                if buffered.records + buffered.totals > 0 {
                    self.last = Some((self.before, buffered));
                }
                self.before += self.buffer.len() as u64;
            }
            Err(_) => {
                self.failed = true;
                self.records -= buffered.records;
                self.refused.add(buffered);
                self.cut_back();
            }
        }
        self.buffer.clear();
        written
    }

    /// Removes the part of a batch that the output has accepted, if it has not accepted all of it.
    fn cut_back(&mut self) {
        self.is_clean = self.output.cut(self.before).is_ok();
    }
}
