//! `tcpmon daemon`: watch, and answer scrapes, until told to stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::{info, warn};

use super::collector::{self, Handle};
use crate::{
    cli::DaemonArgs,
    config::{LogFormat, Settings},
    http::{self, Source, Unavailable},
    kernel::{Kernel, Options},
    metrics::Identity,
    model::{
        snapshot::{Snapshot, Verdict},
        table::Limits,
    },
};

/// Runs until SIGTERM or SIGINT.
pub fn run(args: &DaemonArgs) -> anyhow::Result<()> {
    if args.print_config {
        print!("{}", args.config()?);
        return Ok(());
    }
    let settings = args.settings()?;
    start_log(&settings);
    // One thread answers scrapes, the collector's does the work.
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?.block_on(serve(settings))
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("no signal handler")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("no signal handler")?;
    // The port first: an address that is taken should be said before anything is loaded.
    let listeners = http::bind(&settings.listen).await?;
    let kernel = Kernel::load(Options {
        trace: None,
        max_readers: settings.max_readers,
        max_drop_entries: settings.max_drop_entries,
        ring_bytes: settings.ring_bytes,
    })?;
    give_back_memory();
    for probe in kernel.probes().iter().filter(|probe| probe.verdict != Verdict::Attached) {
        warn!(probe = probe.name, reason = probe.reason, "a probe is not attached");
    }
    let (ended, collector_ended) = oneshot::channel();
    let limits = Limits {
        max_groups: settings.max_groups,
        group_ttl: settings.group_ttl,
        cgroup_of: settings.cgroup_label.then(|| Box::new(collector::cgroup_of) as _),
    };
    let handle = collector::start(kernel, limits, ended).context("no thread for the collector")?;

    let running = Arc::new(AtomicBool::new(true));
    let source = Watching { handle, running: Arc::clone(&running) };
    let router = http::router(source, Arc::new(Identity::read()), &settings.telemetry_path);
    let addresses: Vec<String> = settings.listen.iter().map(ToString::to_string).collect();
    info!(addresses = addresses.join(", "), "tcpmon watches and answers");
    // Outside of systemd there is nobody to notify.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);

    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = tokio::spawn(http::serve(listeners, router, async {
        let _ = stopped.await;
    }));
    let blind = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
        // It never ends by itself while somebody can ask: better no daemon than a blind one.
        _ = collector_ended => true,
        _ = &mut server => bail!("the web server ended by itself: see the log"),
    };
    running.store(false, Ordering::Relaxed);
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    if blind {
        bail!("the collector ended by itself: see the log");
    }
    info!("tcpmon ends");
    Ok(())
}

/// What the pages ask.
struct Watching {
    handle: Handle,
    running: Arc<AtomicBool>,
}

impl Source for Watching {
    fn ready(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    async fn snapshot(&self) -> Result<Arc<Snapshot>, Unavailable> {
        self.handle.snapshot().await.map_err(|error| Unavailable(error.to_string()))
    }
}

fn start_log(settings: &Settings) {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::from(settings.log.level))
        .with_target(false)
        .with_writer(std::io::stderr);
    match settings.log.format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// Loading parses the kernel's types, some tens of megabytes that are not needed again: the allocator would keep
/// them for later.
#[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
