//! Commands and flags.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind, value_parser};
use tcpmon_common::settings::FILTER_CGROUPS;

use crate::{
    config::{
        Config, ConfigError, LogFormat, LogLevel, MAX_DROP_ENTRIES, MAX_GROUPS, MAX_READERS, Settings, duration, help,
        port_range, process_name, ring_bytes,
    },
    http::{ListenAddress, TelemetryPath},
};

/// Shows where received TCP bytes wait on this host, and why
#[derive(Debug, Parser)]
#[command(
    name = "tcpmon",
    bin_name = "tcpmon",
    version = concat!(env!("CARGO_PKG_VERSION"), " (revision ", env!("TCPMON_REVISION"), ")"),
    after_help = "Exit status: 0 ended as asked, 1 failed, 2 a flag or the config file is wrong, 3 cannot run on \
         this host."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What tcpmon can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch all TCP sockets of this host and serve metrics to Prometheus
    Daemon(DaemonArgs),
    /// Record each timeslice of chosen readers: what waited, what arrived, what was read
    Trace(TraceArgs),
}

/// Flags of `tcpmon daemon`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_line_help = true,
    after_help = "Flags override the config file. tcpmon only watches: it changes no setting and sends no packet."
)]
pub struct DaemonArgs {
    /// Config file (TOML); `--print-config` shows every key
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the settings in force as a config file, and exit
    #[arg(long)]
    pub print_config: bool,

    #[arg(
        long = "web.listen-address",
        value_name = "ADDRESS",
        help = help("web.listen_address")
    )]
    listen_address: Vec<ListenAddress>,

    #[arg(long = "web.telemetry-path", value_name = "PATH", help = help("web.telemetry_path"))]
    telemetry_path: Option<TelemetryPath>,

    #[arg(long = "web.config.file", value_name = "FILE", help = help("web.config_file"))]
    web_config_file: Option<String>,

    #[arg(
        long = "web.systemd-socket",
        value_name = "true|false",
        help = help("web.systemd_socket"),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true
    )]
    systemd_socket: Option<bool>,

    #[arg(long, value_name = "N", help = help("max_groups"), value_parser = value_parser!(u64).range(MAX_GROUPS))]
    max_groups: Option<u64>,

    #[arg(long, value_name = "TIME", help = help("group_ttl"), value_parser = duration)]
    group_ttl: Option<Duration>,

    #[arg(long, value_name = "NAME", help = help("pin"), value_parser = process_name)]
    pin: Vec<String>,

    #[arg(
        long,
        value_name = "true|false",
        help = help("cgroup_label"),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true
    )]
    cgroup_label: Option<bool>,

    #[arg(long, value_name = "FIRST-LAST", help = help("ephemeral_ports"), value_parser = parse_port_range)]
    ephemeral_ports: Vec<String>,

    #[arg(long, value_name = "N", help = help("max_readers"), value_parser = value_parser!(u64).range(MAX_READERS))]
    max_readers: Option<u64>,

    #[arg(long, value_name = "N", help = help("max_drop_entries"))]
    #[arg(value_parser = value_parser!(u64).range(MAX_DROP_ENTRIES))]
    max_drop_entries: Option<u64>,

    #[arg(long, value_name = "N", help = help("ring_bytes"), value_parser = parse_ring_bytes)]
    ring_bytes: Option<u32>,

    #[arg(long = "log.level", value_name = "LEVEL", help = help("log.level"), hide_possible_values = true)]
    log_level: Option<LogLevel>,

    #[arg(long = "log.format", value_name = "FORMAT", help = help("log.format"), hide_possible_values = true)]
    log_format: Option<LogFormat>,
}

/// Flags of `tcpmon trace`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_line_help = true,
    after_help = "\
A timeslice is recorded when every kind of filter that is given matches; of each kind, one match is enough.
The kernel filters, so what is not asked for costs next to nothing. Ctrl-C ends a trace in good order.

  tcpmon trace --pid 4711 --duration 30s              watch one process
  tcpmon trace --comm xrootd --output run.jsonl       record for pandas or DuckDB
  tcpmon trace --all --port 5201                      every reader of one port"
)]
pub struct TraceArgs {
    /// Trace this process with all its threads; may be repeated
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,

    /// Trace processes of this name (its first 15 bytes, all that the kernel keeps); may be repeated
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub comm: Vec<String>,

    /// Trace sockets with this port on either side; may be repeated
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub port: Vec<u16>,

    /// Trace processes in or below this control group: a path below /sys/fs/cgroup; may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<PathBuf>,

    /// Trace every process; other filters still narrow it
    #[arg(long)]
    pub all: bool,

    /// End the trace after this time, such as `30s` [default: when the processes exit, or at Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Write to this file, which must not exist yet [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Overwrite the file of --output if it exists
    #[arg(long, requires = "output")]
    pub force: bool,

    /// Form: table for people, or jsonl for programs [default: jsonl with --output, else table]
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    format: Option<TraceFormat>,

    /// Size of the ring out of the kernel: a power of two and whole pages
    #[arg(long, value_name = "N", default_value = "8388608", value_parser = parse_ring_bytes)]
    pub ring_bytes: u32,
}

/// Form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// For people: a line a timeslice, a summary at the end
    Table,
    /// For programs: JSON Lines, see docs/trace-format.md
    Jsonl,
}

impl Cli {
    /// The arguments of this process; wrong ones end it with status 2 and a sentence.
    pub fn from_environment() -> Self {
        Self::from_arguments(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Reads arguments, the first of which is the program's name.
    ///
    /// # Errors
    /// A usage error, or the help or version that was asked for.
    pub fn from_arguments(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(arguments)?;
        if let Command::Trace(trace) = &cli.command {
            trace.check().map_err(|(kind, problem)| {
                let mut command = Self::command();
                command.build();
                match command.find_subcommand_mut("trace") {
                    Some(trace) => trace.error(kind, problem),
                    None => command.error(kind, problem),
                }
            })?;
        }
        Ok(cli)
    }
}

impl DaemonArgs {
    /// The config file, if any, with the flags on top.
    ///
    /// # Errors
    /// When the file cannot be read, or a line of it cannot be used.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(file) => Config::read(file)?,
            None => Config::default(),
        };
        if !self.listen_address.is_empty() {
            config.web.listen_address = self.listen_address.iter().map(ToString::to_string).collect();
        }
        set(&mut config.web.telemetry_path, self.telemetry_path.as_ref().map(ToString::to_string));
        set(&mut config.web.config_file, self.web_config_file.clone());
        set(&mut config.web.systemd_socket, self.systemd_socket);
        set(&mut config.max_groups, self.max_groups);
        set(&mut config.group_ttl, self.group_ttl.map(|ttl| humantime::format_duration(ttl).to_string()));
        if !self.pin.is_empty() {
            config.pin.clone_from(&self.pin);
        }
        set(&mut config.cgroup_label, self.cgroup_label);
        if !self.ephemeral_ports.is_empty() {
            config.ephemeral_ports.clone_from(&self.ephemeral_ports);
        }
        set(&mut config.max_readers, self.max_readers);
        set(&mut config.max_drop_entries, self.max_drop_entries);
        set(&mut config.ring_bytes, self.ring_bytes.map(u64::from));
        set(&mut config.log.level, self.log_level);
        set(&mut config.log.format, self.log_format);
        Ok(config)
    }

    /// [`DaemonArgs::config`], validated.
    ///
    /// # Errors
    /// As there.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        Ok(self.config()?.validate()?)
    }
}

fn set<T>(value: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *value = flag;
    }
}

impl TraceArgs {
    /// Form of the records.
    pub fn format(&self) -> TraceFormat {
        match (self.format, &self.output) {
            (Some(format), _) => format,
            (None, Some(_)) => TraceFormat::Jsonl,
            (None, None) => TraceFormat::Table,
        }
    }

    fn check(&self) -> Result<(), (ErrorKind, String)> {
        let filters = self.pid.len() + self.comm.len() + self.port.len() + self.cgroup.len();
        if filters == 0 && !self.all {
            return Err((
                ErrorKind::MissingRequiredArgument,
                "say what to trace: --pid, --comm, --port or --cgroup, or --all for every process".into(),
            ));
        }
        if self.cgroup.len() > FILTER_CGROUPS {
            return Err((
                ErrorKind::TooManyValues,
                format!("--cgroup can be given {FILTER_CGROUPS} times at most: name a common parent instead"),
            ));
        }
        Ok(())
    }
}

/// Checks it and leaves it as it is.
fn parse_port_range(text: &str) -> Result<String, String> {
    port_range(text).map(|_| text.to_owned())
}

fn parse_ring_bytes(text: &str) -> Result<u32, String> {
    ring_bytes(text.parse().map_err(|error| format!("{text:?} is no number of bytes ({error})"))?)
}

#[cfg(test)]
mod tests;
