//! SIGHUP: the daemon reads its configuration again, and logs which settings cannot change while it runs.

use sd_notify::NotifyState;
use tracing::{error, info, level_filters::LevelFilter, warn};
use tracing_subscriber::{Registry, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

use super::collector::{self, Order};
use crate::{
    cli::DaemonArgs,
    config::{Config, ConfigError, Log, LogFormat, LogLevel},
    http::WebConfig,
};

/// The daemon's log, whose level can be changed.
pub(super) struct Level(reload::Handle<LevelFilter, Registry>);

impl Level {
    /// Starts to log.
    pub(super) fn start_log(log: Log) -> Self {
        let (level, handle) = reload::Layer::new(LevelFilter::from(log.level));
        let lines = fmt::layer().with_target(false).with_writer(std::io::stderr);
        let registry = tracing_subscriber::registry().with(level);
        match log.format {
            LogFormat::Text => registry.with(lines.with_ansi(false)).init(),
            LogFormat::Json => registry.with(lines.json()).init(),
        }
        Self(handle)
    }

    fn set(&self, level: LogLevel) {
        // There is a log for as long as the process exists.
        let _ = self.0.reload(LevelFilter::from(level));
    }
}

/// What a daemon runs with.
pub(super) struct Reload {
    /// The arguments with which it was started.
    pub(super) args: DaemonArgs,
    /// The configuration that is in force.
    pub(super) running: Config,
    pub(super) level: Level,
}

impl Reload {
    /// Reads the config file and the web config file again. Notifies systemd when that starts and ends
    /// (`Type=notify-reload`).
    pub(super) fn run(&mut self, collector: &collector::Handle, web: Option<&WebConfig>) {
        let begins = NotifyState::monotonic_usec_now().map(|now| [NotifyState::Reloading, now]);
        let _ = begins.and_then(|begins| sd_notify::notify(false, &begins));
        match self.apply(collector) {
            Ok(()) => info!("the configuration was read again"),
            Err(error) => error!(%error, "the configuration cannot be used; the earlier one stays"),
        }
        if let Some(web) = web {
            web.reload();
        }
        let _ = sd_notify::notify(false, &[NotifyState::Ready]);
    }

    fn apply(&mut self, collector: &collector::Handle) -> Result<(), ConfigError> {
        let new = self.args.config()?;
        new.validate()?;
        self.running.log.level = new.log.level;
        self.running.group_ttl = new.group_ttl.clone();
        self.running.pin = new.pin.clone();
        self.running.max_groups = self.running.max_groups.max(new.max_groups);
        let settings = self.running.validate()?;
        self.level.set(settings.log.level);
        collector.tell(Order::Bounds {
            max_groups: settings.max_groups,
            group_ttl: settings.group_ttl,
            pin: settings.pin,
        });
        let fixed = self.running.differs(&new);
        if !fixed.is_empty() {
            let keys = fixed.join(", ");
            warn!(keys, "these cannot change while tcpmon runs (max_groups cannot fall): restart it");
        }
        Ok(())
    }
}
