//! Repeated measurements as one figure: mean, median, quantiles.

use std::fmt;

/// A mean and half of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Half of its interval; 0 if there is only one run.
    pub half: f64,
}

impl Mean {
    /// The mean of independent runs, with its interval by Student's t.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|other| (other - value).powi(2)).sum();
        let half = match values.len() {
            0 | 1 => 0.0,
            runs => quantile_of_t(runs - 1) * (squares / (count - 1.0)).sqrt() / count.sqrt(),
        };
        Self { value, half }
    }
}

/// As text with one decimal place, or more if it is small.
impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.value.is_finite() {
            return f.write_str("-");
        }
        let places = if self.value.abs() < 10.0 { 2 } else { 1 };
        write!(f, "{:.places$} ±{:.places$}", self.value, self.half)
    }
}

/// The `q` quantile of the values, interpolated between two of them where needed. NaN if there are none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = q * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The two-sided 95 % quantile of Student's t.
fn quantile_of_t(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    TABLE.get(freedom - 1).copied().unwrap_or(1.96)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_students_t() {
        let mean = Mean::of(&[1.0, 2.0, 3.0]);
        assert!((mean.value - 2.0).abs() < 1e-9 && (mean.half - 4.303 / 3f64.sqrt()).abs() < 1e-9, "{mean:?}");
        assert_eq!(Mean::of(&[7.0]), Mean { value: 7.0, half: 0.0 });
        assert_eq!(Mean { value: 12.34, half: 0.5 }.to_string(), "12.3 ±0.5");
    }
}
