//! Runs one test in a process group of its own, so that the next one starts clean whatever this one leaves behind.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tcpmon_tests::report;

use crate::{LIMIT, Results, say};

const OUTPUT: &str = "/tmp/output";
const REPORT: &str = "/tmp/report";

/// Runs a test and reports the result. If it fails, its output is printed on the first port.
pub fn test(
    results: &mut Results,
    variables: &[(&str, &str)],
    binary: &str,
    file: &str,
    name: &str,
) -> io::Result<bool> {
    let output = File::create(OUTPUT)?;
    File::create(REPORT)?;
    let mut command = Command::new(file);
    command.args([name, "--exact", "--test-threads=1", "--nocapture"]).envs(variables.iter().copied());
    command.env(report::VARIABLE, REPORT).stdout(output.try_clone()?).stderr(output);
    let (outcome, took) = run(&mut command, Some(LIMIT))?;
    for line in fs::read_to_string(REPORT)?.lines() {
        let (kind, text) = line.split_once('\t').unwrap_or((line, ""));
        say(results, &["report", binary, name, kind, text])?;
    }
    say(results, &["test", binary, name, outcome, &took])?;
    if outcome != "pass" {
        let words = fs::read(OUTPUT)?;
        let words = String::from_utf8_lossy(&words);
        println!("\n<<< {binary} {name}\n{words}\n>>> {binary} {name}");
    }
    Ok(outcome == "pass")
}

/// Runs `cargo xtask soak` with these arguments, which say how long it takes. It prints to the first port, so that its
/// progress can be read meanwhile.
pub fn soak(results: &mut Results, variables: &[(&str, &str)], file: &str, arguments: &[&str]) -> io::Result<bool> {
    println!("\n<<< soak soak");
    let (outcome, took) = run(Command::new(file).args(arguments).envs(variables.iter().copied()), None)?;
    println!("\n>>> soak soak");
    say(results, &["test", "soak", "soak", outcome, &took])?;
    Ok(outcome == "pass")
}

/// The outcome, and the time in milliseconds.
fn run(command: &mut Command, limit: Option<Duration>) -> io::Result<(&'static str, String)> {
    let start = Instant::now();
    let child = command.stdin(Stdio::null()).current_dir("/tmp").process_group(0).spawn()?;
    let child = Pid::from_raw(child.id().cast_signed());
    let outcome = wait(child, limit.map(|limit| start + limit));
    let took = start.elapsed().as_millis().to_string();
    // An error means that the process group is already empty.
    let _ = killpg(child, Signal::SIGKILL);
    Ok((outcome, took))
}

/// Waits for the program to end, and meanwhile reaps orphans, which become children of the init process.
fn wait(test: Pid, deadline: Option<Instant>) -> &'static str {
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == test => return if code == 0 { "pass" } else { "fail" },
            Ok(WaitStatus::Signaled(pid, ..)) if pid == test => return "fail",
            Ok(WaitStatus::StillAlive) | Err(_) => thread::sleep(Duration::from_millis(5)),
            Ok(_) => {}
        }
    }
    "timeout"
}
