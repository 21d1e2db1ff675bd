//! Commands and flags.

mod setting_flags;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind, value_parser};
use tcpmon_common::settings::FILTER_CGROUPS;

pub use self::setting_flags::SettingFlags;
use crate::{
    config::{
        Config, ConfigError, DaemonSettings, Keep, check_process_name, check_ring_bytes, parse_duration, parse_keep,
        parse_size,
    },
    doctor::facts::{Facts, Goal},
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
    /// Check whether tcpmon can run here, and the kernel and network settings; changes nothing
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

    /// The settings.
    #[command(flatten)]
    flags: SettingFlags,
}

/// Flags of `tcpmon trace`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    next_line_help = true,
    after_help = "\
A timeslice is recorded if it matches all kinds of filters that are given; of each kind, one match is enough.
The eBPF programs filter in the kernel: an event that is left out costs 0.1 to 0.3 us. Ctrl-C ends the trace.
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

    /// Also trace the child processes of --pid, existing and future
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

    /// Keep only the newest files of --rotate or --ring: N, or as many as fit in SIZE [default: all]
    #[arg(long, value_name = "N|SIZE", requires = "output", value_parser = parse_keep)]
    pub keep: Option<Keep>,

    /// Keep the last TIME in memory; when a --trigger fires, write it and the next TIME to a file
    #[arg(long, value_name = "TIME", requires = "output", conflicts_with = "rotate", value_parser = parse_duration)]
    pub ring: Option<Duration>,

    /// Write a --ring file when this rule (see below) is met, or on SIGUSR1; may be repeated
    #[arg(long, value_name = "RULE", requires = "ring")]
    pub trigger: Vec<TriggerRule>,

    /// Leave the timeslices out: only the totals of each socket and thread, for many threads or a high rate
    #[arg(long, conflicts_with_all = ["rotate", "ring"])]
    pub summary_only: bool,

    /// Format: table, jsonl, parquet, perfetto or csv [default: from the extension of --output, or table]
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
A truncated file is read up to the cut. A share's margin of error comes from how much it varied over time.

  tcpmon report run.jsonl                             what limited each socket
  tcpmon report before.jsonl after.jsonl              what changed, and whether it is more than noise
  tcpmon report --merge run.1.jsonl run.2.jsonl       one transfer in several files
  tcpmon report --format html run.jsonl > run.html    a page with graphs, to open in a browser"
)]
pub struct ReportArgs {
    /// Trace to report on; two traces are compared
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Treat all files as consecutive parts of one trace
    #[arg(long)]
    pub merge: bool,

    /// Maximum number of sockets to show; those with the most bytes come first
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
INPUT is a trace in JSON Lines, also compressed with gzip or zstd, or in Parquet. A truncated trace is
converted up to the cut, with exit status 1. CSV has only timeslices; the others have totals and losses, too.

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

    /// Format: jsonl, parquet, perfetto, csv or table [default: from the extension of OUTPUT, or jsonl]
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

    /// Print one table after one interval, and exit
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

    /// Sort by: received, read, queue, wait, limited, run-queue, drops or process
    #[arg(long, value_name = "KEY", default_value = "received", hide_possible_values = true)]
    pub sort: SortKey,

    /// Maximum number of rows of --once [default: all]
    #[arg(long, value_name = "N", requires = "once", value_parser = value_parser!(u32).range(1..))]
    pub limit: Option<u32>,

    /// Local socket of the daemon [default: /run/tcpmon/tcpmon.sock if a daemon listens there]
    #[arg(long, value_name = "PATH", conflicts_with = "own")]
    pub daemon: Option<PathBuf>,

    /// Load a separate set of eBPF programs even if a daemon runs
    #[arg(long)]
    pub own: bool,

    /// Maximum number of threads that are tracked as readers with --own
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
        short if short < Duration::from_millis(100) => Err(format!("{text:?} is too short: the minimum is 100ms")),
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
    /// Longest round trip to check for, such as `60ms`
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
    /// The transfers that the host should be able to handle.
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
                format!("{}: Parquet is compressed already: drop .gz or .zst from the name", path.display()),
            )),
            Some(format) => Self { format, compression }.check(),
            None => Err((
                ErrorKind::InvalidValue,
                format!(
                    "{}: unknown file extension: use .jsonl, .parquet, .pftrace or .csv (with .gz or \
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
        self.flags.apply(&mut config)?;
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
        Ok(_) => Err(format!("{text:?} is too short: the minimum is 1s")),
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
