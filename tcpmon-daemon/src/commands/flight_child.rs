//! The daemon's flight recorder: `tcpmon trace --ring` as a process of its own, which ends with the daemon.
#![expect(unsafe_code, reason = "what a new process does before it becomes the recorder")]

use std::{
    env, io,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Signal, getpid};
use tokio::{io::AsyncReadExt as _, net::unix::pipe, time::sleep};
use tracing::{info, warn};

use super::child::die_with_parent;
use crate::{config::FlightSettings, status::FlightStatus};

/// Name of the files, without their numbers.
const NAME: &str = if cfg!(feature = "formats") { "flight.parquet" } else { "flight.jsonl" };

/// How often to check whether the recorder has exited, once it has closed its output.
const WAIT_INTERVAL: Duration = Duration::from_millis(100);

/// The running recorder.
#[derive(Debug)]
pub(super) struct FlightChild {
    /// It writes nothing to its standard output, which is closed when it ends.
    child: Child,
    watch: FlightWatch,
}

/// Tells whether the recorder runs.
#[derive(Clone, Debug)]
pub(super) struct FlightWatch {
    directory: PathBuf,
    ended: Arc<AtomicBool>,
}

impl FlightWatch {
    /// Whether the recorder runs now.
    pub(super) fn status(&self) -> FlightStatus {
        FlightStatus { directory: self.directory.display().to_string(), running: !self.ended.load(Ordering::Relaxed) }
    }
}

impl FlightChild {
    /// Starts the recorder. Must be called by the main thread, and before this process gives up capabilities, because
    /// the recorder loads programs of its own.
    ///
    /// # Errors
    /// The directory is not there, or no process can be started.
    pub(super) fn start(settings: &FlightSettings) -> anyhow::Result<Self> {
        let directory = settings.directory.display();
        anyhow::ensure!(settings.directory.is_dir(), "flight.directory: {directory} is not a directory: create it");
        let mut command = Command::new(env::current_exe().context("cannot find tcpmon's own executable")?);
        command.args(["trace", "--all", "--ring", &settings.ring, "--keep", &settings.keep]);
        for rule in &settings.trigger {
            command.args(["--trigger", rule]);
        }
        command.arg("--output").arg(settings.directory.join(NAME)).stdin(Stdio::null()).stdout(Stdio::piped());
        let parent = getpid();
        // SAFETY: system calls only.
        unsafe { command.pre_exec(move || die_with_parent(parent, Signal::TERM)) };
        let child = command.spawn().context("cannot start the flight recorder")?;
        let watch = FlightWatch { directory: settings.directory.clone(), ended: Arc::default() };
        Ok(Self { child, watch })
    }

    /// A handle that tells whether the recorder runs.
    pub(super) fn watch(&self) -> FlightWatch {
        self.watch.clone()
    }

    /// Logs that the recorder has started, waits for its end, and logs that, too.
    ///
    /// # Errors
    /// If its output cannot be waited for.
    pub(super) async fn wait(mut self) -> io::Result<()> {
        info!(directory = %self.watch.directory.display(), "the flight recorder has started");
        if let Some(output) = self.child.stdout.take() {
            let mut output = pipe::Receiver::from_owned_fd(output.into())?;
            let mut bytes = [0; 64];
            while output.read(&mut bytes).await? > 0 {}
        }
        self.watch.ended.store(true, Ordering::Relaxed);
        // It closes its output while it exits, before the kernel has removed its programs.
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None => sleep(WAIT_INTERVAL).await,
            }
        };
        warn!(%status, "the flight recorder has ended: see its message above, and restart tcpmon");
        Ok(())
    }
}
