//! What surrounds the sockets: a second thread, which reads what the host says of itself. It is apart from the
//! collector because a driver may take long over its statistics, and the ring must be emptied meanwhile.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};
use tracing::{info, warn};

use super::ask;
use crate::{
    host::Sources,
    model::host::{Host, Source},
};

/// The kernel log is a ring: it is looked at this often, scraped or not.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// A scrape does not wait longer for the host: what the programs saw is worth having without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks for what the host says.
#[derive(Debug)]
pub(super) struct Handle(ask::Handle<Arc<Host>>);

impl Handle {
    /// What the host says now, or that it does not answer in time.
    ///
    /// # Errors
    /// When the thread has stopped.
    pub(super) async fn ask(&self) -> Result<Arc<Host>, ask::Stopped> {
        match timeout(PATIENCE, self.0.ask()).await {
            Ok(host) => host,
            Err(_) => {
                let reason = format!("not read within {} s: none of the host's families are shown", PATIENCE.as_secs());
                let source = Source { name: "all", available: false, reason };
                Ok(Arc::new(Host { sources: vec![source], ..Host::default() }))
            }
        }
    }
}

/// Starts the thread. It ends with the handle; `ended` is dropped with it, however it ends.
///
/// # Errors
/// When no thread can be made.
pub(super) fn start(ended: oneshot::Sender<()>) -> std::io::Result<Handle> {
    let (handle, inbox) = ask::channel();
    thread::Builder::new().name("surroundings".into()).spawn(move || {
        let _ended = ended;
        run(&inbox);
    })?;
    Ok(Handle(handle))
}

fn run(inbox: &mpsc::Receiver<ask::Request<Arc<Host>>>) {
    let mut sources = Sources::open();
    let mut known = HashMap::new();
    // Some counters count from what is there now.
    log_changes(&mut known, &sources.read().sources);
    loop {
        match inbox.recv_timeout(LOG_EVERY) {
            Ok(request) => {
                let host = ask::answer(request, inbox, || Arc::new(sources.read()));
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

/// What is off is said once, and again when it changes.
fn log_changes(known: &mut HashMap<&'static str, String>, sources: &[Source]) {
    for source in sources {
        let before = known.insert(source.name, source.reason.clone());
        if before.as_deref().unwrap_or_default() == source.reason {
            continue;
        }
        if source.available {
            info!(source = source.name, notes = source.reason, "a source of the host is read");
        } else {
            warn!(source = source.name, reason = source.reason, "a source of the host is off");
        }
    }
}
