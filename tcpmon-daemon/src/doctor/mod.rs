//! Checks whether tcpmon can run here, and whether the host's settings and network devices suit a receiver. It works in
//! three steps: facts, decision, output.
//!
//! [`gather`] reads the facts and changes nothing. [`examine`] decides from the facts alone, by the [`RULES`].
//! [`render`] shows the result to people and to programs; [`diff`] compares it with an earlier one.

pub mod diff;
pub mod facts;
pub mod gather;
mod nic;
mod receive;
pub mod render;
mod run;
#[cfg(test)]
mod tests;

use serde::Serialize;
use tcpmon_trace::scale::Bytes;

use self::facts::{DeviceFacts, Facts, Goal};

/// A source of several rules.
const SC24: &str = "Schwarz, Tierney: Recent Linux Improvements that Impact TCP Throughput (SC24)";

/// ESnet's page for fast hosts.
const ESNET_100G: &str = "ESnet fasterdata: 40G/100G network tuning";

const GBIT: u64 = 1_000_000_000;

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name: `run.` (whether tcpmon can run here), `host.` or `device.` (whether the host or the device suits a
    /// receiver), and its subject.
    pub id: &'static str,
    /// What is true of a host that passes, as a sentence.
    pub wanted: &'static str,
    /// Why the rule matters, or what happens on a host that does not pass.
    pub why: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
    /// Whether tcpmon cannot run at all on a host that does not pass.
    pub refuses: bool,
    check: Check,
}

/// How a rule decides.
#[derive(Debug)]
enum Check {
    /// Once for the host.
    Once(fn(&Facts, &Goal) -> Answer),
    /// For each device.
    Device(fn(&DeviceFacts, &Facts, &Goal) -> Answer),
}

/// What a rule finds: nothing, a finding with its remedy, or why it cannot decide.
type Answer = Result<Option<Advice>, String>;

/// What was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Advice {
    found: String,
    set: String,
}

/// All rules, in the order in which they are shown.
pub static RULES: [&[Rule]; 3] = [&run::RULES, &receive::RULES, &nic::RULES];

/// Something that a rule found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// The device, if the rule is about devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether tcpmon does not run because of it.
    pub refuses: bool,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub set: String,
    /// Why.
    pub why: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
}

/// A rule that could not decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotChecked {
    /// The rule.
    pub rule: &'static str,
    /// The device, if the rule is about devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Why not.
    pub reason: String,
}

/// The result of all rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// What was found.
    pub findings: Vec<Finding>,
    /// Rules that could not decide.
    pub not_checked: Vec<NotChecked>,
    /// Rules that found nothing; a rule about devices counts once for each.
    pub passed: u64,
}

impl Diagnosis {
    /// Whether tcpmon cannot run here.
    pub fn refuses(&self) -> bool {
        self.findings.iter().any(|finding| finding.refuses)
    }
}

/// Decides from the facts alone.
pub fn examine(facts: &Facts, goal: &Goal) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    for rule in RULES.into_iter().flatten() {
        match rule.check {
            Check::Once(check) => diagnosis.add(rule, None, check(facts, goal)),
            Check::Device(check) => {
                for device in &facts.devices {
                    diagnosis.add(rule, Some(device.name.clone()), check(device, facts, goal));
                }
                if let Some(reason) = &facts.devices_missing {
                    diagnosis.add(rule, None, Err(reason.clone()));
                }
            }
        }
    }
    diagnosis
}

impl Diagnosis {
    fn add(&mut self, rule: &'static Rule, device: Option<String>, answer: Answer) {
        let &Rule { id, why, source, refuses, .. } = rule;
        match answer {
            Ok(None) => self.passed += 1,
            Ok(Some(Advice { found, set })) => {
                self.findings.push(Finding { rule: id, device, refuses, found, set, why, source });
            }
            Err(reason) => self.not_checked.push(NotChecked { rule: id, device, reason }),
        }
    }
}

/// A finding if `is_wrong`, otherwise nothing.
fn find(is_wrong: bool, found: impl FnOnce() -> String, set: impl FnOnce() -> String) -> Answer {
    Ok(is_wrong.then(|| Advice { found: found(), set: set() }))
}

/// A rate for people: in the largest unit that it reaches, with one decimal place unless that is zero.
fn rate(bits: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bits >= *unit).unwrap_or((1, "bit/s"));
    let tenths = (bits as f64 * 10.0 / unit as f64).round() / 10.0;
    format!("{tenths} {name}")
}

/// A size for people: scaled as in the other commands, with the unit written out.
fn bytes(bytes: u64) -> String {
    let scaled = Bytes(bytes).to_string();
    let number = scaled.trim_end_matches(|letter: char| letter.is_ascii_uppercase());
    match &scaled[number.len()..] {
        "" => format!("{number} bytes"),
        prefix => format!("{number} {prefix}iB"),
    }
}
