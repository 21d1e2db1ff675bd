//! Writes Parquet and reads it back.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write},
};

use proptest::prelude::*;

use super::{ParquetReader, ParquetWriter};
use crate::{
    Item, Output, ReadError, Stream, TimesliceRecord, Total, TraceReader, TraceWriter, Trailer, sample,
    trailer::{LOST_TOTAL, LOST_WRITE},
};

/// Rows of a row group, which the writer fixes.
const GROUP: usize = 65_536;

fn file() -> File {
    tempfile::tempfile().expect("a temporary file")
}

/// Writes a trace to a file.
fn write(mut file: &File, records: &[TimesliceRecord], totals: &[Total]) -> Trailer {
    let mut writer = ParquetWriter::new(Stream(file), &sample::header()).expect("there is room");
    for record in records {
        writer.record(record).expect("there is room");
    }
    for total in totals {
        writer.total(total).expect("there is room");
    }
    let trailer = writer.finish(&sample::ending()).expect("there is room");
    file.rewind().expect("it is a file");
    trailer
}

/// Everything that can be read, and the trailer or the error.
fn read(file: File) -> (Vec<Item>, Result<Trailer, ReadError>) {
    let mut reader = match ParquetReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Err(error)),
    };
    assert_eq!(reader.header(), &sample::header());
    let mut items = Vec::new();
    while let Some(item) = reader.next_item() {
        match item {
            Ok(item) => items.push(item),
            Err(error) => {
                assert!(reader.next_item().is_none() && reader.trailer().is_none());
                return (items, Err(error));
            }
        }
    }
    (items, Ok(reader.trailer().expect("a whole trace has a trailer").clone()))
}

fn timeslices(records: &[TimesliceRecord]) -> Vec<Item> {
    records.iter().map(|record| Item::Timeslice(Box::new(*record))).collect()
}

/// Records that differ, and end 1 ms after each other.
fn many(count: usize) -> Vec<TimesliceRecord> {
    let record = |number: usize| TimesliceRecord {
        deactivated_ns: sample::record().deactivated_ns + number as u64 * 1_000_000,
        read_bytes: number as u64,
        cookie: number as u64 % 7,
        ..sample::record()
    };
    (0..count).map(record).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_is_written_is_read_back(numbers in proptest::collection::vec(any::<[u64; sample::NUMBERS]>(), 0..5)) {
        // A signed integer holds 63 bits: as nanoseconds, that is 292 years.
        let half = |numbers: &[u64; sample::NUMBERS]| numbers.map(|number| number >> 1);
        let records: Vec<_> = numbers.iter().map(half).map(|numbers| sample::record_of(&numbers)).collect();
        let totals = [Total::Socket(sample::socket_total()), Total::Thread(sample::thread_total())];
        let file = file();
        let trailer = write(&file, &records, &totals);
        let (items, read) = read(file);
        let expected: Vec<_> =
            timeslices(&records).into_iter().chain(totals.map(|total| Item::Total(Box::new(total)))).collect();
        prop_assert_eq!(items, expected);
        prop_assert_eq!(read.expect("it is whole"), trailer);
    }
}

#[test]
fn a_trace_of_several_row_groups_is_read_in_its_order() {
    let records = many(2 * GROUP + 100);
    let file = file();
    let trailer = write(&file, &records, &[]);
    assert_eq!((trailer.records, trailer.complete), (records.len() as u64, true));
    let (items, read) = read(file);
    assert!(items == timeslices(&records));
    assert_eq!(read.expect("it is whole"), trailer);
}

#[test]
fn a_row_group_ends_after_five_minutes() {
    let records = many(600_000);
    let file = file();
    let mut writer = ParquetWriter::new(Stream(&file), &sample::header()).expect("there is room");
    // Ten records a second.
    for record in records.iter().step_by(100) {
        writer.record(record).expect("there is room");
    }
    drop(writer);
    let (items, error) = read(file.try_clone().expect("a descriptor"));
    assert!(items.len() >= 3000 && items.len() < 6000, "{}", items.len());
    assert!(matches!(error, Err(ReadError::CutParquet { records }) if records == items.len() as u64), "{error:?}");
}

#[test]
fn a_file_that_was_cut_is_read_up_to_its_last_footer() {
    let records = many(3 * GROUP);
    let file = file();
    write(&file, &records, &[]);
    let whole = file.metadata().expect("it is there").len();
    // Footers follow the row groups.
    for (part, least) in [(0.99, 2), (0.7, 2), (0.4, 1)] {
        let length = (whole as f64 * part) as u64;
        file.set_len(length).expect("it is writable");
        let (items, error) = read(file.try_clone().expect("a descriptor"));
        assert!(items.len() >= least * GROUP, "{} of {part}", items.len());
        assert!(items == timeslices(&records[..items.len()]));
        assert!(matches!(error, Err(ReadError::CutParquet { records }) if records == items.len() as u64), "{error:?}");
    }
    file.set_len(1000).expect("it is writable");
    assert!(matches!(ParquetReader::new(file), Err(ReadError::NoFooter)));
}

#[test]
fn a_trace_whose_end_is_unknown_is_written_as_a_cut_one() {
    let records = many(10);
    let file = file();
    let mut writer = ParquetWriter::new(Stream(&file), &sample::header()).expect("there is room");
    for record in &records {
        writer.record(record).expect("there is room");
    }
    writer.finish_cut().expect("there is room");
    drop(writer);
    let (items, error) = read(file);
    assert_eq!(items, timeslices(&records));
    assert!(matches!(error, Err(ReadError::CutParquet { records: 10 })), "{error:?}");
}

/// A file on a disk with room for this many bytes.
struct Disk {
    file: File,
    room: u64,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.room - self.file.stream_position()?;
        let fits = bytes.len().min(left as usize);
        if fits == 0 { Err(io::ErrorKind::StorageFull.into()) } else { self.file.write(&bytes[..fits]) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Disk {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.cut(length)
    }
}

#[test]
fn a_full_disk_still_gets_its_footer_and_the_loss_is_in_it() {
    let records = many(3 * GROUP);
    let whole = file();
    write(&whole, &records, &[]);
    let whole = whole.metadata().expect("it is there").len();
    for part in [0.2, 0.5, 0.9, 0.99] {
        let file = file();
        let disk = Disk { file: file.try_clone().expect("a descriptor"), room: (whole as f64 * part) as u64 };
        let mut writer = ParquetWriter::new(disk, &sample::header()).expect("there is room");
        let failed = records.iter().filter(|record| writer.record(record).is_err()).count();
        let trailer = writer.finish(&sample::ending()).expect("a footer fits");
        drop(writer);
        assert_eq!(failed > 0, part < 0.95, "{part}");
        assert_eq!(trailer.records + trailer.lost[LOST_WRITE], records.len() as u64, "{part}");
        // The last row group fits once its own footer is gone.
        assert_eq!(trailer.complete, part > 0.95, "{part}: {trailer:?}");
        assert!(trailer.records.is_multiple_of(GROUP as u64), "{part}: {trailer:?}");
        let (items, read) = read(file);
        assert!(items == timeslices(&records[..trailer.records as usize]), "{part}");
        assert_eq!(read.expect("it is whole"), trailer);
    }
}

#[test]
fn a_full_disk_costs_totals_before_it_costs_records() {
    let (records, totals) = (many(3 * GROUP), vec![Total::Thread(sample::thread_total()); 5_000]);
    let whole = file();
    write(&whole, &records, &[]);
    let file = file();
    let room = whole.metadata().expect("it is there").len();
    let disk = Disk { file: file.try_clone().expect("a descriptor"), room };
    let mut writer = ParquetWriter::new(disk, &sample::header()).expect("there is room");
    records.iter().for_each(|record| writer.record(record).expect("there is room"));
    totals.iter().for_each(|total| writer.total(total).expect("it is kept"));
    let trailer = writer.finish(&sample::ending()).expect("a footer fits");
    drop(writer);
    assert_eq!((trailer.records, trailer.lost[LOST_TOTAL]), (records.len() as u64, totals.len() as u64));
    assert!(!trailer.complete);
    let (items, read) = read(file);
    assert!(items == timeslices(&records));
    assert_eq!(read.expect("it is whole"), trailer);
}

/// What has become of a small trace on a disk with this much room: the bytes of the file, or `None` without room for a
/// footer, when there is no trace and the error says so.
fn written_with(room: u64, totals: u64) -> Option<Vec<u8>> {
    let records = many(3);
    let file = file();
    let disk = Disk { file: file.try_clone().expect("a descriptor"), room };
    let mut writer = ParquetWriter::new(disk, &sample::header()).ok()?;
    for record in &records {
        let _ = writer.record(record);
    }
    (0..totals).for_each(|_| writer.total(&Total::Thread(sample::thread_total())).expect("it is kept"));
    let trailer = writer.finish(&sample::ending()).ok()?;
    let mut bytes = Vec::new();
    (&file).rewind().and_then(|()| (&file).read_to_end(&mut bytes)).expect("it can be read");
    assert!(bytes.len() as u64 <= room);
    let lost = |what| trailer.lost.get(what).copied().unwrap_or(0);
    assert_eq!(trailer.records + lost(LOST_WRITE), records.len() as u64, "{room}");
    assert_eq!(trailer.complete, lost(LOST_WRITE) + lost(LOST_TOTAL) == 0, "{room}");
    let (items, read) = read(file);
    let mut expected = timeslices(&records[..trailer.records as usize]);
    expected.resize(
        expected.len() + (totals - lost(LOST_TOTAL)) as usize,
        Item::Total(Box::new(Total::Thread(sample::thread_total()))),
    );
    assert!(items == expected, "{room}");
    assert_eq!(read.expect("it is whole"), trailer, "{room}");
    Some(bytes)
}

#[test]
fn the_trace_can_be_read_at_whichever_byte_the_disk_is_full() {
    // No trace, one without records, the whole one.
    assert_eq!(outcomes(0), 3);
    // Also one with all records and without totals.
    assert_eq!(outcomes(50), 4);
}

/// How many different outcomes there are with any room, the last of which is the whole trace.
fn outcomes(totals: u64) -> usize {
    const STEP: u64 = 16;
    let written_with = |room| written_with(room, totals);
    let whole = written_with(u64::MAX).expect("there is room");
    let length = whole.len() as u64;
    let mut outcomes = vec![None];
    for room in (0..=length).step_by(STEP as usize) {
        let after = written_with((room + STEP).min(length));
        if outcomes.last() != Some(&after) {
            // More room keeps no less: where nothing changes over a step, nothing does within it.
            for between in room..(room + STEP).min(length) {
                let outcome = written_with(between);
                if outcomes.last() != Some(&outcome) {
                    outcomes.push(outcome);
                }
            }
            if outcomes.last() != Some(&after) {
                outcomes.push(after);
            }
        }
    }
    assert_eq!(outcomes.last(), Some(&Some(whole)));
    outcomes.len()
}

#[test]
fn totals_that_have_no_room_are_counted() {
    let file = file();
    let totals = vec![Total::Thread(sample::thread_total()); 100_003];
    let trailer = write(&file, &[], &totals);
    assert_eq!((trailer.lost["total"], trailer.complete), (3, false));
    assert_eq!(read(file).0.len(), 100_000);
}

#[test]
fn a_parquet_file_of_another_program_is_not_a_trace() {
    let mut plain = file();
    plain.write_all(b"PAR1, but nothing else").expect("there is room");
    assert!(matches!(ParquetReader::new(plain), Err(ReadError::NoFooter)));
}
