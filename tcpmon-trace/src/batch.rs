//! How the records and totals of a trace reach the output, and what happens if the output accepts no more: what was
//! written is cut back so that there is room for the trace's end, which counts what that costs.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
};

use crate::{
    output::Output,
    trailer::{EndReason, Ending, LOST_TOTAL, Trailer},
};

/// Bytes collected before they are written to the output.
const BATCH: usize = 64 * 1024;

/// How many records and totals before the buffer are remembered: the end of a trace is shorter than this many.
const REMEMBERED: usize = 8;

/// Numbers of records and totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contents {
    pub records: u64,
    pub totals: u64,
}

/// An output that is written to in batches of whole records and totals.
#[derive(Debug)]
pub struct BatchedOutput<O: Output> {
    output: O,
    /// Whole records and totals.
    buffer: Vec<u8>,
    /// Bytes of the buffer that the output has accepted.
    taken: usize,
    /// Bytes that the output had accepted before the buffer.
    before: u64,
    /// Where the records and totals in the buffer and the last before it end, and how many there are up to there. The
    /// end of the header comes first.
    ends: VecDeque<(u64, Contents)>,
    /// What the output and the buffer contain.
    contents: Contents,
    /// What was not accepted into the buffer.
    refused: Contents,
    /// See [`failure`](Self::failure).
    failure: Option<io::Error>,
}

impl<O: Output> BatchedOutput<O> {
    /// Starts a trace: writes its header to the output at once.
    pub fn new(output: O, header: &[u8]) -> io::Result<Self> {
        let mut buffer = Vec::with_capacity(2 * BATCH);
        buffer.extend(header);
        let mut batched = Self {
            output,
            buffer,
            taken: 0,
            before: 0,
            ends: [(header.len() as u64, Contents::default())].into(),
            contents: Contents::default(),
            refused: Contents::default(),
            failure: None,
        };
        batched.flush()?;
        Ok(batched)
    }

    /// Whether a record or total was not accepted.
    #[cfg(feature = "perfetto")]
    pub fn has_refused(&self) -> bool {
        self.refused.records + self.refused.totals > 0
    }

    /// Records so far, including those still in memory.
    pub fn records(&self) -> u64 {
        self.contents.records
    }

    /// Adds a record, which `append` appends.
    pub fn record(&mut self, append: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        self.add(|contents| &mut contents.records, append)
    }

    /// Adds totals of a socket or a thread, which `append` appends.
    pub fn total(&mut self, append: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        self.add(|contents| &mut contents.totals, append)
    }

    fn add(
        &mut self,
        number: fn(&mut Contents) -> &mut u64,
        append: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let drained = if self.buffer.len() >= BATCH { self.drain() } else { Ok(()) };
        let begin = self.buffer.len();
        let added = drained.and_then(|()| append(&mut self.buffer));
        if added.is_ok() {
            *number(&mut self.contents) += 1;
            self.ends.push_back((self.before + self.buffer.len() as u64, self.contents));
        } else {
            *number(&mut self.refused) += 1;
            self.buffer.truncate(begin);
        }
        added
    }

    /// Writes everything to the output. After an error, the next call continues where the output stopped.
    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.output.flush()
    }

    fn drain(&mut self) -> io::Result<()> {
        while self.taken < self.buffer.len() {
            match self.output.write(&self.buffer[self.taken..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.taken += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.before += self.buffer.len() as u64;
        self.buffer.clear();
        self.taken = 0;
        self.ends.drain(..self.ends.len().saturating_sub(REMEMBERED));
        Ok(())
    }

    /// Ends the trace with the bytes that `tail` makes of its trailer.
    pub fn finish(
        &mut self,
        ending: &Ending,
        mut tail: impl FnMut(&Trailer) -> io::Result<Vec<u8>>,
    ) -> io::Result<Trailer> {
        let trailer = trailer_of(ending, self.contents.records, self.refused);
        self.buffer.extend(tail(&trailer)?);
        let Err(error) = self.flush() else { return Ok(trailer) };
        let held = self.before + self.taken as u64;
        let ends = self.ends.iter().rev().map(|(at, kept)| {
            let lost = Contents {
                records: self.refused.records + self.contents.records - kept.records,
                totals: self.refused.totals + self.contents.totals - kept.totals,
            };
            End::new(*at, trailer_of(ending, kept.records, lost), &mut tail)
        });
        match End::fitting(held, ends).and_then(|end| end.write(&mut self.output)) {
            Ok(trailer) => {
                self.failure = Some(error);
                Ok(trailer)
            }
            Err(_) => Err(error),
        }
    }

    /// Ends the trace without a trailer. After an error, it ends with the last whole record or total, if the output can
    /// take back what was written.
    pub fn finish_cut(&mut self) -> io::Result<()> {
        let written = self.flush();
        if written.is_err() {
            let held = self.before + self.taken as u64;
            let whole = self.ends.iter().rev().find(|(at, _)| *at <= held);
            // If it cannot, the error that counts is the first.
            let _ = self.output.cut(whole.map_or(0, |(at, _)| *at));
        }
        written
    }

    /// The error with which the output refused something in [`finish`](Self::finish).
    pub fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }
}

/// The trailer of a trace with this many records, of which the output did not accept others and totals.
pub fn trailer_of(ending: &Ending, records: u64, lost: Contents) -> Trailer {
    let mut ending = ending.clone();
    if lost.records + lost.totals > 0 {
        ending.reason = EndReason::WriteError;
    }
    if lost.totals > 0 {
        *ending.lost.entry(LOST_TOTAL.into()).or_default() += lost.totals;
    }
    Trailer::new(&ending, records, lost.records)
}

/// A way to end a trace.
#[derive(Debug)]
pub struct End {
    /// Where the end begins in the output.
    at: u64,
    trailer: Trailer,
    /// Its bytes.
    tail: Vec<u8>,
}

impl End {
    /// An end that begins there, with the bytes that `tail` makes of its trailer.
    pub fn new(at: u64, trailer: Trailer, tail: impl FnOnce(&Trailer) -> io::Result<Vec<u8>>) -> io::Result<Self> {
        let tail = tail(&trailer)?;
        Ok(Self { at, trailer, tail })
    }

    /// The first of these ends that fits into the bytes that a full output holds.
    pub fn fitting(held: u64, mut ends: impl Iterator<Item = io::Result<Self>>) -> io::Result<Self> {
        let fits = |end: &Self| end.at + end.tail.len() as u64 <= held;
        ends.find(|end| end.as_ref().map_or(true, fits))
            .unwrap_or_else(|| Err(io::Error::new(ErrorKind::StorageFull, "no room is left for the end of the file")))
    }

    /// Cuts the output back to where the end begins, and writes it.
    pub fn write(self, output: &mut impl Output) -> io::Result<Trailer> {
        output.cut(self.at)?;
        output.write_all(&self.tail)?;
        output.flush()?;
        Ok(self.trailer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LOST_WRITE,
        sample::{self, Disk},
    };

    #[test]
    fn refused_records_and_totals_count_as_lost_although_the_output_accepts_again() {
        let disk = Disk { bytes: Vec::new(), room: 10 };
        let mut output = BatchedOutput::new(disk, b"header").expect("it fits");
        let batch = |buffer: &mut Vec<u8>| {
            buffer.resize(buffer.len() + BATCH, b'x');
            Ok(())
        };
        output.record(batch).expect("it stays in memory");
        output.record(batch).expect_err("the disk is full");
        output.total(batch).expect_err("the disk is full");
        output.output.room = usize::MAX;
        output.record(batch).expect("there is room again");
        let trailer = output.finish(&sample::ending(), |_| Ok(b"end".to_vec())).expect("there is room");
        assert_eq!((trailer.records, trailer.lost[LOST_WRITE], trailer.lost[LOST_TOTAL]), (2, 1, 1));
        assert_eq!((trailer.reason, trailer.complete), (EndReason::WriteError, false));
        assert_eq!(output.output.bytes.len(), 2 * BATCH + b"headerend".len());
    }

    #[test]
    fn without_a_trailer_a_full_output_ends_with_a_whole_record() {
        let disk = Disk { bytes: Vec::new(), room: b"header12345".len() };
        let mut output = BatchedOutput::new(disk, b"header").expect("it fits");
        for _ in 0..5 {
            let append = |buffer: &mut Vec<u8>| {
                buffer.extend(b"12");
                Ok(())
            };
            output.record(append).expect("it stays in memory");
        }
        output.finish_cut().expect_err("the disk is full");
        assert_eq!(output.output.bytes, b"header1212");
    }
}
