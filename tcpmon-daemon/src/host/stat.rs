//! `/proc/stat`: context switches.

use super::file::{FileError, number, read};

const STAT: &str = "/proc/stat";

/// Context switches of all CPUs since boot.
///
/// # Errors
/// The file cannot be read or parsed.
pub fn context_switches() -> Result<u64, FileError> {
    parse(&read(STAT, "mount /proc")?)
}

/// The line `ctxt`.
///
/// # Errors
/// [`FileError::Malformed`].
pub fn parse(text: &str) -> Result<u64, FileError> {
    number(STAT, "ctxt", text.lines().find_map(|line| line.strip_prefix("ctxt ")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_count_comes_from_its_own_line() {
        assert_eq!(parse(include_str!("captured/6.12/proc_stat")).ok(), Some(13_401));
        assert_eq!(parse("cpu 1\nctxt 18446744073709551615\n").ok(), Some(u64::MAX));
    }

    #[test]
    fn a_file_without_the_count_is_refused() {
        for (text, part) in [("", "/proc/stat: ctxt is missing"), ("cpu 1\nctxt -1\n", "ctxt is \"-1\"")] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_count_of_this_host_lies_between_two_reads_of_the_file() {
        let own = || {
            let text = std::fs::read_to_string(STAT).expect("/proc");
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            let name = words.iter().position(|word| *word == "ctxt").expect("ctxt");
            words[name + 1].parse::<u64>().expect("a number")
        };
        let before = own();
        let count = context_switches().expect("this host");
        let after = own();
        assert!((before..=after).contains(&count), "{before} <= {count} <= {after}");
    }

    proptest! {
        #[test]
        fn no_text_can_panic_the_parser(text in "(?s).{0,200}", value in ".{0,30}") {
            let _ = parse(&text);
            let _ = parse(&format!("ctxt {value}"));
        }
    }
}
