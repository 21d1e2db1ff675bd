//! CPU time of a workload's ends under each arm, compared with the baseline.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::arm::{Arm, Scrapes, scraped};
use crate::estimate::{Ratio, median, quantile, ratio};
use crate::workload::{Outcome, RUN, Wire, Workload};
use tcpmon_tests::figures::{Section, Table, target};
use tcpmon_tests::interrupt;

/// A run whose rate is off by more than this share is marked.
const RATE_TOLERANCE: f64 = 0.01;

/// No more blocks are needed once half the width of each ratio's interval is at most this...
const PRECISION: f64 = 0.015;
/// ...or this much time has passed. Below [`FEWEST_BLOCKS`], no interval counts as narrow, because a few blocks may
/// agree by chance.
const LONGEST: Duration = Duration::from_mins(15);
const FEWEST_BLOCKS: u32 = 5;

/// A run, and the CPU that its monitor used.
#[derive(Clone, Copy, Debug)]
struct Run {
    block: u32,
    outcome: Outcome,
    /// CPU of the monitor, in percent of a core.
    monitor: f64,
    lost: u64,
}

impl Run {
    fn is_marked(&self) -> bool {
        (self.outcome.achieved - 1.0).abs() > RATE_TOLERANCE
    }
}

/// Runs the arms in mirrored blocks: this many, or until each ratio is precise enough.
pub fn measure(workload: Workload, arms: &[Arm], blocks: Option<u32>) -> Section {
    let mut arms = arms.to_vec();
    arms.push(Arm::Off);
    arms.sort_unstable();
    arms.dedup();
    let wire = Wire::new(workload);
    let mut scrapes = Scrapes::default();
    let mut runs: BTreeMap<Arm, Vec<Run>> = BTreeMap::new();
    let begin = Instant::now();
    let mut done = 0;
    while blocks.map_or_else(|| !is_known(&runs, done, begin.elapsed()), |blocks| done < blocks) {
        let mut order = arms.clone();
        order.rotate_left(done as usize % arms.len());
        let mirrored: Vec<Arm> = order.iter().chain(order.iter().rev()).copied().collect();
        let start = Instant::now();
        for arm in mirrored {
            interrupt::check();
            let run = run(&wire, arm, done, &mut scrapes);
            runs.entry(arm).or_default().push(run);
        }
        done += 1;
        eprintln!("{}: block {done} took {:.0} s", workload.name(), start.elapsed().as_secs_f64());
    }
    section(workload, &wire, done, &runs)
}

/// Whether the interval of each ratio is narrow enough, or the time is up.
fn is_known(runs: &BTreeMap<Arm, Vec<Run>>, blocks: u32, elapsed: Duration) -> bool {
    if blocks < FEWEST_BLOCKS || elapsed > LONGEST {
        return elapsed > LONGEST;
    }
    let Some(off) = runs.get(&Arm::Off) else { return false };
    runs.values().map(|arm| ratio(&pairs(arm, off, blocks))).all(|ratio| ratio.high - ratio.low <= 2.0 * PRECISION)
}

fn run(wire: &Wire, arm: Arm, block: u32, scrapes: &mut Scrapes) -> Run {
    let server = wire.server();
    let monitor = arm.raise(wire.end(), server.pid());
    let at = matches!(arm, Arm::Daemon | Arm::Light).then(|| scrapes.next(RUN)).flatten();
    let (before, start) = (monitor.cpu(), Instant::now());
    let outcome = scraped(monitor.daemon(), at, || wire.run(server, RUN));
    let (elapsed, used) = (start.elapsed(), monitor.cpu() - before);
    let lost = monitor.lower();
    Run { block, outcome, monitor: 100.0 * used.as_secs_f64() / elapsed.as_secs_f64(), lost }
}

fn section(workload: Workload, wire: &Wire, blocks: u32, runs: &BTreeMap<Arm, Vec<Run>>) -> Section {
    let off = &runs[&Arm::Off];
    let has_latency = off.iter().all(|run| run.outcome.latency.is_some());
    let mut heading =
        vec!["arm", "CPU of both ends / off (95 %)", "% of a core", "rate", "runs off rate", "monitor, % of a core"];
    if has_latency {
        heading.extend(["p50, us", "/ off", "p99, us"]);
    }
    let mut table = Table::new(&heading);
    let mut ratios = BTreeMap::new();
    for (arm, of_arm) in runs {
        let cpu: Vec<f64> = of_arm.iter().map(|run| run.outcome.cpu).collect();
        let ratio = ratio(&pairs(of_arm, off, blocks));
        ratios.insert(*arm, ratio);
        let collect = |value: fn(&Run) -> f64| of_arm.iter().map(value).collect::<Vec<f64>>();
        let monitor = median(&collect(|run| run.monitor));
        let mut row = vec![
            arm.name().to_owned(),
            if *arm == Arm::Off { "1".to_owned() } else { shown(ratio) },
            format!("{:.1}", 100.0 * quantile(&cpu, 0.25)),
            format!("{:.3}", median(&collect(|run| run.outcome.achieved))),
            format!("{} of {}", of_arm.iter().filter(|run| run.is_marked()).count(), of_arm.len()),
            if monitor > 0.0 { format!("{monitor:.2}") } else { "-".to_owned() },
        ];
        if has_latency {
            let p50 =
                |runs: &[Run]| median(&runs.iter().filter_map(|r| Some(r.outcome.latency?.0)).collect::<Vec<_>>());
            let p99: Vec<f64> = of_arm.iter().filter_map(|run| Some(run.outcome.latency?.1)).collect();
            row.push(format!("{:.1}", p50(of_arm)));
            row.push(format!("{:.2}", p50(of_arm) / p50(off)));
            row.push(format!("{:.1}", median(&p99)));
        }
        table.row(row);
    }
    let mut notes = targets(workload, &ratios);
    let lost: u64 = runs.values().flatten().map(|run| run.lost).sum();
    if lost > 0 {
        notes.push(format!("The traces lost {lost} records."));
    }
    let what = format!(
        "{} Congestion control {}; {blocks} mirrored blocks of 2 runs of {} s per arm.",
        workload.sentence(),
        wire.congestion(),
        RUN.as_secs()
    );
    Section { name: workload.name(), what, table, notes }
}

/// The runs of an arm and of the baseline, block by block.
fn pairs(arm: &[Run], off: &[Run], blocks: u32) -> Vec<(Vec<f64>, Vec<f64>)> {
    let of_block = |runs: &[Run], block| {
        runs.iter().filter(|run| run.block == block).map(|run| run.outcome.cpu).collect::<Vec<f64>>()
    };
    (0..blocks).map(|block| (of_block(arm, block), of_block(off, block))).collect()
}

fn targets(workload: Workload, ratios: &BTreeMap<Arm, Ratio>) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(daemon) = ratios.get(&Arm::Daemon) else { return notes };
    let limit = match workload {
        Workload::R | Workload::C => 1.06,
        Workload::L | Workload::V => 1.03,
        _ => return notes, // There is no target.
    };
    notes.push(target(&format!("{} with the daemon", workload.name()), daemon.value, limit, ""));
    if workload == Workload::R
        && let Some(rezolus) = ratios.get(&Arm::Rezolus)
    {
        notes.push(target("R with the daemon, less R with Rezolus", daemon.value - rezolus.value, -0.02, ""));
    }
    if workload == Workload::R
        && let Some(light) = ratios.get(&Arm::Light)
    {
        notes.push(target("R with the profile light", light.value, 1.03, ""));
    }
    if workload == Workload::R
        && let Some(floor) = ratios.get(&Arm::Floor)
    {
        let (added, at_floor) = (daemon.value - 1.0, floor.value - 1.0);
        let what = format!("CPU added by the daemon over that of the floor ({added:+.3} over {at_floor:+.3})");
        if at_floor > 0.0 {
            notes.push(target(&what, added / at_floor, 2.0, ""));
        } else {
            notes.push(format!("{what}: the floor is not above the noise."));
        }
    }
    notes
}

fn shown(ratio: Ratio) -> String {
    format!("{:.3} ({:.3}..{:.3})", ratio.value, ratio.low, ratio.high)
}
