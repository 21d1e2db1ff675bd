//! What tests have to say beside passing and failing: lines for whoever runs them, in the file that `TCPMON_REPORT`
//! names. `cargo xtask test` shows them, `cargo xtask vm` makes its table of them.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

use crate::must;

/// The variable that names the file.
pub const VARIABLE: &str = "TCPMON_REPORT";

/// Says that what a test claims cannot be shown here, and why; the test then returns. Where nobody reads such words it
/// is a failure: nothing is skipped unseen.
#[track_caller]
pub fn not_supported(because: &str) {
    assert!(env::var_os(VARIABLE).is_some(), "not supported here: {because} ({VARIABLE} is not set)");
    let place = Location::caller();
    line("not-supported", &format!("{because}\t{}:{}", place.file(), place.line()));
}

/// A line of a kind, for those who collect it.
pub fn line(kind: &str, text: &str) {
    let Some(path) = env::var_os(VARIABLE) else { return };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| writeln!(file, "{kind}\t{}", text.replace('\n', " ")));
    must(written, format!("reporting to {}", path.display()));
}
