//! Rules for when a flight recorder writes a file, and the check whether the timeslices of a trace match one.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    str::FromStr,
    time::Duration,
};

use tcpmon_trace::{TimesliceRecord, summary::causes};

/// Number of parts into which a window of time is divided.
const PARTS: u64 = 10;

/// Maximum number of sockets that are watched; if there are more, those without recent timeslices are forgotten.
const SOCKETS: usize = 100_000;

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TriggerRule {
    /// A cause limited a socket for more than this share of a window of time.
    Cause {
        /// Index of the cause in [`causes`].
        cause: usize,
        /// Share of the window, percent.
        percent: f64,
        /// Length of the window.
        time: Duration,
    },
    /// The window of a socket was shut for longer than this.
    ZeroWindow(Duration),
    /// A thread was runnable for longer than this before it got a CPU.
    Wait(Duration),
    /// A segment for a socket was dropped.
    Drop,
}

/// The form of each kind of rule.
const FORMS: &str = "give `cause=scheduler>50% for 2s`, `zero-window>1s`, `wait>100ms` or `drop`";

impl FromStr for TriggerRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = |text: &str| humantime::parse_duration(text.trim()).map_err(|_| FORMS.to_owned());
        if text == "drop" {
            return Ok(Self::Drop);
        }
        let (what, limit) = text.split_once('>').ok_or(FORMS)?;
        match what.trim() {
            "zero-window" => Ok(Self::ZeroWindow(time(limit)?)),
            "wait" => Ok(Self::Wait(time(limit)?)),
            what => {
                let name = what.strip_prefix("cause=").ok_or(FORMS)?;
                let names = causes();
                let cause = names.iter().position(|known| *known == name);
                let cause =
                    cause.ok_or_else(|| format!("{name:?} is not a cause: choose from {}", names.join(", ")))?;
                let (percent, span) = limit.split_once("% for ").ok_or(FORMS)?;
                let percent = percent.trim().parse::<f64>().ok().filter(|percent| (0.0..100.0).contains(percent));
                let percent = percent.ok_or("the share must be at least 0% and less than 100%")?;
                match time(span)? {
                    time if time >= Duration::from_millis(100) => Ok(Self::Cause { cause, percent, time }),
                    _ => Err("the time must be at least 100ms".into()),
                }
            }
        }
    }
}

impl fmt::Display for TriggerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: &Duration| humantime::format_duration(*time).to_string();
        match self {
            Self::Cause { cause, percent, time: span } => {
                write!(f, "cause={}>{percent}% for {}", causes()[*cause], time(span))
            }
            Self::ZeroWindow(limit) => write!(f, "zero-window>{}", time(limit)),
            Self::Wait(limit) => write!(f, "wait>{}", time(limit)),
            Self::Drop => f.write_str("drop"),
        }
    }
}

/// Watches a trace for what the rules describe.
#[derive(Debug)]
pub struct TriggerWatch {
    rules: Vec<TriggerRule>,
    /// By rule and socket: how long the rule's cause limited the socket recently.
    lately: HashMap<(usize, u64), Lately>,
}

/// How long a cause limited a socket in each of the recent parts of a window.
#[derive(Debug, Default)]
struct Lately {
    /// Begin, end, and the cause's time in between, ns; the newest last.
    parts: VecDeque<(u64, u64, u64)>,
}

impl TriggerWatch {
    /// Watches for these rules.
    pub fn new(rules: Vec<TriggerRule>) -> Self {
        Self { rules, lately: HashMap::new() }
    }

    /// Looks at a timeslice. Returns which rule matched and why, if one did.
    pub fn timeslice(&mut self, record: &TimesliceRecord) -> Option<String> {
        let mut found = None;
        for (number, rule) in self.rules.iter().enumerate() {
            let reason = match *rule {
                TriggerRule::Wait(limit) if u128::from(record.wait_ns) > limit.as_nanos() => {
                    let waited = humantime::format_duration(Duration::from_millis(record.wait_ns / 1_000_000));
                    Some(format!("{rule}: thread {} waited {waited}", record.tid))
                }
                TriggerRule::Cause { cause, percent, time } => {
                    let window_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    let lately = self.lately.entry((number, record.cookie)).or_default();
                    let part = lately.add(record, cause, window_ns);
                    (part > percent)
                        .then(|| format!("{rule}: {part:.0} % of socket {:x} from {}", record.cookie, record.remote))
                }
                TriggerRule::Wait(_) | TriggerRule::ZeroWindow(_) | TriggerRule::Drop => None,
            };
            found = found.or(reason);
        }
        if self.lately.len() > SOCKETS {
            self.forget(record.deactivated_ns);
        }
        found
    }

    /// The shortest time for which a window must be shut to match a rule; `None` without such a rule.
    pub fn zero_window(&self) -> Option<Duration> {
        let times = self.rules.iter().filter_map(|rule| match rule {
            TriggerRule::ZeroWindow(time) => Some(*time),
            _ => None,
        });
        times.min()
    }

    /// Whether a rule looks for drops.
    pub fn drops(&self) -> bool {
        self.rules.contains(&TriggerRule::Drop)
    }

    /// Forgets sockets without a timeslice in their rule's window, or all sockets if that is not enough.
    fn forget(&mut self, now_ns: u64) {
        let rules = &self.rules;
        self.lately.retain(|(number, _), lately| match rules[*number] {
            TriggerRule::Cause { time, .. } => {
                lately.parts.back().is_some_and(|(_, end, _)| u128::from(now_ns - (*end).min(now_ns)) < time.as_nanos())
            }
            _ => false,
        });
        if self.lately.len() > SOCKETS {
            self.lately.clear();
        }
    }
}

impl Lately {
    /// Adds a timeslice. Returns for how much of the window that ends with it the cause limited the socket, percent.
    fn add(&mut self, record: &TimesliceRecord, cause: usize, window_ns: u64) -> f64 {
        let (_, cause_ns) = record.limited.causes()[cause];
        let end = record.deactivated_ns;
        let begin = end.saturating_sub(record.limited.decided_ns());
        match self.parts.back_mut() {
            // The number of parts stays small, however many timeslices there are.
            Some((part_begin, part_end, within)) if end.saturating_sub(*part_begin) < window_ns / PARTS => {
                *part_end = end.max(*part_end);
                *within += cause_ns;
            }
            _ => self.parts.push_back((begin, end, cause_ns)),
        }
        let from = end.saturating_sub(window_ns);
        while self.parts.front().is_some_and(|(_, part_end, _)| *part_end <= from) {
            self.parts.pop_front();
        }
        // A part that began before the window counts in proportion to the share of it that is inside.
        let within = self.parts.iter().map(|(begin, end, within)| {
            let inside = end.saturating_sub(from.max(*begin)) as f64 / end.saturating_sub(*begin).max(1) as f64;
            *within as f64 * inside.min(1.0)
        });
        100.0 * within.sum::<f64>() / window_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::{Limited, sample};

    use super::*;

    const MS: u64 = 1_000_000;

    fn rule(text: &str) -> TriggerRule {
        text.parse().expect(text)
    }

    #[test]
    fn rules_are_read_as_they_are_written() {
        for text in ["cause=scheduler>50% for 2s", "cause=window>0.5% for 1m", "zero-window>1s", "wait>100ms", "drop"] {
            assert_eq!(rule(text).to_string(), text);
        }
        for (text, remedy) in [
            ("cause=network>50% for 2s", "choose from upstream, application, scheduler, window, memory"),
            ("cause=window>50%", "cause=scheduler>50% for 2s"),
            ("cause=window>100% for 2s", "less than 100%"),
            ("cause=window>50% for 1ms", "at least 100ms"),
            ("wait>soon", "wait>100ms"),
            ("drops", "drop"),
        ] {
            let error = text.parse::<TriggerRule>().expect_err(text);
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_long_wait_is_found() {
        let mut watch = TriggerWatch::new(vec![rule("wait>100ms")]);
        let waited = |wait_ns| TimesliceRecord { wait_ns, ..sample::record() };
        assert_eq!(watch.timeslice(&waited(100 * MS)), None);
        assert_eq!(watch.timeslice(&waited(130 * MS)).as_deref(), Some("wait>100ms: thread 4322 waited 130ms"));
    }

    /// A socket's timeslices, one every 10 ms, in which the scheduler limited it for this share of the time.
    fn limited(watch: &mut TriggerWatch, from_ms: u64, to_ms: u64, percent: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for ms in (from_ms..to_ms).step_by(10) {
            let scheduler_ns = percent * MS / 10;
            let limited = Limited { scheduler_ns, upstream_ns: 10 * MS - scheduler_ns, ..Limited::default() };
            let record = TimesliceRecord { deactivated_ns: (ms + 10) * MS, limited, ..sample::record() };
            found.extend(watch.timeslice(&record).map(|_| ms + 10));
        }
        found
    }

    #[test]
    fn a_cause_is_found_when_it_has_been_there_for_its_part_of_the_time() {
        let mut watch = TriggerWatch::new(vec![rule("cause=scheduler>50% for 2s")]);
        assert!(limited(&mut watch, 0, 10_000, 40).is_empty());
        // At 80 %, it takes a while until more than half of the two seconds was limited by the scheduler.
        let found = limited(&mut watch, 10_000, 13_000, 80);
        let first = *found.first().expect("it is found");
        assert!((10_450..10_700).contains(&first), "{first}");
        // After that, the window stays over the limit for a while.
        let last = *limited(&mut watch, 13_000, 20_000, 10).last().expect("it is found");
        assert!((13_700..14_100).contains(&last), "{last}");
    }

    #[test]
    fn a_single_timeslice_that_decides_much_counts_within_the_window_only() {
        let mut watch = TriggerWatch::new(vec![rule("cause=application>60% for 1s")]);
        let late = |deactivated_ns, application_ns| {
            let limited = Limited { application_ns, ..Limited::default() };
            TimesliceRecord { deactivated_ns, limited, ..sample::record() }
        };
        assert!(watch.timeslice(&late(100_000 * MS, 500 * MS)).is_none(), "half of the window");
        assert!(watch.timeslice(&late(200_000 * MS, 5_000 * MS)).is_some(), "all of it, and more before");
    }

    #[test]
    fn memory_is_bounded() {
        let mut watch = TriggerWatch::new(vec![rule("cause=memory>50% for 2s")]);
        for cookie in 0..2 * SOCKETS as u64 {
            watch.timeslice(&TimesliceRecord { cookie, deactivated_ns: cookie * MS, ..sample::record() });
            assert!(watch.lately.len() <= SOCKETS + 1);
        }
        for number in 0..100_000 {
            watch.timeslice(&TimesliceRecord { deactivated_ns: number * 1000, ..sample::record() });
        }
        assert!(watch.lately.values().all(|lately| lately.parts.len() <= 2 * PARTS as usize));
    }
}
