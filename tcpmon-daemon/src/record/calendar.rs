//! Wall-clock times in readable form.

use std::fmt;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// A `CLOCK_REALTIME` time in ns, shown in UTC as in RFC 3339, with nine digits after the second.
#[derive(Clone, Copy, Debug)]
pub struct Utc(pub u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        let (year, month, day) = date(seconds / DAY);
        let second = seconds % DAY;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let ns = self.0 % 1_000_000_000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ns:09}Z")
    }
}

/// Year, month and day of the day that is this many days after 1970-01-01. A loop over the years is enough, because 64
/// bits of ns end in 2554.
fn date(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    while days >= year_days(year) {
        days -= year_days(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_days(year, month) {
        days -= month_days(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_times_are_those_of_the_calendar() {
        let shown = |seconds: u64, ns| Utc(seconds * 1_000_000_000 + ns).to_string();
        assert_eq!(shown(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(shown(951_827_696, 5), "2000-02-29T12:34:56.000000005Z");
        assert_eq!(shown(1_785_369_600, 123_456_789), "2026-07-30T00:00:00.123456789Z");
        assert_eq!(shown(4_107_542_399, 0), "2100-02-28T23:59:59.000000000Z");
        assert_eq!(shown(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
        assert_eq!(Utc(u64::MAX).to_string(), "2554-07-21T23:34:33.709551615Z");
    }
}
