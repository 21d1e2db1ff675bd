//! A socket's queue, buffer and window over time, in bounded memory: one cell for each timeslice. If there are too
//! many, cells of two, four, eight, ... timeslices, which keep the lowest and the highest values.

use std::{collections::HashMap, io::Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use tcpmon_trace::{TimesliceEnd, TimesliceRecord, summary::Pieces};

/// Largest number of cells while a trace is read: 56 bytes each.
const CELLS: usize = 400_000;

/// Largest number of cells in a page: they make up most of its 2 MB.
pub const SHOWN_CELLS: usize = 100_000;

/// Largest number of sockets with a timeline; a summary has no more either.
const TIMELINES: usize = tcpmon_trace::summary::SOCKETS;

/// Pieces of the time for which a page shows the causes.
const PIECES: usize = 512;

/// The timelines of a trace's sockets, by cookie.
#[derive(Clone, Debug)]
pub struct Timelines {
    sockets: HashMap<u64, Timeline>,
    cells: usize,
    most: usize,
}

/// One socket over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    cells: Vec<Cell>,
    /// Timeslices in each cell but the last, a power of two.
    per_cell: u64,
    /// Timeslices in the last cell.
    in_last: u64,
    /// Timeslices.
    records: u64,
    /// What limited the connection over time.
    pub pieces: Pieces,
}

/// Timeslices of a socket that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    start_ns: u64,
    end_ns: u64,
    /// The shortest and the longest queue, and those at the first activation and at the last deactivation.
    queue_bytes: [u32; 4],
    rcvbuf_bytes: u32,
    /// The smallest and the largest window.
    window_bytes: [u32; 2],
    end: TimesliceEnd,
}

impl Default for Timelines {
    fn default() -> Self {
        Self { sockets: HashMap::new(), cells: 0, most: CELLS }
    }
}

impl Timelines {
    /// Adds a record.
    pub fn add(&mut self, record: &TimesliceRecord) {
        if self.sockets.len() >= TIMELINES && !self.sockets.contains_key(&record.cookie) {
            return;
        }
        let timeline = self.sockets.entry(record.cookie).or_insert_with(Timeline::new);
        self.cells += usize::from(timeline.add(record));
        while self.cells > self.most {
            // At least a thousandth of all cells are the largest timeline's, so this happens rarely.
            let Some(largest) = self.sockets.values_mut().max_by_key(|timeline| timeline.cells.len()) else { return };
            self.cells -= largest.halve();
        }
    }

    /// The timelines of these sockets, with at most `most` cells in total.
    pub fn of(&self, cookies: &[u64], most: usize) -> HashMap<u64, Timeline> {
        let found = cookies.iter().filter_map(|cookie| Some((*cookie, self.sockets.get(cookie)?.clone())));
        let mut chosen: HashMap<u64, Timeline> = found.collect();
        let mut cells: usize = chosen.values().map(|timeline| timeline.cells.len()).sum();
        while cells > most {
            let largest = chosen.values_mut().max_by_key(|timeline| timeline.cells.len());
            match largest.map_or(0, Timeline::halve) {
                0 => break,
                gone => cells -= gone,
            }
        }
        chosen
    }
}

impl Timeline {
    fn new() -> Self {
        Self { cells: Vec::new(), per_cell: 1, in_last: 0, records: 0, pieces: Pieces::at_most(PIECES) }
    }

    /// Adds a record. Returns whether this added a cell.
    fn add(&mut self, record: &TimesliceRecord) -> bool {
        self.records += 1;
        self.pieces.add_over_its_time(record);
        let cell = Cell::of(record);
        match self.cells.last_mut().filter(|_| self.in_last < self.per_cell) {
            Some(last) => {
                last.join(&cell);
                self.in_last += 1;
                false
            }
            None => {
                self.cells.push(cell);
                self.in_last = 1;
                true
            }
        }
    }

    /// Merges each pair of cells into one. Returns by how many cells the number has fallen.
    fn halve(&mut self) -> usize {
        let before = self.cells.len();
        if before.is_multiple_of(2) {
            self.in_last += self.per_cell;
        }
        self.per_cell *= 2;
        let joined = self.cells.chunks(2).map(|pair| {
            let mut cell = pair[0];
            pair[1..].iter().for_each(|next| cell.join(next));
            cell
        });
        self.cells = joined.collect();
        self.cells.shrink_to_fit();
        before - self.cells.len()
    }

    /// When the timeline begins, `CLOCK_MONOTONIC`, ns.
    pub fn start_ns(&self) -> u64 {
        self.cells.first().map_or(0, |cell| cell.start_ns)
    }

    /// Number of timeslices.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Timeslices in each cell but the last.
    pub fn records_per_cell(&self) -> u64 {
        self.per_cell
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// The cells as the page takes them: columns, one after the other, of differences between the values, each as a
    /// zigzag LEB128 number; compressed by gzip, in base64. Cells of one timeslice have no columns for the shortest and
    /// the longest queue, which are those at its edges.
    pub fn columns(&self) -> String {
        let us = |ns: u64| (ns / 1000).cast_signed();
        let gap = |pair: &[Cell]| us(pair[1].start_ns) - us(pair[0].end_ns);
        let gaps: Vec<i64> = self.cells.iter().take(1).map(|_| 0).chain(self.cells.windows(2).map(gap)).collect();
        let column = |value: &dyn Fn(&Cell) -> i64| self.cells.iter().map(value).collect::<Vec<_>>();
        let queue = |which: usize| column(&|cell| cell.queue_bytes[which].into());
        let merged = if self.per_cell > 1 { vec![queue(0), queue(1)] } else { Vec::new() };
        let first = [gaps, column(&|cell| us(cell.end_ns) - us(cell.start_ns))];
        let last = [
            queue(2),
            queue(3),
            column(&|cell| cell.rcvbuf_bytes.into()),
            column(&|cell| cell.window_bytes[0].into()),
            column(&|cell| cell.window_bytes[1].into()),
            column(&|cell| TimesliceEnd::ALL.iter().position(|end| *end == cell.end).unwrap_or(3) as i64),
        ];
        let mut bytes = Vec::with_capacity(self.cells.len() * 12);
        for column in first.into_iter().chain(merged).chain(last) {
            let mut before = 0;
            for value in column {
                push_number(&mut bytes, value - before);
                before = value;
            }
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        let compressed = gzip.write_all(&bytes).and_then(|()| gzip.finish()).expect("memory takes all bytes");
        BASE64_STANDARD.encode(compressed)
    }
}

impl Cell {
    fn of(record: &TimesliceRecord) -> Self {
        let (first, last) = (&record.activation, &record.deactivation);
        let both = |value: fn(&tcpmon_trace::Queue) -> u32| {
            let (first, last) = (value(first), value(last));
            [first.min(last), first.max(last)]
        };
        let [shortest, longest] = both(|edge| edge.queued_bytes);
        Self {
            start_ns: record.activated_ns,
            end_ns: record.deactivated_ns,
            queue_bytes: [shortest, longest, first.queued_bytes, last.queued_bytes],
            rcvbuf_bytes: first.rcvbuf_bytes.max(last.rcvbuf_bytes),
            window_bytes: both(|edge| edge.window_bytes),
            end: record.end,
        }
    }

    /// Merges in the timeslices that follow.
    fn join(&mut self, next: &Self) {
        self.start_ns = self.start_ns.min(next.start_ns);
        self.end_ns = self.end_ns.max(next.end_ns);
        let [shortest, longest, _, last] = next.queue_bytes;
        self.queue_bytes =
            [self.queue_bytes[0].min(shortest), self.queue_bytes[1].max(longest), self.queue_bytes[2], last];
        self.rcvbuf_bytes = self.rcvbuf_bytes.max(next.rcvbuf_bytes);
        let [smallest, largest] = next.window_bytes;
        self.window_bytes = [self.window_bytes[0].min(smallest), self.window_bytes[1].max(largest)];
        self.end = next.end;
    }
}

/// Adds a number as zigzag LEB128.
fn push_number(bytes: &mut Vec<u8>, number: i64) {
    let mut left = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use proptest::prelude::*;
    use tcpmon_trace::{Queue, sample};

    use super::*;

    fn record(cookie: u64, number: u64, queued: u32) -> TimesliceRecord {
        let edge = |queued_bytes| Queue { queued_bytes, rcvbuf_bytes: 1000, window_bytes: queued, ..Queue::default() };
        TimesliceRecord {
            cookie,
            activated_ns: number * 10_000,
            deactivated_ns: number * 10_000 + 4_000,
            activation: edge(queued),
            deactivation: edge(queued / 2),
            ..sample::record()
        }
    }

    /// The columns of the page, decoded.
    fn decoded(timeline: &Timeline) -> Vec<Vec<i64>> {
        let compressed = BASE64_STANDARD.decode(timeline.columns()).expect("base64");
        let mut bytes = Vec::new();
        GzDecoder::new(&compressed[..]).read_to_end(&mut bytes).expect("gzip");
        let mut numbers = Vec::new();
        let (mut number, mut shift) = (0_u64, 0);
        for byte in bytes {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                numbers.push((number >> 1).cast_signed() ^ -((number & 1).cast_signed()));
                (number, shift) = (0, 0);
            }
        }
        let sums = |column: &[i64]| {
            column
                .iter()
                .scan(0, |sum, by| {
                    *sum += by;
                    Some(*sum)
                })
                .collect()
        };
        numbers.chunks(timeline.cells()).map(sums).collect()
    }

    #[test]
    fn a_cell_for_each_timeslice_says_exactly_what_the_record_says() {
        let mut timelines = Timelines::default();
        [(0, 40), (1, 10), (2, 90)].into_iter().for_each(|(number, queued)| timelines.add(&record(7, number, queued)));
        let timeline = &timelines.of(&[7], SHOWN_CELLS)[&7];
        assert_eq!((timeline.records(), timeline.records_per_cell(), timeline.cells()), (3, 1, 3));
        let columns = decoded(timeline);
        assert_eq!(columns.len(), 8);
        assert_eq!(columns[0], [0, 6, 6]);
        assert_eq!(columns[1], [4, 4, 4]);
        assert_eq!(columns[2..4], [[40, 10, 90], [20, 5, 45]]);
        assert_eq!(columns[6], [40, 10, 90]);
        let mut merged = timeline.clone();
        merged.halve();
        let columns = decoded(&merged);
        assert_eq!(columns.len(), 10);
        assert_eq!(columns[2..6], [[5, 45], [40, 90], [40, 90], [5, 45]]);
    }

    #[test]
    fn memory_is_bounded_and_the_largest_timeline_gives_way() {
        let mut timelines = Timelines { most: 100, ..Timelines::default() };
        timelines.add(&record(1, 0, 5));
        (0..10_000).for_each(|number| timelines.add(&record(2, number, 5)));
        assert!(timelines.cells <= 100);
        let chosen = timelines.of(&[1, 2, 3], 20);
        assert_eq!((chosen.len(), chosen[&1].records_per_cell()), (2, 1));
        assert!(chosen[&1].cells() + chosen[&2].cells() <= 20);
        assert_eq!(chosen[&2].records(), 10_000);
    }

    proptest! {
        #[test]
        fn merged_cells_keep_the_lowest_and_the_highest_value(queues in proptest::collection::vec(0u32..1000, 1..500)) {
            let mut timelines = Timelines { most: 8, ..Timelines::default() };
            for (number, queued) in (0..).zip(&queues) {
                timelines.add(&record(1, number, *queued));
            }
            let timeline = &timelines.sockets[&1];
            let per_cell = timeline.per_cell as usize;
            prop_assert_eq!(timeline.cells.len(), queues.len().div_ceil(per_cell));
            prop_assert_eq!(timeline.in_last as usize, (queues.len() - 1) % per_cell + 1);
            for (cell, chunk) in timeline.cells.iter().zip(queues.chunks(per_cell)) {
                prop_assert_eq!(cell.queue_bytes[0], chunk.iter().map(|queued| queued / 2).min().unwrap_or(0));
                prop_assert_eq!(cell.queue_bytes[1], chunk.iter().copied().max().unwrap_or(0));
                prop_assert_eq!(cell.queue_bytes[3], chunk.last().map_or(0, |queued| queued / 2));
            }
        }
    }
}
