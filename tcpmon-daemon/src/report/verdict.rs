//! One sentence: what limited a transfer, the number that shows it, and what would help.

use serde::Serialize;
use tcpmon_trace::{
    scale::{Bytes, Rate, Time},
    summary::{LARGEST_WINDOW, causes},
};

use super::evidence::Evidence;

/// Less time than this is too little for a verdict.
const LEAST_DECIDED_NS: f64 = 100e6;

/// A share with a larger margin of error than this says nothing.
const MOST_MARGIN: f64 = 0.2;

/// What limited a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferVerdict {
    /// The cause, if one limited it for at least half of the time and the trace is long and steady enough to say so.
    pub cause: Option<&'static str>,
    /// The largest share of the time, and how far it may be off (two standard errors), percent; `None` if not known.
    pub share_percent: Option<f64>,
    /// The margin of error of that share.
    pub margin_percent: Option<f64>,
    /// What to tell the user.
    pub sentence: String,
}

/// Positions of the causes in the order of [`causes`].
const UPSTREAM: usize = 0;
const APPLICATION: usize = 1;
const SCHEDULER: usize = 2;
const WINDOW: usize = 3;

impl TransferVerdict {
    /// The verdict on a whole trace.
    pub fn of(evidence: &Evidence) -> Self {
        Self::of_part(evidence, evidence)
    }

    /// The verdict on a part of a trace, of which `whole` is the evidence as a whole: whether more threads would help
    /// there depends on what all readers of the trace do.
    pub fn of_part(evidence: &Evidence, whole: &Evidence) -> Self {
        let unknown = |sentence: String| Self { cause: None, share_percent: None, margin_percent: None, sentence };
        if evidence.read_bytes == 0 {
            return unknown(
                "not known: nothing was read, and a trace shows what limited a connection only when it is read".into(),
            );
        }
        let decided = evidence.decided_ns();
        if decided < LEAST_DECIDED_NS {
            return unknown(format!(
                "not known: the cause is known for only {}, which is too short; trace for longer",
                Time(decided as u64)
            ));
        }
        let shares = evidence.shares();
        let mut order = [0, 1, 2, 3, 4];
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        let [first, second, third, ..] = order;
        if evidence.records == 0 {
            let sentence = format!(
                "{} {}, by the totals; a trace with timeslices also says how steady that was, and what to do",
                causes()[first],
                percent(shares[first])
            );
            return Self { share_percent: Some(shares[first] * 100.0), ..unknown(sentence) };
        }
        let Some(margins) = evidence.margins else {
            return unknown(format!(
                "not known: {} {}, but in too few reads over too little time to be sure; trace for longer",
                causes()[first],
                percent(shares[first]),
            ));
        };
        let known = |cause, sentence| Self {
            cause,
            share_percent: Some(shares[first] * 100.0),
            margin_percent: Some(margins[first] * 100.0),
            sentence,
        };
        let part = |cause: usize| format!("{} {}", causes()[cause], percent(shares[cause]));
        if margins[first] > MOST_MARGIN {
            let sentence = format!(
                "not sure: {}, give or take {}: it changed during the trace; report on a steady part of it, or trace \
                 for longer",
                part(first),
                percent(margins[first])
            );
            return known(None, sentence);
        }
        let apart = (margins[first].powi(2) + margins[second].powi(2)).sqrt();
        if shares[first] < 0.5 || shares[first] - shares[second] < apart {
            let parts: Vec<_> =
                [first, second, third].into_iter().filter(|cause| shares[*cause] >= 0.05).map(part).collect();
            let sentence = format!(
                "no single cause: {}; {} has the largest share: {}",
                parts.join(", "),
                causes()[first],
                remedy(first, evidence, whole)
            );
            return known(None, sentence);
        }
        known(Some(causes()[first]), format!("{}: {}", part(first), remedy(first, evidence, whole)))
    }
}

/// The number that shows a cause, and the remedy.
fn remedy(cause: usize, evidence: &Evidence, whole: &Evidence) -> String {
    let duration = Time(evidence.duration_ns);
    let rate = Rate { bytes: evidence.read_bytes, ns: evidence.duration_ns };
    let (reader, them, their) =
        if evidence.sockets == 1 { ("the reader", "it", "its") } else { ("the readers", "them", "their") };
    match cause {
        UPSTREAM => format!(
            "the sender did not use up the window, so the sender or the path was the limit, at {rate}; look at the \
             sender (ss -ti: cwnd, app_limited, retrans) and at the path"
        ),
        APPLICATION if computed(evidence) && has_all_cpus(evidence) => format!(
            "data filled the buffer while {reader} computed, on a CPU for {} in {duration}, nearly all of the \
             time of {}; make {reader} faster: more threads would only share the same ones",
            Time(evidence.on_cpu_ns),
            if evidence.cpus == 1 { "the host's CPU".into() } else { format!("the host's {} CPUs", evidence.cpus) },
        ),
        APPLICATION if computed(evidence) && shares_cpus(evidence) => format!(
            "data filled the buffer while {reader} computed, on a CPU for {} in {duration}, and waited {} for one{}; \
             make {reader} faster, or give {them} CPUs of {their} own: more threads would only share the same ones",
            Time(evidence.on_cpu_ns),
            Time(evidence.run_queue_wait_ns),
            taken_by(evidence),
        ),
        APPLICATION if computed(evidence) && computed(whole) && (has_all_cpus(whole) || shares_cpus(whole)) => format!(
            "data filled the buffer while {reader} computed, on a CPU for {} in {duration}; make {reader} faster: more \
             threads would only share the CPUs that the readers of all sockets have",
            Time(evidence.on_cpu_ns),
        ),
        APPLICATION if computed(evidence) => format!(
            "data filled the buffer while {reader} computed, on a CPU for {} in {duration}; make {reader} faster, or \
             read in more threads",
            Time(evidence.on_cpu_ns),
        ),
        APPLICATION => format!(
            "data filled the buffer while {reader} slept, {} in {duration} and only {} on a CPU; find out what \
             {reader} waits for: a disk, a pipe, a lock, a timer, another connection",
            Time(evidence.sleep_ns),
            Time(evidence.on_cpu_ns),
        ),
        SCHEDULER => format!(
            "{reader} waited {} for a CPU in {duration}{}; give {reader} a core, a larger weight, or more CPU quota",
            Time(evidence.run_queue_wait_ns),
            taken_by(evidence),
        ),
        WINDOW if evidence.window_bytes >= LARGEST_WINDOW => at_largest_window(evidence),
        WINDOW => format!(
            "{rate} is all that a window of at most {} allows{}; allow a receive buffer larger than {}: the maximum of \
             net.ipv4.tcp_rmem, or SO_RCVBUF where the program sets it",
            Bytes(evidence.window_bytes.into()),
            round_trip(evidence),
            Bytes(evidence.rcvbuf_bytes.into()),
        ),
        _ => format!(
            "the kernel kept the window small because memory was short, at {rate}{}; raise net.ipv4.tcp_mem, or the \
             memory limit of the control group",
            round_trip(evidence),
        ),
    }
}

/// At least one window was as large as TCP can make it.
fn at_largest_window(evidence: &Evidence) -> String {
    let rate = Rate { bytes: evidence.read_bytes, ns: evidence.duration_ns };
    let largest = Bytes(evidence.window_bytes.into());
    match (evidence.at_largest_window == evidence.sockets, evidence.sockets) {
        (true, 1) => format!(
            "{rate} is all that TCP's largest window, {largest}, allows{}; no receive buffer makes it larger: use \
             several connections",
            round_trip(evidence),
        ),
        (true, sockets) => format!(
            "{rate} is all that TCP's largest window, {largest}, allows on {sockets} connections; no receive buffer \
             makes it larger: use more connections"
        ),
        (false, _) => {
            let buffer = match evidence.smaller_rcvbuf_bytes {
                0 => "a larger receive buffer".to_owned(),
                bytes => format!("a receive buffer larger than {}", Bytes(bytes.into())),
            };
            format!(
                "{rate} is all that the windows of these connections allow; some have TCP's largest, {largest}: allow \
                 the others {buffer}: the maximum of net.ipv4.tcp_rmem, or SO_RCVBUF where the program sets it"
            )
        }
    }
}

/// Whether the readers computed for longer than they slept.
fn computed(evidence: &Evidence) -> bool {
    evidence.on_cpu_ns >= evidence.sleep_ns
}

/// Whether other threads ran on the readers' CPUs: the readers waited for a CPU for at least a tenth of the time that
/// they had one.
fn shares_cpus(evidence: &Evidence) -> bool {
    evidence.run_queue_wait_ns >= evidence.on_cpu_ns / 10
}

/// Whether the readers ran for nearly all the CPU time that the host has.
fn has_all_cpus(evidence: &Evidence) -> bool {
    let given_ns = u128::from(evidence.cpus) * u128::from(evidence.duration_ns);
    evidence.cpus > 0 && u128::from(evidence.on_cpu_ns) * 10 >= given_ns * 9
}

/// Which threads took the CPU, if one name stands out. Interrupts and a reader can be moved apart, so those come with
/// the CPU that the reader has most of the time, if there is one.
fn taken_by(evidence: &Evidence) -> String {
    let Some((name, share)) = evidence.taken_by.as_ref().filter(|(name, share)| !name.is_empty() && *share >= 0.2)
    else {
        return String::new();
    };
    let what = match name.strip_prefix("ksoftirqd/") {
        Some(cpu) => {
            format!("{name}, the interrupts of CPU {cpu}: move these or the reader{} to another CPU", ran_on(evidence))
        }
        None => name.clone(),
    };
    format!(" ({} of the times to {what})", percent(*share))
}

/// The CPU on which the readers had at least half of their timeslices.
fn ran_on(evidence: &Evidence) -> String {
    match evidence.reader_cpu {
        Some((cpu, share)) if share >= 0.5 => format!(", on CPU {cpu} in {} of the timeslices,", percent(share)),
        _ => String::new(),
    }
}

/// The round trip, and the bytes in flight in that time.
fn round_trip(evidence: &Evidence) -> String {
    match evidence.bytes_in_flight() {
        Some(bytes) => {
            format!(" over a round trip of {} ({} in flight)", Time(evidence.round_trip_ns), Bytes(bytes as u64))
        }
        None => String::new(),
    }
}

/// A share as whole percent.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::{Limited, Queue, SocketTotal, TimesliceEnd, TimesliceRecord, Total, sample, summary::Summary};

    use super::*;

    /// The verdict on a transfer of 10 s with a record every 10 ms, each changed by its number.
    fn verdict(change: impl Fn(u64, &mut TimesliceRecord)) -> TransferVerdict {
        verdict_on(0, change)
    }

    /// The same on a host with this many CPUs.
    fn verdict_on(cpus: u32, change: impl Fn(u64, &mut TimesliceRecord)) -> TransferVerdict {
        let mut summary = Summary::default();
        summary.cpus = cpus;
        for number in 0..1000 {
            let activated_ns = 1_000_000_000 + number * 10_000_000;
            let mut record = TimesliceRecord {
                activated_ns,
                deactivated_ns: activated_ns + 1_000_000,
                read_bytes: 12_000,
                wait_ns: 0,
                sleep_ns: 9_000_000,
                on_cpu_ns: 1_000_000,
                limited: Limited::default(),
                ..sample::record()
            };
            change(number, &mut record);
            summary.add(&record);
        }
        TransferVerdict::of(&Evidence::of_busiest(&summary))
    }

    fn limited(parts: [u64; 5]) -> Limited {
        let [upstream_ns, application_ns, scheduler_ns, window_ns, memory_ns] = parts.map(|percent| percent * 100_000);
        Limited { upstream_ns, application_ns, scheduler_ns, window_ns, memory_ns }
    }

    #[test]
    fn each_cause_has_its_sentence_with_the_number_that_shows_it() {
        let scheduler = verdict(|_, record| {
            record.limited = limited([9, 20, 71, 0, 0]);
            (record.wait_ns, record.sleep_ns) = (8_200_000, 800_000);
        });
        assert_eq!(
            scheduler.sentence,
            "scheduler 71 %: the reader waited 8.2s for a CPU in 10s; give the reader a core, a larger weight, or more \
             CPU quota"
        );
        assert_eq!((scheduler.cause, scheduler.margin_percent), (Some("scheduler"), Some(0.0)));

        let sleeping = verdict(|_, record| record.limited = limited([4, 96, 0, 0, 0]));
        assert!(
            sleeping
                .sentence
                .starts_with("application 96 %: data filled the buffer while the reader slept, 9.0s in 10s")
        );
        let computing = verdict(|_, record| {
            record.limited = limited([4, 96, 0, 0, 0]);
            (record.on_cpu_ns, record.sleep_ns) = (9_000_000, 1_000_000);
        });
        assert!(computing.sentence.contains("while the reader computed, on a CPU for 9.0s in 10s"), "{computing:?}");

        let window = verdict(|_, record| {
            record.limited = limited([7, 0, 0, 93, 0]);
            let queue = Queue { rcvbuf_bytes: 65_536, window_bytes: 48_128, ..Queue::default() };
            (record.activation, record.deactivation, record.rcv_rtt_us) = (queue, queue, 40_000);
        });
        assert_eq!(
            window.sentence,
            "window 93 %: 9.61Mbit/s is all that a window of at most 47K allows over a round trip of 40ms (47K in \
             flight); allow a receive buffer larger than 64K: the maximum of net.ipv4.tcp_rmem, or SO_RCVBUF where the \
             program sets it"
        );
        let largest = verdict(|_, record| {
            record.limited = limited([7, 0, 0, 93, 0]);
            let queue = Queue { rcvbuf_bytes: i32::MAX as u32, window_bytes: 65_535 << 14, ..Queue::default() };
            (record.activation, record.deactivation, record.rcv_rtt_us) = (queue, queue, 150_000);
        });
        assert!(largest.sentence.contains("TCP's largest window, 1.0G, allows"), "{largest:?}");
        assert!(largest.sentence.ends_with("use several connections"), "{largest:?}");
        let memory = verdict(|_, record| record.limited = limited([0, 0, 0, 20, 80]));
        assert!(memory.sentence.starts_with("memory 80 %: the kernel kept the window small"), "{memory:?}");
        let upstream = verdict(|_, record| record.limited = limited([99, 1, 0, 0, 0]));
        assert!(upstream.sentence.starts_with("upstream 99 %: the sender did not use up the window"), "{upstream:?}");
    }

    /// The verdict on sockets that the window limits, each with its cookie, its buffer and its window.
    fn limited_by_windows(sockets: &[(u64, u32, u32)]) -> String {
        let of_records = |number: u64, record: &mut TimesliceRecord| {
            let (cookie, rcvbuf_bytes, window_bytes) = sockets[number as usize % sockets.len()];
            let queue = Queue { rcvbuf_bytes, window_bytes, ..Queue::default() };
            (record.cookie, record.activation, record.deactivation) = (cookie, queue, queue);
            record.limited = limited([7, 0, 0, 93, 0]);
        };
        verdict(of_records).sentence
    }

    #[test]
    fn more_connections_are_advised_only_if_all_have_the_largest_window() {
        let largest = |cookie| (cookie, i32::MAX as u32, 65_535 << 14);
        let all = limited_by_windows(&[largest(1), largest(2)]);
        assert!(
            all.ends_with(
                "TCP's largest window, 1.0G, allows on 2 connections; no receive buffer makes it larger: use more \
                 connections"
            ),
            "{all}"
        );
        let some = limited_by_windows(&[largest(1), (2, 6 << 20, 3 << 20), (3, 4 << 20, 2 << 20)]);
        assert!(
            some.ends_with(
                "is all that the windows of these connections allow; some have TCP's largest, 1.0G: allow the others a \
                 receive buffer larger than 6.0M: the maximum of net.ipv4.tcp_rmem, or SO_RCVBUF where the program \
                 sets it"
            ),
            "{some}"
        );
        // Of which of the connections without a summary of their own it was is not known.
        let mut summary = Summary::default();
        for cookie in 1..=tcpmon_trace::summary::SOCKETS as u64 + 2 {
            let (rcvbuf_bytes, window_bytes) = (i32::MAX as u32, 65_535 << 14);
            let queue = Queue { rcvbuf_bytes, window_bytes, ..Queue::default() };
            summary.add(&TimesliceRecord { cookie, activation: queue, ..sample::record() });
        }
        let of_others = Evidence::of(&[&summary.others], summary.cpus);
        assert_eq!((of_others.sockets, of_others.at_largest_window, of_others.smaller_rcvbuf_bytes), (1, 0, 0));
        assert!(at_largest_window(&of_others).contains("allow the others a larger receive buffer: the maximum"));
        let whole = Evidence::of_busiest(&summary);
        assert_eq!(whole.at_largest_window, tcpmon_trace::summary::SOCKETS.min(whole.sockets));
    }

    #[test]
    fn who_took_the_cpu_is_named() {
        let preempted = |number: u64, record: &mut TimesliceRecord| {
            record.cpu = if number.is_multiple_of(5) { 7 } else { 3 };
            record.end = TimesliceEnd::Preempted;
            record.preempted_by =
                if number.is_multiple_of(4) { "hog" } else { "ksoftirqd/3" }.try_into().expect("a name");
        };
        let waiting = verdict(|number, record| {
            preempted(number, record);
            record.limited = limited([9, 20, 71, 0, 0]);
            (record.wait_ns, record.sleep_ns) = (8_200_000, 800_000);
        });
        assert!(
            waiting.sentence.contains(
                "for a CPU in 10s (75 % of the times to ksoftirqd/3, the interrupts of CPU 3: move these or the \
                 reader, on CPU 3 in 80 % of the timeslices, to another CPU); give the reader"
            ),
            "{waiting:?}"
        );
        let computing = verdict(|number, record| {
            preempted(number, record);
            record.limited = limited([4, 96, 0, 0, 0]);
            (record.on_cpu_ns, record.wait_ns, record.sleep_ns) = (8_000_000, 2_000_000, 0);
        });
        assert!(computing.sentence.contains("for 8.0s in 10s, and waited 2.0s for one (75 % of"), "{computing:?}");
        assert!(computing.sentence.ends_with("more threads would only share the same ones"), "{computing:?}");
    }

    #[test]
    fn who_seldom_takes_the_cpu_is_not_named() {
        let sentence = |one_in: u64| {
            let waiting = verdict(|number, record| {
                record.limited = limited([9, 20, 71, 0, 0]);
                (record.wait_ns, record.sleep_ns) = (8_200_000, 800_000);
                if number.is_multiple_of(one_in) {
                    record.end = TimesliceEnd::Preempted;
                    record.preempted_by = "kworker/u8:2".try_into().expect("a name");
                }
            });
            waiting.sentence
        };
        let expected = "scheduler 71 %: the reader waited 8.2s for a CPU in 10s; give the reader a core, a larger \
                        weight, or more CPU quota";
        for seldom in [1000, 11] {
            assert_eq!(sentence(seldom), expected);
        }
        let often = sentence(10);
        assert!(often.contains("for a CPU in 10s (100 % of the times to kworker/u8:2); give"), "{often}");
    }

    #[test]
    fn readers_that_are_preempted_in_each_timeslice_are_not_told_to_use_more_threads() {
        // Two threads on two CPUs that others use, too: 3.9 s in 3.0 s.
        let preempted = verdict_on(2, |number, record| {
            (record.tid, record.cpu) = (1 + (number % 2) as u32, (number % 3) as u32);
            record.activated_ns = 1_000_000_000 + number * 3_000_000;
            record.deactivated_ns = record.activated_ns + 3_900_000;
            (record.on_cpu_ns, record.wait_ns, record.sleep_ns) = (3_900_000, 2_100_000, 0);
            record.limited = limited([1, 29, 0, 0, 0]);
            record.end = TimesliceEnd::Preempted;
            record.preempted_by = "ksoftirqd/1".try_into().expect("a name");
        });
        assert_eq!(
            preempted.sentence,
            "application 97 %: data filled the buffer while the reader computed, on a CPU for 3.9s in 3.0s, and waited \
             2.1s for one (100 % of the times to ksoftirqd/1, the interrupts of CPU 1: move these or the reader to \
             another CPU); make the reader faster, or give it CPUs of its own: more threads would only share the same \
             ones"
        );
    }

    #[test]
    fn who_has_all_cpus_is_not_told_to_use_more_threads() {
        let computing = |_, record: &mut TimesliceRecord| {
            record.limited = limited([4, 96, 0, 0, 0]);
            (record.on_cpu_ns, record.sleep_ns) = (9_100_000, 900_000);
        };
        let advice = |cpus| verdict_on(cpus, computing).sentence;
        assert!(
            advice(1).ends_with(
                "on a CPU for 9.1s in 10s, nearly all of the time of the host's CPU; make the reader faster: more \
                 threads would only share the same ones"
            ),
            "{}",
            advice(1)
        );
        for cpus in [0, 2] {
            assert!(advice(cpus).ends_with("make the reader faster, or read in more threads"), "{}", advice(cpus));
        }
    }

    #[test]
    fn a_socket_is_not_told_to_use_more_threads_if_those_of_all_sockets_have_the_cpus() {
        // Two sockets on two CPUs, each with a thread of its own.
        let of_a_socket = |wait_ns: u64, on_cpu_ns: [u64; 2]| {
            let mut summary = Summary::default();
            summary.cpus = 2;
            for number in 0..1000_u64 {
                for (thread, on_cpu_ns) in (1..).zip(on_cpu_ns) {
                    let activated_ns = 1_000_000_000 + number * 10_000_000;
                    summary.add(&TimesliceRecord {
                        cookie: thread,
                        tid: thread as u32,
                        activated_ns,
                        deactivated_ns: activated_ns + on_cpu_ns,
                        read_bytes: 12_000,
                        wait_ns: if thread == 1 { wait_ns } else { 0 },
                        sleep_ns: 0,
                        on_cpu_ns,
                        limited: limited([4, 96, 0, 0, 0]),
                        ..sample::record()
                    });
                }
            }
            let whole = Evidence::of_busiest(&summary);
            TransferVerdict::of_part(&Evidence::of(&[&summary.sockets[&2]], summary.cpus), &whole).sentence
        };
        let shared = "on a CPU for 9.1s in 10s; make the reader faster: more threads would only share the CPUs that \
                      the readers of all sockets have";
        let all_cpus = of_a_socket(0, [9_100_000; 2]);
        assert!(all_cpus.ends_with(shared), "{all_cpus}");
        // One of the others waits for a CPU.
        let waiting = of_a_socket(5_000_000, [5_000_000, 9_100_000]);
        assert!(waiting.ends_with(shared), "{waiting}");
        let room = of_a_socket(0, [5_000_000, 9_100_000]);
        assert!(room.ends_with("on a CPU for 9.1s in 10s; make the reader faster, or read in more threads"), "{room}");
    }

    #[test]
    fn it_says_when_it_does_not_know() {
        let nothing_read = verdict(|_, record| record.read_bytes = 0);
        assert!(nothing_read.sentence.starts_with("not known: nothing was read"), "{nothing_read:?}");
        let short = verdict(|number, record| {
            record.limited = if number == 0 { limited([0, 100, 0, 0, 0]) } else { Limited::default() };
        });
        assert!(short.sentence.starts_with("not known: the cause is known for only 10ms"), "{short:?}");
        let rare = verdict(|number, record| {
            record.limited = if number % 500 == 0 { limited([0, 10_000, 0, 0, 0]) } else { Limited::default() };
        });
        assert!(rare.sentence.starts_with("not known: application 100 %, but in too few reads"), "{rare:?}");
        // One cause for half of the time, then another: no share is steady.
        let changed = verdict(|number, record| {
            record.limited = if number < 450 { limited([100, 0, 0, 0, 0]) } else { limited([0, 100, 0, 0, 0]) };
        });
        assert_eq!(changed.cause, None, "{changed:?}");
        let even = verdict(|_, record| record.limited = limited([30, 36, 34, 0, 0]));
        assert!(
            even.sentence.starts_with("no single cause: application 36 %, scheduler 34 %, upstream 30 %"),
            "{even:?}"
        );
    }

    #[test]
    fn totals_name_the_largest_share_but_not_how_sure_it_is() {
        let mut summary = Summary::default();
        let limited = limited([10_000, 80_000, 10_000, 0, 0]);
        summary.add_total(&Total::Socket(SocketTotal { limited, ..sample::socket_total() }));
        let verdict = TransferVerdict::of(&Evidence::of_busiest(&summary));
        assert!(verdict.sentence.starts_with("application 80 %, by the totals;"), "{verdict:?}");
        assert_eq!((verdict.cause, verdict.share_percent, verdict.margin_percent), (None, Some(80.0), None));
    }

    #[test]
    fn idle_sockets_do_not_outweigh_the_one_that_transfers() {
        let verdict = verdict(|number, record| {
            if number % 10 == 0 {
                record.limited = limited([0, 1000, 0, 0, 0]);
            } else {
                (record.cookie, record.read_bytes) = (100 + number % 10, 1);
                record.limited = limited([1000, 0, 0, 0, 0]);
            }
        });
        assert_eq!(verdict.cause, Some("application"), "{verdict:?}");
    }
}
