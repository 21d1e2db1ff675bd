//! The table of kernels and tests, and the part of `docs/kernels.md` that is generated from it.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    Run,
    guest::NOT_RUN,
    kernels::Expectation,
    results::{Outcome, Test},
};
use crate::workspace;

const FILE: &str = "docs/kernels.md";
const BEGIN: &str = "<!-- from here on by `cargo xtask vm --write` -->\n";
const END: &str = "<!-- up to here -->\n";

/// The result of every test on every virtual machine, as a Markdown table with the reasons below it.
pub fn table(runs: &[Run]) -> String {
    let runs: Vec<&Run> = runs.iter().collect();
    rows(&runs, &|_| true)
}

/// Compares the generated part of the document with these runs, or with `write` replaces it. The results of kernels
/// that may fail are written but not compared, because these kernels change with Debian's archive.
pub fn compare(runs: &[Run], write: bool) -> Result<()> {
    let path = workspace::root().join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{FILE} has no line {BEGIN}"))?;
    let (old, after) = rest.split_once(END).with_context(|| format!("{FILE} has no line {END}"))?;
    let (must, may): (Vec<&Run>, Vec<&Run>) =
        runs.iter().partition(|run| run.kernel.expectation != Expectation::MayFail);
    let firm = firm(&must)?;
    if write {
        let new = firm + &loose(&may)?;
        fs::write(&path, format!("{before}{BEGIN}{new}{END}{after}"))
            .with_context(|| format!("cannot write {FILE}"))?;
        println!("recorded in {FILE}");
        return Ok(());
    }
    if let Some(line) = firm.lines().find(|line| !old.lines().any(|other| other == *line)) {
        bail!(
            "{FILE} does not say what came out, for instance:\n{line}\nlook at it, then run `cargo xtask vm --write`"
        );
    }
    ensure!(old.starts_with(&firm), "{FILE} says more than came out: look at it, then run `cargo xtask vm --write`");
    Ok(())
}

/// What the kernels of Debian's releases lack, and the tests that do not simply pass on all of them.
fn firm(runs: &[&Run]) -> Result<String> {
    let mut text = String::from("\n## What each kernel lacks\n\nAs `/status` says it there.\n");
    for run in first_of_each_kernel(runs) {
        text += &lacks(run)?;
    }
    text += "\n## Tests\n\nEvery test of `tests/tests` that is not named here passes on every machine (kernel and \
         number \
             of CPUs).\n\n";
    text += &rows(runs, &|test| is_uneven(runs, test));
    text += "\nNot run in the machines, only on the host:\n\n";
    for (file, because) in NOT_RUN {
        text += &format!("- `{file}`: {because}.\n");
    }
    Ok(text)
}

/// The same for kernels that may fail.
fn loose(runs: &[&Run]) -> Result<String> {
    let mut text = String::from("\n## Kernels that may fail\n\nAs they were when this was written.\n");
    for run in first_of_each_kernel(runs) {
        text += &lacks(run)?;
    }
    text += "\n## Tests there\n\n";
    let all = |run: &&Run| run.results.tests.iter().all(|(_, outcome, _)| *outcome == Outcome::Pass);
    if runs.iter().all(all) {
        return Ok(text + "Every test passed.\n\n");
    }
    text += "Every test that is not named here passed.\n\n";
    Ok(text + &rows(runs, &|test| is_uneven(runs, test)) + "\n")
}

/// Whether a test had any result other than a pass on some virtual machine.
fn is_uneven(runs: &[&Run], test: &Test) -> bool {
    runs.iter().any(|run| !matches!(outcome(run, test), None | Some(Outcome::Pass)))
}

/// The first run of each kernel: a virtual machine with more CPUs lacks the same.
fn first_of_each_kernel<'a>(runs: &[&'a Run]) -> Vec<&'a Run> {
    let mut first: Vec<&Run> = Vec::new();
    for run in runs {
        if !first.iter().any(|other| other.kernel.series == run.kernel.series) {
            first.push(run);
        }
    }
    first
}

/// What tcpmon reported about itself on a kernel.
fn lacks(run: &Run) -> Result<String> {
    let series = run.kernel.series;
    let mut text = format!("\n### {series}\n\n");
    if let Some(sentence) = run.results.reported("refused").next() {
        text += &format!("Refused, with exit code 3: `{sentence}`\n", sentence = without_release(sentence, run));
        return Ok(text);
    }
    let Some(status) = run.results.reported("status").next() else {
        text += "Unknown: it did not come so far.\n";
        return Ok(text);
    };
    let lacking = lacking(status).with_context(|| format!("the status of {series}"))?;
    if lacking.is_empty() {
        text += "Nothing.\n";
    }
    for (name, reason) in lacking {
        text += &format!("- `{name}`: {}\n", without_release(&reason, run));
    }
    Ok(text)
}

/// Replaces the release by the series, because patch releases change.
fn without_release(text: &str, run: &Run) -> String {
    text.replace(&run.release, run.kernel.series)
}

/// Names and reasons of the probes that are not attached and of the host's sources that are off, from the status.
fn lacking(status: &str) -> Result<Vec<(String, String)>> {
    let status: serde_json::Value = serde_json::from_str(status).context("the status is no JSON")?;
    let probes = status["probes"].as_array().context("the status has no probes")?;
    let missing = probes.iter().filter(|probe| probe["verdict"] != "attached");
    let words =
        |value: &serde_json::Value| value.as_str().map(str::to_owned).context("an entry of the status lacks a word");
    let off = status["sources"].as_array().context("the status has no sources")?;
    let off = off.iter().filter(|source| source["available"] != true);
    missing.chain(off).map(|entry| Ok((words(&entry["name"])?, words(&entry["reason"])?))).collect()
}

fn outcome<'a>(run: &'a Run, test: &Test) -> Option<&'a Outcome> {
    run.results.tests.iter().find(|(other, ..)| other == test).map(|(_, outcome, _)| outcome)
}

fn rows(runs: &[&Run], wanted: &dyn Fn(&Test) -> bool) -> String {
    let tests: BTreeSet<&Test> = runs.iter().flat_map(|run| run.results.tests.iter().map(|(test, ..)| test)).collect();
    let mut reasons: Vec<&str> = Vec::new();
    let mut text = String::from("| test |");
    for run in runs {
        text += &format!(" {}, {} CPU{} |", run.kernel.series, run.cpus, if run.cpus == 1 { "" } else { "s" });
    }
    text += "\n|---|";
    text += &"---|".repeat(runs.len());
    text += "\n";
    for test in tests.into_iter().filter(|test| wanted(test)) {
        text += &format!("| {}::{} |", test.binary, test.name);
        for run in runs {
            let cell = match outcome(run, test) {
                None => "-".to_owned(),
                Some(Outcome::Pass) => "pass".to_owned(),
                Some(Outcome::Fail) => "FAIL".to_owned(),
                Some(Outcome::Timeout) => "FAIL: no end".to_owned(),
                Some(Outcome::NotReached) => "FAIL: not reached".to_owned(),
                Some(Outcome::NotSupported(because)) => {
                    let known = reasons.iter().position(|reason| reason == because);
                    let number = known.unwrap_or_else(|| {
                        reasons.push(because);
                        reasons.len() - 1
                    });
                    format!("not supported ({})", number + 1)
                }
            };
            text += &format!(" {cell} |");
        }
        text += "\n";
    }
    text += "\n`-`: not meant to run there.";
    for (number, reason) in reasons.iter().enumerate() {
        text += &format!(" ({}) {reason}.", number + 1);
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::vm::{End, KERNELS, Results};

    fn run(series: &str, reports: &[(&str, &str)], outcomes: &[(&str, Outcome)]) -> Run {
        let kernel = KERNELS.iter().find(|kernel| kernel.series == series).expect("a series of the table");
        let test = |name: &str| Test { binary: "b".into(), name: name.into() };
        Run {
            kernel,
            cpus: 1,
            release: format!("{series}.99+deb"),
            end: End::Well,
            results: Results {
                tests: outcomes.iter().map(|(name, outcome)| (test(name), outcome.clone(), Duration::ZERO)).collect(),
                reports: reports.iter().map(|(kind, text)| ((*kind).to_owned(), (*text).to_owned())).collect(),
                alarms: Vec::new(),
                complete: true,
            },
            took: Duration::ZERO,
        }
    }

    const STATUS: &str = r#"{"probes":[{"name":"tcp_probe","verdict":"attached","reason":""},
                             {"name":"kfree_skb","verdict":"unsupported","reason":"6.1.99+deb has none: lost"}],
                             "sources":[{"name":"psi","available":true,"reason":""}]}"#;

    #[test]
    fn what_a_kernel_lacks_is_what_its_status_says() -> Result<()> {
        assert_eq!(lacks(&run("6.1", &[("status", STATUS)], &[]))?, "\n### 6.1\n\n- `kfree_skb`: 6.1 has none: lost\n");
        let refused = lacks(&run("5.10", &[("refused", "cannot run here: 5.10.99+deb is too old")], &[]))?;
        assert!(refused.contains("exit code 3: `cannot run here: 5.10 is too old`"), "{refused}");
        assert!(lacks(&run("6.1", &[("status", "{}")], &[])).is_err());
        assert!(lacks(&run("6.1", &[], &[]))?.contains("Unknown"));
        Ok(())
    }

    #[test]
    fn the_document_names_tests_that_do_not_pass_everywhere_and_the_reasons() -> Result<()> {
        let because = Outcome::NotSupported("one CPU".into());
        let runs = [
            run("6.1", &[("status", STATUS)], &[("x", Outcome::Pass), ("y", because.clone())]),
            run("6.12", &[("status", STATUS)], &[("x", Outcome::Pass), ("y", Outcome::Fail)]),
        ];
        let text = firm(&runs.iter().collect::<Vec<_>>())?;
        assert!(text.contains("| b::y | not supported (1) | FAIL |") && text.contains("(1) one CPU."), "{text}");
        assert!(!text.contains("b::x"), "{text}");
        assert!(table(&runs).contains("| b::x | pass | pass |"));
        assert!(loose(&[&runs[1]])?.contains("| b::y | FAIL |"));
        let well = run("7.3", &[("status", STATUS)], &[("x", Outcome::Pass)]);
        assert!(loose(&[&well])?.ends_with("\n\nEvery test passed.\n\n"));
        Ok(())
    }
}
