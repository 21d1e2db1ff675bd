//! The thread that writes a trace. An output that accepts nothing (a pipe that nobody reads, a slow disk) blocks the
//! thread that writes to it, and must not delay the handling of time and signals.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::signals::Signals;
use tcpmon_trace::{EndReason, Ending, LOST_OUTPUT, LOST_WRITE, TimesliceRecord, Total, TraceWriter, Trailer};

/// Maximum memory for records that wait for the output.
const QUEUE_BYTES: usize = 64 << 20;

/// After the end, how often to check whether the output has accepted data, and the time that the trailer has.
const FINISH_CHECK: Duration = Duration::from_secs(1);

/// What is queued is given up after this many checks in a row without progress: a disk that others keep busy blocks a
/// write for seconds. Checks rather than one long timeout, because a machine that stood still (a virtual one without a
/// CPU) finds its clock advanced when it continues, and then only one check is due.
const FINISH_CHECKS: u32 = 5;

/// The same after a signal. Nothing is lost if the output accepts data: the signal may have been sent to end a trace
/// that was already ending, or be the second of two that a terminal sends when it closes.
const FINISH_CHECKS_AFTER_SIGNAL: u32 = 2;

/// After a second signal, the user waits no longer, even if the output accepts data.
const FINISH_TIMEOUT_AFTER_SIGNALS: Duration = Duration::from_millis(100);

/// A trace that a separate thread writes. The thread is abandoned if it cannot go on.
#[derive(Debug)]
pub(super) struct WriterThread {
    inbox: mpsc::Sender<WriterMessage>,
    thread: JoinHandle<()>,
    outcome: oneshot::Receiver<WriteOutcome>,
    state: Arc<WriterState>,
    /// Maximum number of records that may be queued.
    capacity: usize,
    /// Records for which there was no room.
    dropped: u64,
}

/// How the writing ended.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// The header could not be written.
    HeaderFailed(io::Error),
    /// Everything that could be done was done.
    Ended {
        /// The first error before the trailer.
        failure: Option<io::Error>,
        /// The trailer as written.
        trailer: io::Result<Trailer>,
    },
    /// The output accepted nothing for so long that the thread was abandoned.
    TimedOut {
        /// Records that are not known to be written.
        unwritten: u64,
        /// What was lost in addition to these.
        lost: Option<String>,
    },
}

#[derive(Debug)]
enum WriterMessage {
    Records(Vec<TimesliceRecord>),
    Totals(Vec<Total>),
    Finish(Ending),
}

/// What both threads use.
#[derive(Debug, Default)]
struct WriterState {
    /// Records sent and not yet written.
    queued: AtomicUsize,
    /// Records and totals that were written: a slow output is not one that accepts nothing.
    written: AtomicU64,
    /// A write has failed: further records are of no use.
    failed: AtomicBool,
    /// The trace has ended, and the time for what is still queued has passed.
    past_deadline: AtomicBool,
}

impl WriterThread {
    /// Starts the thread. It first creates the writer, which writes the header.
    pub(super) fn start(
        ring_bytes: u32,
        begin: impl FnOnce() -> io::Result<Box<dyn TraceWriter>> + Send + 'static,
    ) -> io::Result<Self> {
        let (inbox, messages) = mpsc::channel();
        let (report, outcome) = oneshot::channel();
        let state = Arc::new(WriterState::default());
        let thread_state = Arc::clone(&state);
        let thread = thread::Builder::new().name("writer".into()).spawn(move || {
            let outcome = match begin() {
                Ok(writer) => write(writer, &messages, &thread_state),
                Err(error) => Some(WriteOutcome::HeaderFailed(error)),
            };
            if let Some(outcome) = outcome {
                // Nobody receives this from a thread that was abandoned.
                let _ = report.send(outcome);
            }
        })?;
        // A small ring is requested where memory is short, so the queue is small, too.
        let bytes = QUEUE_BYTES.min(8 * ring_bytes as usize);
        Ok(Self { inbox, thread, outcome, state, capacity: bytes / size_of::<TimesliceRecord>(), dropped: 0 })
    }

    /// Whether writing has stopped early.
    pub(super) fn has_failed(&self) -> bool {
        self.state.failed.load(Ordering::Relaxed) || self.thread.is_finished()
    }

    /// Number of records that can be sent now.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.state.queued.load(Ordering::Relaxed))
    }

    /// Passes records on. `dropped` more records found no room.
    pub(super) fn send(&mut self, mut records: Vec<TimesliceRecord>, dropped: u64) {
        self.dropped += dropped;
        if !records.is_empty() {
            records.shrink_to_fit();
            self.state.queued.fetch_add(records.len(), Ordering::Relaxed);
            // If the thread has ended, it has failed, which `has_failed` reports.
            let _ = self.inbox.send(WriterMessage::Records(records));
        }
    }

    /// Lets the writer do what is due at this time, although there are no records.
    pub(super) fn tick(&self) {
        // If the thread has ended, it has failed, which `has_failed` reports.
        let _ = self.inbox.send(WriterMessage::Records(Vec::new()));
    }

    /// Passes totals on.
    pub(super) fn send_totals(&mut self, totals: Vec<Total>) {
        if !totals.is_empty() {
            let _ = self.inbox.send(WriterMessage::Totals(totals));
        }
    }

    /// Ends the trace within a time limit, which each of `signals` shortens.
    ///
    /// # Errors
    /// If the thread has ended by itself.
    pub(super) async fn finish(mut self, mut ending: Ending, signals: &mut Signals) -> anyhow::Result<WriteOutcome> {
        let lost = Trailer::new(&ending, 0, 0).lost_in_words();
        ending.lost.insert(LOST_OUTPUT.into(), self.dropped);
        let _ = self.inbox.send(WriterMessage::Finish(ending));
        let mut timeout = FINISH_CHECK;
        let mut deadline = Instant::now() + timeout;
        // Number of checks without progress until the queue is given up.
        let (mut patience, mut checks_left) = (FINISH_CHECKS, FINISH_CHECKS);
        let mut written = self.state.written.load(Ordering::Relaxed);
        loop {
            tokio::select! {
                biased;
                outcome = &mut self.outcome => {
                    return outcome.context("the thread that writes the trace ended unexpectedly");
                }
                _ = signals.next() => {
                    if patience == FINISH_CHECKS {
                        patience = FINISH_CHECKS_AFTER_SIGNAL;
                    } else {
                        patience = 0;
                        timeout = FINISH_TIMEOUT_AFTER_SIGNALS;
                        deadline = deadline.min(Instant::now() + timeout);
                    }
                    checks_left = checks_left.min(patience);
                }
                () = sleep_until(deadline) => {
                    deadline = Instant::now() + timeout;
                    let before = std::mem::replace(&mut written, self.state.written.load(Ordering::Relaxed));
                    checks_left = if written == before { checks_left.saturating_sub(1) } else { patience };
                    if self.state.past_deadline.load(Ordering::Relaxed) {
                        let unwritten = self.dropped + self.state.queued.load(Ordering::Relaxed) as u64;
                        return Ok(WriteOutcome::TimedOut { unwritten, lost });
                    }
                    self.state.past_deadline.store(checks_left == 0, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Writes what is sent, until the end; `None` if the end is never sent.
fn write(
    mut writer: Box<dyn TraceWriter>,
    messages: &mpsc::Receiver<WriterMessage>,
    state: &WriterState,
) -> Option<WriteOutcome> {
    let mut failure = None;
    let (mut dropped, mut refused) = (0, 0);
    for message in messages {
        let mut ending = match message {
            WriterMessage::Finish(ending) => ending,
            WriterMessage::Totals(totals) => {
                for total in &totals {
                    if failure.is_none() && !state.past_deadline.load(Ordering::Relaxed) {
                        failure = writer.total(total).err();
                        state.written.fetch_add(1, Ordering::Relaxed);
                    } else {
                        dropped += 1;
                    }
                }
                continue;
            }
            WriterMessage::Records(records) => {
                for record in &records {
                    if failure.is_some() {
                        refused += 1;
                    } else if state.past_deadline.load(Ordering::Relaxed) {
                        dropped += 1;
                    } else {
                        failure = writer.record(record).err();
                        state.written.fetch_add(1, Ordering::Relaxed);
                    }
                }
                if failure.is_none() {
                    failure = writer.flush().err();
                }
                state.failed.store(failure.is_some(), Ordering::Relaxed);
                state.queued.fetch_sub(records.len(), Ordering::Relaxed);
                continue;
            }
        };
        *ending.lost.entry(LOST_OUTPUT.into()).or_default() += dropped;
        ending.lost.insert(LOST_WRITE.into(), refused);
        if failure.is_some() {
            ending.reason = EndReason::WriteError;
        }
        let trailer = writer.finish(&ending);
        return Some(WriteOutcome::Ended { failure: failure.or_else(|| writer.failure()), trailer });
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, PipeReader, PipeWriter, Write as _};

    use tokio::signal::unix::{SignalKind, signal};

    use super::*;
    use tcpmon_trace::{JsonLinesReader, JsonLinesWriter, ReadError, Stream, TraceReader as _, sample};

    /// Maximum number of records that wait, with the smallest ring.
    const CAPACITY: usize = 8 * 4096 / size_of::<TimesliceRecord>();

    fn start(pipe: PipeWriter) -> WriterThread {
        let begin = || Ok(Box::new(JsonLinesWriter::new(Stream(pipe), &sample::header())?) as _);
        WriterThread::start(4096, begin).expect("a thread")
    }

    /// Sends records in batches, as `trace` does, and returns how many.
    fn send(writer: &mut WriterThread, batches: usize) -> u64 {
        const BATCH: usize = 10;
        for _ in 0..batches {
            let fits = writer.room().min(BATCH);
            writer.send(vec![sample::record(); fits], (BATCH - fits) as u64);
        }
        (batches * BATCH) as u64
    }

    /// No signals: handlers would apply to all tests.
    fn signals() -> Signals {
        Signals(Vec::new())
    }

    /// Signals of these kinds that have already arrived. Each test has kinds of its own, because all tests get them.
    fn signalled(kinds: &[SignalKind]) -> Signals {
        let signals = Signals(kinds.iter().map(|kind| (*kind, signal(*kind).expect("a handler"))).collect());
        for kind in kinds {
            let number = rustix::process::Signal::from_named_raw(kind.as_raw_value()).expect("a signal");
            rustix::process::kill_process(rustix::process::getpid(), number).expect("a signal");
        }
        signals
    }

    /// What comes out of the pipe: its records, and the trailer or why there is none.
    fn read(pipe: PipeReader) -> (u64, Result<Trailer, ReadError>) {
        let mut reader = JsonLinesReader::new(BufReader::new(pipe)).expect("a header");
        let error = reader.find_map(Result::err);
        let trailer = reader.trailer().cloned();
        (reader.records(), error.map_or_else(|| Ok(trailer.expect("a trailer at its end")), Err))
    }

    #[tokio::test]
    async fn records_that_a_slow_reader_misses_are_counted() {
        let (reader, pipe) = io::pipe().expect("a pipe");
        let mut writer = start(pipe);
        let sent = send(&mut writer, 1000);
        let reading = thread::spawn(|| read(reader));
        let outcome = writer.finish(sample::ending(), &mut signals()).await.expect("the thread lives");
        let WriteOutcome::Ended { failure: None, trailer: Ok(trailer) } = outcome else { panic!("{outcome:?}") };
        let (records, read) = reading.join().expect("no panic");
        assert_eq!(trailer.records, records);
        assert!(trailer.lost[LOST_OUTPUT] > 0);
        assert_eq!(records + trailer.lost_total(), sent);
        assert!(!trailer.complete);
        assert_eq!(read.expect("a whole trace"), trailer);
    }

    #[tokio::test]
    async fn the_queue_of_records_is_bounded() {
        let (_reader, pipe) = full_pipe();
        let mut writer = start(pipe);
        let sent = send(&mut writer, 1000);
        assert_eq!((writer.room(), writer.dropped), (0, sent - CAPACITY as u64));
        assert!(!writer.has_failed());
    }

    /// A pipe that has no room even for the header.
    fn full_pipe() -> (PipeReader, PipeWriter) {
        let (reader, pipe) = io::pipe().expect("a pipe");
        let mut filling = pipe.try_clone().expect("a descriptor");
        thread::spawn(move || filling.write_all(&[0; 1 << 20]));
        while is_writable(&pipe) {
            thread::yield_now();
        }
        (reader, pipe)
    }

    fn is_writable(pipe: &PipeWriter) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut poller = [PollFd::new(pipe, PollFlags::OUT)];
        poll(&mut poller, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    #[tokio::test]
    async fn a_pipe_that_nobody_reads_times_out_and_gets_whole_lines_only() {
        let (reader, pipe) = io::pipe().expect("a pipe");
        let mut writer = start(pipe);
        let sent = send(&mut writer, 1000);
        let outcome = writer.finish(sample::ending(), &mut signals()).await.expect("the thread lives");
        let WriteOutcome::TimedOut { unwritten, lost: None } = outcome else { panic!("{outcome:?}") };
        // The thread continues when the pipe is read after all; outside tests, the process has ended by then.
        let (records, trailer) = read(reader);
        assert_eq!(trailer.expect("a whole trace").records, records);
        assert!(unwritten <= sent && records + unwritten >= sent, "{records} written, {unwritten} not");
    }

    /// An output that takes this much time for each record.
    struct Slow(Duration, u64);

    impl TraceWriter for Slow {
        fn record(&mut self, _record: &TimesliceRecord) -> io::Result<()> {
            thread::sleep(self.0);
            self.1 += 1;
            Ok(())
        }

        fn total(&mut self, _total: &Total) -> io::Result<()> {
            Ok(())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
            Ok(Trailer::new(ending, self.1, 0))
        }

        fn failure(&mut self) -> Option<io::Error> {
            None
        }
    }

    #[tokio::test]
    async fn an_output_that_is_slow_gets_everything_however_long_it_takes() {
        // Each record takes longer than one check, and all of them together longer than all checks.
        let begin = || Ok(Box::new(Slow(FINISH_CHECK + FINISH_CHECK / 20, 0)) as _);
        let mut writer = WriterThread::start(8192, begin).expect("a thread");
        writer.send(vec![sample::record(); 6], 0);
        let before = Instant::now();
        let outcome = writer.finish(sample::ending(), &mut signals()).await.expect("the thread lives");
        let WriteOutcome::Ended { failure: None, trailer: Ok(trailer) } = outcome else { panic!("{outcome:?}") };
        assert_eq!((trailer.records, trailer.complete, trailer.lost_total()), (6, true, 0));
        assert!(before.elapsed() > FINISH_CHECKS * FINISH_CHECK, "{:?}", before.elapsed());
    }

    #[tokio::test]
    async fn a_signal_after_the_end_loses_no_record_of_an_output_that_is_slow() {
        let begin = || Ok(Box::new(Slow(3 * FINISH_TIMEOUT_AFTER_SIGNALS, 0)) as _);
        let mut writer = WriterThread::start(8192, begin).expect("a thread");
        writer.send(vec![sample::record(); 10], 0);
        let mut signals = signalled(&[SignalKind::user_defined1()]);
        let outcome = writer.finish(sample::ending(), &mut signals).await.expect("the thread lives");
        let WriteOutcome::Ended { failure: None, trailer: Ok(trailer) } = outcome else { panic!("{outcome:?}") };
        assert_eq!((trailer.records, trailer.complete, trailer.lost_total()), (10, true, 0));
    }

    #[tokio::test]
    async fn signals_after_the_end_shorten_the_wait_for_a_pipe_that_nobody_reads() {
        let once = [SignalKind::user_defined2()];
        let twice = [SignalKind::window_change(), SignalKind::alarm()];
        for (kinds, limit) in [(&once[..], FINISH_CHECKS * FINISH_CHECK), (&twice[..], FINISH_CHECK)] {
            let (_reader, pipe) = full_pipe();
            let writer = start(pipe);
            let before = Instant::now();
            let outcome = writer.finish(sample::ending(), &mut signalled(kinds)).await.expect("the thread lives");
            assert!(matches!(outcome, WriteOutcome::TimedOut { .. }), "{outcome:?}");
            assert!(before.elapsed() < limit, "{:?} of {limit:?}", before.elapsed());
        }
    }

    #[tokio::test]
    async fn a_reader_that_closes_the_pipe_is_a_write_error() {
        let (reader, pipe) = io::pipe().expect("a pipe");
        let mut writer = start(pipe);
        drop(reader);
        send(&mut writer, 10);
        while !writer.has_failed() {
            tokio::task::yield_now().await;
        }
        match writer.finish(sample::ending(), &mut signals()).await.expect("the thread lives") {
            WriteOutcome::HeaderFailed(error) | WriteOutcome::Ended { failure: Some(error), trailer: Err(_) } => {
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}
