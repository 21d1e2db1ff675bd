//! Child processes whose CPU time is measured to the microsecond.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::process::{self, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tcpmon_tests::lab::End;

use crate::{endpoint, interrupt};

/// Polling this rarely costs nothing compared with what is measured.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A child process with pipes to its stdin and from its stdout. Killed when dropped.
#[derive(Debug)]
pub struct Child {
    what: String,
    process: Option<process::Child>,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// A child process that has ended successfully.
#[derive(Debug)]
pub struct Ended {
    /// CPU time of its whole life, user and system, including interrupts that ran on its time.
    pub cpu: Duration,
    /// What it wrote to stdout, without the lines that were already read.
    pub stdout: String,
}

impl Child {
    /// Starts a program at `end`. It is killed when the calling thread ends.
    pub fn spawn(end: &End, program: &str, arguments: &[&str]) -> Self {
        let what = format!("{program} {}", arguments.join(" "));
        let mut command: Command = end.command(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("starting {what}: {error}"));
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("stdout is piped"));
        Self { what, process: Some(process), stdin, stdout }
    }

    /// Starts this program itself in another role.
    pub fn role(end: &End, role: &str, arguments: &[&str]) -> Self {
        let own = env::current_exe().expect("/proc is mounted");
        let own = own.to_str().expect("the path of this program is UTF-8");
        Self::spawn(end, own, &[&[endpoint::MARKER, role], arguments].concat())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it is there until it is waited for").id()
    }

    /// Writes a line to the child's stdin.
    pub fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open until it is waited for");
        let written = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        if let Err(error) = written {
            self.fail(&error.to_string());
        }
    }

    /// Waits for a line on the child's stdout.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(0) => self.fail("it ended early"),
            Ok(_) => line.trim_end().to_owned(),
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Closes the child's stdin and waits for it to end.
    pub fn wait(mut self, deadline: Duration) -> Ended {
        drop(self.stdin.take());
        let (status, ended) = self.reaped(deadline);
        if !status.success() {
            self.fail(&format!("{status}\n{}", ended.stdout));
        }
        ended
    }

    /// Sends SIGTERM to a child that does not end by itself, and waits for it.
    pub fn end(mut self, deadline: Duration) {
        if let Err(error) = kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM) {
            self.fail(&error.to_string());
        }
        self.reaped(deadline);
    }

    fn reaped(&mut self, deadline: Duration) -> (ExitStatus, Ended) {
        let pid = self.pid();
        let start = Instant::now();
        let (status, cpu) = loop {
            if let Some(ended) = reap(pid) {
                break ended;
            }
            if start.elapsed() > deadline {
                self.fail(&format!("it did not end within {deadline:?}"));
            }
            thread::sleep(POLL_EVERY);
        };
        self.process = None; // The child is reaped: its process id may belong to another process by now.
        let mut stdout = String::new();
        if let Err(error) = self.stdout.read_to_string(&mut stdout) {
            self.fail(&error.to_string());
        }
        (status, Ended { cpu, stdout })
    }

    fn fail(&self, why: &str) -> ! {
        interrupt::check(); // Ctrl-C also reaches child processes; then this is no failure.
        panic!("{}: {why}", self.what)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process
            && let Err(error) = process.kill().and_then(|()| process.wait())
        {
            eprintln!("{} (pid {}) could not be killed: {error}", self.what, process.id());
        }
    }
}

/// CPU time of a living process and all its threads, including those that have ended.
pub fn cpu_of(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()));
    clock.and_then(read).unwrap_or_else(|error| panic!("the CPU clock of process {pid}: {error}"))
}

/// The time that a clock shows.
pub fn read(clock: ClockId) -> nix::Result<Duration> {
    clock_gettime(clock).map(Duration::from)
}

/// Exit status and CPU time of a child process, once it has ended.
#[expect(unsafe_code, reason = "no crate wraps wait4, which alone tells one child's resources")]
fn reap(pid: u32) -> Option<(ExitStatus, Duration)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to places of the right type that outlive the call. A rusage of all zeroes is valid, so
    // it is initialized whether or not the kernel writes to it.
    let (reaped, usage) = unsafe {
        let reaped = libc::wait4(pid.cast_signed(), &raw mut status, libc::WNOHANG, usage.as_mut_ptr());
        (reaped, usage.assume_init())
    };
    assert!(reaped >= 0, "waiting for process {pid}: {}", std::io::Error::last_os_error());
    let micros = |time: libc::timeval| time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned();
    let cpu = Duration::from_micros(micros(usage.ru_utime) + micros(usage.ru_stime));
    (reaped > 0).then(|| (std::os::unix::process::ExitStatusExt::from_raw(status), cpu))
}
