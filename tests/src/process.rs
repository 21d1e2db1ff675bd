//! A child process whose output is kept: the program under test, or one that it is tested with.

use std::env;
use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{eventually, must};

/// The program under test: `TCPMON_BIN`, else the workspace's release build.
pub fn tcpmon_binary() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/tcpmon");
    let path = env::var_os("TCPMON_BIN").map_or_else(built, PathBuf::from);
    assert!(path.is_file(), "no tcpmon at {}: run `cargo xtask build`, or set TCPMON_BIN", path.display());
    path
}

/// A child that is killed when this is dropped, so that a test that fails leaves none behind.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running program. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    /// The name it was started with, for messages.
    name: String,
    child: Child,
    stdout: Captured,
    stderr: Captured,
}

#[derive(Debug)]
struct Captured {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::spawn_into(command, Stdio::piped())
    }

    /// What it writes to `stdout` is kept only if that is a pipe of its own.
    pub(crate) fn spawn_into(command: &mut Command, stdout: Stdio) -> Self {
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut child = must(command.spawn(), format!("starting {command:?}"));
        let stdout = match child.stdout.take() {
            Some(pipe) => Captured::start(pipe),
            None => Captured::start(io::empty()),
        };
        let stderr = Captured::start(child.stderr.take().expect("stderr is piped"));
        Self { name, child, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        must(self.child.try_wait(), format!("asking whether {} has exited", self.name))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        must(kill(pid, signal), format!("sending {signal} to {}", self.name));
    }

    /// Waits for it to end, then for its last output.
    pub(crate) fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let status = eventually(deadline, &format!("{} exits", self.name), || self.child.try_wait().ok().flatten());
        self.stdout.finish();
        self.stderr.finish();
        status
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.text().clone()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.text().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let running = matches!(self.child.try_wait(), Ok(None));
        if running && (self.child.kill().is_err() || self.child.wait().is_err()) {
            eprintln!("{} (pid {}) could not be killed", self.name, self.child.id());
        }
        if thread::panicking() {
            eprintln!("--- what {} wrote to stderr:\n{}---", self.name, self.stderr.text());
        }
    }
}

impl Captured {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let words = String::from_utf8_lossy(&buffer[..count]);
                sink.lock().unwrap_or_else(PoisonError::into_inner).push_str(&words);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading a pipe does not panic");
        }
    }

    fn text(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
