//! `/proc/pressure/memory` (PSI): time that tasks spent waiting for memory.

use std::time::Duration;

use super::file::{FileError, Parsed, Skipped, malformed, number, read};
use crate::host_state::PressureStalls;

const MEMORY: &str = "/proc/pressure/memory";

/// Stalls of the whole host since boot.
///
/// # Errors
/// The file cannot be read or parsed. PSI can be off in two ways: it was not built into the kernel, and there is no
/// such file; or it was disabled at boot, and the file cannot be opened (EOPNOTSUPP).
pub fn memory() -> Result<Parsed<PressureStalls>, FileError> {
    let text =
        read(MEMORY, "boot a kernel built with CONFIG_PSI=y (Linux 4.20 or newer)").map_err(add_remedy_if_disabled)?;
    parse(&text)
}

fn add_remedy_if_disabled(error: FileError) -> FileError {
    match error {
        FileError::Unreadable { file, source, .. } if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            FileError::Unreadable { file, source, remedy: "boot with psi=1" }
        }
        error => error,
    }
}

/// The two totals, which are in microseconds. One that cannot be parsed is skipped.
///
/// # Errors
/// [`FileError::Malformed`]: neither can be used.
pub fn parse(text: &str) -> Result<Parsed<PressureStalls>, FileError> {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
        let line = line.ok_or_else(|| malformed(MEMORY, format!("it has no line {kind:?}")))?;
        let total = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="));
        number(MEMORY, &format!("{kind} total"), total).map(Duration::from_micros)
    };
    let mut skipped = Skipped::default();
    let [some, full] = ["some", "full"].map(|kind| skipped.keep(total(kind)));
    skipped.parsed(some.or(full).map(|_| PressureStalls { some, full }), || malformed(MEMORY, "it is empty"))
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn totals_are_microseconds() {
        let totals = |some, full| PressureStalls {
            some: Some(Duration::from_micros(some)),
            full: Some(Duration::from_micros(full)),
        };
        let taken = parse(include_str!("captured/6.12/proc_pressure_memory")).expect("6.12");
        assert_eq!((taken.value, taken.skipped.is_empty()), (totals(0, 0), true));
        // Written by hand, from the format string of psi_show(): no captured kernel was short of memory.
        let text =
            "some avg10=1.53 avg60=0.87 avg300=0.29 total=1500021\nfull avg10=0.00 avg60=0.13 avg300=0.00 total=7\n";
        assert_eq!(parse(text).expect("by hand").value, totals(1_500_021, 7));
    }

    #[test]
    fn a_bad_line_costs_its_total_and_a_file_without_any_is_refused() {
        let (some, full) = ("some avg10=1 total=1\n", "full avg10=1 total=1\n");
        for (bad, part) in [
            ("", "/proc/pressure/memory: it has no line \"some\""),
            ("some avg10=1\n", "some total is missing"),
            ("some total=-1\n", "some total is \"-1\""),
        ] {
            let taken = parse(&format!("{bad}{full}")).expect(part);
            assert_eq!(taken.value, PressureStalls { some: None, full: Some(Duration::from_micros(1)) });
            let skipped = taken.skipped.to_string();
            assert!(skipped.starts_with("skipped 1 entry: ") && skipped.contains(part), "{skipped}");
            let error = parse(bad).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        let taken = parse(some).expect("one total");
        assert_eq!(taken.value, PressureStalls { some: Some(Duration::from_micros(1)), full: None });
        assert!(taken.skipped.to_string().contains("it has no line \"full\""), "{}", taken.skipped);
    }

    #[test]
    fn psi_disabled_at_boot_and_psi_not_built_in_have_different_remedies() {
        let unreadable = |errno| FileError::Unreadable {
            file: MEMORY.into(),
            source: Error::from_raw_os_error(errno),
            remedy: "boot a kernel with it",
        };
        assert!(add_remedy_if_disabled(unreadable(libc::EOPNOTSUPP)).to_string().ends_with(": boot with psi=1"));
        assert!(add_remedy_if_disabled(unreadable(libc::ENOENT)).to_string().ends_with(": boot a kernel with it"));
    }

    #[test]
    fn this_host_has_psi_or_the_error_has_a_remedy() {
        match [memory(), memory()] {
            [Ok(before), Ok(after)] => {
                let (before, after) = (before.value, after.value);
                assert!(before.some.is_some() && before.full.is_some(), "{before:?}");
                assert!(before.some <= after.some && before.full <= after.full, "{after:?}");
            }
            [before, _] => {
                let error = before.expect_err("both or none").to_string();
                assert!(error.contains("CONFIG_PSI=y") || error.ends_with("psi=1"), "{error}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parser(text in "(?s).{0,200}", value in ".{0,30}") {
            let _ = parse(&text);
            let _ = parse(&format!("some total={value}\nfull total={value}"));
        }
    }
}
