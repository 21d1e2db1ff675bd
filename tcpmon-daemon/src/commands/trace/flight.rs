//! A flight recorder: keeps the last records of a trace in memory, and writes them, with what follows, when a trigger
//! fires.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tcpmon_common::reader::SLOT_NONE;
use tcpmon_trace::{Clocks, EndReason, Ending, TimesliceRecord, Total, TraceHeader, TraceWriter, Trailer};

use super::{
    read_clocks,
    rotate::{Losses, NumberedFiles, PartTotals, PartWriter},
    totals::{TraceTotals, pass},
};
use crate::{
    commands::print_message,
    drop_effect,
    kernel::Kernel,
    trigger::{TriggerRule, TriggerWatch},
};

/// Memory for the most recent records.
const RING_BYTES: usize = 256 << 20;

/// Why the recorder should write a file, for reasons that the records do not show.
pub(super) type Alarm = Arc<Mutex<Option<String>>>;

/// Writes a file whenever a trigger fires.
pub(super) struct FlightRecorder {
    files: NumberedFiles,
    header: TraceHeader,
    /// How much time a file covers before a trigger, and how much after it.
    span: Duration,
    watch: TriggerWatch,
    alarm: Alarm,
    losses: Losses,
    ring: VecDeque<TimesliceRecord>,
    /// When the last of the records that have left the ring ended: no file has anything from before that time.
    left_ns: u64,
    /// Losses so far, at several times within the last `span`; the oldest first.
    lost_until: VecDeque<(u64, BTreeMap<String, u64>)>,
    /// The file that is being written, and when it ends.
    open: Option<(PartWriter, u64)>,
    totals: PartTotals,
}

/// Looks for triggers that a trace's records do not show.
#[derive(Debug)]
pub(super) struct PassAlarms {
    alarm: Alarm,
    zero_window: Option<Duration>,
    drops: bool,
    /// By cookie: how long the window was shut in total, and since it was last open for a whole second, ns.
    shut: HashMap<u64, (u64, u64)>,
}

impl PassAlarms {
    pub(super) fn new(watch: &TriggerWatch, alarm: Alarm) -> Self {
        Self { alarm, zero_window: watch.zero_window(), drops: watch.drops(), shut: HashMap::new() }
    }

    /// Makes the recorder write a file for this reason.
    pub(super) fn raise(&self, reason: String) {
        *self.alarm.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// Looks at all open sockets, and at the drops since the last call. Called once a second.
    pub(super) fn look(&mut self, kernel: &mut Kernel, totals: &mut TraceTotals) -> anyhow::Result<()> {
        if let Some(limit) = self.zero_window {
            let (mut shut, mut found) = (HashMap::new(), None);
            pass(kernel, |record, counters, closed| {
                if closed {
                    totals.socket(record, counters, true);
                    return;
                }
                let cookie = record.state.cookie;
                if record.state.reader_slot == SLOT_NONE {
                    return;
                }
                let (before, lately) = self.shut.get(&cookie).copied().unwrap_or((counters.zero_window_ns, 0));
                let grown = counters.zero_window_ns.saturating_sub(before);
                // After a second in which the window was open all the time, the time starts from zero.
                let lately = if grown > 0 { lately + grown } else { 0 };
                if u128::from(lately) > limit.as_nanos() {
                    let time = humantime::format_duration(Duration::from_millis(lately / 1_000_000));
                    found = Some(format!("{}: socket {cookie:x}, {time}", TriggerRule::ZeroWindow(limit)));
                }
                shut.insert(cookie, (counters.zero_window_ns, lately));
            })?;
            self.shut = shut;
            found.into_iter().for_each(|reason| self.raise(reason));
        }
        if self.drops {
            let names = kernel.drop_reasons().to_vec();
            let mut found = Vec::new();
            for (key, count) in kernel.drops()? {
                let name = names.iter().find(|(number, _)| *number == key.reason);
                let reason = name.map_or("unknown", |(_, name)| name);
                if totals.has_socket(key.cookie) && drop_effect::effect(reason) == "lost" {
                    found.push((count, format!("{count} of socket {:x}, {reason}", key.cookie)));
                }
            }
            let most = found.into_iter().max_by_key(|(count, _)| *count);
            most.into_iter().for_each(|(_, what)| self.raise(format!("{}: {what}", TriggerRule::Drop)));
        }
        Ok(())
    }
}

impl FlightRecorder {
    /// A recorder that has not written a file yet.
    pub(super) fn new(
        files: NumberedFiles,
        header: TraceHeader,
        span: Duration,
        watch: TriggerWatch,
        (alarm, losses): (Alarm, Losses),
    ) -> Self {
        Self {
            files,
            left_ns: header.start.monotonic_ns,
            header,
            span,
            watch,
            alarm,
            losses,
            ring: VecDeque::new(),
            lost_until: VecDeque::new(),
            open: None,
            totals: PartTotals::default(),
        }
    }

    fn span_ns(&self) -> u64 {
        u64::try_from(self.span.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Starts a file with the records in the ring.
    fn fire(&mut self, reason: &str) -> io::Result<()> {
        let now = read_clocks();
        let number = self.files.next_number()?;
        let file = self.files.create(number).map_err(io::Error::other)?;
        let begin_ns = self.left_ns.max(now.monotonic_ns.saturating_sub(self.span_ns()));
        let start = Clocks { monotonic_ns: begin_ns, realtime_ns: now.wall_ns(begin_ns) };
        let lost_before = self.lost_until.iter().rev().find(|(until_ns, _)| *until_ns <= begin_ns);
        let lost_before = lost_before.or(self.lost_until.front()).map(|(_, lost)| lost.clone()).unwrap_or_default();
        let header = TraceHeader { start, trigger: reason.to_owned(), ..self.header.clone() };
        let mut part = PartWriter::new(file, self.files.format, &header, lost_before)?;
        let seconds = Duration::from_nanos(now.monotonic_ns - begin_ns).as_secs_f64();
        print_message(&format!(
            "{reason}: writing {} with the last {seconds:.1} s and the next {}",
            self.files.path_of(number).display(),
            humantime::format_duration(self.span)
        ));
        // All of them, even after an error: the file counts what it has not taken.
        let mut written = Ok(());
        for record in self.ring.drain(..).filter(|record| record.deactivated_ns >= begin_ns) {
            let taken = part.writer.record(&record);
            written = written.and(taken);
        }
        self.open = Some((part, now.monotonic_ns.saturating_add(self.span_ns())));
        written?;
        self.files.remove_before(number)
    }

    /// Ends the file.
    fn end(&mut self, ending: &Ending) -> io::Result<()> {
        if let Some((part, _)) = self.open.take() {
            self.left_ns = ending.end.monotonic_ns;
            self.totals.end(part, ending)?;
        }
        Ok(())
    }

    /// Does what is due after some time: ends a file that is complete, and drops records that are too old.
    fn tick(&mut self) -> io::Result<()> {
        let now = read_clocks();
        let lost = self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let old_ns = now.monotonic_ns.saturating_sub(self.span_ns());
        if self.open.as_ref().is_some_and(|(_, until_ns)| now.monotonic_ns >= *until_ns) {
            self.end(&Ending { end: now, reason: EndReason::Duration, lost: lost.clone() })?;
        }
        while self.ring.front().is_some_and(|record| record.deactivated_ns < old_ns) {
            self.ring.pop_front();
        }
        if self.lost_until.back().is_none_or(|(_, known)| *known != lost) {
            self.lost_until.push_back((now.monotonic_ns, lost));
        }
        // The newest of the entries that are too old says what had been lost before everything that is kept.
        while self.lost_until.get(1).is_some_and(|(until_ns, _)| *until_ns < old_ns) {
            self.lost_until.pop_front();
        }
        let reason = self.alarm.lock().unwrap_or_else(PoisonError::into_inner).take();
        match reason {
            Some(reason) if self.open.is_none() => self.fire(&reason),
            _ => Ok(()),
        }
    }
}

impl TraceWriter for FlightRecorder {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        let found = self.watch.timeslice(record);
        if let Some((part, _)) = &mut self.open {
            return part.writer.record(record);
        }
        if self.ring.len() >= RING_BYTES / size_of::<TimesliceRecord>()
            && let Some(first) = self.ring.pop_front()
        {
            self.left_ns = self.left_ns.max(first.deactivated_ns + 1);
        }
        self.ring.push_back(*record);
        match found {
            Some(reason) => self.fire(&reason),
            None => Ok(()),
        }
    }

    /// Ignored: the totals are those of the whole trace, and a file covers only a part of it.
    fn total(&mut self, _total: &Total) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tick()?;
        self.open.as_mut().map_or(Ok(()), |(part, _)| part.writer.flush())
    }

    /// Returns the sums over the trailers of all files.
    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        self.end(ending)?;
        Ok(self.totals.trailer(ending))
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.totals.failure()
    }
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::{JsonLinesReader, TraceReader as _, sample};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        cli::{Compression, FileFormat, TraceFormat},
        config::Keep,
    };

    #[test]
    fn a_file_is_kept_even_if_what_the_ring_had_is_more_than_what_is_to_be_kept() {
        const RECORDS: u64 = 1000;
        let folder = TempDir::new().expect("a temporary directory");
        let path = folder.path().join("flight.jsonl");
        let format = FileFormat { format: TraceFormat::Jsonl, compression: Compression::None };
        for number in [1, 2] {
            let files = NumberedFiles { path: path.clone(), format, force: false, keep: Some(Keep::Bytes(1)) };
            let file = files.path_of(number);
            let header = TraceHeader { start: read_clocks(), ..sample::header() };
            let (alarm, watch) = (Alarm::default(), TriggerWatch::new(Vec::new()));
            let others = (Arc::clone(&alarm), Losses::default());
            let mut recorder = FlightRecorder::new(files, header, Duration::from_secs(600), watch, others);
            for _ in 0..RECORDS {
                let deactivated_ns = read_clocks().monotonic_ns;
                recorder.record(&TimesliceRecord { deactivated_ns, ..sample::record() }).expect("there is room");
            }
            assert!(!file.exists());
            *alarm.lock().expect("not poisoned") = Some("a test".into());
            recorder.flush().expect("there is room");
            let ending = Ending { end: read_clocks(), ..sample::ending() };
            let trailer = recorder.finish(&ending).expect("there is room");
            assert_eq!((trailer.records, recorder.failure().is_none()), (RECORDS, true));
            let mut names = std::fs::read_dir(folder.path()).expect("it is there").flatten().map(|file| file.path());
            assert_eq!((names.next(), names.next()), (Some(file.clone()), None), "the older one is removed");
            let bytes = std::fs::read(&file).expect("it is there");
            let mut reader = JsonLinesReader::new(bytes.as_slice()).expect("a trace");
            assert_eq!(reader.by_ref().filter(Result::is_ok).count() as u64, RECORDS);
            assert!(reader.trailer().is_some_and(|trailer| trailer.records == RECORDS));
        }
    }
}
