//! Writes Parquet and reads it back.

use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
};

use ::parquet::file::metadata::ParquetMetaDataReader;
use proptest::prelude::*;

use super::{ParquetReader, ParquetWriter};
use crate::{
    Item, ReadError, Stream, TimesliceRecord, Total, TraceReader, TraceWriter, Trailer,
    sample::{self, Disk},
    trailer::{LOST_TOTAL, LOST_WRITE},
};

/// Maximum number of rows of a row group, which the writer fixes.
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
    apart(count, 1_000_000)
}

/// Records in row groups of two: every second one ends five minutes after the one before.
fn pairs(count: usize) -> Vec<TimesliceRecord> {
    apart(count, 300_000_000_000)
}

/// Records that differ, and end this many nanoseconds after each other.
fn apart(count: usize, apart_ns: u64) -> Vec<TimesliceRecord> {
    let record = |number: usize| TimesliceRecord {
        deactivated_ns: sample::record().deactivated_ns + number as u64 * apart_ns,
        read_bytes: number as u64,
        cookie: number as u64 % 7,
        ..sample::record()
    };
    (0..count).map(record).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_written_trace_is_read_back(numbers in proptest::collection::vec(any::<[u64; sample::NUMBERS]>(), 0..5)) {
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
    // Ten a second.
    let records = apart(6_000, 100_000_000);
    let file = file();
    let mut writer = ParquetWriter::new(Stream(&file), &sample::header()).expect("there is room");
    for record in &records {
        writer.record(record).expect("there is room");
    }
    drop(writer);
    let (items, error) = read(file.try_clone().expect("a descriptor"));
    assert!(items.len() >= 3000 && items.len() < 6000, "{}", items.len());
    assert!(matches!(error, Err(ReadError::CutParquet { records }) if records == items.len() as u64), "{error:?}");
}

#[test]
fn a_file_that_was_cut_is_read_up_to_its_last_footer() {
    let records = pairs(6);
    let file = file();
    write(&file, &records, &[]);
    let mut bytes = Vec::new();
    (&file).read_to_end(&mut bytes).expect("it can be read");
    // Footers follow the row groups.
    let footers =
        bytes.windows(8).enumerate().filter(|(_, bytes)| *bytes == b"PAR1\0\0\0\0").map(|(at, _)| at as u64 + 4);
    let footers: Vec<_> = footers.collect();
    assert_eq!(footers.len(), 3);
    for (before, end) in footers.into_iter().enumerate() {
        for (length, groups) in [(end + 100, before + 1), (end, before + 1), (end - 1, before)] {
            let file = file.try_clone().expect("a descriptor");
            file.set_len(length).expect("it is writable");
            (&file).rewind().and_then(|()| (&file).write_all(&bytes[..length as usize])).expect("it is writable");
            let (items, error) = read(file);
            assert!(items == timeslices(&records[..2 * groups]), "{} of {length} bytes", items.len());
            match error {
                Err(ReadError::CutParquet { records }) => assert_eq!(records, items.len() as u64),
                Err(ReadError::NoFooter) => assert_eq!(groups, 0),
                other => panic!("{length}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_trace_that_was_killed_between_two_row_groups_has_all_of_them_and_is_a_file_of_no_other_program() {
    let records = pairs(5);
    let file = file();
    let mut writer = ParquetWriter::new(Stream(&file), &sample::header()).expect("there is room");
    for record in &records {
        writer.record(record).expect("there is room");
    }
    drop(writer);
    let all_groups_are_read = || {
        let (items, error) = read(file.try_clone().expect("a descriptor"));
        assert!(items == timeslices(&records[..4]), "{}", items.len());
        assert!(matches!(error, Err(ReadError::CutParquet { .. })), "{error:?}");
    };
    all_groups_are_read();
    let by_others = || ParquetMetaDataReader::new().parse_and_finish(&file);
    by_others().expect_err("it does not end in a footer");
    // As tcpmon 0.1 wrote it: others see one of the row groups.
    file.set_len(file.metadata().expect("it is there").len() - 4).expect("it is writable");
    assert_eq!(by_others().expect("it ends in a footer").file_metadata().num_rows(), 2);
    all_groups_are_read();
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

/// Writes a small trace to a disk with this much room: returns the bytes of the file, or `None` if there is no room for
/// a footer, in which case there is no trace and the error says so.
fn written_with(room: u64, records: &[TimesliceRecord], totals: u64) -> Option<Vec<u8>> {
    let mut disk = Disk { bytes: Vec::new(), room: room as usize };
    let mut writer = ParquetWriter::new(&mut disk, &sample::header()).ok()?;
    for record in records {
        let _ = writer.record(record);
    }
    (0..totals).for_each(|_| writer.total(&Total::Thread(sample::thread_total())).expect("it is kept"));
    let trailer = writer.finish(&sample::ending()).ok()?;
    drop(writer);
    assert!(disk.bytes.len() as u64 <= room);
    let mut file = file();
    file.write_all(&disk.bytes).and_then(|()| file.rewind()).expect("there is room");
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
    Some(disk.bytes)
}

#[test]
fn the_trace_can_be_read_at_whichever_byte_the_disk_is_full() {
    // Three outcomes: no trace, one without records, the whole one.
    assert_eq!(outcomes(&many(3), 0), 3);
    // One more outcome: all records, but no totals.
    assert_eq!(outcomes(&many(3), 50), 4);
    // With three row groups: no trace, none to three of them, and the last one with its own footer, too.
    assert_eq!(outcomes(&pairs(6), 0), 6);
    assert_eq!(outcomes(&pairs(6), 50), 7);
}

/// Number of different outcomes over all sizes of the disk; the last one is the whole trace.
fn outcomes(records: &[TimesliceRecord], totals: u64) -> usize {
    const STEP: u64 = 211;
    let written_with = |room| written_with(room, records, totals);
    let whole = written_with(u64::MAX).expect("there is room");
    let length = whole.len() as u64;
    let rooms = (0..length).step_by(STEP as usize).chain([length]);
    let mut steps = rooms.map(|room| (room, written_with(room)));
    let mut last = steps.next().expect("a disk without room");
    let mut outcomes = 1;
    for step in steps {
        outcomes += changes(&written_with, &last, &step);
        last = step;
    }
    assert_eq!(last.1, Some(whole));
    outcomes
}

/// Number of changes of the outcome from one size of the disk to another. More room never keeps less, so if both have
/// the same outcome, there is no other between them.
fn changes(
    written_with: &impl Fn(u64) -> Option<Vec<u8>>,
    from: &(u64, Option<Vec<u8>>),
    to: &(u64, Option<Vec<u8>>),
) -> usize {
    if from.1 == to.1 {
        return 0;
    }
    if to.0 - from.0 == 1 {
        return 1;
    }
    let room = u64::midpoint(from.0, to.0);
    let middle = (room, written_with(room));
    changes(written_with, from, &middle) + changes(written_with, &middle, to)
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
