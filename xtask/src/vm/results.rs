//! Parses the output of a virtual machine's second serial port; `tests/src/bin/init` describes its format.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// One of the integration tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// The file below `tests/tests`, such as `bytes`.
    pub binary: String,
    pub name: String,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    /// The test cannot run on this virtual machine, for this reason.
    NotSupported(String),
    Fail,
    /// It was killed.
    Timeout,
    /// The virtual machine ended before it reached this test.
    NotReached,
}

/// Everything that a virtual machine reported.
#[derive(Debug, Default)]
pub struct Results {
    pub tests: Vec<(Test, Outcome, Duration)>,
    /// Kind and text of the tests' reports.
    pub reports: Vec<(String, String)>,
    /// Lines of the kernel's log that should not be there.
    pub alarms: Vec<String>,
    /// The output ends with its last line.
    pub complete: bool,
}

impl Results {
    /// Parses the port's output; `planned` tests without a result were not reached.
    pub fn parse(text: &str, planned: &[Test]) -> Result<Self> {
        let mut results = Self::default();
        let mut not_supported = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            match words[..] {
                ["init"] => {}
                ["report", _, _, "not-supported", because, ..] => not_supported = Some(because.to_owned()),
                ["report", _, _, kind, ..] => results.reports.push((kind.to_owned(), words[4..].join("\t"))),
                ["test", binary, name, outcome, milliseconds] => {
                    let test = Test { binary: binary.to_owned(), name: name.to_owned() };
                    let outcome = match (outcome, not_supported.take()) {
                        ("pass", None) => Outcome::Pass,
                        ("pass", Some(because)) => Outcome::NotSupported(because),
                        ("fail", _) => Outcome::Fail,
                        ("timeout", _) => Outcome::Timeout,
                        _ => bail!("unknown outcome: {line}"),
                    };
                    let took = milliseconds.parse().with_context(|| format!("invalid duration: {line}"))?;
                    results.tests.push((test, outcome, Duration::from_millis(took)));
                }
                ["log", ..] => results.alarms.push(words[1..].join(" ")),
                ["end", _] => results.complete = true,
                _ => bail!("unknown line: {line}"),
            }
        }
        for test in planned {
            if !results.tests.iter().any(|(done, ..)| done == test) {
                results.tests.push((test.clone(), Outcome::NotReached, Duration::ZERO));
            }
        }
        Ok(results)
    }

    /// The texts that were reported under this kind.
    pub fn reported(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.reports.iter().filter(move |(other, _)| other == kind).map(|(_, text)| text.as_str())
    }

    /// Tests that neither passed nor reported what this virtual machine lacks.
    pub fn failed(&self) -> impl Iterator<Item = &(Test, Outcome, Duration)> {
        self.tests.iter().filter(|(_, outcome, _)| !matches!(outcome, Outcome::Pass | Outcome::NotSupported(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> Test {
        Test { binary: "b".into(), name: name.into() }
    }

    #[test]
    fn every_planned_test_has_an_outcome() -> Result<()> {
        let text = "init\r\ntest\tb\tone\tpass\t5\r\nreport\tb\ttwo\tnot-supported\tone CPU\tx.rs:1\n\
                    report\tb\ttwo\tstatus\t{}\ntest\tb\ttwo\tpass\t1\ntest\tb\tthree\tfail\t2\nlog\tBUG: x\n";
        let planned = ["one", "two", "three", "four"].map(test);
        let results = Results::parse(text, &planned)?;
        let outcomes: Vec<_> = results.tests.iter().map(|(_, outcome, _)| outcome.clone()).collect();
        assert_eq!(
            outcomes,
            [Outcome::Pass, Outcome::NotSupported("one CPU".into()), Outcome::Fail, Outcome::NotReached]
        );
        assert_eq!(results.failed().count(), 2);
        assert_eq!(results.reported("status").collect::<Vec<_>>(), ["{}"]);
        assert_eq!((results.alarms.len(), results.complete), (1, false));
        assert!(Results::parse("init\nend\twell\n", &[])?.complete);
        Ok(())
    }

    #[test]
    fn a_line_that_nobody_knows_is_an_error() {
        assert!(Results::parse("tset\tb\tone\tpass\t5\n", &[]).is_err());
        assert!(Results::parse("test\tb\tone\tperhaps\t5\n", &[]).is_err());
    }
}
