//! Conversion to the base units of Prometheus.

/// Nanoseconds as seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    // Division is used instead of multiplication, because 10^9 is exact as a double and 10^-9 is not.
    ns as f64 / 1e9
}
