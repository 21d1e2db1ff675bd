//! Commands and flags.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind, value_parser};
use tcpmon_common::settings::FILTER_CGROUPS;

use crate::{
    config::{
        Config, ConfigError, DROP_ENTRIES_RANGE, DaemonSettings, GROUPS_RANGE, Keep, LogFormat, LogLevel, ProbeProfile,
        READERS_RANGE, check_process_name, check_ring_bytes, key_help, parse_duration, parse_keep, parse_port_range,
        parse_size,
    },
    doctor::facts::{Facts, Goal},
    http::{ListenAddress, TelemetryPath},
    top::SortKey,
    trigger::TriggerRule,
};

/// Shows where received TCP bytes wait on this host, and why
#[derive(Debug, Parser)]
#[command(
    name = "tcpmon",
    bin_name = "tcpmon",
    version = concat!(env!("CARGO_PKG_VERSION"), " (revision ", env!("TCPMON_REVISION"), ")"),
    after_help = "Exit status: 0 success; 1 failure or finding; 2 invalid option or config file; 3 tcpmon cannot run \
         here."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What tcpmon can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Monitor all TCP sockets of this host and serve metrics to Prometheus
    Daemon(DaemonArgs),
    /// Record every timeslice of selected readers: bytes that waited, arrived and were read
    Trace(TraceArgs),
    /// Say what limited the transfers of a trace, and what would help; compare two traces
    Report(ReportArgs),
    /// Write a trace in another format
    Convert(ConvertArgs),
    /// Watch connections live: what limits each, and where its bytes wait
    Top(TopArgs),
    /// Check whether tcpmon can run here, and whether this host is fit to receive; changes nothing
    Doctor(DoctorArgs),
}

/// Flags of `tcpmon daemon`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_line_help = true,
    after_help = "\
Options override the config file. tcpmon only observes: it changes no kernel setting and sends no packet."
)]
pub struct DaemonArgs {
    /// Config file (TOML); `--print-config` lists all keys [default: none]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the effective settings as a config file, and exit
    #[arg(long)]
    pub print_config: bool,

    #[arg(
        long = "web.listen-address",
        value_name = "ADDRESS",
        help = key_help("web.listen_address")
    )]
    listen_address: Vec<ListenAddress>,

    #[arg(long = "web.telemetry-path", value_name = "PATH", help = key_help("web.telemetry_path"))]
    telemetry_path: Option<TelemetryPath>,

    #[arg(long = "web.config.file", value_name = "FILE", help = key_help("web.config_file"))]
    web_config_file: Option<String>,

    #[arg(
        long = "web.systemd-socket",
        value_name = "true|false",
        help = key_help("web.systemd_socket"),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true
    )]
    systemd_socket: Option<bool>,

    #[arg(long, value_name = "N", help = key_help("max_groups"), value_parser = value_parser!(u64).range(GROUPS_RANGE))]
    max_groups: Option<u64>,

    #[arg(long, value_name = "TIME", help = key_help("group_ttl"), value_parser = parse_duration)]
    group_ttl: Option<Duration>,

    #[arg(long, value_name = "NAME", help = key_help("pin"), value_parser = check_process_name)]
    pin: Vec<String>,

    #[arg(
        long,
        value_name = "true|false",
        help = key_help("cgroup_label"),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true
    )]
    cgroup_label: Option<bool>,

    #[arg(long, value_name = "FIRST-LAST", help = key_help("ephemeral_ports"), value_parser = check_port_range)]
    ephemeral_ports: Vec<String>,

    #[arg(long, value_name = "N", help = key_help("max_sockets"))]
    max_sockets: Option<u64>,
    #[arg(long, value_name = "N", help = key_help("max_readers"))]
    #[arg(value_parser = value_parser!(u64).range(READERS_RANGE))]
    max_readers: Option<u64>,

    #[arg(long, value_name = "N", help = key_help("max_drop_entries"))]
    #[arg(value_parser = value_parser!(u64).range(DROP_ENTRIES_RANGE))]
    max_drop_entries: Option<u64>,

    #[arg(long, value_name = "N", help = key_help("ring_bytes"), value_parser = parse_ring_bytes)]
    ring_bytes: Option<u32>,

    #[arg(
        long,
        value_name = "true|false",
        help = key_help("sandbox"),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true
    )]
    sandbox: Option<bool>,

    #[arg(long, value_name = "PATH", help = key_help("live_socket"))]
    live_socket: Option<String>,

    #[arg(long = "collect.softnet", value_name = "true|false", help = key_help("collect.softnet"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    collect_softnet: Option<bool>,

    #[arg(long = "collect.sockstat", value_name = "true|false", help = key_help("collect.sockstat"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    collect_sockstat: Option<bool>,

    #[arg(long = "collect.zones", value_name = "true|false", help = key_help("collect.zones"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    collect_zones: Option<bool>,

    #[arg(long = "collect.psi", value_name = "true|false", help = key_help("collect.psi"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    collect_psi: Option<bool>,

    #[arg(long = "collect.stat", value_name = "true|false", help = key_help("collect.stat"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    collect_stat: Option<bool>,

    #[arg(long = "collect.netstat", value_name = "true|false", help = key_help("collect.netstat"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    collect_netstat: Option<bool>,

    #[arg(long = "probes.profile", value_name = "PROFILE", help = key_help("probes.profile"))]
    #[arg(hide_possible_values = true)]
    probes_profile: Option<ProbeProfile>,

    #[arg(long = "probes.sched-switch", value_name = "true|false", help = key_help("probes.sched_switch"))]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    probes_sched_switch: Option<bool>,

    #[arg(long = "probes.napi-poll", value_name = "true|false", help = key_help("probes.napi_poll"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    probes_napi_poll: Option<bool>,

    #[arg(long = "probes.kfree-skb", value_name = "true|false", help = key_help("probes.kfree_skb"), num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    probes_kfree_skb: Option<bool>,

    #[arg(long = "log.level", value_name = "LEVEL", help = key_help("log.level"), hide_possible_values = true)]
    log_level: Option<LogLevel>,

    #[arg(long = "log.format", value_name = "FORMAT", help = key_help("log.format"), hide_possible_values = true)]
    log_format: Option<LogFormat>,
}

/// Flags of `tcpmon trace`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_line_help = true,
    after_help = "\
A timeslice is recorded if it matches all kinds of filters that are given; of each kind, one match is enough.
The eBPF programs filter in the kernel: what does not match costs 0.1 to 0.3 us. Ctrl-C ends the trace.
A RULE is `cause=scheduler>50% for 2s` (or another cause), `zero-window>1s`, `wait>100ms` or `drop`.

  tcpmon trace -- iperf3 -s -1                        run a command and trace it until it ends
  tcpmon trace --pid 4711 --duration 30s              trace one process
  tcpmon trace --comm xrootd --output run.parquet     write a file for pandas, DuckDB or Spark
  tcpmon trace --all --port 5201                      trace all readers of one port
  tcpmon trace --all --output late.parquet --ring 60s --trigger 'wait>100ms'"
)]
pub struct TraceArgs {
    /// Trace this process and all its threads; may be repeated
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,

    /// Trace processes with this name (the kernel keeps its first 15 bytes); may be repeated
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub comm: Vec<String>,

    /// Trace sockets whose local or remote port is this one; may be repeated
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub port: Vec<u16>,

    /// Trace processes in or below this control group, a path below /sys/fs/cgroup; may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<PathBuf>,

    /// Trace all processes; other filters still apply
    #[arg(long)]
    pub all: bool,

    /// Trace the processes that those of --pid have started or will start, too
    #[arg(long, requires = "pid")]
    pub follow: bool,

    /// End the trace after this time, such as `30s` [default: until all processes of --pid exit, or Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Start at this time, such as `+30s` or `2026-12-01T09:30:00Z` (UTC), for traces of several hosts
    #[arg(long, value_name = "TIME", value_parser = parse_start_time)]
    pub start_at: Option<StartTime>,

    /// Write the trace to this file, which must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Overwrite the --output file if it exists
    #[arg(long, requires = "output")]
    pub force: bool,

    /// Start a new file (`run.0001.jsonl` and so on) after this size or time: `1GiB`, `10m`
    #[arg(long, value_name = "SIZE|TIME", requires = "output", value_parser = parse_rotation)]
    pub rotate: Option<RotateAt>,

    /// Keep only the newest files of --rotate or --ring: so many, or what fits in a size [default: all]
    #[arg(long, value_name = "N|SIZE", requires = "output", value_parser = parse_keep)]
    pub keep: Option<Keep>,

    /// Keep the last TIME in memory; when a --trigger fires, write it and the next TIME to a file
    #[arg(long, value_name = "TIME", requires = "output", conflicts_with = "rotate", value_parser = parse_duration)]
    pub ring: Option<Duration>,

    /// Write a file of --ring when this happens (below), or on SIGUSR1; may be repeated
    #[arg(long, value_name = "RULE", requires = "ring")]
    pub trigger: Vec<TriggerRule>,

    /// Leave the timeslices out: only the totals of each socket and thread, for many threads or a high rate
    #[arg(long, conflicts_with_all = ["rotate", "ring"])]
    pub summary_only: bool,

    /// Format: table, jsonl, parquet, perfetto or csv [default: as --output ends, or table]
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    format: Option<TraceFormat>,

    /// Size of the eBPF ring buffer, in bytes: a power of two, at least one page
    #[arg(long, value_name = "N", default_value = "8388608", value_parser = parse_ring_bytes)]
    pub ring_bytes: u32,

    /// Run this command, trace it with its children, and exit with its status; a table goes to stderr
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "comm", "cgroup", "all"])]
    pub command: Vec<OsString>,
}

/// Flags of `tcpmon report`.
#[derive(Args, Clone, Debug)]
#[command(
    next_line_help = true,
    after_help = "\
Files are traces in JSON Lines, also compressed with gzip or zstd, or in Parquet; `-` is standard input.
A file that was cut is reported on up to there. How sure a share is follows from how much it varied over time.

  tcpmon report run.jsonl                             what limited each socket
  tcpmon report before.jsonl after.jsonl              what changed, and whether it is more than noise
  tcpmon report --merge run.1.jsonl run.2.jsonl       one transfer in several files
  tcpmon report --format html run.jsonl > run.html    a page with graphs, to open in a browser"
)]
pub struct ReportArgs {
    /// Trace to report on; two are compared
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Take all files as parts of one trace, written one after the other
    #[arg(long)]
    pub merge: bool,

    /// Largest number of sockets to show, those with the most bytes first
    #[arg(long, value_name = "N", default_value = "20", value_parser = value_parser!(u32).range(1..))]
    pub limit: u32,

    /// Format: text, html for one page with graphs, or json for programs
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_possible_values = true, hide_default_value = true)]
    pub format: ReportFormat,
}

/// Flags of `tcpmon convert`.
#[derive(Args, Clone, Debug)]
#[command(
    next_line_help = true,
    after_help = "\
INPUT is a trace in JSON Lines, also compressed with gzip or zstd, or in Parquet. A trace that was cut is
converted up to there, with exit status 1. CSV has only timeslices; the others have totals and losses, too.

  tcpmon convert run.jsonl run.parquet                for DuckDB, pandas or Spark
  tcpmon convert run.parquet run.pftrace              for ui.perfetto.dev
  tcpmon convert --format table run.parquet -         for people"
)]
pub struct ConvertArgs {
    /// Trace to read; `-` is standard input
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,

    /// File to write, which must not exist; `-` is standard output
    #[arg(value_name = "OUTPUT")]
    pub output: PathBuf,

    /// Format: jsonl, parquet, perfetto, csv or table [default: as the name of OUTPUT says, else jsonl]
    #[arg(long, value_name = "FORMAT", hide_possible_values = true)]
    format: Option<TraceFormat>,

    /// Overwrite OUTPUT if it exists
    #[arg(long)]
    pub force: bool,
}

impl ConvertArgs {
    /// Format of the output.
    pub fn format(&self) -> FileFormat {
        FileFormat::of(&self.output, self.format).unwrap_or(FileFormat::PLAIN)
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people
    Text,
    /// For programs: one JSON object
    Json,
    /// One page with graphs, for a browser
    Html,
}

/// Flags of `tcpmon top`.
#[derive(Args, Clone, Debug)]
#[command(
    next_line_help = true,
    after_help = "\
With a daemon that has a local socket (live_socket), top shows what that daemon sees, and needs no privileges but to
be in the group of the socket. Otherwise it loads programs of its own, as root; beside a daemon's, each event then
costs twice. Of each kind of filter, one match is enough. `?` explains the screen.

  tcpmon top                                          watch groups; Enter shows their connections
  tcpmon top --sockets --port 1094 --sort wait        watch the connections of one port
  tcpmon top --once --format json --sockets           one object for each connection, for scripts"
)]
pub struct TopArgs {
    /// Time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,

    /// Show connections instead of groups
    #[arg(long)]
    pub sockets: bool,

    /// Print one table after one interval, and end
    #[arg(long)]
    pub once: bool,

    /// Format of --once: text for people, or json for one object on each line
    #[arg(long, value_name = "FORMAT", requires = "once", default_value = "text", hide_possible_values = true)]
    #[arg(hide_default_value = true)]
    pub format: TopFormat,

    /// Show only this process; may be repeated
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,

    /// Show only processes with this name; may be repeated
    #[arg(long, value_name = "NAME", value_parser = check_process_name)]
    pub comm: Vec<String>,

    /// Show only connections with this local or remote port; may be repeated
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub port: Vec<u16>,

    /// Show only control groups with this in their label, such as `nginx.service`; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub cgroup: Vec<String>,

    /// Order: received, read, queue, wait, limited, run-queue, drops or process
    #[arg(long, value_name = "KEY", default_value = "received", hide_possible_values = true)]
    pub sort: SortKey,

    /// Largest number of rows of --once [default: all]
    #[arg(long, value_name = "N", requires = "once", value_parser = value_parser!(u32).range(1..))]
    pub limit: Option<u32>,

    /// Local socket of the daemon [default: /run/tcpmon/tcpmon.sock if a daemon listens there]
    #[arg(long, value_name = "PATH", conflicts_with = "own")]
    pub daemon: Option<PathBuf>,

    /// Load own programs although a daemon runs
    #[arg(long)]
    pub own: bool,

    /// Threads that own programs track as readers at the same time
    #[arg(long, value_name = "N", default_value = "4096", value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub max_readers: u32,

    /// Use only ASCII characters [default: as the locale says]
    #[arg(long)]
    pub ascii: bool,
}

/// Format of `tcpmon top --once`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopFormat {
    /// For people
    Text,
    /// For programs: one JSON object on each line
    Json,
}

/// A time between samples: at least 0.1 s, because each sample is a pass over all sockets.
fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < Duration::from_millis(100) => Err(format!("{text:?} is too short: 100ms is the least")),
        interval => Ok(interval),
    }
}

/// Flags of `tcpmon doctor`.
#[derive(Args, Clone, Debug)]
#[command(
    next_line_help = true,
    after_help = "\
Each finding names what was found, what to set, why, and the source of the rule (all rules: docs/doctor.md).
Exit status: 0 nothing was found; 1 something was found; 3 tcpmon cannot run here.
With --diff: 0 nothing has changed; 1 something has.

  tcpmon doctor                                       check the host for its fastest link and 100 ms
  tcpmon doctor --bandwidth 100G --rtt 60ms           check it for one transfer at 100 Gbit/s over 60 ms
  tcpmon doctor --save before.json                    and later: tcpmon doctor --diff before.json"
)]
pub struct DoctorArgs {
    /// Longest round trip that this host is to receive over, such as `60ms`
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    #[arg(value_parser = parse_round_trip, allow_negative_numbers = true)]
    pub rtt: Duration,

    /// Rate of a transfer, in bit/s, such as `10G` [default: that of the fastest link, or 1G]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, allow_negative_numbers = true)]
    pub bandwidth: Option<u64>,

    /// Connections that share this rate [default: one for each 10 Gbit/s]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub streams: Option<u64>,

    /// Network device to examine; may be repeated [default: all that are on a bus and up]
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,

    /// Format: text for people, or json for programs
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_possible_values = true, hide_default_value = true)]
    pub format: DoctorFormat,

    /// Also write the answer as JSON to this file, which must not exist
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Show only which facts have changed since `--save` wrote this file
    #[arg(long, value_name = "FILE")]
    pub diff: Option<PathBuf>,
}

/// Format of the doctor's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoctorFormat {
    /// For people
    Text,
    /// For programs: one JSON object, with all facts
    Json,
}

/// Rate for which a host is examined if its devices do not tell theirs, bit/s.
const DEFAULT_RATE: u64 = 1_000_000_000;

/// Rate up to which a transfer is taken to be one connection, bit/s: few hosts receive much more on one.
const STREAM_RATE: u64 = 10_000_000_000;

impl DoctorArgs {
    /// What the host is to be fit for.
    pub fn goal(&self, facts: &Facts) -> Goal {
        let fastest = facts.devices.iter().filter_map(|device| device.speed.get().ok().copied()).max();
        let bandwidth = self.bandwidth.or(fastest).unwrap_or(DEFAULT_RATE);
        let streams = self.streams.unwrap_or_else(|| bandwidth.div_ceil(STREAM_RATE).max(1));
        Goal { bandwidth, streams, rtt: self.rtt }
    }
}

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// For people: one line per timeslice, and a summary at the end
    Table,
    /// For programs: JSON Lines, see docs/trace-format.md
    Jsonl,
    /// For DuckDB, pandas, Spark: a row for each timeslice
    Parquet,
    /// For ui.perfetto.dev: tracks, slices and counters
    Perfetto,
    /// For spreadsheets: the timeslices only
    Csv,
}

/// How a file is compressed as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// As by gzip.
    Gzip,
    /// As by zstd.
    Zstd,
}

/// How a trace is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFormat {
    /// Format of the records.
    pub format: TraceFormat,
    /// What is done with them.
    pub compression: Compression,
}

impl FileFormat {
    /// Uncompressed JSON Lines: of a name without an ending.
    const PLAIN: Self = Self { format: TraceFormat::Jsonl, compression: Compression::None };

    /// What the name of a file and the option `--format` say. The error says what the name may end in.
    fn of(path: &Path, format: Option<TraceFormat>) -> Result<Self, (ErrorKind, String)> {
        let ending = |path: &Path| path.extension().and_then(OsStr::to_str).map(str::to_owned);
        let (compression, rest) = match ending(path).as_deref() {
            Some("gz") => (Compression::Gzip, path.with_extension("")),
            Some("zst") => (Compression::Zstd, path.with_extension("")),
            _ => (Compression::None, path.to_owned()),
        };
        let named = match ending(&rest).as_deref() {
            Some("parquet") => Some(TraceFormat::Parquet),
            Some("pftrace" | "perfetto-trace") => Some(TraceFormat::Perfetto),
            Some("csv") => Some(TraceFormat::Csv),
            None | Some("jsonl" | "ndjson" | "json") => Some(TraceFormat::Jsonl),
            Some(_) => None,
        };
        match format.or(named) {
            Some(TraceFormat::Parquet) if compression != Compression::None => Err((
                ErrorKind::InvalidValue,
                format!("{}: Parquet is compressed already: omit the end of the name", path.display()),
            )),
            Some(format) => Self { format, compression }.check(),
            None => Err((
                ErrorKind::InvalidValue,
                format!(
                    "{}: the end of the name is that of no format: use .jsonl, .parquet, .pftrace or .csv (with .gz or \
                     .zst behind it, except for .parquet), or add --format",
                    path.display()
                ),
            )),
        }
    }

    /// The same, if this build has it; the error says how to get it.
    fn check(self) -> Result<Self, (ErrorKind, String)> {
        self.check_in(cfg!(feature = "formats"))
    }

    /// The same for a build with or without the feature `formats`.
    fn check_in(self, has_formats: bool) -> Result<Self, (ErrorKind, String)> {
        let is_small = matches!(self.format, TraceFormat::Table | TraceFormat::Jsonl)
            && matches!(self.compression, Compression::None | Compression::Gzip);
        if is_small || has_formats { Ok(self) } else { Err((ErrorKind::InvalidValue, WITHOUT_FORMATS.into())) }
    }
}

/// What a build without the feature `formats` says.
pub const WITHOUT_FORMATS: &str = "this build of tcpmon has no Parquet, Perfetto, CSV and zstd: packages have \
                                   them, and `cargo build --release -p tcpmon-daemon --features full` builds them";

impl Cli {
    /// Parses the arguments of this process. Invalid ones end it with exit code 2 and an error message.
    pub fn from_environment() -> Self {
        Self::from_arguments(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// Reads arguments, the first of which is the program's name.
    ///
    /// # Errors
    /// A usage error, or the requested help or version text.
    pub fn from_arguments(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(arguments)?;
        let (name, checked) = match &cli.command {
            Command::Trace(trace) => ("trace", trace.check()),
            Command::Report(report) => ("report", report.check()),
            Command::Convert(convert) => ("convert", FileFormat::of(&convert.output, convert.format).map(drop)),
            Command::Daemon(_) | Command::Top(_) | Command::Doctor(_) => return Ok(cli),
        };
        checked.map(|()| cli).map_err(|(kind, problem)| {
            let mut command = Self::command();
            command.build();
            match command.find_subcommand_mut(name) {
                Some(subcommand) => subcommand.error(kind, problem),
                None => command.error(kind, problem),
            }
        })
    }
}

impl DaemonArgs {
    /// The config file, if any, with the flags on top.
    ///
    /// # Errors
    /// When the file cannot be read, or a line of it is invalid.
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
        set(&mut config.max_sockets, self.max_sockets);
        set(&mut config.max_readers, self.max_readers);
        set(&mut config.max_drop_entries, self.max_drop_entries);
        set(&mut config.ring_bytes, self.ring_bytes.map(u64::from));
        set(&mut config.sandbox, self.sandbox);
        set(&mut config.live_socket, self.live_socket.clone());
        set(&mut config.collect.softnet, self.collect_softnet);
        set(&mut config.collect.sockstat, self.collect_sockstat);
        set(&mut config.collect.zones, self.collect_zones);
        set(&mut config.collect.psi, self.collect_psi);
        set(&mut config.collect.stat, self.collect_stat);
        set(&mut config.collect.netstat, self.collect_netstat);
        set(&mut config.probes.profile, self.probes_profile);
        set(&mut config.probes.sched_switch, self.probes_sched_switch);
        set(&mut config.probes.napi_poll, self.probes_napi_poll);
        set(&mut config.probes.kfree_skb, self.probes_kfree_skb);
        set(&mut config.log.level, self.log_level);
        set(&mut config.log.format, self.log_format);
        Ok(config)
    }

    /// [`DaemonArgs::config`], validated.
    ///
    /// # Errors
    /// As there.
    pub fn settings(&self) -> Result<DaemonSettings, ConfigError> {
        Ok(self.config()?.validate()?)
    }
}

fn set<T>(value: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *value = flag;
    }
}

impl ReportArgs {
    fn check(&self) -> Result<(), (ErrorKind, String)> {
        if self.files.len() > 2 && !self.merge {
            return Err((
                ErrorKind::TooManyValues,
                "at most two traces can be compared; --merge takes all files as one trace".into(),
            ));
        }
        Ok(())
    }
}

/// When a trace starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTime {
    /// At this time of the wall clock.
    At(SystemTime),
    /// After this time.
    After(Duration),
}

/// When a trace goes on in another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotateAt {
    /// When the file has as many bytes.
    Bytes(u64),
    /// When it covers as much time.
    Time(Duration),
}

/// A standard stream to which a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardStream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl StandardStream {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            StandardStream::Output => "standard output",
            StandardStream::Error => "standard error",
        }
    }
}

impl TraceArgs {
    /// Where the trace goes without `--output`: standard output belongs to the command.
    pub fn stream(&self) -> StandardStream {
        if self.command.is_empty() { StandardStream::Output } else { StandardStream::Error }
    }

    /// Format of the records.
    pub fn format(&self) -> FileFormat {
        match &self.output {
            Some(output) => FileFormat::of(output, self.format).unwrap_or(FileFormat::PLAIN),
            None => FileFormat { format: self.format.unwrap_or(TraceFormat::Table), compression: Compression::None },
        }
    }

    fn check(&self) -> Result<(), (ErrorKind, String)> {
        let filters = self.pid.len() + self.comm.len() + self.port.len() + self.cgroup.len() + self.command.len();
        if filters == 0 && !self.all {
            return Err((
                ErrorKind::MissingRequiredArgument,
                "nothing to trace: add --pid, --comm, --port, --cgroup or `-- COMMAND`, or --all to trace all processes"
                    .into(),
            ));
        }
        if self.keep.is_some() && self.rotate.is_none() && self.ring.is_none() {
            return Err((ErrorKind::MissingRequiredArgument, "--keep needs --rotate or --ring".into()));
        }
        match &self.output {
            Some(output) => FileFormat::of(output, self.format)?,
            None => self.format().check()?,
        };
        if self.summary_only && !matches!(self.format().format, TraceFormat::Table | TraceFormat::Jsonl) {
            return Err((
                ErrorKind::ArgumentConflict,
                "--summary-only: parquet, perfetto and csv have a row for each timeslice: use table or jsonl".into(),
            ));
        }
        if self.cgroup.len() > FILTER_CGROUPS {
            return Err((
                ErrorKind::TooManyValues,
                format!("--cgroup can be given at most {FILTER_CGROUPS} times: use a common parent instead"),
            ));
        }
        Ok(())
    }
}

/// Checks a port range and returns its text.
fn check_port_range(text: &str) -> Result<String, String> {
    parse_port_range(text).map(|_| text.to_owned())
}

/// A time: RFC 3339, or `+` and a duration.
fn parse_start_time(text: &str) -> Result<StartTime, String> {
    if let Some(after) = text.strip_prefix('+') {
        return humantime::parse_duration(after).map(StartTime::After).map_err(|error| error.to_string());
    }
    humantime::parse_rfc3339_weak(text).map(StartTime::At).map_err(|error| error.to_string())
}

/// A size, or a time of at least a second.
fn parse_rotation(text: &str) -> Result<RotateAt, String> {
    if let Some(bytes) = parse_size(text) {
        return bytes.map(RotateAt::Bytes);
    }
    match parse_duration(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(RotateAt::Time(time)),
        Ok(_) => Err(format!("{text:?} is too short: 1s is the least")),
        Err(_) => Err("give a size such as 100MB or 1GiB, or a time such as 10m".into()),
    }
}

/// A round trip, from 1 us to 1 minute.
fn parse_round_trip(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let possible = Duration::from_micros(1)..=Duration::from_mins(1);
    if possible.contains(&time) { Ok(time) } else { Err("a round trip takes from 1us to 1m".into()) }
}

/// A rate from 1 kbit/s to 10 Tbit/s, in bit/s: a number with a decimal prefix, such as `2.5G` or `100Mbit/s`.
fn parse_rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let number = ["bit/s", "bit", "bps", "b/s"].iter().find_map(|unit| lower.strip_suffix(unit)).unwrap_or(&lower);
    let prefixes = [('k', 1e3), ('m', 1e6), ('g', 1e9), ('t', 1e12)];
    let (number, factor) = prefixes
        .iter()
        .find_map(|(prefix, factor)| Some((number.strip_suffix(*prefix)?, *factor)))
        .unwrap_or((number, 1.0));
    let rate = number.trim().parse::<f64>().map_or(0.0, |number| number * factor);
    if (1e3..=1e13).contains(&rate) {
        Ok(rate as u64)
    } else {
        Err("a rate is a number of bit/s from 1k to 10T, such as 2.5G or 100M".into())
    }
}

fn parse_ring_bytes(text: &str) -> Result<u32, String> {
    check_ring_bytes(text.parse().map_err(|error| format!("{text:?} is not a number of bytes ({error})"))?)
}

#[cfg(test)]
mod tests;
