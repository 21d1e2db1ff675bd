//! Nanoseconds per run of each program, net of an empty program, or against another build of tcpmon.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use aya::sys::{Stats, enable_stats};
use tcpmon_tests::Page;
use tcpmon_tests::lab::End;

use crate::arm::{Arm, Monitor};
use crate::estimate::{self, median};
use crate::workload::{RUN, Wire, Workload, switch_all_the_time};
use tcpmon_tests::figures::{Section, Table, target};

/// A program with fewer runs than this in a repetition is left out, because its figures mean nothing.
const FEWEST_RUNS: f64 = 1_000.0;

/// The programs that see connections begin and end.
const LIFECYCLE: [&str; 4] =
    ["inet_sock_set_state", "inet_sock_set_state_again", "tcp_destroy_sock", "tcp_destroy_sock_again"];

/// The load under which the programs run.
#[derive(Clone, Copy, Debug)]
enum Load {
    Traffic(Workload),
    Switching,
}

/// Number of runs, and nanoseconds spent in them, for each program.
type Counts = BTreeMap<String, (f64, f64)>;

/// A program's figures for one repetition.
#[derive(Clone, Copy, Debug)]
struct Sample {
    runs_per_second: f64,
    floor_ns: f64,
    full_ns: f64,
}

/// Measures this many repetitions. Floor and daemon alternate in going first; each of these peers follows.
pub fn measure(repetitions: u32, peers: &[Arm]) -> Section {
    // Unlike the sysctl kernel.bpf_stats_enabled, this ends when the descriptor is closed, however this process ends.
    let _counting = enable_stats(Stats::RunTime).expect("root may let the kernel count runs");
    let traffic = [Workload::R, Workload::RPinned, Workload::L, Workload::V, Workload::C];
    let loads: Vec<Load> = traffic.into_iter().map(Load::Traffic).chain([Load::Switching]).collect();
    let mut table = Table::new(&["load", "program", "runs/s", "empty, ns", "full, ns", "net, ns (range)"]);
    let mut nets = BTreeMap::new();
    let mut connections = Vec::new();
    for load in loads {
        let wire = if let Load::Traffic(workload) = load { Some(Wire::new(workload)) } else { None };
        let mut samples: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        for repetition in 0..repetitions {
            let floor_first = repetition % 2 == 0;
            let first = counts(if floor_first { Arm::Floor } else { Arm::Daemon }, wire.as_ref());
            let second = counts(if floor_first { Arm::Daemon } else { Arm::Floor }, wire.as_ref());
            let ((floor, _), (daemon, time)) = if floor_first { (first, second) } else { (second, first) };
            if matches!(load, Load::Traffic(Workload::C)) {
                let of_connections = LIFECYCLE.iter().filter_map(|program| daemon.get(*program));
                let ns: f64 = of_connections.map(|(_, ns)| ns).sum();
                connections.push(ns / time.as_secs_f64() / Workload::C.rate());
            }
            for (program, sample) in beside_floor(&floor, daemon, time) {
                samples.entry(program).or_default().push(sample);
            }
            for peer in if matches!(load, Load::Switching) { &[] } else { peers } {
                let (counts, time) = counts(*peer, wire.as_ref());
                for (program, sample) in beside_floor(&floor, counts, time) {
                    samples.entry(format!("{}: {program}", peer.name())).or_default().push(sample);
                }
            }
            eprintln!("programs: {}, repetition {} of {repetitions}", load.name(), repetition + 1);
        }
        for (program, samples) in &samples {
            if matches!(load, Load::Switching) && program != "sched_switch" {
                continue;
            }
            let of = |value: fn(&Sample) -> f64| samples.iter().map(value).collect::<Vec<f64>>();
            let net = of(|sample| sample.full_ns - sample.floor_ns);
            let (low, high) =
                (net.iter().copied().fold(f64::MAX, f64::min), net.iter().copied().fold(f64::MIN, f64::max));
            nets.insert((load.name(), program.clone()), median(&net));
            table.row(vec![
                load.name().to_owned(),
                program.clone(),
                format!("{:.0}", median(&of(|sample| sample.runs_per_second))),
                format!("{:.0}", median(&of(|sample| sample.floor_ns))),
                format!("{:.0}", median(&of(|sample| sample.full_ns))),
                format!("{:.0} ({low:.0}..{high:.0})", median(&net)),
            ]);
        }
    }
    let what = format!("Time per run by the kernel's own count, {repetitions} repetitions of {} s.", RUN.as_secs());
    let mut notes = targets(&nets);
    let what_of = "programs for the begin and end of a connection, both ends, gross";
    notes.push(target(what_of, median(&connections), 2_500.0, "ns"));
    Section { name: "programs", what, table, notes }
}

/// The programs that ran often enough, each with the figures of the empty program on its tracepoint. The kernel keeps
/// only 15 bytes of a program's name.
fn beside_floor(floor: &Counts, counts: Counts, time: Duration) -> Vec<(String, Sample)> {
    let beside = counts.into_iter().filter_map(|(program, (runs, ns))| {
        let (tracepoint, (floor_runs, floor_ns)) = floor.iter().find(|(tracepoint, _)| {
            **tracepoint == program || program.len() == 15 && tracepoint.starts_with(&program)
        })?;
        let sample =
            Sample { runs_per_second: runs / time.as_secs_f64(), floor_ns: floor_ns / floor_runs, full_ns: ns / runs };
        (runs.min(*floor_runs) >= FEWEST_RUNS).then(|| (tracepoint.clone(), sample))
    });
    beside.collect()
}

/// Compares the daemon with that of another build. Both are attached at once, so that both see the same events on the
/// same machine. The one attached first runs with colder caches, so they alternate.
pub fn compare(other: &Path, repetitions: u32) -> Section {
    let _counting = enable_stats(Stats::RunTime).expect("root may let the kernel count runs");
    let mut table = Table::new(&["load", "program", "other build, ns", "this build, ns", "this - other, ns (95 %)"]);
    for workload in [Workload::R, Workload::RPinned, Workload::V, Workload::C] {
        let wire = Wire::new(workload);
        // By program: ns per run of the other build and of ours, each the mean of both orders.
        let mut samples: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for repetition in 0..repetitions {
            let other_first = beside_each_other(&wire, || [Monitor::of_build(other), this_build(&wire)]);
            let [ours, others] = beside_each_other(&wire, || [this_build(&wire), Monitor::of_build(other)]);
            let [first, second] = [other_first, [others, ours]].map(|[others, ours]| ns_of_both(&others, &ours));
            for (program, (other, this)) in first {
                if let Some((other_again, this_again)) = second.get(&program) {
                    let sample = ((other + other_again) / 2.0, (this + this_again) / 2.0);
                    samples.entry(program).or_default().push(sample);
                }
            }
            eprintln!("programs: {}, repetition {} of {repetitions}", workload.name(), repetition + 1);
        }
        for (program, samples) in &samples {
            let of = |value: fn(&(f64, f64)) -> f64| samples.iter().map(value).collect::<Vec<f64>>();
            let (value, low, high) = estimate::median_interval(&of(|(other, this)| this - other));
            table.row(vec![
                workload.name().to_owned(),
                program.clone(),
                format!("{:.1}", median(&of(|sample| sample.0))),
                format!("{:.1}", median(&of(|sample| sample.1))),
                format!("{value:+.1} ({low:+.1}..{high:+.1})"),
            ]);
        }
    }
    let what = format!(
        "Time per run by the kernel's own count, both builds at once, {repetitions} times 2 x {} s.",
        RUN.as_secs()
    );
    Section { name: "programs", what, table, notes: Vec::new() }
}

fn this_build(wire: &Wire) -> Monitor {
    Arm::Daemon.raise(wire.end(), 0)
}

/// The kernel's counts for two daemons that are attached at once, in this order.
fn beside_each_other(wire: &Wire, raise: impl FnOnce() -> [Monitor; 2]) -> [Counts; 2] {
    let server = wire.server();
    let mut monitors = raise();
    let before = monitors.each_mut().map(read);
    wire.run(server, RUN);
    let after = monitors.each_mut().map(read);
    for monitor in monitors {
        monitor.lower();
    }
    let [first, second] = after;
    let [first_before, second_before] = before;
    [gained(&first_before, first), gained(&second_before, second)]
}

/// Nanoseconds per run of the programs that ran often enough in both.
fn ns_of_both(others: &Counts, ours: &Counts) -> BTreeMap<String, (f64, f64)> {
    let often = ours.iter().filter_map(|(program, (runs, ns))| {
        let (other_runs, other_ns) = others.get(program)?;
        (runs.min(*other_runs) >= FEWEST_RUNS).then(|| (program.clone(), (other_ns / other_runs, ns / runs)))
    });
    often.collect()
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Traffic(workload) => workload.name(),
            Self::Switching => "pipes",
        }
    }
}

/// The kernel's counts for an arm's programs during the load, and how long the load ran.
fn counts(arm: Arm, wire: Option<&Wire>) -> (Counts, Duration) {
    let server = wire.map(|wire| (wire, wire.server()));
    let host = End::host();
    let (end, pid) = server.as_ref().map_or((&host, 0), |(wire, server)| (wire.end(), server.pid()));
    let mut monitor = arm.raise(end, pid);
    let (before, start) = (read(&mut monitor), Instant::now());
    match server {
        Some((wire, server)) => drop(wire.run(server, RUN)),
        None => drop(switch_all_the_time()),
    }
    let (elapsed, after) = (start.elapsed(), read(&mut monitor));
    monitor.lower();
    (gained(&before, after), elapsed)
}

/// What was added to the counts since `before`.
fn gained(before: &Counts, after: Counts) -> Counts {
    let gained = after.into_iter().map(|(program, (runs, ns))| {
        let (runs_before, ns_before) = before.get(&program).copied().unwrap_or_default();
        (program, (runs - runs_before, ns - ns_before))
    });
    gained.collect()
}

fn read(monitor: &mut Monitor) -> Counts {
    if let Some(daemon) = monitor.daemon() {
        return of_page(&daemon.scrape());
    }
    if let Some(programs) = monitor.floor() {
        return programs
            .into_iter()
            .map(|program| (program.probe, (program.runs as f64, program.run_ns as f64)))
            .collect();
    }
    monitor.counts().into_iter().map(|(program, (runs, ns))| (program, (runs as f64, ns as f64))).collect()
}

fn of_page(page: &Page) -> Counts {
    let runs = page.samples("tcpmon_bpf_program_runs_total").into_iter();
    runs.map(|sample| {
        let program = sample.labels["program"].clone();
        let seconds = page.value("tcpmon_bpf_program_run_seconds_total", &[("program", &program)]).unwrap_or(0.0);
        (program, (sample.value, seconds * 1e9))
    })
    .collect()
}

fn targets(nets: &BTreeMap<(&'static str, String), f64>) -> Vec<String> {
    let limits = [
        ("R", "tcp_probe", 80.0),
        ("R pinned", "tcp_probe", 80.0),
        ("V", "tcp_probe", 80.0),
        ("R", "tcp_rcv_space_adjust", 105.0),
        ("R pinned", "tcp_rcv_space_adjust", 105.0),
        ("V", "tcp_rcv_space_adjust", 105.0),
        ("pipes", "sched_switch", 20.0),
    ];
    let measured = limits.into_iter().filter_map(|(load, program, limit)| {
        let net = nets.get(&(load, program.to_owned()))?;
        Some(target(&format!("{program} under {load}, net"), *net, limit, "ns"))
    });
    measured.collect()
}
