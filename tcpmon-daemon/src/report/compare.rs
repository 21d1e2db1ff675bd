//! Compares two traces: what changed, by how much, and whether that is more than noise.

use serde::Serialize;
use tcpmon_trace::summary::causes;

use super::evidence::Evidence;

/// A number in two traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What it is.
    pub what: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// In the first trace; `None` if it is not known.
    pub before: Option<f64>,
    /// In the second.
    pub after: Option<f64>,
    /// Whether the difference is larger than two standard errors of both can explain; `None` if that is not known.
    pub beyond_noise: Option<bool>,
}

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes per second.
    BytesPerSecond,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Hundredths.
    Percent,
}

/// What readers do: names of the shares of their threads' time.
const WORK: [&str; 3] = ["on a CPU", "asleep", "waited for a CPU"];

/// If a share of the readers' time changes by at least this much, percentage points, the readers do something different
/// than before.
const OTHER_WORK: f64 = 20.0;

/// The differences between the traces. Only numbers that were measured over pieces of the time have an estimate of
/// noise.
pub fn changes(before: &Evidence, after: &Evidence) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add = |what, unit, number: &dyn Fn(&Evidence) -> Option<f64>, margin: &dyn Fn(&Evidence) -> Option<f64>| {
        let (old, new) = (number(before), number(after));
        let noise = margin(before).zip(margin(after)).map(|(old, new): (f64, f64)| (old * old + new * new).sqrt());
        let apart = old.zip(new).map(|(old, new)| (new - old).abs());
        let beyond_noise = apart.zip(noise).map(|(apart, noise)| apart > noise);
        changes.push(Change { what, unit, before: old, after: new, beyond_noise });
    };
    let rate = |of: &Evidence| if of.read_bytes == 0 { Some(0.0) } else { of.bytes_per_second };
    add("throughput", Unit::BytesPerSecond, &rate, &|of| of.bytes_per_second_margin);
    for (number, cause) in causes().into_iter().enumerate() {
        let share = |of: &Evidence| (of.decided_ns() > 0.0).then(|| of.shares()[number] * 100.0);
        let margin = |of: &Evidence| of.margins.map(|margins| margins[number] * 100.0);
        add(cause, Unit::Percent, &share, &margin);
    }
    let seconds = |us: Option<f64>| us.map(|us| us / 1e6);
    add("mean wait of a byte", Unit::Seconds, &|of| seconds(of.mean_wait_us), &|of| seconds(of.mean_wait_margin_us));
    // A share of the time of all threads. As a share of the trace's duration, eight threads could have 800 %, and a
    // small change would look large.
    let part = |of: &Evidence, ns: u64| {
        let all = of.on_cpu_ns.saturating_add(of.sleep_ns).saturating_add(of.run_queue_wait_ns);
        (all > 0).then(|| ns as f64 * 100.0 / all as f64)
    };
    let work: [fn(&Evidence) -> u64; 3] = [|of| of.on_cpu_ns, |of| of.sleep_ns, |of| of.run_queue_wait_ns];
    for (what, ns) in WORK.into_iter().zip(work) {
        add(what, Unit::Percent, &|of| part(of, ns(of)), &|_| None);
    }
    add("largest buffer", Unit::Bytes, &|of| Some(of.rcvbuf_bytes.into()), &|_| None);
    add("largest window", Unit::Bytes, &|of| Some(of.window_bytes.into()), &|_| None);
    let round_trip = |of: &Evidence| (of.round_trip_ns > 0).then(|| of.round_trip_ns as f64 / 1e9);
    add("round trip", Unit::Seconds, &round_trip, &|_| None);
    changes
}

/// The comparison in one sentence: the throughput, and the cause whose share changed most.
pub fn sentence(changes: &[Change]) -> String {
    let Some((throughput, rest)) = changes.split_first() else { return "nothing to compare".into() };
    let speed = match (throughput.before, throughput.after, throughput.beyond_noise) {
        (Some(0.0), Some(0.0), _) => return "nothing was read in either trace".into(),
        (Some(0.0), _, _) => return "nothing was read in the first trace".into(),
        (_, Some(0.0), _) => return "nothing was read in the second trace".into(),
        (Some(before), Some(after), Some(true)) if before > 0.0 && after > before => {
            format!("the second is {:.2} times as fast", after / before)
        }
        (Some(before), Some(after), Some(true)) if after > 0.0 && before > 0.0 => {
            format!("the second is {:.2} times slower", before / after)
        }
        (_, _, Some(_)) => "the speeds do not differ by more than the noise".into(),
        _ => "which is faster is not known, because the traces are too short".into(),
    };
    let difference = |change: &Change| change.before.zip(change.after).map_or(0.0, |(before, after)| after - before);
    let of_causes = rest.iter().filter(|change| causes().contains(&change.what) && change.beyond_noise == Some(true));
    let work = rest.iter().filter(|change| WORK.contains(&change.what) && difference(change).abs() >= OTHER_WORK);
    let work: Vec<String> = work
        .filter_map(|change| {
            let (before, after) = change.before.zip(change.after)?;
            Some(format!("{} for {before:.0} % of the time in the first, {after:.0} % in the second", change.what))
        })
        .collect();
    let work = if work.is_empty() { String::new() } else { format!("; readers: {}", work.join("; ")) };
    match of_causes.max_by(|a, b| difference(a).abs().total_cmp(&difference(b).abs())) {
        Some(Change { what, before: Some(before), after: Some(after), .. }) if (before - after).abs() >= 1.0 => {
            format!("{speed}; {what} went from {before:.0} % to {after:.0} %{work}")
        }
        _ => format!("{speed}; no cause changed beyond the noise{work}"),
    }
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::{Limited, TimesliceRecord, sample, summary::Summary};

    use super::*;

    /// A transfer of 10 s with a record every 10 ms.
    fn evidence(record: impl Fn(u64) -> (u64, Limited)) -> Evidence {
        let mut summary = Summary::default();
        for number in 0..1000 {
            let activated_ns = number * 10_000_000;
            let (read_bytes, limited) = record(number);
            let deactivated_ns = activated_ns + 1_000_000;
            summary.add(&TimesliceRecord { activated_ns, deactivated_ns, read_bytes, limited, ..sample::record() });
        }
        Evidence::of_busiest(&summary)
    }

    /// A transfer of 10 s to this many threads, each of which is on a CPU for `on_cpu_ns` in every 10 ms, and sleeps
    /// for the rest.
    fn reading(threads: u32, on_cpu_ns: u64) -> Evidence {
        let mut summary = Summary::default();
        for number in 0..1000 {
            let activated_ns = number * 10_000_000;
            let (deactivated_ns, sleep_ns) = (activated_ns + on_cpu_ns, 10_000_000 - on_cpu_ns);
            let limited = Limited { application_ns: 100_000, ..Limited::default() };
            let times = TimesliceRecord { activated_ns, deactivated_ns, on_cpu_ns, sleep_ns, ..sample::record() };
            for tid in 1..=threads {
                summary.add(&TimesliceRecord { tid, wait_ns: 0, read_bytes: 1000, limited, ..times });
            }
        }
        Evidence::of_busiest(&summary)
    }

    #[test]
    fn a_change_is_beyond_noise_only_if_it_is_larger_than_what_varies() {
        let steady = |bytes| evidence(|_| (bytes, Limited { upstream_ns: 100_000, ..Limited::default() }));
        let found = changes(&steady(1000), &steady(2000));
        assert_eq!(found[0].beyond_noise, Some(true));
        assert_eq!(sentence(&found), "the second is 2.00 times as fast; no cause changed beyond the noise");
        assert!(sentence(&changes(&steady(2000), &steady(1000))).starts_with("the second is 2.00 times slower"));

        // Ten seconds in which the rate varies from second to second: 10 % more says nothing.
        let varying = |bytes: u64| {
            evidence(|number| {
                let burst = bytes * (1 + number / 100 % 3);
                (burst, Limited { upstream_ns: 100_000, ..Limited::default() })
            })
        };
        let found = changes(&varying(1000), &varying(1100));
        assert_eq!(found[0].beyond_noise, Some(false), "{found:?}");
        assert!(
            sentence(&found).starts_with("the speeds do not differ by more than the noise"),
            "{}",
            sentence(&found)
        );
    }

    #[test]
    fn a_trace_in_which_nothing_was_read_is_not_equally_fast() {
        let some = evidence(|_| (1000, Limited { upstream_ns: 100_000, ..Limited::default() }));
        let none = evidence(|_| (0, Limited { upstream_ns: 100_000, ..Limited::default() }));
        let empty = Evidence::of_busiest(&Summary::default());
        for nothing in [&none, &empty] {
            assert_eq!(sentence(&changes(nothing, &some)), "nothing was read in the first trace");
            assert_eq!(sentence(&changes(&some, nothing)), "nothing was read in the second trace");
            assert_eq!(sentence(&changes(nothing, &empty)), "nothing was read in either trace");
        }
    }

    #[test]
    fn a_reader_that_does_something_else_is_said_to_do_so() {
        let instead = "; readers: on a CPU for 90 % of the time in the first, 10 % in the second; asleep for 10 % of \
                       the time in the first, 90 % in the second";
        for threads in [1, 8] {
            let said = sentence(&changes(&reading(threads, 9_000_000), &reading(threads, 1_000_000)));
            assert!(said.ends_with(instead), "{said}");
        }
        // As a share of the trace's duration, eight threads were on a CPU for 400 %, and then for 376 %.
        let said = sentence(&changes(&reading(8, 5_000_000), &reading(8, 4_700_000)));
        assert!(!said.contains("readers:"), "{said}");
    }

    #[test]
    fn the_sentence_names_the_cause_that_changed_most() {
        let application =
            evidence(|_| (1000, Limited { upstream_ns: 10_000, application_ns: 90_000, ..Limited::default() }));
        let upstream = evidence(|_| (9000, Limited { upstream_ns: 95_000, scheduler_ns: 5_000, ..Limited::default() }));
        assert_eq!(
            sentence(&changes(&application, &upstream)),
            "the second is 9.00 times as fast; application went from 90 % to 0 %"
        );
    }
}
