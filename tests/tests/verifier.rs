//! The verifier's work for each program does not grow unnoticed: a program that is close to the limit on one kernel is
//! beyond it on another.

#[path = "../../bench/src/bin/bench/verifier.rs"]
mod verifier;

use tcpmon_tests::report;
use verifier::{COMMAND, Row};

/// By how much a count may exceed the recorded one, in percent.
const TOLERANCE: u64 = 10;

#[test]
fn no_program_takes_the_verifier_over_a_tenth_more_than_recorded() {
    let measured = verifier::measure();
    for row in &measured {
        report::line("verifier", &verifier::line(row));
    }
    // While recording, all counts are accepted as they are.
    if report::is_recording() {
        return;
    }
    let complaints = compare(&measured, &verifier::recorded());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn the_file_is_what_the_command_would_write() {
    let text = std::fs::read_to_string(verifier::PATH).unwrap();
    assert_eq!(verifier::format(verifier::parse(&text).unwrap()), text);
}

#[test]
fn a_rise_over_a_tenth_is_named_and_less_is_fine() {
    let row = |kernel: &str, program: &str, instructions| Row {
        kernel: kernel.into(),
        mode: "daemon".into(),
        program: program.into(),
        instructions,
    };
    let recorded = [row("6.1", "a", 1000), row("6.1", "b", 1000)];
    assert_eq!(compare(&[row("6.1", "a", 1100), row("6.1", "b", 10)], &recorded), Vec::<String>::new());
    let risen = compare(&[row("6.1", "a", 1101), row("6.1", "b", 1000)], &recorded);
    assert!(risen.len() == 1 && risen[0].contains("a in mode daemon") && risen[0].contains("1101"), "{risen:?}");
    let new = compare(&[row("6.1", "c", 5)], &recorded);
    assert!(new.len() == 1 && new[0].contains(COMMAND), "{new:?}");
    let elsewhere = compare(&[row("6.2", "a", 5)], &recorded);
    assert!(elsewhere.len() == 1 && elsewhere[0].contains("6.2") && elsewhere[0].contains(COMMAND), "{elsewhere:?}");
}

#[test]
fn a_broken_line_of_the_file_is_named() {
    for broken in ["x", "k\tm\tp\tmany", "k\tm\tp\t1\t2"] {
        let error = verifier::parse(&format!("kernel\tmode\tprogram\tinstructions\n{broken}\n")).unwrap_err();
        assert!(error.starts_with("line 2 "), "{error}");
    }
}

/// Everything that is wrong, one sentence per fault.
fn compare(measured: &[Row], recorded: &[Row]) -> Vec<String> {
    let kernel = measured.first().map_or("", |row| row.kernel.as_str());
    if !recorded.iter().any(|row| row.kernel == kernel) {
        return vec![format!("no counts are recorded for kernel {kernel}: run `{COMMAND}`, look at them and commit")];
    }
    let complaint = |row: &Row| {
        let (program, mode, count) = (&row.program, &row.mode, row.instructions);
        let same = |old: &&Row| (&old.kernel, &old.mode, &old.program) == (&row.kernel, mode, program);
        match recorded.iter().find(same) {
            None => Some(format!("program {program} in mode {mode} is not recorded: run `{COMMAND}`")),
            Some(old) if count * 100 > old.instructions * (100 + TOLERANCE) => Some(format!(
                "program {program} in mode {mode} takes the verifier {count} instructions instead of {}: make it \
                 smaller, \
                 or accept that by `{COMMAND}`",
                old.instructions
            )),
            Some(_) => None,
        }
    };
    measured.iter().filter_map(complaint).collect()
}
