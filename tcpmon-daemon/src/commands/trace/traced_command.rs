//! The command that a trace starts, and waits for: `tcpmon trace -- COMMAND`.
#![expect(unsafe_code, reason = "what a new process does before it becomes the command")]

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, PipeWriter, Read as _, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Child, Command, ExitStatus},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use rustix::{
    process::{
        Pid, Signal, getpgrp, getpid, getpriority_process, kill_process, set_parent_process_death_signal,
        setpriority_process,
    },
    termios::tcgetpgrp,
};
use tokio::signal::unix::SignalKind;

use super::{super::child::die_with_parent, signals::Signals};

/// How often to check whether the command has ended.
const WAIT_INTERVAL: Duration = Duration::from_millis(10);

/// The command cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {command}: {error}")]
pub(in super::super) struct NotStarted {
    command: String,
    error: io::Error,
}

/// A process that waits to become the command.
#[derive(Debug)]
pub(super) struct WaitingCommand {
    name: String,
    pid: u32,
    gate: PipeWriter,
    starter: JoinHandle<io::Result<Child>>,
}

impl WaitingCommand {
    /// Creates the process, which already has its id and then waits until [`release`](Self::release).
    pub(super) fn new(command: &[OsString]) -> anyhow::Result<Self> {
        let (program, arguments) = command.split_first().context("no command")?;
        // Before the output is opened, so that a misspelled command overwrites no file.
        if !exists(program) {
            let error = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(NotStarted { command: program.to_string_lossy().into_owned(), error }.into());
        }
        let (mut ready, report) = io::pipe()?;
        let (mut gate, opener) = io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        let parent = getpid();
        let priority = getpriority_process(None)?;
        let prepare = move || {
            // The process must not be left behind if the trace fails to start.
            die_with_parent(parent, Signal::KILL)?;
            (&report).write_all(&getpid().as_raw_nonzero().get().to_ne_bytes())?;
            gate.read_exact(&mut [0])?;
            set_parent_process_death_signal(None)?;
            Ok(setpriority_process(None, priority)?)
        };
        // SAFETY: system calls only.
        unsafe { command.pre_exec(prepare) };
        // `spawn` returns only when the process has become the command.
        let starter = thread::Builder::new().name("starter".into()).spawn(move || {
            let child = command.spawn();
            // This closes this side's end of the pipe, so that `ready` ends if the process could not be created.
            drop(command);
            child
        })?;
        let mut pid = [0; 4];
        let name = program.to_string_lossy().into_owned();
        match ready.read_exact(&mut pid) {
            Ok(()) => Ok(Self { name, pid: u32::from_ne_bytes(pid), gate: opener, starter }),
            Err(_) => Err(Self { name, pid: 0, gate: opener, starter }
                .started()
                .err()
                .unwrap_or_else(|| anyhow!("no process id came"))),
        }
    }

    /// Its process id, which stays the same when it becomes the command.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it become the command.
    ///
    /// # Errors
    /// [`NotStarted`] if there is no such program.
    pub(super) fn release(mut self) -> anyhow::Result<RunningCommand> {
        self.gate.write_all(&[1]).context("the process that was to become the command has gone")?;
        let child = self.started()?;
        Ok(RunningCommand { child, terminal: File::open("/dev/tty").ok() })
    }

    fn started(self) -> anyhow::Result<Child> {
        let child = self.starter.join().map_err(|_| anyhow!("the thread that starts the command has panicked"))?;
        child.map_err(|error| NotStarted { command: self.name, error }.into())
    }
}

/// The running command.
#[derive(Debug)]
pub(super) struct RunningCommand {
    child: Child,
    /// The terminal that controls this process.
    terminal: Option<File>,
}

impl RunningCommand {
    /// Passes on a signal that this process got. Not one that was typed at the terminal: the terminal sends that to
    /// both processes.
    pub(super) fn signal(&self, signal: SignalKind) {
        let typed = signal == SignalKind::interrupt() || signal == SignalKind::quit();
        let in_front = |terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp());
        if typed && self.terminal.as_ref().is_some_and(in_front) {
            return;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal.as_raw_value())) {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end, and passes on signals until then.
    pub(super) async fn wait(mut self, mut signals: Signals) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            tokio::select! {
                signal = signals.next() => self.signal(signal),
                () = tokio::time::sleep(WAIT_INTERVAL) => {}
            }
        }
    }
}

/// Whether there is a file of this name; a name without a slash is looked up on the `PATH`.
fn exists(program: &OsStr) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    if program.as_encoded_bytes().contains(&b'/') {
        Path::new(program).exists()
    } else {
        env::split_paths(&paths).any(|path| path.join(program).exists())
    }
}

/// The exit code of a command as shells report it: 128 plus the signal if a signal ended it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
