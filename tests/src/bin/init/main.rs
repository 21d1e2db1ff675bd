//! The init program, and only program, of a virtual machine of `cargo xtask vm`. It sets up the environment that the
//! tests need, runs the tests one by one, and reports their results.
//!
//! `/plan` lists what to do, one line each, with tabs between the words: `module FILE`, `env NAME VALUE`, `test BINARY
//! FILE NAME`, `soak FILE ARGUMENT...`. The first serial port is for people. The second carries the results in lines of
//! the same form: `init` first, then `test BINARY NAME pass|fail|timeout MILLISECONDS`, `report BINARY NAME KIND TEXT`
//! (what the test reported), `log LINE` (a kernel log message that should never appear), and `end well|failed` last. On
//! x86-64, the exit code is also written to QEMU's debug port, which ends the machine at once.

mod run;
mod surroundings;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::tcdrain;
use tcpmon_tests::truth;

/// A test that takes longer is killed. Under emulation, the longest takes a minute, and twice as long on a busy host.
const LIMIT: Duration = Duration::from_secs(300);

/// Port of QEMU's `isa-debug-exit`, as set by `cargo xtask vm` on x86-64.
const EXIT_PORT: u64 = 0xf4;

/// The port for the results.
const PORT: &str = if cfg!(target_arch = "x86_64") { "/dev/ttyS1" } else { "/dev/ttyS0" };

type Results = File;

fn main() {
    let code = match work() {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            println!("init: {error}");
            2
        }
    };
    // Otherwise what is still in the ports' buffers would be lost. If this fails, there is nobody left to report it to.
    let _ = tcdrain(io::stdout());
    if cfg!(target_arch = "x86_64") {
        let _ = OpenOptions::new().write(true).open("/dev/port").map(|port| port.write_all_at(&[code], EXIT_PORT));
    }
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

/// Whether all went well.
fn work() -> io::Result<bool> {
    surroundings::mount_all()?;
    let mut results = OpenOptions::new().write(true).open(PORT)?;
    say(&mut results, &["init"])?;
    let plan = fs::read_to_string("/plan")?;
    let mut variables = Vec::new();
    let mut well = true;
    for line in plan.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["module", file] => surroundings::insert(file)?,
            ["env", name, value] => variables.push((name, value)),
            ["test", binary, file, name] => well &= run::test(&mut results, &variables, binary, file, name)?,
            ["soak", file, ref arguments @ ..] => well &= run::soak(&mut results, &variables, file, arguments)?,
            _ => return Err(io::Error::other(format!("no such line in /plan: {line}"))),
        }
    }
    for line in truth::kernel_alarms()? {
        say(&mut results, &["log", &line])?;
        well = false;
    }
    say(&mut results, &["end", if well { "well" } else { "failed" }])?;
    tcdrain(&results)?;
    Ok(well)
}

fn say(results: &mut Results, words: &[&str]) -> io::Result<()> {
    results.write_all(format!("{}\n", words.join("\t")).as_bytes())
}
