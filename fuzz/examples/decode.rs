//! Runs the decoder named by `TCPMON_DECODER` on the given files.

use std::{env, fs, io};

fn main() -> io::Result<()> {
    let decoder = tcpmon::fuzz::decoder();
    for file in env::args_os().skip(1) {
        decoder(&fs::read(file)?);
    }
    Ok(())
}
