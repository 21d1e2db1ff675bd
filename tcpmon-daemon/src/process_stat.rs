//! `/proc/PID/stat`: one line about a process.

use std::str::FromStr;

/// The fields that follow the process's name, numbered as in proc(5).
#[derive(Clone, Copy, Debug)]
pub struct ProcessStat<'a> {
    /// Field 3 and those after it.
    fields: &'a str,
}

impl<'a> ProcessStat<'a> {
    /// The fields of the line, or `None` if there is no name. A name, in parentheses, may contain any character.
    pub fn parse(line: &'a str) -> Option<Self> {
        line.rsplit_once(')').map(|(_, fields)| Self { fields })
    }

    /// Whether it has ended and its parent has not waited for it yet. A process whose first thread has ended also
    /// counts as a zombie while its other threads run.
    pub fn is_zombie(self) -> bool {
        self.field(3) == Some('Z')
    }

    /// Id of its parent.
    pub fn parent(self) -> Option<u32> {
        self.field(4)
    }

    /// When it started, clock ticks since boot.
    pub fn start_ticks(self) -> Option<u64> {
        self.field(22)
    }

    fn field<T: FromStr>(self, number: usize) -> Option<T> {
        self.fields.split_ascii_whitespace().nth(number - 3)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_the_end_of_the_name_whatever_it_contains() {
        for name in ["cat", "", "two words", "a) b) S 4", "(a) 1 (b)", ") Z 1", "(sd-pam)", "\u{fffd}\n)"] {
            let line = format!("12 ({name}) S 7 12 12 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 2 0 4250 1000 20 184\n");
            let stat = ProcessStat::parse(&line).expect(name);
            assert_eq!((stat.is_zombie(), stat.parent(), stat.start_ticks()), (false, Some(7), Some(4250)), "{name}");
        }
        let zombie = ProcessStat::parse("12 (S 1) Z 7 12").expect("a name");
        assert_eq!((zombie.is_zombie(), zombie.parent(), zombie.start_ticks()), (true, Some(7), None));
    }

    #[test]
    fn a_line_without_a_name_is_refused_and_a_missing_field_is_not_known() {
        assert!(ProcessStat::parse("12 (cat").is_none() && ProcessStat::parse("").is_none());
        let cut = ProcessStat::parse("12 (cat)").expect("a name");
        assert_eq!((cut.is_zombie(), cut.parent(), cut.start_ticks()), (false, None, None));
        assert_eq!(ProcessStat::parse("12 (cat) S x").expect("a name").parent(), None);
    }
}
