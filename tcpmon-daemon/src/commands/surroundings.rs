//! The host thread: a second thread, which samples the host. It is separate from the collector because a driver may
//! take long for its statistics, and the ring must be emptied meanwhile.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::ask::{self, NoAnswer};
use crate::{
    host::Sources,
    model::host::{Host, Source},
};

/// The kernel log is a ring, so it is read this often, with or without scrapes.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Maximum time that a scrape waits for the host: what the programs saw is useful without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Requests samples of the host.
#[derive(Clone, Debug)]
pub(super) struct Handle(ask::Handle<Arc<Host>>);

impl Handle {
    /// A current sample of the host, or the report that it does not answer in time.
    ///
    /// # Errors
    /// If the thread has stopped.
    pub(super) async fn ask(&self) -> Result<Arc<Host>, NoAnswer> {
        match self.0.ask(PATIENCE).await {
            Err(silent @ NoAnswer::Silent(..)) => {
                let reason = format!("{silent}; without it: none of the host's families");
                let source = Source { name: "all", available: false, reason };
                Ok(Arc::new(Host { sources: vec![source], ..Host::default() }))
            }
            answer => answer,
        }
    }
}

/// Starts the thread. It ends when every handle is gone; `ended` is dropped with it, however it ends.
///
/// # Errors
/// If no thread can be created.
pub(super) fn start(ended: oneshot::Sender<()>) -> std::io::Result<Handle> {
    let (handle, inbox) = ask::channel("host's reader");
    thread::Builder::new().name("surroundings".into()).spawn(move || {
        let _ended = ended;
        run(&inbox);
    })?;
    Ok(Handle(handle))
}

fn run(inbox: &ask::Inbox<Arc<Host>>) {
    let mut sources = Sources::open();
    let mut known = HashMap::new();
    // Some counters count from their present values.
    log_changes(&mut known, &sources.read().sources);
    loop {
        match inbox.wait(LOG_EVERY) {
            Ok(request) => {
                let host = inbox.answer(request, || Arc::new(sources.read()));
                log_changes(&mut known, &host.sources);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        if let Some(failure) = sources.follow_log() {
            warn!(failure, "the kernel could not allocate pages");
        }
    }
}

/// What was logged about a source.
#[derive(Default)]
struct Said {
    off: bool,
    notes: bool,
}

/// Logs once that a source is off, and again when that changes. What an available source cannot read is logged only
/// once, because it names processes and namespaces, which come and go.
fn log_changes(known: &mut HashMap<&'static str, Said>, sources: &[Source]) {
    for source in sources {
        let said = known.entry(source.name).or_default();
        let changed = std::mem::replace(&mut said.off, !source.available) == source.available;
        let noted = source.available && !source.reason.is_empty();
        if !changed && (!noted || std::mem::replace(&mut said.notes, true)) {
            continue;
        }
        said.notes |= noted;
        if source.available {
            info!(source = source.name, notes = source.reason, "a source of the host is read");
        } else {
            warn!(source = source.name, reason = source.reason, "a source of the host is off");
        }
    }
}
