//! `tcpmon daemon`: watches sockets and answers scrapes until it is told to stop.

use std::{
    convert::Infallible,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::{info, warn};

use super::{
    collector,
    reload::{Level, Reload},
    surroundings,
};
use crate::{
    cli::DaemonArgs,
    config::{ConfigError, Settings},
    http::{self, Source, Unavailable, WebConfig},
    kernel::{Kernel, Options},
    metrics::Identity,
    model::{
        snapshot::{Observed, Verdict},
        table::TableLimits,
    },
};

/// Runs until SIGTERM, SIGINT or SIGQUIT. On SIGHUP, it reads its configuration again.
pub fn run(args: &DaemonArgs) -> anyhow::Result<()> {
    if args.print_config {
        return match write!(io::stdout(), "{}", args.config()?) {
            // In `--print-config | head`, the reader may close the pipe early.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print the config"),
            _ => Ok(()),
        };
    }
    let config = args.config()?;
    let settings = config.validate().map_err(ConfigError::from)?;
    let reload = Reload { args: args.clone(), running: config, level: Level::start_log(settings.log) };
    // One thread answers scrapes; the collector's thread does the work.
    keep_little_memory();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(serve(settings, reload))
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        Self {
            trace: None,
            max_readers: settings.max_readers,
            max_drop_entries: settings.max_drop_entries,
            ring_bytes: settings.ring_bytes,
            ephemeral_ports: settings.ephemeral_ports.clone(),
        }
    }
}

async fn serve(settings: Settings, mut reload: Reload) -> anyhow::Result<()> {
    let on = |kind| signal(kind).context("no signal handler");
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let (mut quit, mut hangup) = (on(SignalKind::quit())?, on(SignalKind::hangup())?);
    let web =
        settings.web_config_file.as_deref().map(WebConfig::read).transpose().map_err(ConfigError::from)?.map(Arc::new);
    // The port first: an address that is in use should be reported before anything is loaded.
    let listeners = if settings.systemd_socket { http::inherit()? } else { http::bind(&settings.listen).await? };
    let kernel = Kernel::load(Options::from(&settings))?;
    give_back_memory();
    for probe in kernel.probes().iter().filter(|probe| probe.verdict != Verdict::Attached) {
        warn!(probe = probe.name, reason = probe.reason, "a probe is not attached");
    }
    let (ended, mut collector_ended) = oneshot::channel();
    let limits = TableLimits {
        max_groups: settings.max_groups,
        group_ttl: settings.group_ttl,
        pin: settings.pin,
        cgroup_of: settings.cgroup_label.then(|| Box::new(collector::cgroup_of) as _),
    };
    let collector = collector::start(kernel, limits, ended).context("no thread for the collector")?;
    let (ended, mut surroundings_ended) = oneshot::channel();
    let surroundings = surroundings::start(ended).context("no thread for the host")?;

    let source = Watching { collector: collector.clone(), surroundings };
    let router = http::router(source, Arc::new(Identity::read()), &settings.telemetry_path, web.clone());
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses: Vec<String> = addresses.collect::<io::Result<_>>().context("a listener without address")?;
    info!(addresses = addresses.join(", "), "tcpmon watches and answers");
    // Outside of systemd there is nobody to notify.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);

    let (stop, stopped) = oneshot::channel::<()>();
    let in_force = web.clone();
    let mut server = tokio::spawn(http::serve(listeners, router, web, async {
        let _ = stopped.await;
    }));
    let mut watchdog = tokio::spawn(watchdog(collector.clone()));
    let blind = loop {
        tokio::select! {
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            _ = quit.recv() => break false,
            _ = hangup.recv() => reload.run(&collector, in_force.as_deref()),
            // These do not end by themselves while there are clients. If one does, the daemon ends: no daemon is better
            // than a blind one.
            _ = &mut collector_ended => break true,
            _ = &mut surroundings_ended => break true,
            _ = &mut watchdog => break true,
            _ = &mut server => bail!("the web server ended by itself: see the log"),
        }
    };
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    if blind {
        bail!("a thread ended by itself: see the log");
    }
    info!("tcpmon ends");
    Ok(())
}

/// Notifies systemd's watchdog while all is well, if it is enabled (`WatchdogSec=`): systemd restarts a daemon that
/// stays silent.
async fn watchdog(collector: collector::Handle) -> Infallible {
    let Some(interval) = watchdog_interval() else { return std::future::pending().await };
    loop {
        if collector.health().is_ok() {
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Watchdog]);
            tokio::time::sleep(interval / 2).await;
        } else {
            // The process may have been stopped for a moment. Report as soon as it runs again.
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// The watchdog interval, as in `sd_watchdog_enabled(3)`. The function of sd-notify requires WATCHDOG_PID, which
/// systemd may leave out.
fn watchdog_interval() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|us| meant && *us > 0).map(Duration::from_micros)
}

/// Time until the next health check after one that failed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the HTTP endpoint requests its data from.
struct Watching {
    collector: collector::Handle,
    surroundings: surroundings::Handle,
}

impl Source for Watching {
    fn health(&self) -> Result<(), Unavailable> {
        self.collector.health()
    }

    async fn see(&self) -> Result<Observed, Unavailable> {
        let (snapshot, host) = tokio::join!(self.collector.ask(), self.surroundings.ask());
        Ok(Observed { snapshot: snapshot?, host: host.map_err(|error| Unavailable(error.to_string()))? })
    }
}

/// Keeps the allocator from holding on to memory. Large blocks come from the system and go back there when they are
/// freed, and threads share the rest: otherwise, at 10,000 groups, the arena of each thread that has had a snapshot and
/// a page would keep their memory.
#[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
fn keep_little_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes only numbers; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns freed memory to the system. Loading parses the kernel's types, some tens of megabytes that are not needed
/// again; the allocator would keep them for later.
#[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
