//! `/dev/kmsg`: page allocation failures, which the kernel counts nowhere.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use self::message::{MessageKind, classify, parse_record};
use super::file::{FileError, unreadable};
use crate::host_state::PageAllocationFailures;

pub mod message;

const KMSG: &str = "/dev/kmsg";

/// Maximum number of records that are read at once. The rest is left for the next time.
const MAX_RECORDS_PER_POLL: usize = 1000;

/// Longer than any record (`PRINTK_MESSAGE_MAX` is 2,048, `CONSOLE_EXT_LOG_MAX` before Linux 6.3 was 8,192).
const RECORD_BYTES: usize = 8192;

/// The kernel log from when it was opened.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    counts: KernelLogCounts,
}

impl KernelLog {
    /// Opens the log at its end.
    ///
    /// # Errors
    /// [`FileError::Unreadable`]: there is no log, or it may not be read.
    pub fn open() -> Result<Self, FileError> {
        let open = || {
            let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(KMSG)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        open().map(|file| Self { file, counts: KernelLogCounts::default() }).map_err(unreadable_log)
    }

    /// Reads what was logged since the last time, without waiting, and returns the number of records. It reads at most
    /// 1,000; the rest is left for the next time.
    ///
    /// # Errors
    /// [`FileError::Unreadable`].
    pub fn poll(&mut self) -> Result<usize, FileError> {
        drain(&mut self.file, &mut self.counts, |_| ()).map_err(unreadable_log)
    }

    /// What was found since the log was opened.
    pub fn counts(&self) -> &KernelLogCounts {
        &self.counts
    }
}

fn unreadable_log(source: io::Error) -> FileError {
    match source.kind() {
        ErrorKind::PermissionDenied => FileError::Unreadable {
            file: KMSG.to_owned(),
            source,
            remedy: "give tcpmon CAP_SYSLOG, which kernel.dmesg_restrict=1 requires, or run it as root",
        },
        _ => unreadable(Path::new(KMSG), source, "pass the device to the container"),
    }
}

/// What the log reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelLogCounts {
    /// Number of failures, by order and by whether the allocation was atomic.
    failures: BTreeMap<(u32, bool), u64>,
    /// Failures that the kernel's rate limit kept out of the log; some of them are failures of `vmalloc`.
    pub suppressed: u64,
    /// Records that were overwritten before they were read, or not understood: a lower bound.
    pub lost: u64,
    /// The last failure.
    pub last: Option<LastFailure>,
    /// Sequence number of the next record.
    next: Option<u64>,
}

/// The last failure, for a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// Name of the process that was running; in interrupts, whichever was running.
    pub process: String,
    /// The kernel's message.
    pub message: String,
}

impl KernelLogCounts {
    /// Failures by order and context, sorted by these.
    pub fn failures(&self) -> Vec<PageAllocationFailures> {
        let failure = |(&(order, atomic), &count): (&_, &_)| PageAllocationFailures { order, atomic, count };
        self.failures.iter().map(failure).collect()
    }

    /// Adds one record.
    fn add_record(&mut self, text: &str) {
        let Some(record) = parse_record(text) else {
            self.lost = self.lost.saturating_add(1);
            return;
        };
        // Records are numbered without gaps, so a gap shows how many were lost.
        let gap = self.next.map_or(0, |next| record.sequence.saturating_sub(next));
        self.lost = self.lost.saturating_add(gap);
        self.next = Some(record.sequence.saturating_add(1));
        // User space could have written such a message to the log.
        if !record.from_kernel {
            return;
        }
        match classify(record.message) {
            MessageKind::Failure(failure) => {
                *self.failures.entry((failure.order, failure.atomic)).or_default() += 1;
                let (process, message) = (failure.process.to_owned(), record.message.to_owned());
                self.last = Some(LastFailure { process, message });
            }
            MessageKind::Suppressed(count) => self.suppressed = self.suppressed.saturating_add(count),
            MessageKind::Malformed => self.lost = self.lost.saturating_add(1),
            MessageKind::Other => {}
        }
    }

    /// A record can no longer be read. The next record's number shows how many were lost, except before the first
    /// record.
    fn overrun(&mut self) {
        if self.next.is_none() {
            self.lost = self.lost.saturating_add(1);
        }
    }
}

/// Reads records until there are no more, or after [`MAX_RECORDS_PER_POLL`] reads; calls `on_record` with each. Each
/// read(2) returns one record.
fn drain(log: &mut impl Read, counts: &mut KernelLogCounts, mut on_record: impl FnMut(&str)) -> io::Result<usize> {
    let mut buffer = [0; RECORD_BYTES];
    let mut records = 0;
    for _ in 0..MAX_RECORDS_PER_POLL {
        match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&buffer[..length]);
                counts.add_record(&text);
                on_record(&text);
                records += 1;
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                ErrorKind::Interrupted => {}
                // The record was overwritten; or it is longer than the buffer, and the kernel has skipped it.
                ErrorKind::BrokenPipe | ErrorKind::InvalidInput => counts.overrun(),
                _ => return Err(error),
            },
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        fs,
        io::Write as _,
        time::{Duration, Instant},
    };

    use proptest::prelude::*;

    use super::*;
    use crate::host::Sources;

    /// A log whose reads return these in turn, and then EAGAIN.
    struct FakeLog(VecDeque<Result<String, i32>>);

    impl FakeLog {
        fn new(reads: impl IntoIterator<Item = Result<String, i32>>) -> Self {
            Self(reads.into_iter().collect())
        }
    }

    impl Read for FakeLog {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                Some(Ok(text)) => text.as_bytes().read(buffer),
                Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(ErrorKind::WouldBlock.into()),
            }
        }
    }

    fn failed(sequence: u64, priority: u32, figures: &str) -> Result<String, i32> {
        Ok(format!("{priority},{sequence},1,-;a: page allocation failure: {figures}\n"))
    }

    fn failures(counts: &KernelLogCounts) -> Vec<(u32, bool, u64)> {
        counts.failures().iter().map(|failures| (failures.order, failures.atomic, failures.count)).collect()
    }

    #[test]
    fn a_captured_failure_is_counted_once() {
        let mut counts = KernelLogCounts::default();
        // From 6.12, where there was no page for the receive ring.
        let records = include_str!("captured/6.12/kmsg_page_allocation_failure").lines();
        let mut log = FakeLog::new(records.map(|line| Ok(format!("{line}\n"))));
        assert_eq!(drain(&mut log, &mut counts, |_| ()).ok(), Some(3));
        assert_eq!(failures(&counts), [(0, true, 1)]);
        let last = counts.last.as_ref().expect("a failure");
        assert_eq!(last.process, "swapper/0");
        assert!(last.message.starts_with("swapper/0: page allocation failure: order:0, mode:0x820(GFP_ATOMIC), "));
        assert_eq!((counts.suppressed, counts.lost), (0, 0));
    }

    #[test]
    fn failures_are_counted_by_order_and_context_and_only_those_of_the_kernel() {
        let mut counts = KernelLogCounts::default();
        let mut log = FakeLog::new([
            failed(1, 4, "order:3, mode:0xcc0(GFP_KERNEL)"),
            failed(2, 4, "order:3, mode:0x820(GFP_ATOMIC)"),
            failed(3, 4, "order:0, mode:0x820(GFP_ATOMIC)"),
            failed(4, 4, "order:3, mode:0xcc0(GFP_KERNEL)"),
            failed(5, 12, "order:9, mode:0x820(GFP_ATOMIC)"),
            Ok("4,6,1,-;warn_alloc: 7 callbacks suppressed\n".into()),
            Ok("12,7,1,-;warn_alloc: 9 callbacks suppressed\n".into()),
            Ok("6,8,1,-;other\n".into()),
        ]);
        drain(&mut log, &mut counts, |_| ()).expect("read");
        assert_eq!(failures(&counts), [(0, true, 1), (3, false, 2), (3, true, 1)]);
        assert_eq!((counts.suppressed, counts.lost), (7, 0));
    }

    #[test]
    fn overwritten_and_malformed_records_count_as_lost() {
        let other = |sequence| Ok(format!("6,{sequence},1,-;other\n"));
        let lost = |reads: Vec<_>| {
            let mut counts = KernelLogCounts::default();
            drain(&mut FakeLog::new(reads), &mut counts, |_| ()).expect("read");
            counts.lost
        };
        assert_eq!(lost(vec![other(10), Err(libc::EPIPE), other(14)]), 3);
        assert_eq!(lost(vec![other(10), Err(libc::EINVAL), other(12)]), 1);
        // It is unknown how many were lost before the first record.
        assert_eq!(lost(vec![Err(libc::EPIPE), other(500), other(501)]), 1);
        assert_eq!(lost(vec![other(10), Ok("nonsense".into()), other(12)]), 2);
        assert_eq!(lost(vec![failed(1, 4, "order:21, mode:0x20")]), 1);
        assert_eq!(lost(vec![other(10), Err(libc::EINTR), other(11)]), 0);
    }

    #[test]
    fn one_poll_is_bounded_and_ends_at_the_end_of_the_log() {
        let mut log =
            FakeLog::new((0..MAX_RECORDS_PER_POLL as u64 + 2).map(|sequence| Ok(format!("6,{sequence},1,-;other\n"))));
        let mut counts = KernelLogCounts::default();
        assert_eq!(drain(&mut log, &mut counts, |_| ()).ok(), Some(MAX_RECORDS_PER_POLL));
        assert_eq!(drain(&mut log, &mut counts, |_| ()).ok(), Some(2));
        assert_eq!(drain(&mut log, &mut counts, |_| ()).ok(), Some(0));
        assert_eq!(counts.lost, 0);
        let mut endless = FakeLog::new((0..2 * MAX_RECORDS_PER_POLL).map(|_| Err(libc::EPIPE)));
        assert_eq!(drain(&mut endless, &mut counts, |_| ()).ok(), Some(0));
        assert!(drain(&mut FakeLog::new([Err(libc::EIO)]), &mut counts, |_| ()).is_err());
    }

    #[test]
    fn a_read_error_ends_neither_the_source_nor_the_count() {
        // A directory cannot be read (EISDIR); a file that has one record takes its place.
        let log = KernelLog { file: File::open("/").expect("there"), counts: KernelLogCounts::default() };
        let mut sources = Sources::open(Vec::new(), Ok(log));
        assert_eq!(sources.read_kernel_log(), None);
        assert!(sources.log_problem.is_some());
        let mut record = tempfile::tempfile().expect("a file");
        let text = failed(1, 4, "order:3, mode:0x820(GFP_ATOMIC)").expect("a record");
        record.write_all(text.as_bytes()).and_then(|()| record.rewind()).expect("written");
        sources.log.as_mut().expect("it is open").file = record;
        assert!(sources.read_kernel_log().is_some_and(|message| message.contains("order:3")));
        assert!(sources.log_problem.is_none());
    }

    #[test]
    fn an_unreadable_log_is_an_error_with_a_remedy() {
        for (errno, remedy) in [
            (libc::EPERM, "CAP_SYSLOG, which kernel.dmesg_restrict=1"),
            (libc::EACCES, "CAP_SYSLOG"),
            (libc::ENOENT, ": pass the device to the container"),
        ] {
            let error = unreadable_log(io::Error::from_raw_os_error(errno)).to_string();
            assert!(error.starts_with("cannot read /dev/kmsg: ") && error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn messages_of_user_space_are_ignored_and_poll_does_not_block() {
        let mut log = match KernelLog::open() {
            Ok(log) => log,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("CAP_SYSLOG") || error.contains("container"), "{error}");
                return;
            }
        };
        // Nothing from before the log was opened, and no waiting if there is nothing: that would hang here.
        let mark = format!("tcpmon {}", std::process::id());
        let mut seen = Vec::new();
        let read = |log: &mut KernelLog, seen: &mut Vec<String>| {
            drain(&mut log.file, &mut log.counts, |text| seen.push(text.to_owned())).expect("read");
        };
        read(&mut log, &mut seen);
        assert!(
            seen.len() < MAX_RECORDS_PER_POLL && !seen.iter().any(|text| text.contains("Linux version")),
            "{seen:?}"
        );

        // The message requests facility 0; the kernel makes it 1.
        let message = format!("<4>{mark}: page allocation failure: order:20, mode:0x820(GFP_ATOMIC)\n");
        fs::write(KMSG, message).expect("written");
        let deadline = Instant::now() + Duration::from_secs(10);
        let written = loop {
            read(&mut log, &mut seen);
            if let Some(text) = seen.iter().find(|text| text.contains(&mark)) {
                break text;
            }
            assert!(Instant::now() < deadline, "{seen:?}");
        };
        assert!(written.starts_with("12,"), "{written}");
        assert!(
            matches!(parse_record(written).map(|record| classify(record.message)), Some(MessageKind::Failure(_))),
            "{written}"
        );
        assert!(log.counts().failures().iter().all(|failures| failures.order != 20), "{:?}", log.counts());
        assert_eq!(log.counts().lost, 0);
    }

    proptest! {
        #[test]
        fn no_records_can_cause_a_panic(
            texts in prop::collection::vec("(?s).{0,60}", 0..4),
            numbers in prop::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], 0..8),
        ) {
            let numbered = numbers.iter().map(|n| format!("4,{n},1,-;warn_alloc: {n} callbacks suppressed"));
            let mut log = FakeLog::new(texts.into_iter().chain(numbered).filter(|text| !text.is_empty()).map(Ok));
            prop_assert!(drain(&mut log, &mut KernelLogCounts::default(), |_| ()).is_ok());
        }
    }
}
