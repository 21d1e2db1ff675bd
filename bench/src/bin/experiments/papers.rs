//! The experiments. Reader and load share the first CPU; the sender, and with it the network's softirqs, runs on the
//! second.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use tcpmon_tests::figures::Table;
use tcpmon_tests::mean::Mean;
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::traffic::{Between, Reader, ReaderBuilder, Running, Sender};
use tcpmon_tests::{Delay, Lab, LabOptions, Traffic, interrupt};
use tcpmon_trace::summary::causes;

use crate::Effort;
use crate::chart::{self, Axes, Series};
use crate::host;
use crate::load::Load;
use crate::measure::{Run, measure};
use crate::sheet::{self, Row};

type Done = Result<Table, Box<dyn std::error::Error>>;

/// A column of a table: its heading, and its value in a run.
type Figure = (&'static str, fn(&Run) -> f64);

/// Receive buffers as given to the kernel, which doubles them, bytes.
const BUFFERS: [usize; 5] = [6_000, 16_000, 64_000, 256_000, 1_500_000];

/// The buffers of the experiments with a background load.
const FEWER_BUFFERS: [usize; 3] = [16_000, 256_000, 1_500_000];

/// Maximum bytes in one read.
const CHUNK: usize = 8_192;

/// The largest buffer that any process may ask for during the experiments.
const LARGEST_BUFFER: &str = "4194304";

/// Memory of a load where the amount does not matter: more than fits into the caches.
const LOAD_BYTES: usize = 64 << 20;

/// An experiment of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Experiment {
    /// White, Fig. 3.1: the receiver's delay and its buffer size
    #[value(name = "delay")]
    Delay,
    /// White, Fig. 3.2a: memory used by a background load
    #[value(name = "memory")]
    Memory,
    /// White, Fig. 3.2b: a background load on the receiver's CPU
    #[value(name = "load")]
    Load,
    /// White, Fig. 3.3: the receiver's priority
    #[value(name = "nice")]
    Nice,
    /// Wu and Crawford: busy processes on the receiver's CPU, with a slow and a fast sender
    #[value(name = "hogs")]
    Hogs,
    /// Ubik and Cimbal: a window limited by the application or by the path
    #[value(name = "window")]
    Window,
    /// Bowden: connections that nobody reads, up to the limit of TCP memory
    #[value(name = "pressure")]
    Pressure,
    /// Bowden: sockets in FIN_WAIT1 with full send queues
    #[value(name = "orphans")]
    Orphans,
    /// Bowden, Wu and Crawford: bursts into a receive ring
    #[value(name = "overrun")]
    Overrun,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Delay,
        Self::Memory,
        Self::Load,
        Self::Nice,
        Self::Hogs,
        Self::Window,
        Self::Pressure,
        Self::Orphans,
        Self::Overrun,
    ];

    /// The name of its files and of its place in the document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Memory => "memory",
            Self::Load => "load",
            Self::Nice => "nice",
            Self::Hogs => "hogs",
            Self::Window => "window",
            Self::Pressure => "pressure",
            Self::Orphans => "orphans",
            Self::Overrun => "overrun",
        }
    }

    /// Runs it. Writes its figures and graphs into the folder.
    pub fn run(self, effort: Effort, folder: &Path) -> Done {
        let _limit = HostSysctl::set("net.core.rmem_max", LARGEST_BUFFER);
        match self {
            Self::Delay => delay(effort, folder),
            Self::Memory => memory(effort, folder),
            Self::Load => load(effort, folder),
            Self::Nice => nice(effort, folder),
            Self::Hogs => hogs(effort, folder),
            Self::Window => window(effort, folder),
            Self::Pressure => host::pressure(effort, folder),
            Self::Orphans => host::orphans(effort, folder),
            Self::Overrun => host::overrun(effort, folder),
        }
    }
}

/// Runs of the same settings.
struct Point {
    /// The settings, as they are shown.
    labels: Vec<String>,
    runs: Vec<Run>,
}

impl Point {
    fn mean(&self, figure: impl Fn(&Run) -> f64) -> Mean {
        Mean::of(&self.runs.iter().map(figure).collect::<Vec<_>>())
    }

    /// The largest cause, with its share.
    fn cause(&self) -> String {
        let shares = causes().into_iter().enumerate().map(|(at, cause)| (self.mean(|run| run.causes[at]).value, cause));
        let (share, cause) = shares.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        format!("{cause} {share:.0} %")
    }
}

/// Figures that every experiment has, with their headings in tables and CSV. Each of tcpmon's figures follows the one
/// to compare it with.
const FIGURES: [Figure; 8] = [
    ("Gbit/s by the reader", |run| run.throughput / 1e9),
    ("Gbit/s by tcpmon", |run| run.traced / 1e9),
    ("buffer in use by ss, %", |run| run.fill_sampled),
    ("buffer in use at deactivation by tcpmon, %", |run| run.fill_deactivated),
    ("CPU by the kernel, %", |run| run.cpu),
    ("CPU by tcpmon, %", |run| run.on_cpu),
    ("limited by the window, by the sender, %", |run| run.rwnd_limited),
    ("limited by the receiver, by tcpmon, %", Run::limited),
];

/// Tells whether the application or the path limits the window. Only a long path has a round trip time that is known
/// well enough.
const WINDOW_USED: Figure = ("window in use, by tcpmon, %", Run::window_used);

/// Writes all runs as CSV, and makes the table of the means.
fn record(folder: &Path, name: &str, settings: &[&str], points: &[Point], figures: &[Figure]) -> Done {
    let causes_percent = causes().map(|cause| format!("{cause}, %"));
    let mut headings: Vec<&str> = figures.iter().map(|(heading, _)| *heading).collect();
    headings.extend(causes_percent.iter().map(String::as_str));
    headings.extend(["run queue, %", "rcvbuf, bytes"]);
    let of_run = |run: &Run| {
        let measured = figures.iter().map(|(_, figure)| figure(run));
        measured.chain(run.causes).chain([run.run_queue, run.rcvbuf]).collect()
    };
    let rows: Vec<Row> = points
        .iter()
        .map(|point| Row { labels: point.labels.clone(), runs: point.runs.iter().map(of_run).collect() })
        .collect();
    let mut table = sheet::write(folder, name, (settings, &headings, figures.len()), &rows)?;
    table.column("cause, by tcpmon", points.iter().map(Point::cause));
    Ok(table)
}

/// Starts a reader, and a sender that sends as fast as it can or at this rate.
fn transfer(lab: &Lab, reader: ReaderBuilder, rate: Option<u64>) -> (Reader, Sender) {
    let reader = reader.comm("lab-reader").cpu(0).chunk(CHUNK).until_exit().spawn();
    let sender = Traffic::sender(lab.sender()).comm("lab-sender").cpu(1).to(reader.address());
    let sender = match rate {
        // One message fills one read, because the reader works for each read, however small.
        Some(rate) => sender.message(CHUNK).rate(rate),
        None => sender,
    };
    (reader, sender.spawn())
}

/// Measures a point. Each run uses a connection of its own.
fn point(labels: &[String], effort: Effort, path: impl Fn() -> Lab, make: impl Fn(&Lab) -> (Reader, Sender)) -> Point {
    let runs = (0..effort.runs).map(|_| {
        interrupt::check();
        let lab = path();
        let (reader, sender) = make(&lab);
        let run = measure(&lab, &reader, effort);
        drop(sender);
        reader.exit();
        run
    });
    let point = Point { labels: labels.to_vec(), runs: runs.collect() };
    eprintln!("lab: {}: {} Gbit/s", labels.join(", "), point.mean(|run| run.throughput / 1e9));
    point
}

/// A series for each value of the first setting, over the second.
fn series(points: &[Point], xs: &[f64], unit: &str, figure: fn(&Run) -> f64) -> Vec<Series> {
    let of = |points: &[Point]| Series {
        name: format!("{}{unit}", points[0].labels[0]),
        points: xs.iter().copied().zip(points.iter().map(|point| point.mean(figure))).collect(),
    };
    points.chunks(xs.len()).map(of).collect()
}

fn delay(effort: Effort, folder: &Path) -> Done {
    let mut points = Vec::new();
    for delay in [0, 5, 10, 20, 50] {
        for buffer in BUFFERS {
            let labels = [delay.to_string(), buffer.to_string()];
            points.push(point(&labels, effort, Lab::new, |lab| {
                let between = if delay == 0 { Between::Nothing } else { Between::Spin(delay) };
                transfer(lab, Traffic::reader(lab.receiver()).receive_buffer(buffer).between(between), None)
            }));
        }
    }
    let xs = BUFFERS.map(|buffer| buffer as f64);
    let axes = |title, y| Axes { title, x: "receive buffer as set", y, logarithmic: true, bytes: true };
    let shown = series(&points, &xs, " us", |run| run.throughput / 1e9);
    chart::draw(&folder.join("delay-throughput.svg"), axes("Work between two reads: throughput", "Gbit/s"), &shown)?;
    let shown = series(&points, &xs, " us", |run| run.fill_deactivated);
    let title = "Work between two reads: buffer in use when the reader leaves the CPU";
    chart::draw(&folder.join("delay-buffer.svg"), axes(title, "%"), &shown)?;
    record(folder, "delay", &["delay, us", "buffer, bytes"], &points, &FIGURES)
}

/// Measures each setting with each of [`FEWER_BUFFERS`] next to the load of that setting, and draws the throughput.
fn over_buffers<T: Copy>(
    (name, setting, title): (&str, &str, &str),
    settings: &[(T, String)],
    (effort, folder): (Effort, &Path),
    beside: impl Fn(T) -> Option<Load>,
    reader: impl Fn(T, ReaderBuilder) -> ReaderBuilder,
) -> Done {
    let mut points = Vec::new();
    for (value, label) in settings {
        let _load = beside(*value);
        for buffer in FEWER_BUFFERS {
            let labels = [label.clone(), buffer.to_string()];
            points.push(point(&labels, effort, Lab::new, |lab| {
                transfer(lab, reader(*value, Traffic::reader(lab.receiver()).receive_buffer(buffer)), None)
            }));
        }
    }
    let xs = FEWER_BUFFERS.map(|buffer| buffer as f64);
    let axes = Axes { title, x: "receive buffer as set", y: "Gbit/s", logarithmic: true, bytes: true };
    let shown = series(&points, &xs, "", |run| run.throughput / 1e9);
    chart::draw(&folder.join(format!("{name}-throughput.svg")), axes, &shown)?;
    record(folder, name, &[setting, "buffer, bytes"], &points, &FIGURES)
}

fn memory(effort: Effort, folder: &Path) -> Done {
    // White went up to 150 %. Without swap, more than half would endanger the machine.
    let bytes = physical_bytes();
    let settings = [1, 25, 50].map(|percent| (percent, format!("{percent} % of memory")));
    let what = ("memory", "load", "A load that uses memory, and sleeps 100 us between accesses");
    let beside = |percent| Some(Load::new(bytes / 100 * percent, Duration::from_micros(100)));
    over_buffers(what, &settings, (effort, folder), beside, |_, reader| reader)
}

fn physical_bytes() -> usize {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("it is there");
    1024 * total.split_ascii_whitespace().next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
}

fn load(effort: Effort, folder: &Path) -> Done {
    let settings = [None, Some(100), Some(50), Some(10), Some(0)]
        .map(|sleep| (sleep, sleep.map_or("none".to_owned(), |sleep| format!("sleeps {sleep} us"))));
    let beside = |sleep: Option<u64>| sleep.map(|sleep| Load::new(LOAD_BYTES, Duration::from_micros(sleep)));
    let what = ("load", "load", "A load on the reader's CPU");
    over_buffers(what, &settings, (effort, folder), beside, |_, reader| reader)
}

fn nice(effort: Effort, folder: &Path) -> Done {
    let settings = [-20, -10, 0, 10, 19].map(|nice| (nice, format!("nice {nice}")));
    let what = ("nice", "reader", "The reader's priority beside a load that never sleeps");
    let beside = |_| Some(Load::new(LOAD_BYTES, Duration::ZERO));
    over_buffers(what, &settings, (effort, folder), beside, |nice, reader| reader.nice(nice))
}

/// The paper's results: Mbit/s and % of the CPU for a slow and a fast sender, with 0, 1, 2, 4 and 8 busy processes.
const WU_CRAWFORD: [(&str, [(f64, f64); 5]); 2] = [
    ("slow", [(436.0, 78.489), (443.0, 81.573), (438.0, 80.613), (430.0, 79.217), (440.0, 81.093)]),
    ("fast", [(464.0, 99.228), (241.0, 49.995), (159.0, 34.246), (97.0, 20.859), (74.2, 15.375)]),
];

fn hogs(effort: Effort, folder: &Path) -> Done {
    const COUNTS: [usize; 5] = [0, 1, 2, 4, 8];
    // A slow sender first catches up on what it could not send at the start.
    let effort = Effort { warm_up: Duration::from_secs(2), ..effort };
    // A fast sender needs more CPU than the reader has; a slow one needs about the same share as in the paper.
    let reader = |lab: &Lab| Traffic::reader(lab.receiver()).between(Between::Spin(10));
    let fast = point(&["fast".into(), "0, first".into()], effort, Lab::new, |lab| transfer(lab, reader(lab), None));
    let rate = fast.mean(|run| run.throughput).value / 8.0 * (WU_CRAWFORD[0].1[0].1 / 100.0);
    let mut points = Vec::new();
    for (sender, _) in WU_CRAWFORD {
        for count in COUNTS {
            let _hogs: Vec<Running> = (0..count).map(|_| Traffic::hog(0, 0)).collect();
            let rate = (sender == "slow").then_some(rate as u64);
            let labels = [sender.to_owned(), count.to_string()];
            points.push(point(&labels, effort, Lab::new, |lab| transfer(lab, reader(lab), rate)));
        }
    }
    let xs = COUNTS.map(|count| count as f64);
    let axes = |title, y| Axes { title, x: "busy processes on the reader's CPU", y, logarithmic: false, bytes: false };
    let relative = |points: &[Point], figure: fn(&Run) -> f64| {
        let mut shown = series(points, &xs, ", here", figure);
        for series in &mut shown {
            let first = series.points[0].1.value;
            for (_, mean) in &mut series.points {
                *mean = Mean { value: 100.0 * mean.value / first, half: 100.0 * mean.half / first };
            }
        }
        shown
    };
    let paper = |figure: fn(&(f64, f64)) -> f64, relative: bool| {
        WU_CRAWFORD.map(|(sender, rows)| {
            let first = if relative { figure(&rows[0]) / 100.0 } else { 1.0 };
            let points = xs.iter().zip(&rows).map(|(x, row)| (*x, Mean { value: figure(row) / first, half: 0.0 }));
            Series { name: format!("{sender}, 2006"), points: points.collect() }
        })
    };
    let mut shown = relative(&points, |run| run.throughput);
    shown.extend(paper(|row| row.0, true));
    let title = "Busy processes: throughput";
    chart::draw(&folder.join("hogs-throughput.svg"), axes(title, "% of that without"), &shown)?;
    let mut shown = series(&points, &xs, ", here", |run| run.cpu);
    shown.extend(paper(|row| row.1, false));
    let title = "Busy processes: the reader's part of its CPU";
    chart::draw(&folder.join("hogs-cpu.svg"), axes(title, "%"), &shown)?;
    record(folder, "hogs", &["sender", "processes"], &points, &FIGURES)
}

fn window(effort: Effort, folder: &Path) -> Done {
    const ONE_WAY: Duration = Duration::from_millis(20);
    let long = || Lab::long(ONE_WAY);
    let lossy = || {
        let delay = Some(Delay { one_way: ONE_WAY, lose_every: 500 });
        Lab::with(LabOptions { delay, ..LabOptions::default() })
    };
    // A window takes many round trips of 40 ms to grow.
    let effort = Effort { time: effort.time.max(Duration::from_secs(2)), warm_up: Duration::from_secs(5), ..effort };
    let labels = |what: &str| [what.to_owned()];
    let points = [
        point(&labels("nothing but the path"), effort, long, |lab| {
            transfer(lab, Traffic::reader(lab.receiver()), None)
        }),
        point(&labels("the path loses 1 in 500"), effort, lossy, |lab| {
            transfer(lab, Traffic::reader(lab.receiver()), None)
        }),
        point(&labels("the sender has a buffer of 64 kB"), effort, long, |lab| {
            let reader = Traffic::reader(lab.receiver()).comm("lab-reader").cpu(0).until_exit().spawn();
            let sender = Traffic::sender(lab.sender()).comm("lab-sender").cpu(1).to(reader.address());
            (reader, sender.send_buffer(32_000).spawn())
        }),
        point(&labels("the receiver has a buffer of 64 kB"), effort, long, |lab| {
            transfer(lab, Traffic::reader(lab.receiver()).receive_buffer(32_000), None)
        }),
        point(&labels("the receiver works 2 ms per 8 kB"), effort, long, |lab| {
            transfer(lab, Traffic::reader(lab.receiver()).between(Between::Spin(2000)), None)
        }),
    ];
    record(folder, "window", &["limit, over 40 ms"], &points, &[&FIGURES[..], &[WINDOW_USED]].concat())
}
