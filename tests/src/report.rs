//! What tests report apart from passing and failing: lines in the file that `TCPMON_REPORT` names. `cargo xtask test`
//! shows them, and `cargo xtask vm` makes its table from them.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

use crate::must;

/// The variable that names the file.
pub const VARIABLE: &str = "TCPMON_REPORT";

/// Reports that a test cannot run here, and why; the test then returns. If `TCPMON_REPORT` is not set, nobody would see
/// the report, so the test fails: no test is skipped silently.
#[track_caller]
pub fn not_supported(because: &str) {
    assert!(env::var_os(VARIABLE).is_some(), "not supported here: {because} ({VARIABLE} is not set)");
    line("not-supported", &format!("{because}\t{}", test()));
}

/// The test that runs in this thread, as `FILE::NAME`.
fn test() -> String {
    let executable = env::current_exe().unwrap_or_default();
    let file = executable.file_name().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash.
    let file = file.rsplit_once('-').map_or(&*file, |(file, _)| file);
    format!("{file}::{}", thread::current().name().unwrap_or("unknown"))
}

/// Whether what is reported goes into the tree (`cargo xtask vm --write`).
pub fn is_recording() -> bool {
    env::var_os("TCPMON_RECORDING").is_some()
}

/// Appends a line of this kind to the report.
pub fn line(kind: &str, text: &str) {
    let Some(path) = env::var_os(VARIABLE) else { return };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| writeln!(file, "{kind}\t{}", text.replace('\n', " ")));
    must(written, format!("reporting to {}", path.display()));
}
