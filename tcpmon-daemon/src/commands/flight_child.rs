//! The daemon's flight recorder: `tcpmon trace --ring` as a process of its own, which ends with the daemon.
#![expect(unsafe_code, reason = "what a new process does before it becomes the recorder")]

use std::{
    env, io,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::{io::AsyncReadExt as _, net::unix::pipe};
use tracing::{info, warn};

use crate::{config::FlightSettings, model::snapshot::FlightStatus};

/// What the files are called, before their numbers are added.
const NAME: &str = if cfg!(feature = "formats") { "flight.parquet" } else { "flight.jsonl" };

/// The running recorder.
#[derive(Debug)]
pub(super) struct FlightChild {
    /// Its standard output, to which it writes nothing: it is closed when the recorder ends.
    output: OwnedFd,
    watch: FlightWatch,
}

/// Tells whether the recorder runs.
#[derive(Clone, Debug)]
pub(super) struct FlightWatch {
    directory: PathBuf,
    ended: Arc<AtomicBool>,
}

impl FlightWatch {
    /// The state at this moment.
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
        // SAFETY: makes one system call, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from));
        }
        let child = command.spawn().context("cannot start the flight recorder")?;
        let output = child.stdout.context("the flight recorder has no standard output")?;
        let watch = FlightWatch { directory: settings.directory.clone(), ended: Arc::default() };
        Ok(Self { output: output.into(), watch })
    }

    /// What can be asked for its state.
    pub(super) fn watch(&self) -> FlightWatch {
        self.watch.clone()
    }

    /// Logs that it runs, and waits until it has ended, which is logged, too.
    ///
    /// # Errors
    /// If its output cannot be waited for.
    pub(super) async fn wait(self) -> io::Result<()> {
        info!(directory = %self.watch.directory.display(), "the flight recorder has started");
        let mut output = pipe::Receiver::from_owned_fd(self.output)?;
        let mut bytes = [0; 64];
        while output.read(&mut bytes).await? > 0 {}
        self.watch.ended.store(true, Ordering::Relaxed);
        warn!("the flight recorder has ended: see its message above, and restart tcpmon");
        Ok(())
    }
}
