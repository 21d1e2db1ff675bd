//! The trailer of a trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::header::Clocks;

/// The losses of tcpmon's programs that can cost a trace a record or a read. Each must be in [`Ending::lost`], even if
/// it is zero.
pub const LOSSES: [&str; 13] = [
    "followed_process",
    "recursion_sched_process_fork",
    "recursion_sched_switch",
    "recursion_tcp_probe",
    "recursion_tcp_rcv_space_adjust",
    "socket_copy",
    "socket_state",
    "socket_table",
    "reader_storage",
    "reader_slot",
    "timeslice_edge",
    "timeslice_record",
    "timeslice_socket",
];

/// The cause in [`Trailer::lost`] that a writer adds by itself: records that the output did not accept.
pub const LOST_WRITE: &str = "write";

/// The cause in [`Ending::lost`] that the command counts: records for which there was no room in the queue before a
/// slow output.
pub const LOST_OUTPUT: &str = "output";

/// The cause in [`Trailer::lost`] that writers add if there are any: totals of a socket or a thread that the output did
/// not accept, or for which a Parquet file has no room.
pub const LOST_TOTAL: &str = "total";

/// Why a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The requested time was over.
    Duration,
    /// The user stopped it (SIGINT, SIGTERM, SIGQUIT, SIGHUP).
    Interrupt,
    /// All traced processes have exited.
    ProcessExit,
    /// The output accepted no more.
    WriteError,
    /// The trace goes on in another file.
    Rotated,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [EndReason; 5] =
        [EndReason::Duration, EndReason::Interrupt, EndReason::ProcessExit, EndReason::WriteError, EndReason::Rotated];

    /// The name in a trace file.
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Duration => "duration",
            EndReason::Interrupt => "interrupt",
            EndReason::ProcessExit => "process_exit",
            EndReason::WriteError => "write_error",
            EndReason::Rotated => "rotated",
        }
    }
}

/// What the trace command knows at the end; the writer adds what it has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Both clocks at the end.
    pub end: Clocks,
    /// Why the trace ended.
    pub reason: EndReason,
    /// Records lost, by cause (see [`LOSSES`] and [`LOST_OUTPUT`]).
    pub lost: BTreeMap<String, u64>,
}

/// The last line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Timeslice records in the trace.
    pub records: u64,
    /// Records lost, by cause.
    pub lost: BTreeMap<String, u64>,
    /// Both clocks at the end.
    pub end: Clocks,
    /// Why the trace ended.
    pub reason: EndReason,
    /// Nothing that was requested is missing between header and trailer: nothing was lost, and the output accepted
    /// everything.
    pub complete: bool,
}

impl Trailer {
    /// The trailer of a trace in which `records` were written and `refused` were not.
    pub fn new(ending: &Ending, records: u64, refused: u64) -> Self {
        let mut lost = ending.lost.clone();
        let write = lost.entry(LOST_WRITE.into()).or_default();
        *write = write.saturating_add(refused);
        let complete = ending.reason != EndReason::WriteError && lost.values().all(|count| *count == 0);
        Self { records, lost, end: ending.end, reason: ending.reason, complete }
    }

    /// What was lost, by cause; `None` if nothing was lost.
    pub fn lost_in_words(&self) -> Option<String> {
        let counted = self.lost.iter().filter(|(_, count)| **count > 0);
        let told: Vec<_> = counted.map(|(cause, count)| format!("{cause} {count}")).collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// Records lost from all causes.
    pub fn lost_total(&self) -> u64 {
        self.lost.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_complete_when_nothing_was_lost_and_the_output_took_all() {
        let mut ending = Ending {
            end: Clocks::default(),
            reason: EndReason::Interrupt,
            lost: LOSSES.map(|loss| (loss.to_owned(), 0)).into(),
        };
        assert!(Trailer::new(&ending, 7, 0).complete);
        assert!(!Trailer::new(&ending, 7, 1).complete);
        assert_eq!(Trailer::new(&ending, 7, 1).lost[LOST_WRITE], 1);

        ending.lost.insert("timeslice_record".into(), 3);
        assert!(!Trailer::new(&ending, 7, 0).complete);
        assert_eq!(Trailer::new(&ending, 7, 2).lost_total(), 5);

        ending.lost.clear();
        ending.reason = EndReason::WriteError;
        assert!(!Trailer::new(&ending, 7, 0).complete);
    }
}
