//! `tcpmon trace`, run beside traffic, and the records it wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Process, tcpmon_binary};
use crate::{eventually, must};

/// Time to start and to stop: generous, for an emulated machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A running trace; killed when dropped.
#[derive(Debug)]
pub struct Trace {
    process: Process,
    directory: TempDir,
}

/// A trace that has ended.
#[derive(Debug)]
pub struct Traced {
    /// How it ended.
    pub status: ExitStatus,
    /// Its records, one a line of the file, in order.
    pub records: Vec<Value>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Trace {
    /// Starts `tcpmon trace ARGS --format jsonl --output FILE` and waits for the file's first line, which says that the
    /// programs are attached.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Self {
        let mut trace = Self::spawn(arguments);
        eventually(DEADLINE, "tcpmon trace writes the first line of its file", || {
            let first = fs::read(trace.file()).is_ok_and(|bytes| bytes.contains(&b'\n'));
            match trace.process.exited() {
                _ if first => Ok(()),
                Some(status) => panic!("tcpmon trace ended with {status}:\n{}", trace.process.stderr()),
                None => Err("none"),
            }
        });
        trace
    }

    /// Runs a trace that ends by itself (for example by `--duration`).
    pub fn run(arguments: &[&str], deadline: Duration) -> Traced {
        Self::spawn(arguments).wait(deadline)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The file it writes.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("trace.jsonl")
    }

    /// The whole lines written so far.
    pub fn records(&self) -> Vec<Value> {
        records(&self.file())
    }

    /// Ends it by SIGINT, as a user does.
    pub fn stop(self) -> Traced {
        self.process.signal(Signal::SIGINT);
        self.wait(DEADLINE)
    }

    /// Waits for its end.
    pub fn wait(mut self, deadline: Duration) -> Traced {
        let status = self.process.wait(deadline);
        Traced { status, records: self.records(), stdout: self.process.stdout(), stderr: self.process.stderr() }
    }

    fn spawn(arguments: &[&str]) -> Self {
        let directory = must(tempfile::tempdir(), "making a directory for a trace");
        let file = directory.path().join("trace.jsonl");
        let mut command = Command::new(tcpmon_binary());
        command.arg("trace").args(arguments).args(["--format", "jsonl", "--output"]).arg(file);
        Self { process: Process::spawn(&mut command), directory }
    }
}

fn records(file: &Path) -> Vec<Value> {
    let bytes = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n') && !line.trim().is_empty());
    whole.map(|line| must(serde_json::from_str(line), format!("reading the record {line:?}"))).collect()
}
