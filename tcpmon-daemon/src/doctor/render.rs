//! Shows the result: to people as text, to programs as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    Diagnosis, Finding, RULES, bytes,
    facts::{DeviceFacts, Facts, Goal},
    rate,
};
use crate::status::Verdict;

/// Version of the JSON.
pub const FORMAT_VERSION: u32 = 1;

/// Everything, as one JSON object.
///
/// # Errors
/// None in practice: all keys are strings.
pub fn json(facts: &Facts, goal: &Goal, diagnosis: &Diagnosis) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Report<'a> {
        /// Raised when a key changes its meaning or is removed.
        format_version: u32,
        can_run: bool,
        goal: &'a Goal,
        #[serde(flatten)]
        diagnosis: &'a Diagnosis,
        facts: &'a Facts,
    }
    let format_version = FORMAT_VERSION;
    serde_json::to_string_pretty(&Report { format_version, can_run: !diagnosis.refuses(), goal, diagnosis, facts })
}

/// Everything, in lines of at most about 100 characters where the values allow it.
pub fn text(facts: &Facts, goal: &Goal, diagnosis: &Diagnosis) -> String {
    let is_about_running = |rule: &str| rule.starts_with("run.");
    let mut text = String::new();
    let (running, receiving): (Vec<_>, Vec<_>) =
        diagnosis.findings.iter().partition(|finding| is_about_running(finding.rule));
    let answer = match (diagnosis.refuses(), running.len()) {
        (true, _) => "no",
        (false, 0) => "yes",
        (false, _) => "yes, partly",
    };
    let _ = writeln!(text, "Can tcpmon run here? {answer}");
    let _ = writeln!(text, "  kernel {}{}", facts.run.prerequisites.release, probes(facts));
    findings(&mut text, &running);

    let answer = if receiving.is_empty() { "yes" } else { "no" };
    let _ = writeln!(
        text,
        "\nIs this host set up to receive {}{} at a round trip of {:?} ({} in flight)? {answer}",
        rate(goal.bandwidth),
        if goal.streams > 1 { format!(" in {} streams", goal.streams) } else { String::new() },
        goal.rtt,
        bytes(goal.bdp() * goal.streams),
    );
    for device in &facts.devices {
        let _ = writeln!(text, "  {}", summary(device));
    }
    match &facts.devices_missing {
        Some(reason) => _ = writeln!(text, "  network devices may be missing: {reason}"),
        None if facts.devices.is_empty() => {
            text.push_str("  no network device on a bus is up; --device names others\n");
        }
        None => {}
    }
    findings(&mut text, &receiving);

    for not_checked in &diagnosis.not_checked {
        let device = not_checked.device.as_ref().map(|device| format!(" ({device})")).unwrap_or_default();
        let lead = if Some(not_checked) == diagnosis.not_checked.first() { "\n" } else { "" };
        let _ = writeln!(text, "{lead}not checked: {}{device}: {}", not_checked.rule, not_checked.reason);
    }
    let found = match diagnosis.findings.len() {
        0 => "nothing found".into(),
        1 => "1 finding".into(),
        count => format!("{count} findings"),
    };
    let _ = writeln!(text, "\n{found}; {} checks passed. Nothing was changed.", diagnosis.passed);
    text
}

/// How many probes are attached, if the programs could be loaded.
fn probes(facts: &Facts) -> String {
    let Ok(Ok(probes)) = facts.run.probes.get() else { return String::new() };
    let attached = probes.iter().filter(|probe| probe.verdict == Verdict::Attached).count();
    let missing = probes.iter().filter(|probe| probe.verdict == Verdict::Unsupported);
    let missing: Vec<_> = missing.map(|probe| probe.name.as_str()).collect();
    let missing =
        if missing.is_empty() { String::new() } else { format!(" (this kernel does not have {})", missing.join(", ")) };
    format!(", {attached} of {} probes{missing}", probes.len())
}

/// A device in one line.
fn summary(device: &DeviceFacts) -> String {
    let mut parts = Vec::new();
    parts.extend(device.driver.get().ok().cloned());
    parts.push(device.speed.get().map_or_else(|_| "speed unknown".into(), |speed| rate(*speed)));
    parts.extend(device.mtu.get().ok().map(|mtu| format!("MTU {mtu}")));
    if let Ok(Some(ring)) = device.ring.get() {
        parts.push(format!("ring {} of {}", ring.entries, ring.max_entries));
    }
    parts.extend(device.rx_queues.get().ok().map(|queues| format!("receive queues: {queues}")));
    format!("{}: {}", device.name, parts.join(", "))
}

fn findings(text: &mut String, findings: &[&Finding]) {
    for Finding { rule, device, found, set, why, source, .. } in findings {
        let device = device.as_ref().map(|device| format!("{device}: ")).unwrap_or_default();
        let _ = writeln!(text, "\n  {rule}");
        let indent = " ".repeat(12);
        let part = |name: &str, words: &str| {
            let lead = format!("    {name:8}");
            textwrap::fill(
                words,
                textwrap::Options::new(100).initial_indent(&lead).subsequent_indent(&indent).break_words(false),
            )
        };
        let _ = writeln!(text, "{}", part("found", &format!("{device}{found}")));
        // On one line, so that it can be copied.
        let _ = writeln!(text, "    {:8}{set}", "set");
        let _ = writeln!(text, "{}\n{}", part("why", why), part("source", source));
    }
}

/// The rules as a table in Markdown, for `docs/doctor.md`.
pub fn reference() -> String {
    let mut text = String::from("| rule | a host passes if | why | source |\n|---|---|---|---|\n");
    for rule in RULES.into_iter().flatten() {
        let refuses = if rule.refuses { " (tcpmon does not run)" } else { "" };
        let _ = writeln!(text, "| `{}`{refuses} | {} | {} | {} |", rule.id, rule.wanted, rule.why, rule.source);
    }
    text
}
