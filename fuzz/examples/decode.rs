//! Runs one of tcpmon's decoders, which `TCPMON_DECODER` names, on the files that it is given.

use std::{env, fs, io};

fn main() -> io::Result<()> {
    let decoder = tcpmon::fuzz::decoder();
    for file in env::args_os().skip(1) {
        decoder(&fs::read(file)?);
    }
    Ok(())
}
