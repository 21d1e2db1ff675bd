//! What the process gives up once it has what it needs: capabilities, system calls and files, thread by thread.
//!
//! The kernel keeps all of these per thread. Each thread is therefore confined before it does anything else; the
//! threads that it starts later are confined in the same way. `docs/security.md` says what that is worth.

mod capabilities;
mod files;
mod priority;
mod system_calls;

use std::{io, path::PathBuf, sync::mpsc, thread};

use anyhow::Context as _;

pub use self::{
    capabilities::{begin, give_up_all},
    priority::{Ordinary, raise_priority},
};
use self::{files::ReadableFiles, system_calls::AllowedCalls};
use crate::{kernel::Kernel, status::SandboxStatus};

/// What a thread of the daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRole {
    /// Answers requests from the network.
    Endpoint,
    /// Reads the programs' maps.
    Collector,
    /// Reads the host, also in other network namespaces.
    Host,
    /// Makes room in the kernel for more sockets.
    Grower,
}

/// Confines the daemon's threads.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Files that the endpoint reads again when the configuration is reloaded.
    config_files: Vec<PathBuf>,
    enabled: bool,
}

impl Sandbox {
    /// A sandbox in which these files can be read. If it is not enabled, threads give up their capabilities and nothing
    /// else.
    pub fn new(enabled: bool, config_files: Vec<PathBuf>) -> Self {
        Self { config_files, enabled }
    }

    /// Confines the calling thread for good.
    ///
    /// # Errors
    /// If the kernel refuses. A kernel that cannot confine files or system calls is no error: the status says so.
    pub fn confine(&self, role: ThreadRole) -> anyhow::Result<SandboxStatus> {
        capabilities::keep_for(role).context("cannot give up capabilities")?;
        if !self.enabled {
            let reason = "switched off by sandbox = false".into();
            return Ok(SandboxStatus { system_calls: false, files: false, reason });
        }
        let files = ReadableFiles::of(role, &self.config_files).confine().context("cannot restrict files")?;
        let system_calls = AllowedCalls::of(role).confine().context("cannot restrict system calls")?;
        let reason: Vec<_> =
            [files.as_ref().err(), system_calls.as_ref().err()].into_iter().flatten().cloned().collect();
        Ok(SandboxStatus { system_calls: system_calls.is_ok(), files: files.is_ok(), reason: reason.join("; ") })
    }

    /// Starts a thread that runs `prepare` with all the rights of this thread, then is confined, and then runs `work`.
    /// Returns once it is confined.
    ///
    /// # Errors
    /// If the thread cannot be created or confined.
    pub fn spawn<T>(
        &self,
        role: ThreadRole,
        name: &str,
        prepare: impl FnOnce() -> T + Send + 'static,
        work: impl FnOnce(T) + Send + 'static,
    ) -> anyhow::Result<()> {
        let (confined, outcome) = mpsc::sync_channel(1);
        let sandbox = self.clone();
        let run = move || {
            let prepared = prepare();
            let result = sandbox.confine(role);
            let is_confined = result.is_ok();
            // The thread that starts it is waiting for this.
            let _ = confined.send(result.map(drop));
            if is_confined {
                work(prepared);
            }
        };
        thread::Builder::new().name(name.into()).spawn(run)?;
        outcome.recv().map_err(|_| io::Error::other("the thread ended"))?
    }
}

/// Starts the threads that make room for more sockets.
///
/// # Errors
/// As for [`Sandbox::spawn`].
pub fn start_grower(sandbox: &Sandbox, kernel: &mut Kernel) -> anyhow::Result<()> {
    let Some((grower, placer)) = kernel.grower()? else { return Ok(()) };
    sandbox.spawn(ThreadRole::Grower, "placer", raise_priority, move |_| placer.run())?;
    sandbox.spawn(ThreadRole::Grower, "grower", raise_priority, move |_| grower.run())
}
