//! What the tests of several modules use: the files of the repository that are generated from the code.

use std::{env, fs};

/// Compares a file, given by its path from this crate's folder, with what it should be; with `TCPMON_BLESS=1` in the
/// environment, writes it.
#[track_caller]
pub fn is_kept_in(path: &str, text: &str) {
    let file = file(path);
    if env::var_os("TCPMON_BLESS").is_some() {
        fs::write(&file, text).expect(&file);
    }
    assert_eq!(text, read(path), "{file}: if this is meant, run the test again with TCPMON_BLESS=1");
}

/// A file of the repository, by its path from this crate's folder.
#[track_caller]
pub fn read(path: &str) -> String {
    let file = file(path);
    fs::read_to_string(&file).expect(&file)
}

fn file(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}
