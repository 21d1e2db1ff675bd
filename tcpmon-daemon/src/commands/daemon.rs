//! `tcpmon daemon`: monitors sockets and answers scrapes until a signal stops it.

use std::{
    convert::Infallible,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use sd_notify::NotifyState;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::{info, warn};

use super::{
    collector::{self, CollectorHandle},
    flight_child::FlightChild,
    host_thread,
    live_data::LiveData,
    notifier::Notifier,
    reload::{LogHandle, Reloader},
};
use crate::{
    cli::DaemonArgs,
    config::{ConfigError, DaemonSettings},
    host::cgroup_paths::CgroupPaths,
    http::{self, Endpoint, WebConfig},
    kernel::{Kernel, Options},
    live,
    metrics::Identity,
    model::{cgroups::Process, table::TableLimits},
    sandbox::{self, Sandbox, ThreadRole},
    status::Verdict,
};

/// Runs until SIGTERM, SIGINT or SIGQUIT. On SIGHUP, it reads its configuration again.
pub fn run(args: &DaemonArgs) -> anyhow::Result<()> {
    if args.print_config {
        return match write!(io::stdout(), "{}", args.config()?) {
            // In `--print-config | head`, the reader may close the pipe early.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("cannot write the configuration to standard output")
            }
            _ => Ok(()),
        };
    }
    // Before any capability is given up, because the recorder is a process of its own. Errors in the settings are
    // reported below.
    let flight = args.settings().ok().and_then(|settings| settings.flight);
    let flight = flight.map(|settings| FlightChild::start(&settings)).transpose()?;
    sandbox::begin().context("cannot give up capabilities")?;
    let config = args.config()?;
    let settings = config.validate().map_err(ConfigError::from)?;
    let reloader = Reloader { args: args.clone(), running: config, log: LogHandle::start(settings.log) };
    // One thread answers scrapes; the collector's thread does the work.
    configure_allocator();
    super::runtime()?.block_on(serve(settings, reloader, flight))
}

impl From<&DaemonSettings> for Options {
    fn from(settings: &DaemonSettings) -> Self {
        Self {
            trace: None,
            max_sockets: settings.max_sockets,
            max_readers: settings.max_readers,
            max_drop_entries: settings.max_drop_entries,
            drops: true,
            ring_bytes: settings.ring_bytes,
            ephemeral_ports: settings.ephemeral_ports.clone(),
            switched_off: settings.probes.switched_off(),
        }
    }
}

async fn serve(settings: DaemonSettings, mut reloader: Reloader, flight: Option<FlightChild>) -> anyhow::Result<()> {
    let on = |kind| signal(kind).context("cannot install a signal handler");
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let (mut quit, mut hangup) = (on(SignalKind::quit())?, on(SignalKind::hangup())?);
    let web =
        settings.web_config_file.as_deref().map(WebConfig::read).transpose().map_err(ConfigError::from)?.map(Arc::new);
    let notifier = Notifier::connect();
    // Listen first: an address that is in use should be reported before anything is loaded.
    let listeners =
        if settings.systemd_socket { http::systemd_sockets()? } else { http::bind(&settings.listen).await? };
    let live_listener = settings.live_socket.as_deref().map(live::listen).transpose()?;
    let kernel = Kernel::load(Options::from(&settings))?;
    trim_allocator();
    for probe in
        kernel.probes().iter().filter(|probe| !matches!(probe.verdict, Verdict::Attached | Verdict::SwitchedOff))
    {
        warn!(probe = probe.name, reason = probe.reason, "a probe is not attached");
    }
    let config_files = reloader.args.config.iter().cloned().chain(web.iter().flat_map(|web| web.files()));
    let sandbox = Sandbox::new(settings.sandbox, config_files.collect());
    let (ended, mut collector_ended) = oneshot::channel();
    let limits = TableLimits {
        max_groups: settings.max_groups,
        group_ttl: settings.group_ttl,
        pin: settings.pin,
        cgroup_of: settings.cgroup_label.then(|| {
            let mut paths = CgroupPaths::of_this_host();
            Box::new(move |process: &Process| paths.paths(process.tgid, process.cgroup)) as _
        }),
    };
    let collector = collector::start(kernel, limits, &sandbox, ended).context("cannot start the collector thread")?;
    let (ended, mut host_thread_ended) = oneshot::channel();
    let host = host_thread::start(settings.collect.switched_off(), &sandbox, ended);
    let host = host.context("cannot start the host thread")?;
    // Threads that tokio starts later are confined as this one is.
    let sandbox = sandbox.confine(ThreadRole::Endpoint)?;
    if !sandbox.reason.is_empty() {
        warn!(reason = sandbox.reason, "the sandbox is incomplete");
    }

    let source =
        LiveData { collector: collector.clone(), host, sandbox, flight: flight.as_ref().map(FlightChild::watch) };
    if let Some(listener) = live_listener {
        tokio::spawn(live::serve(listener, Arc::new(source.clone())));
    }
    let endpoint = Endpoint::new(source, Arc::new(Identity::read()), settings.telemetry_path, web.clone());
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses: Vec<String> =
        addresses.collect::<io::Result<_>>().context("cannot determine the address of a listening socket")?;
    info!(addresses = addresses.join(", "), "tcpmon has started and accepts requests");
    notifier.notify(&[NotifyState::Ready]);

    if let Some(recorder) = flight {
        tokio::spawn(recorder.wait());
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = tokio::spawn(http::serve(listeners, endpoint, async {
        let _ = stopped.await;
    }));
    let mut watchdog = tokio::spawn(watchdog(collector.clone(), notifier.clone()));
    let thread_ended = loop {
        tokio::select! {
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            _ = quit.recv() => break false,
            _ = hangup.recv() => reloader.run(&collector, web.as_deref(), &notifier),
            // These do not end by themselves while there are clients. If one does, the daemon ends: no daemon is better
            // than one that shows old values.
            _ = &mut collector_ended => break true,
            _ = &mut host_thread_ended => break true,
            _ = &mut watchdog => break true,
            _ = &mut server => bail!("the HTTP server ended unexpectedly: see the log"),
        }
    };
    notifier.notify(&[NotifyState::Stopping]);
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    if thread_ended {
        bail!("a thread of the daemon ended unexpectedly: see the log");
    }
    info!("tcpmon has stopped");
    Ok(())
}

/// Notifies systemd's watchdog while all is well, if it is enabled (`WatchdogSec=`): systemd restarts a daemon that
/// sends no notification.
async fn watchdog(collector: CollectorHandle, notifier: Notifier) -> Infallible {
    let Some(interval) = watchdog_interval() else { return std::future::pending().await };
    loop {
        if collector.health().is_ok() {
            notifier.notify(&[NotifyState::Watchdog]);
            tokio::time::sleep(interval / 2).await;
        } else {
            // The process may have been stopped for a moment. Report as soon as it runs again.
            tokio::time::sleep(HEALTH_RETRY_INTERVAL).await;
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
const HEALTH_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Keeps the allocator from holding on to memory. Large blocks come from the system and go back to it when they are
/// freed, and threads share the rest: otherwise, at 10,000 groups, the arena of each thread that has had a snapshot and
/// a page would keep their memory.
#[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
fn configure_allocator() {
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
fn trim_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
