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
    ///
    /// If the output accepts no more, what was written is cut back so that there is room for the trailer, which counts
    /// what that costs; the error is then that of [`failure`](Self::failure).
    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer>;

    /// After [`finish`](Self::finish): the error with which the output refused something in it.
    fn failure(&mut self) -> Option<io::Error> {
        None
    }

    /// Ends a trace whose trailer is not known, instead of [`finish`](Self::finish): the trace then says that it was
    /// cut.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        JsonLinesReader, JsonLinesWriter, LOST_TOTAL, LOST_WRITE, TraceReader as _,
        sample::{self, Disk},
    };

    const RECORDS: u64 = 5;
    const TOTALS: u64 = 3;

    /// Writes a trace as far as the output accepts it. Returns the trailer, and whether anything was refused.
    fn write<W: TraceWriter>(writer: io::Result<W>) -> io::Result<(Trailer, bool)> {
        let mut writer = writer?;
        let mut refused = false;
        for _ in 0..RECORDS {
            refused |= writer.record(&sample::record()).is_err();
        }
        refused |= writer.flush().is_err();
        for _ in 0..TOTALS {
            refused |= writer.total(&Total::Socket(sample::socket_total())).is_err();
        }
        let trailer = writer.finish(&sample::ending())?;
        refused |= writer.failure().is_some();
        Ok((trailer, refused))
    }

    /// Tries a disk of each size. `counted` returns the number of records in a file, and that of totals if the format
    /// has them.
    fn every_size(
        format: impl Fn(&mut Disk) -> io::Result<(Trailer, bool)>,
        counted: impl Fn(&[u8], &Trailer) -> (u64, Option<u64>),
    ) {
        let mut whole = Disk { room: usize::MAX, ..Disk::default() };
        format(&mut whole).expect("there is room");
        let (mut without, mut partly) = (0, 0);
        for room in 0..=whole.bytes.len() {
            let mut disk = Disk { room, ..Disk::default() };
            let Ok((trailer, refused)) = format(&mut disk) else {
                // No room for the header and the end.
                assert_eq!(partly, 0, "{room}");
                without += 1;
                continue;
            };
            assert!(disk.bytes.len() <= room);
            assert_eq!((trailer.complete, refused), (room == whole.bytes.len(), room < whole.bytes.len()), "{room}");
            let lost = |what: &str| trailer.lost.get(what).copied().unwrap_or(0);
            assert_eq!(trailer.records + lost(LOST_WRITE), RECORDS, "{room}");
            let (records, totals) = counted(&disk.bytes, &trailer);
            assert_eq!(records, trailer.records, "{room}");
            if let Some(totals) = totals {
                assert_eq!(totals + lost(LOST_TOTAL), TOTALS, "{room}");
            }
            partly += u32::from(!trailer.complete);
        }
        assert!(without > 0 && partly > 0, "{without} {partly}");
    }

    #[test]
    fn json_lines_can_be_read_at_whichever_byte_the_disk_is_full() {
        every_size(
            |disk| write(JsonLinesWriter::new(disk, &sample::header())),
            |bytes, trailer| {
                let mut reader = JsonLinesReader::new(bytes).expect("a header");
                let (mut records, mut totals) = (0, 0);
                while let Some(item) = reader.next_item() {
                    match item.expect("a whole line") {
                        crate::Item::Timeslice(_) => records += 1,
                        crate::Item::Total(_) => totals += 1,
                    }
                }
                assert_eq!(reader.trailer(), Some(trailer));
                (records, Some(totals))
            },
        );
    }

    #[cfg(feature = "csv")]
    #[test]
    fn csv_has_whole_lines_at_whichever_byte_the_disk_is_full() {
        every_size(
            |disk| write(crate::CsvWriter::new(disk, &sample::header())),
            |bytes, _| {
                assert!(bytes.ends_with(b"\n"));
                // CSV has no totals, and one line of names.
                (bytes.iter().filter(|byte| **byte == b'\n').count() as u64 - 1, None)
            },
        );
    }

    #[cfg(feature = "perfetto")]
    #[test]
    fn perfetto_has_its_end_at_whichever_byte_the_disk_is_full() {
        every_size(
            |disk| write(crate::PerfettoWriter::new(disk, &sample::header())),
            |bytes, trailer| {
                assert_eq!(crate::perfetto::records_at_end(bytes), [trailer.records]);
                (trailer.records, None)
            },
        );
    }

    #[test]
    fn a_table_ends_at_whichever_byte_the_disk_is_full() {
        let on = |room| {
            let mut disk = Disk { room, ..Disk::default() };
            let accepted = write(crate::TableWriter::new(&mut disk, &sample::header()));
            (disk.bytes, accepted.is_ok_and(|(_, refused)| !refused))
        };
        let (whole, accepted) = on(usize::MAX);
        assert!(accepted && !whole.is_empty());
        for room in 0..=whole.len() {
            // An error is reported, and what there was room for is there.
            assert_eq!(on(room), (whole[..room].to_vec(), room == whole.len()), "{room}");
        }
    }
}
