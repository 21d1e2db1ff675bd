//! SIGHUP: the daemon reads its configuration again, and logs which settings cannot change while it runs.

use sd_notify::NotifyState;
use tracing::{error, info, level_filters::LevelFilter, warn};
use tracing_subscriber::{Registry, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

use super::{
    collector::{CollectorHandle, GroupLimits},
    notifier::Notifier,
};
use crate::{
    cli::DaemonArgs,
    config::{Config, ConfigError, Log, LogFormat, LogLevel},
    http::WebConfig,
};

/// The daemon's log, whose level can be changed.
pub(super) struct LogHandle(reload::Handle<LevelFilter, Registry>);

impl LogHandle {
    /// Starts to log.
    pub(super) fn start(log: Log) -> Self {
        let (level, handle) = reload::Layer::new(LevelFilter::from(log.level));
        let lines = fmt::layer().with_target(false).with_writer(std::io::stderr);
        let registry = tracing_subscriber::registry().with(level);
        match log.format {
            LogFormat::Text => registry.with(lines.with_ansi(false)).init(),
            LogFormat::Json => registry.with(lines.json()).init(),
        }
        Self(handle)
    }

    fn set_level(&self, level: LogLevel) {
        // Cannot fail: the log exists for as long as the process.
        let _ = self.0.reload(LevelFilter::from(level));
    }
}

/// The configuration of the running daemon, and how to read it again.
pub(super) struct Reloader {
    /// The arguments with which it was started.
    pub(super) args: DaemonArgs,
    /// The configuration that is in force.
    pub(super) running: Config,
    pub(super) log: LogHandle,
}

impl Reloader {
    /// Reads the config file and the web config file again. Notifies systemd when the reload starts and ends
    /// (`Type=notify-reload`).
    pub(super) fn run(&mut self, collector: &CollectorHandle, web: Option<&WebConfig>, notifier: &Notifier) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            notifier.notify(&[NotifyState::Reloading, now]);
        }
        match self.apply(collector) {
            Ok(()) => info!("reloaded the configuration"),
            Err(error) => error!(%error, "cannot reload the configuration; the previous one stays in force"),
        }
        if let Some(web) = web {
            web.reload();
        }
        notifier.notify(&[NotifyState::Ready]);
    }

    fn apply(&mut self, collector: &CollectorHandle) -> Result<(), ConfigError> {
        let new = self.args.config()?;
        new.validate()?;
        self.running.log.level = new.log.level;
        self.running.group_ttl = new.group_ttl.clone();
        self.running.pin = new.pin.clone();
        self.running.max_groups = self.running.max_groups.max(new.max_groups);
        let settings = self.running.validate()?;
        self.log.set_level(settings.log.level);
        collector.set_limits(GroupLimits {
            max_groups: settings.max_groups,
            group_ttl: settings.group_ttl,
            pin: settings.pin,
        });
        let unchanged = self.running.changed_keys(&new);
        if !unchanged.is_empty() {
            let keys = unchanged.join(", ");
            warn!(keys, "these settings cannot change while tcpmon runs (max_groups cannot decrease): restart tcpmon");
        }
        Ok(())
    }
}
