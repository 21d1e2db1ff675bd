//! `tcpmon daemon`: watch, and answer scrapes, until told to stop.

use std::{
    io,
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

use super::{ask::Stopped, collector, surroundings};
use crate::{
    cli::DaemonArgs,
    config::{ConfigError, LogFormat, Settings},
    http::{self, Source, Unavailable, WebConfig},
    kernel::{Kernel, Options},
    metrics::Identity,
    model::{
        snapshot::{Seen, Verdict},
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
    let web =
        settings.web_config_file.as_deref().map(WebConfig::read).transpose().map_err(ConfigError::from)?.map(Arc::new);
    // The port first: an address that is taken should be said before anything is loaded.
    let listeners = if settings.systemd_socket { http::inherit()? } else { http::bind(&settings.listen).await? };
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
    let collector = collector::start(kernel, limits, ended).context("no thread for the collector")?;
    let (ended, surroundings_ended) = oneshot::channel();
    let surroundings = surroundings::start(ended).context("no thread for the host")?;

    let running = Arc::new(AtomicBool::new(true));
    let source = Watching { collector, surroundings, running: Arc::clone(&running) };
    let router = http::router(source, Arc::new(Identity::read()), &settings.telemetry_path, web.clone());
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses: Vec<String> = addresses.collect::<io::Result<_>>().context("a listener without address")?;
    info!(addresses = addresses.join(", "), "tcpmon watches and answers");
    // Outside of systemd there is nobody to notify.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);

    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = tokio::spawn(http::serve(listeners, router, web, async {
        let _ = stopped.await;
    }));
    let blind = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
        // They never end by themselves while somebody can ask: better no daemon than a blind one.
        _ = collector_ended => true,
        _ = surroundings_ended => true,
        _ = &mut server => bail!("the web server ended by itself: see the log"),
    };
    running.store(false, Ordering::Relaxed);
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    if blind {
        bail!("a thread ended by itself: see the log");
    }
    info!("tcpmon ends");
    Ok(())
}

/// What the pages ask.
struct Watching {
    collector: collector::Handle,
    surroundings: surroundings::Handle,
    running: Arc<AtomicBool>,
}

impl Source for Watching {
    fn ready(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    async fn see(&self) -> Result<Seen, Unavailable> {
        let stopped = |error: Stopped| Unavailable(error.to_string());
        let (snapshot, host) = tokio::join!(self.collector.ask(), self.surroundings.ask());
        let snapshot = snapshot.map_err(stopped)?.map_err(|error| Unavailable(error.to_string()))?;
        Ok(Seen { snapshot, host: host.map_err(stopped)? })
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
