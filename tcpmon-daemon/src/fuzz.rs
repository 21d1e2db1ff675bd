//! The decoders of bytes that tcpmon did not write, each as a function that must return for any bytes: `cargo xtask
//! fuzz` looks for bytes on which one of them panics or hangs.

use std::{
    env,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tcpmon_btf::{Btf, layout, plan};
use tcpmon_common::socket::{SocketLive, SocketRecord, SocketState};
use tcpmon_trace::{JsonLinesReader, ParquetReader, TraceReader, summary::Summary};
use tokio::runtime::{Builder, Runtime};

use zerocopy::FromBytes as _;

use crate::{
    config::Config,
    decode::{self, Event},
    host::{self, link::Link, netlink::Answers, qdisc::Qdisc, stuck::SocketAnswer},
    http::{self, DataSource, Endpoint, TelemetryPath},
    kernel, live,
    metrics::Identity,
    model::{
        snapshot::Observed,
        table::{Table, TableLimits},
    },
    process_stat::ProcessStat,
    report::read::TraceFile,
    status::Unavailable,
    trigger::TriggerRule,
};

/// Decodes any bytes, and drops the result.
pub type Decoder = fn(&[u8]);

/// Name of each decoder, with the decoder.
pub const DECODERS: [(&str, Decoder); 13] = [
    ("btf", btf),
    ("config", config),
    ("ethtool", ethtool),
    ("flags", flags),
    ("http", http),
    ("jsonl", jsonl),
    ("kernel-log", kernel_log),
    ("live", live),
    ("netlink", netlink),
    ("parquet", parquet),
    ("proc", proc),
    ("records", records),
    ("web-config", web_config),
];

/// The decoder that `TCPMON_DECODER` names.
///
/// # Panics
/// If it names none.
pub fn decoder() -> Decoder {
    let name = env::var("TCPMON_DECODER").unwrap_or_default();
    let known = || DECODERS.map(|(name, _)| name).join(", ");
    let found = DECODERS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("TCPMON_DECODER={name:?}: set it to one of {}", known())).1
}

/// The kernel's type information.
fn btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes) else { return };
    let _ = layout::resolve(&btf);
    layout::drop_reasons(&btf);
    plan::missing_functions(&btf);
    plan::cast_function(&btf);
    plan::iterator_moved(&btf);
    for probe in plan::PROBES {
        plan::unsupported(&probe, &btf);
    }
}

/// A config file.
fn config(bytes: &[u8]) {
    if let Ok(text) = str::from_utf8(bytes) {
        let _ = Config::parse(text);
    }
}

/// What drivers report.
fn ethtool(bytes: &[u8]) {
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    host::devices::decode_any(&words);
}

/// Values of flags and config keys.
fn flags(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let _ = text.parse::<TriggerRule>();
    let _ = text.parse::<TelemetryPath>();
    let _ = text.parse::<http::ListenAddress>();
    let _ = crate::config::parse_size(text);
    let _ = crate::config::parse_keep(text);
    let _ = crate::config::parse_duration(text);
    let _ = Config { ephemeral_ports: vec![text.to_owned()], ..Config::default() }.validate();
}

/// Requests to the metrics endpoint. Each call uses a new endpoint, because an endpoint delays clients that ask too
/// often.
fn http(bytes: &[u8]) {
    thread_local! {
        static IDENTITY: Arc<Identity> = Arc::new(Identity::read());
    }
    let metrics = "/metrics".parse().expect("it is a path of a page");
    run(http::answer_any(Endpoint::new(NoSource, IDENTITY.with(Arc::clone), metrics, None), bytes));
}

/// A data source without data.
struct NoSource;

impl DataSource for NoSource {
    fn health(&self) -> Result<(), Unavailable> {
        Err(Unavailable(String::new()))
    }

    async fn sample(&self) -> Result<Observed, Unavailable> {
        Err(Unavailable(String::new()))
    }
}

/// A trace as JSON Lines.
fn jsonl(bytes: &[u8]) {
    if let Ok(mut reader) = JsonLinesReader::new(bytes) {
        trace(&mut reader);
    }
}

/// A trace as Parquet.
fn parquet(bytes: &[u8]) {
    let file = rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC).map(std::fs::File::from);
    let mut file = file.expect("there are descriptors and memory");
    file.write_all(bytes).expect("there is memory");
    if let Ok(mut reader) = ParquetReader::new(file) {
        trace(&mut reader);
    }
}

/// Everything that `tcpmon report` and `tcpmon convert` do with a trace.
fn trace(reader: &mut dyn TraceReader) {
    let mut summary = Summary::default();
    if let Ok(file) = TraceFile::read("trace", reader, &mut summary, None) {
        file.duration();
        file.lost();
        summary.recorded_share();
        summary.by_bytes();
    }
}

/// Messages of the kernel's log.
fn kernel_log(bytes: &[u8]) {
    if let Ok(text) = str::from_utf8(bytes)
        && let Some(record) = host::kernel_log::message::parse_record(text)
    {
        host::kernel_log::message::classify(record.message);
    }
}

/// What `tcpmon top` gets from the daemon, and what the daemon gets from it.
fn live(bytes: &[u8]) {
    let (mut message, mut request) = (bytes, bytes);
    let _ = run(live::wire::read_message(&mut message));
    let _ = run(live::wire::read_request(&mut request));
}

/// Answers to netlink requests.
fn netlink(bytes: &[u8]) {
    let _ = Answers::<Link>::default().add(bytes);
    let _ = Answers::<Qdisc>::default().add(bytes);
    let _ = Answers::<SocketAnswer>::default().add(bytes);
}

/// Files below `/proc` and `/sys`: the first byte chooses one.
fn proc(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else { return };
    let Ok(text) = str::from_utf8(rest) else { return };
    match which % 9 {
        0 => drop(kernel::parse_fdinfo(text)),
        1 => drop(host::netstat::parse(text)),
        2 => drop(host::psi::parse(text)),
        3 => drop(host::softnet::parse(text)),
        4 => drop(host::stat::parse(text)),
        5 => {
            let (sockstat, rest) = text.split_once('\0').unwrap_or((text, ""));
            let (tcp_mem, protocols) = rest.split_once('\0').unwrap_or((rest, ""));
            drop(host::tcp_memory::parse(sockstat, tcp_mem, protocols, 4096));
        }
        6 => drop(host::zones::parse(text, 4096)),
        7 => drop(host::cgroup::mount_point(text)),
        _ => drop(ProcessStat::parse(text).map(|stat| (stat.is_zombie(), stat.parent(), stat.start_ticks()))),
    }
}

/// Records of the programs, one after another, and the table that adds them up: those of the ring, and states with
/// looks.
fn records(bytes: &[u8]) {
    let limits = TableLimits { max_groups: 16, group_ttl: Duration::from_mins(1), pin: Vec::new(), cgroup_of: None };
    let now = Instant::now();
    let mut table = Table::new(limits, now, 0);
    table.begin(1);
    for bytes in bytes.chunks(1 + size_of::<SocketLive>() + size_of::<SocketState>()) {
        let Some((kind, rest)) = bytes.split_first() else { break };
        match decode::event(rest) {
            Ok(Event::ReaderExit { slot }) => table.reader_gone(slot),
            Ok(Event::Timeslice(record)) => drop(decode::trace_record(&record)),
            Ok(Event::Listener { .. } | Event::FewStates) | Err(_) => {}
        }
        let Ok((live, rest)) = SocketLive::read_from_prefix(rest) else { continue };
        let Ok((mut state, _)) = SocketState::read_from_prefix(rest) else { continue };
        // A real store has a fixed number of indexes.
        state.index %= 16;
        let record = SocketRecord { time_ns: state.last_ns, live, state };
        match kind % 3 {
            0 => table.socket(&record, now),
            1 => table.ended(&record, now),
            _ => table.gone(&record, now),
        }
    }
    table.end(now);
    table.change_groups(now);
    table.groups();
}

/// A web config file. The files that it names are not read.
fn web_config(bytes: &[u8]) {
    if let Ok(text) = str::from_utf8(bytes) {
        http::decode_any_web_config(text);
    }
}

/// Runs a future that never waits for anything outside the process.
fn run<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("there are descriptors");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
