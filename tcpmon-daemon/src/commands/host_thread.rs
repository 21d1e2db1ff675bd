//! The host thread, which samples the host. It is separate from the collector because a driver may take a long time to
//! return its statistics, and the ring must be emptied meanwhile.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::worker::{self, NoReply, WorkerHandle, WorkerInbox};
use crate::{
    host::{KernelLog, Sources},
    host_state::{Host, SourceStatus},
    sandbox::{Sandbox, ThreadRole},
};

/// The kernel log is a ring, so it is read this often, with or without scrapes.
const KERNEL_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time that a scrape waits for the host: what the programs saw is useful without it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests samples of the host.
#[derive(Clone, Debug)]
pub(super) struct HostHandle(WorkerHandle<Arc<Host>>);

impl HostHandle {
    /// A current sample of the host; if the thread does not reply in time, a sample that only reports this.
    ///
    /// # Errors
    /// If the thread has stopped.
    pub(super) async fn sample(&self) -> Result<Arc<Host>, NoReply> {
        match self.0.request(REQUEST_TIMEOUT).await {
            Err(timeout @ NoReply::Unresponsive(..)) => {
                let reason = format!("{timeout}; missing metrics: all of the host");
                let source = SourceStatus { name: "all", available: false, switched_off: false, reason };
                Ok(Arc::new(Host { sources: vec![source], ..Host::default() }))
            }
            reply => reply,
        }
    }
}

/// Starts the thread, which does not read the sources that are switched off. It ends when every handle is gone; `ended`
/// is dropped with it, however it ends.
///
/// # Errors
/// If no thread can be created or confined.
pub(super) fn start(
    switched_off: Vec<&'static str>,
    sandbox: &Sandbox,
    ended: oneshot::Sender<()>,
) -> anyhow::Result<HostHandle> {
    let (handle, inbox) = worker::channel("host thread");
    let work = move |log| {
        let _ended = ended;
        run(&inbox, Sources::open(switched_off, log));
    };
    // Before the thread is confined: opening the log needs a capability that reading it does not.
    sandbox.spawn(ThreadRole::Host, "host", KernelLog::open, work)?;
    Ok(HostHandle(handle))
}

fn run(inbox: &WorkerInbox<Arc<Host>>, mut sources: Sources) {
    let mut logged = HashMap::new();
    // The first read sets the baseline of some counters.
    log_changes(&mut logged, &sources.read().sources);
    loop {
        match inbox.wait(KERNEL_LOG_INTERVAL) {
            Ok(request) => {
                let host = inbox.reply(request, || Arc::new(sources.read()));
                log_changes(&mut logged, &host.sources);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        if let Some(message) = sources.read_kernel_log() {
            warn!(message, "a page allocation failed in the kernel");
        }
    }
}

/// What has already been logged about a source.
#[derive(Default)]
struct LoggedStatus {
    /// That the source is not available.
    unavailable: bool,
    /// That it is incomplete.
    notes: bool,
}

/// Logs once that a source is not available, and again when that changes. What an available source cannot read is
/// logged only once, because it names processes and namespaces, which come and go.
fn log_changes(logged: &mut HashMap<&'static str, LoggedStatus>, sources: &[SourceStatus]) {
    for source in sources.iter().filter(|source| !source.switched_off) {
        let status = logged.entry(source.name).or_default();
        let changed = std::mem::replace(&mut status.unavailable, !source.available) == source.available;
        let has_notes = source.available && !source.reason.is_empty();
        if !changed && (!has_notes || std::mem::replace(&mut status.notes, true)) {
            continue;
        }
        status.notes |= has_notes;
        if !source.available {
            warn!(source = source.name, reason = source.reason, "a source of host metrics is not available");
        } else if has_notes {
            info!(source = source.name, notes = source.reason, "a source of host metrics is incomplete");
        } else {
            info!(source = source.name, "a source of host metrics is available again");
        }
    }
}
