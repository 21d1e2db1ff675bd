//! `tcpmon trace`, run next to traffic, and the records it wrote.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Process, tcpmon_binary};
use crate::{eventually, must, refusal};

/// Time limit to start and to stop: generous, for an emulated machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// How each error message of tcpmon begins.
const ERROR_MESSAGE: &[u8] = b"tcpmon: ";

/// A running trace. Killed when dropped.
#[derive(Debug)]
pub struct Trace {
    process: Process,
    directory: TempDir,
}

/// A trace that has ended.
#[derive(Debug)]
pub struct Traced {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its records, one per line of the file, in order.
    pub records: Vec<Value>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Trace {
    /// Starts `tcpmon trace ARGS --format jsonl --output FILE` and waits for the first line of the file, which shows
    /// that the programs are attached.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_under(&[], arguments)
    }

    /// The same, started by a wrapper program that gets tcpmon and its arguments after the wrapper's own arguments.
    #[track_caller]
    pub fn start_under(wrapper: &[&str], arguments: &[&str]) -> Self {
        Self::spawn(wrapper, arguments).started()
    }

    /// The same, where the kernel [refuses](refusal::refuse) a command of bpf(2).
    #[track_caller]
    pub fn start_refusing(refused: u64, arguments: &[&str]) -> Self {
        let mut command = command(&[], arguments);
        refusal::refuse(&mut command, refused);
        Self::spawn_by(command).started()
    }

    #[track_caller]
    fn started(mut self) -> Self {
        eventually(DEADLINE, "tcpmon trace writes the first line of its file", || {
            let first = fs::read(self.file()).is_ok_and(|bytes| bytes.contains(&b'\n'));
            match self.process.exited() {
                _ if first => Ok(()),
                Some(status) => panic!("tcpmon trace ended with {status}:\n{}", self.process.stderr()),
                None => Err("none"),
            }
        });
        self
    }

    /// Runs a trace that ends by itself (for example because of `--duration`).
    pub fn run(arguments: &[&str], deadline: Duration) -> Traced {
        Self::spawn(&[], arguments).wait(deadline)
    }

    /// The same under a wrapper program like that of [`Trace::start_under`].
    pub fn run_under(wrapper: &[&str], arguments: &[&str], deadline: Duration) -> Traced {
        Self::spawn(wrapper, arguments).wait(deadline)
    }

    /// Starts `tcpmon trace ARGS --format jsonl` with a pipe that is not read as its output, under a wrapper program
    /// like that of [`Trace::start_under`], and waits until the header is in the pipe.
    #[track_caller]
    pub fn into_pipe(wrapper: &[&str], arguments: &[&str]) -> Piped {
        let (pipe, ours) = must(io::pipe(), "making a pipe");
        let theirs = must(ours.try_clone(), "one more end of a pipe");
        let mut command = command(wrapper, arguments);
        let process = Process::spawn_into(&mut command, Stdio::from(theirs));
        drop(command);
        let piped = Piped { process, pipe: Reading::Not(pipe, ours) };
        eventually(DEADLINE, "tcpmon trace writes into its pipe", || piped.is_ready(PollFlags::POLLIN));
        piped
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The file that it writes.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("trace.jsonl")
    }

    /// The complete lines written so far.
    pub fn records(&self) -> Vec<Value> {
        records(&fs::read(self.file()).unwrap_or_default())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Ends it with SIGINT, as a user does.
    pub fn stop(self) -> Traced {
        self.signal(Signal::SIGINT);
        self.wait(DEADLINE)
    }

    /// Waits for it to end.
    pub fn wait(mut self, deadline: Duration) -> Traced {
        let status = self.process.wait(deadline);
        Traced { status, records: self.records(), stdout: self.process.stdout(), stderr: self.process.stderr() }
    }

    /// Waits for it to end, and leaves its file at this path.
    #[track_caller]
    pub fn wait_into(self, deadline: Duration, path: &Path) -> Traced {
        // The file is there as soon as there is anything to link; what is written later is in the link, too.
        eventually(deadline, "tcpmon trace creates its file", || fs::hard_link(self.file(), path).is_ok());
        self.wait(deadline)
    }

    /// Starts a trace like that of [`Trace::start_under`], and does not wait.
    pub fn spawn(wrapper: &[&str], arguments: &[&str]) -> Self {
        Self::spawn_by(command(wrapper, arguments))
    }

    fn spawn_by(mut command: Command) -> Self {
        let directory = must(tempfile::tempdir(), "making a directory for a trace");
        let file = directory.path().join("trace.jsonl");
        command.arg("--output").arg(file);
        Self { process: Process::spawn(&mut command), directory }
    }
}

/// A trace whose standard output is a pipe that is read when the test asks for it. Killed when dropped.
#[derive(Debug)]
pub struct Piped {
    process: Process,
    pipe: Reading,
}

#[derive(Debug)]
enum Reading {
    /// Not being read yet: both ends of the pipe are here.
    Not(PipeReader, PipeWriter),
    Begun(JoinHandle<Vec<u8>>),
}

impl Piped {
    /// Whether the pipe is full and a thread of tcpmon sleeps in a write.
    pub fn is_stuck(&self) -> bool {
        let write = format!("{} ", libc::SYS_write);
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.pid())).into_iter().flatten().flatten();
        let mut calls = tasks.filter_map(|task| fs::read_to_string(task.path().join("syscall")).ok());
        !self.is_ready(PollFlags::POLLOUT) && calls.any(|call| call.starts_with(&write))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Starts to read the pipe, until its end.
    pub fn read(self) -> Self {
        let Reading::Not(mut pipe, _) = self.pipe else { return self };
        let reading = thread::spawn(move || {
            let mut bytes = Vec::new();
            must(pipe.read_to_end(&mut bytes), "reading a trace's pipe");
            bytes
        });
        Self { process: self.process, pipe: Reading::Begun(reading) }
    }

    /// Waits for it to end, and reads the pipe after that unless reading has started before.
    pub fn wait(mut self, deadline: Duration) -> Traced {
        let status = self.process.wait(deadline);
        let mut ended = self.read();
        let Reading::Begun(reading) = ended.pipe else { unreachable!("it has just begun") };
        let mut bytes = reading.join().expect("reading a pipe does not panic");
        ended.process.wait(deadline);
        // Where standard error is the same pipe, an error message may follow the cut record on the last line.
        let last = bytes.trim_ascii_end().iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let message = bytes[last..].windows(ERROR_MESSAGE.len()).position(|window| window == ERROR_MESSAGE);
        bytes.truncate(message.map_or(bytes.len(), |message| last + message));
        Traced { status, records: records(&bytes), stdout: String::new(), stderr: ended.process.stderr() }
    }

    fn is_ready(&self, flags: PollFlags) -> bool {
        let Reading::Not(pipe, ours) = &self.pipe else { return false };
        let end = if flags == PollFlags::POLLIN { pipe.as_fd() } else { ours.as_fd() };
        must(poll(&mut [PollFd::new(end, flags)], PollTimeout::ZERO), "looking into a pipe") > 0
    }
}

/// The command that runs tcpmon, or that runs the wrapper that starts it. SIGHUP ends it, even if the tests run under
/// `nohup`.
#[expect(unsafe_code, reason = "a signal is set back between fork and exec, or not at all")]
fn command(wrapper: &[&str], arguments: &[&str]) -> Command {
    let binary = tcpmon_binary();
    let mut command = match wrapper {
        [] => Command::new(binary),
        [program, more @ ..] => {
            let mut command = Command::new(program);
            command.args(more).arg(binary);
            command
        }
    };
    command.arg("trace").args(arguments).args(["--format", "jsonl"]);
    // SAFETY: the closure runs in the child of a fork and makes only one system call.
    unsafe {
        command.pre_exec(|| Ok(signal(Signal::SIGHUP, SigHandler::SigDfl).map(drop)?));
    }
    command
}

fn records(bytes: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(bytes);
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n') && !line.trim().is_empty());
    whole.map(|line| must(serde_json::from_str(line), format!("reading the record {line:?}"))).collect()
}
