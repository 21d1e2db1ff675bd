//! `cargo xtask soak`: a stress test that runs all workloads and faults at once for minutes or hours, and checks the
//! invariants all the time. `docs/performance.md` has the method and the figures.

mod others;
mod traffic;
mod trend;
mod watch;
mod world;

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use nix::sys::signal::Signal;

use tcpmon_tests::document::Document;
use tcpmon_tests::figures::{Provenance, Section, Table};
use tcpmon_tests::physics::{Limits, Physics, Start};
use tcpmon_tests::{Daemon, Lab, emulated, eventually, interrupt};

use traffic::Steady;
use trend::Trend;
use watch::{FIGURES, PAGE_CPU, Watch};
use world::World;

/// Stress test: run tcpmon under churn, faults and hostile clients, and check its numbers throughout
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask soak")]
struct Args {
    /// Duration, such as 10m or 24h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Seed of the random choice of actions [default: a new one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Only these actors, comma-separated
    #[arg(long, value_name = "ACTOR", value_delimiter = ',', value_parser = ACTORS)]
    only: Vec<String>,
    /// Write the tables to docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Names for `--only`.
const ACTORS: [&str; 12] = [
    "transfers",
    "brief",
    "execs",
    "labs",
    "losses",
    "forks",
    "names",
    "processes",
    "hostile",
    "pressure",
    "second",
    "traces",
];

/// Where the tables go.
const PERFORMANCE: Document =
    Document { path: concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md"), markers: "bench" };

/// Time between two pages.
const EVERY: Duration = Duration::from_secs(1);

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(60);

/// Time in which buffers and caches may still grow to their full size: tcpmon forgets groups, clients and namespaces
/// that have gone after up to ten minutes, or when there are too many.
const WARM_UP: Duration = Duration::from_secs(600);

/// Time for everything to come to rest at the end.
const DEADLINE: Duration = Duration::from_secs(60);

/// More sockets, readers and bytes than all actors together have at any time.
const LIMITS: Limits = Limits { cpus: 0.0, sockets: 20_000.0, readers: 20_000.0, queue_bytes: 64e6 };

fn main() -> ExitCode {
    let args = Args::parse();
    interrupt::watch();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    eprintln!("soak --for {} --seed {seed}", humantime::format_duration(args.time));
    let (section, findings) = run(args.time, seed, &args.only);
    let provenance = Provenance::read("cargo xtask soak");
    println!("{}", section.text(&provenance));
    // A run with findings does not publish its figures.
    if args.write
        && findings.is_empty()
        && let Err(error) = PERFORMANCE.write(section.name, &section.markdown(&provenance))
    {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    if interrupt::arrived() {
        return ExitCode::from(130);
    }
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("\n{} findings, seed {seed}:\n{}", findings.len(), findings.join("\n"));
    ExitCode::FAILURE
}

/// Runs for this time, and returns the figures and the findings.
fn run(time: Duration, seed: u64, only: &[String]) -> (Section, Vec<String>) {
    let before = programs();
    let folder = tempfile::tempdir().expect("there is a place for temporary files");
    let config = folder.path().join("tcpmon.toml");
    fs::write(&config, others::config("info")).expect("the config file can be written");
    let lab = Lab::new();
    let begun = Instant::now();
    let physics = Physics::new(limits(), Start::now()).groups_end();
    let daemon = Daemon::start(&["--config", &config.display().to_string()]);
    let world = World::new(begun, daemon.address(), daemon.pid(), config);
    let steady = Steady::start(&lab);
    let mut watch = Watch::new(&world, &daemon, &steady, physics);
    thread::scope(|scope| {
        let (world, steady) = (&world, &steady);
        let start = |name: &'static str, act: &'static (dyn Fn(&World, u64) + Sync)| {
            if only.is_empty() || only.iter().any(|chosen| chosen == name) {
                scope.spawn(move || act(world, seed));
            }
        };
        start("transfers", &traffic::transfers);
        start("brief", &traffic::brief);
        start("execs", &traffic::execs);
        start("labs", &traffic::labs);
        start("losses", &traffic::losses);
        start("forks", &traffic::forks);
        start("names", &traffic::names);
        start("processes", &others::processes);
        start("hostile", &others::hostile_clients);
        start("pressure", &others::pressure);
        start("second", &others::second_daemon);
        if only.is_empty() || only.iter().any(|chosen| chosen == "traces") {
            scope.spawn(move || others::traces(world, seed, steady));
        }
        let mut progress = begun + PROGRESS;
        while begun.elapsed() < time && !world.is_over() && !interrupt::arrived() {
            watch.look();
            if Instant::now() >= progress {
                progress += PROGRESS;
                let (actions, findings) = world.results();
                let (pages, gigabytes) = (watch.pages, watch.received / 1e9);
                let actions: u64 = actions.values().sum();
                eprintln!("{pages} pages, {actions} actions, {gigabytes:.1} GB, {} findings", findings.len());
            }
            world.rest(EVERY);
        }
        world.end();
    });
    steady.sender.finish();
    steady.reader.wait();
    world.attempt("at the end", || eventually(DEADLINE, "every sum is exact", || watch.all_is_exact()));
    let section = section(&world, &watch, begun);
    drop(watch);
    daemon.signal(Signal::SIGTERM);
    let (status, stderr) = daemon.wait();
    if !status.success() {
        world.find(&format!("the daemon ended with {status}"));
    }
    let faults = ["panicked", " ERROR ", "impossible"];
    for line in stderr.lines().filter(|line| faults.iter().any(|fault| line.contains(fault))) {
        if !line.contains("the configuration") {
            world.find(&format!("the daemon wrote {line:?}"));
        }
    }
    drop((steady, lab));
    world.attempt("after the end", || {
        eventually(DEADLINE, "no program is left", || {
            let left = programs().saturating_sub(before);
            if left == 0 { Ok(()) } else { Err(left.to_string()) }
        })
    });
    (section, world.results().1)
}

/// The most that can happen on this host.
fn limits() -> Limits {
    Limits { cpus: thread::available_parallelism().map_or(1.0, |cpus| usize::from(cpus) as f64), ..LIMITS }
}

/// Number of eBPF programs in the kernel.
fn programs() -> usize {
    aya::programs::loaded_programs().flatten().count()
}

/// The figures, and a finding for each that grows.
fn section(world: &World, watch: &Watch<'_>, begun: Instant) -> Section {
    let mut table = Table::new(&["of the watched daemon", "median", "growth (95 % interval)"]);
    let time = begun.elapsed();
    // A short run reports its figures, and does not judge them.
    let (from, judged) = if time >= 2 * WARM_UP { (WARM_UP, true) } else { (time / 5, false) };
    for ((name, least), samples) in FIGURES.iter().zip(&watch.samples) {
        let warm = samples.partition_point(|sample| sample.0 < from.as_secs_f64());
        let Some(trend) = Trend::of(&samples[warm..]) else { continue };
        table.row(vec![(*name).to_owned(), format!("{:.1}", trend.median), trend.to_string()]);
        let judged = judged && !(emulated::cpu_time_varies() && *name == PAGE_CPU);
        if judged && trend.grows(*least) {
            world.find(&format!("{name} grows: {trend}, median {:.1}", trend.median));
        }
    }
    let list = |items: Vec<String>| if items.is_empty() { "nothing".to_owned() } else { items.join(", ") };
    let (actions, _) = world.results();
    let lost: Vec<String> = watch.lost.iter().map(|(what, count)| format!("{what} {count}")).collect();
    let what = format!(
        "{} pages in {:.0} s, each compared with the counts of readers and kernel; growth after the first {:.0} s{}",
        watch.pages,
        time.as_secs_f64(),
        from.as_secs_f64(),
        if judged { "" } else { ", too early to be judged" },
    );
    let notes = vec![
        format!("Received: {:.2} GB.", watch.received / 1e9),
        format!("Lost: {}.", list(lost)),
        format!("Done: {}.", list(actions.iter().map(|(what, times)| format!("{what} {times}")).collect())),
    ];
    Section { name: "soak", what, table, notes }
}
