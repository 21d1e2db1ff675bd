//! Numbers scaled for people: few digits, always with their unit, and never wider than documented here.

use std::fmt;

/// Bytes in powers of 1024, at most 4 characters: `999`, `1.2M`, `16E`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1024.0, &["", "K", "M", "G", "T", "P", "E"])
    }
}

/// A number in powers of 1000, at most 4 characters: `999`, `1.2k`, `18E`.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
    }
}

/// A duration in ns, at most 5 characters: `0`, `999ns`, `3.4ms`, `17m`, `585y`.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: f64 = 1e9;
        /// Each unit, its length in ns, and the largest number that is shown in it.
        const UNITS: [(&str, f64, f64); 8] = [
            ("ns", 1.0, 999.0),
            ("us", 1e3, 999.0),
            ("ms", 1e6, 999.0),
            ("s", SECOND, 999.0),
            ("m", 60.0 * SECOND, 99.0),
            ("h", 3600.0 * SECOND, 99.0),
            ("d", 86_400.0 * SECOND, 999.0),
            ("y", 365.25 * 86_400.0 * SECOND, 999.0),
        ];
        if self.0 == 0 {
            return f.write_str("0");
        }
        let ns = self.0 as f64;
        for (unit, length, most) in UNITS {
            let value = ns / length;
            if value < most + 0.5 {
                return if length == 1.0 || value >= 9.95 {
                    write!(f, "{value:.0}{unit}")
                } else {
                    write!(f, "{value:.1}{unit}")
                };
            }
        }
        f.write_str("999y")
    }
}

/// Bytes over a duration, in bits per second, at most 10 characters: `9.41Gbit/s`; `-` if no time passed.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes.
    pub bytes: u64,
    /// Duration, ns.
    pub ns: u64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ns == 0 {
            return f.write_str("-");
        }
        let mut value = self.bytes as f64 * 8e9 / self.ns as f64;
        let mut units = ["", "k", "M", "G", "T", "P"].into_iter();
        let mut unit = "";
        for next in &mut units {
            unit = next;
            if value < 999.5 {
                break;
            }
            if unit != "P" {
                value /= 1000.0;
            }
        }
        match value {
            0.0 => f.write_str("0bit/s"),
            _ if value >= 999.5 => write!(f, ">999{unit}bit/s"),
            _ if value >= 99.95 => write!(f, "{value:.0}{unit}bit/s"),
            _ if value >= 9.995 => write!(f, "{value:.1}{unit}bit/s"),
            _ => write!(f, "{value:.2}{unit}bit/s"),
        }
    }
}

/// Thousandths as percent without a fraction, at most 4 characters: `87%`, `>10x`.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..9995 => write!(f, "{}%", (self.0 + 5) / 10),
            _ => f.write_str(">10x"),
        }
    }
}

/// A time in ns as seconds, at most 9 characters, with as many decimals as fit: `12.345678`.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, us) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000);
        match seconds {
            0..100 => write!(f, "{seconds}.{us:06}"),
            100..1000 => write!(f, "{seconds}.{:05}", us / 10),
            1000..10_000 => write!(f, "{seconds}.{:04}", us / 100),
            10_000..100_000 => write!(f, "{seconds}.{:03}", us / 1000),
            100_000..1_000_000 => write!(f, "{seconds}.{:02}", us / 10_000),
            1_000_000..10_000_000 => write!(f, "{seconds}.{}", us / 100_000),
            10_000_000..1_000_000_000 => write!(f, "{seconds}"),
            _ => f.write_str(">31y"),
        }
    }
}

/// The number in the first unit in which it has at most three digits, with one decimal below 10.
fn scaled(f: &mut fmt::Formatter<'_>, number: u64, step: f64, units: &[&str]) -> fmt::Result {
    if number < 1000 {
        return write!(f, "{number}");
    }
    let mut value = number as f64;
    let mut unit = "";
    for next in units {
        unit = next;
        if value < 999.5 {
            break;
        }
        value /= step;
    }
    if value < 9.95 { write!(f, "{value:.1}{unit}") } else { write!(f, "{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_binary_and_counts_are_decimal() {
        let bytes = [0, 999, 1000, 1024, 10_239, 1_022_976, 1_258_292, u64::from(u32::MAX), u64::MAX];
        let shown = bytes.map(|bytes| Bytes(bytes).to_string());
        assert_eq!(shown, ["0", "999", "1.0K", "1.0K", "10K", "999K", "1.2M", "4.0G", "16E"]);

        let counts = [7, 1000, 1_234_567, u64::MAX].map(|count| Count(count).to_string());
        assert_eq!(counts, ["7", "1.0k", "1.2M", "18E"]);
    }

    #[test]
    fn durations_have_the_unit_that_fits_them() {
        let shown = |ns| Time(ns).to_string();
        assert_eq!(shown(0), "0");
        assert_eq!(shown(999), "999ns");
        assert_eq!(shown(1_000), "1.0us");
        assert_eq!(shown(12_000), "12us");
        assert_eq!(shown(999_600), "1.0ms");
        assert_eq!(shown(3_400_000), "3.4ms");
        assert_eq!(shown(1_200_000_000), "1.2s");
        assert_eq!(shown(999_000_000_000), "999s");
        assert_eq!(shown(1_000_000_000_000), "17m");
        assert_eq!(shown(7_200_000_000_000), "2.0h");
        assert_eq!(shown(864_000_000_000_000), "10d");
        assert_eq!(shown(u64::MAX), "585y");
    }

    #[test]
    fn rates_are_bits_per_second() {
        let shown = |bytes, ns| Rate { bytes, ns }.to_string();
        assert_eq!(shown(1, 0), "-");
        assert_eq!(shown(0, 1), "0bit/s");
        assert_eq!(shown(1_176_250_000, 1_000_000_000), "9.41Gbit/s");
        assert_eq!(shown(117_625_000, 1_000_000_000), "941Mbit/s");
        assert_eq!(shown(1, 8_000_000_000), "1.00bit/s");
        assert_eq!(shown(u64::MAX, 1), ">999Pbit/s");
    }

    #[test]
    fn seconds_keep_nine_characters() {
        assert_eq!(Seconds(12_345_678_901).to_string(), "12.345678");
        assert_eq!(Seconds(14_400_123_456_000).to_string(), "14400.123");
        assert_eq!(Seconds(u64::MAX).to_string(), ">31y");
    }

    fn any_size() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            (0u32..64).prop_map(|bits| (1u64 << bits).wrapping_sub(1)),
            (0u32..20, any::<i8>())
                .prop_map(|(digits, off)| 10u64.saturating_pow(digits).saturating_add_signed(off.into()))
        ]
    }

    proptest! {
        #[test]
        fn no_number_is_wider_than_said(number in any_size(), ns in any_size()) {
            prop_assert!(Bytes(number).to_string().len() <= 4, "{}", Bytes(number));
            prop_assert!(Count(number).to_string().len() <= 4, "{}", Count(number));
            prop_assert!(Time(number).to_string().len() <= 5, "{}", Time(number));
            prop_assert!(Percent(number).to_string().len() <= 4, "{}", Percent(number));
            prop_assert!(Seconds(number).to_string().len() <= 9, "{}", Seconds(number));
            let rate = Rate { bytes: number, ns };
            prop_assert!(rate.to_string().len() <= 10, "{rate}");
        }
    }
}
