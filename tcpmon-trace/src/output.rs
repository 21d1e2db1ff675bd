//! Where a trace is written, and the interface of all trace writers.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
};

use super::{
    record::TimesliceRecord,
    total::Total,
    trailer::{Ending, Trailer},
};

/// A trace that is being written, in any format. The header is written when the writer is created.
pub trait TraceWriter {
    /// Adds a record; it may stay in memory until [`flush`](Self::flush).
    ///
    /// After an error, the record is not part of the trace and counts as lost; the trace can still be
    /// [`finish`](Self::finish)ed.
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()>;

    /// Adds totals, after all records.
    ///
    /// After an error, they are not part of the trace.
    fn total(&mut self, total: &Total) -> io::Result<()>;

    /// Writes everything to the output.
    fn flush(&mut self) -> io::Result<()>;

    /// Ends the trace and returns its trailer as written. Must be called once, as the last call, also after an error.
    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer>;

    /// Ends a trace whose trailer is not known, instead of [`finish`](Self::finish): what is written says so.
    fn finish_cut(&mut self) -> io::Result<()> {
        self.flush()
    }
}

/// Accepts the bytes of a trace.
pub trait Output: Write {
    /// Removes everything after the first `length` bytes written, so that writing continues from there: a full disk
    /// then has room for the trailer. Returns an error if the output cannot take back what was written, as with a pipe.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Output for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.seek(SeekFrom::Start(length))?;
        Ok(())
    }
}

impl Output for Vec<u8> {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }
}

impl<O: Output + ?Sized> Output for &mut O {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        (**self).cut(length)
    }
}

impl<O: Output + ?Sized> Output for Box<O> {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        (**self).cut(length)
    }
}

/// An output that cannot take back what was written: standard output, a pipe, a socket.
#[derive(Debug)]
pub struct Stream<W>(pub W);

impl<W: Write> Write for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write> Output for Stream<W> {
    fn cut(&mut self, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
