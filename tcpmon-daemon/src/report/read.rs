//! Reads traces and sums them up.

use std::{collections::BTreeMap, time::Duration};

use tcpmon_trace::{Clocks, Item, ReadError, TraceHeader, TraceReader, Trailer, summary::Summary};

use super::timeline::Timelines;

/// What is known of one file of a trace.
#[derive(Clone, Debug)]
pub struct TraceFile {
    /// Its name.
    pub name: String,
    /// Its first line.
    pub header: TraceHeader,
    /// Its last line; `None` if the file was cut.
    pub trailer: Option<Trailer>,
    /// Why it could be read no further, and what to do about it.
    pub trouble: Option<String>,
    /// Records read.
    pub records: u64,
    /// The last deactivation, `CLOCK_MONOTONIC`, ns.
    last_ns: u64,
}

/// A trace, which may be in several files.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The files, in the order of their start.
    pub files: Vec<TraceFile>,
    /// The sums over all files.
    pub summary: Summary,
}

/// Why files cannot be summed up as one trace.
#[derive(Debug, thiserror::Error)]
pub enum NotOneTrace {
    /// They are from different hosts, or the host was booted in between: sockets are told apart by a number that is
    /// unique only until the next boot.
    #[error("{first} and {second} are from different hosts or different boots: report on each separately")]
    Hosts {
        /// A file.
        first: String,
        /// Another file.
        second: String,
    },
    /// They were written at the same time.
    #[error(
        "{first} and {second} were written at the same time, so records would count twice: report on each separately"
    )]
    Overlap {
        /// A file.
        first: String,
        /// Another file.
        second: String,
    },
}

/// How far the wall clock may be adjusted during a trace.
const CLOCK_SET: Duration = Duration::from_secs(60);

impl TraceFile {
    /// Sums a trace up in `summary`, and adds it to `timelines`, if these are wanted. A file that was cut is read up to
    /// where it ends.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(
        name: &str,
        reader: &mut dyn TraceReader,
        summary: &mut Summary,
        mut timelines: Option<&mut Timelines>,
    ) -> Result<Self, ReadError> {
        let (mut trouble, mut last_ns) = (None, 0);
        summary.totals_only |= reader.header().filter.summary_only;
        summary.cpus = summary.cpus.max(reader.header().cpus);
        while let Some(item) = reader.next_item() {
            match item {
                Ok(Item::Total(total)) => summary.add_total(&total),
                Ok(Item::Timeslice(record)) => {
                    last_ns = last_ns.max(record.deactivated_ns);
                    summary.add(&record);
                    if let Some(timelines) = &mut timelines {
                        timelines.add(&record);
                    }
                }
                Err(error @ ReadError::Io { .. }) => return Err(error),
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        let header = reader.header().clone();
        let last_ns = last_ns.max(header.start.monotonic_ns);
        let (trailer, records) = (reader.trailer().cloned(), reader.records());
        Ok(Self { name: name.to_owned(), header, trailer, trouble, records, last_ns })
    }

    /// How long the trace lasted; until the last record if it was cut.
    pub fn duration(&self) -> Duration {
        let end = self.trailer.as_ref().map_or(self.last_ns, |trailer| trailer.end.monotonic_ns);
        Duration::from_nanos(end.saturating_sub(self.header.start.monotonic_ns))
    }

    /// What was lost, by cause; without a trailer that is not known.
    pub fn lost(&self) -> Option<BTreeMap<String, u64>> {
        let lost = &self.trailer.as_ref()?.lost;
        Some(lost.iter().filter(|(_, count)| **count > 0).map(|(cause, count)| (cause.clone(), *count)).collect())
    }

    fn is_of_one_boot_with(&self, other: &Self) -> bool {
        let (id, other_id) = (&self.header.boot_id, &other.header.boot_id);
        if !id.is_empty() && !other_id.is_empty() {
            return id == other_id;
        }
        // Files that were written before the header had a boot id are compared by the time of the boot. That may be
        // wrong for a host that slept, because its wall clock continued alone.
        let booted = |Clocks { monotonic_ns, realtime_ns }: Clocks| realtime_ns.wrapping_sub(monotonic_ns);
        let apart = booted(self.header.start).abs_diff(booted(other.header.start));
        self.header.hostname == other.header.hostname && Duration::from_nanos(apart) < CLOCK_SET
    }
}

impl Trace {
    /// The trace in these files, whose records are in `summary`.
    ///
    /// # Errors
    /// The files do not belong to one trace.
    pub fn of(mut files: Vec<TraceFile>, summary: Summary) -> Result<Self, NotOneTrace> {
        files.sort_by_key(|file| file.header.start.monotonic_ns);
        for pair in files.windows(2) {
            let [before, after] = pair else { continue };
            let (first, second) = (before.name.clone(), after.name.clone());
            if !before.is_of_one_boot_with(after) {
                return Err(NotOneTrace::Hosts { first, second });
            }
            if Duration::from_nanos(after.header.start.monotonic_ns - before.header.start.monotonic_ns)
                < before.duration()
            {
                return Err(NotOneTrace::Overlap { first, second });
            }
        }
        Ok(Self { files, summary })
    }

    /// Caveats about the trace as a whole: that it was cut, or that records are missing.
    pub fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        if self.summary.totals_only {
            caveats.push(
                "a trace with --summary-only has no timeslices, so it is not known how steady its numbers are".into(),
            );
        }
        for file in &self.files {
            caveats.extend(file.trouble.clone().map(|trouble| format!("{}: {trouble}", file.name)));
            let lost = file.lost().unwrap_or_default();
            if !lost.is_empty() {
                let lost: Vec<_> = lost.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
                let (lost, share) = (lost.join(", "), self.summary.recorded_share());
                caveats.push(if self.summary.threads.is_empty() {
                    format!(
                        "{}: records are missing ({lost}), and of which sockets is not known: bytes and times are \
                         lower bounds",
                        file.name
                    )
                } else {
                    format!(
                        "{}: records are missing ({lost}); the others have {:.1}% of the bytes: bytes are exact, times \
                         are lower bounds",
                        file.name,
                        (share * 1000.0).floor() / 10.0
                    )
                });
            }
        }
        caveats
    }
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::sample;

    use super::*;

    /// Whether two files belong to one trace: the boot id and the host name in each, and how far the monotonic and the
    /// wall clock have advanced in between, s.
    fn are_one(ids: [&str; 2], names: [&str; 2], monotonic: u64, wall: u64) -> bool {
        let file = |boot_id: &str, hostname: &str, monotonic: u64, wall: u64| {
            let mut header = sample::header();
            header.boot_id = boot_id.into();
            header.hostname = hostname.into();
            header.start.monotonic_ns += monotonic * 1_000_000_000;
            header.start.realtime_ns += wall * 1_000_000_000;
            let last_ns = header.start.monotonic_ns;
            TraceFile { name: String::new(), header, trailer: None, trouble: None, records: 0, last_ns }
        };
        let files = vec![file(ids[0], names[0], 0, 0), file(ids[1], names[1], monotonic, wall)];
        match Trace::of(files, Summary::default()) {
            Ok(_) => true,
            Err(NotOneTrace::Hosts { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_boot_id_decides_whether_files_are_of_one_trace_and_without_it_the_clocks_do() {
        // The host has slept for two hours, and may have got another name.
        assert!(are_one(["a", "a"], ["x", "x"], 10, 7210));
        assert!(are_one(["a", "a"], ["x", "y"], 10, 7210));
        assert!(!are_one(["a", "b"], ["x", "x"], 10, 10));
        for ids in [["", ""], ["", "a"], ["a", ""]] {
            assert!(are_one(ids, ["x", "x"], 10, 11), "{ids:?}");
            assert!(!are_one(ids, ["x", "x"], 10, 7210), "{ids:?}");
            assert!(!are_one(ids, ["x", "y"], 10, 11), "{ids:?}");
        }
    }
}
