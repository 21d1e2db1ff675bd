//! What the daemon itself uses: CPU, memory, start and stop times.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use tcpmon_tests::{Daemon, truth};

use crate::child::cpu_of;
use crate::estimate::median;
use crate::scale::mebibytes;
use crate::workload::{Wire, Workload};
use tcpmon_tests::figures::{Section, Table, target};
use tcpmon_tests::interrupt;

const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// What a daemon uses only once, within this time after its start, does not belong to the steady state.
const WARM_UP: Duration = Duration::from_secs(1);

/// Measures CPU and memory over 30 s each, and 10 starts and stops; less if `quick`.
pub fn measure(quick: bool) -> Section {
    let (scrapes, starts) = if quick { (1, 3) } else { (2, 10) };
    let time = SCRAPE_EVERY * scrapes;
    let mut table = Table::new(&["what", "measured"]);
    let daemon = Daemon::start(&[]);
    interrupt::sleep(WARM_UP);

    let (of_kernel, of_states) = (kernel_bytes(daemon.pid()), state_bytes());
    let unasked = used(daemon.pid(), || interrupt::sleep(time));
    eprintln!("daemon: idle");
    let idle = used(daemon.pid(), || scraped(&daemon, scrapes));
    eprintln!("daemon: idle, scraped");
    let wire = Wire::new(Workload::R);
    let server = wire.server();
    let loaded = used(daemon.pid(), || {
        std::thread::scope(|scope| {
            scope.spawn(|| scraped(&daemon, scrapes));
            wire.run(server, time);
        });
    });
    eprintln!("daemon: under R");
    let seconds = time.as_secs();
    table.row(vec![format!("CPU, idle, not scraped, {seconds} s"), format!("{unasked:.3} % of a core")]);
    table.row(vec![format!("CPU, idle, scraped every 15 s, {seconds} s"), format!("{idle:.3} % of a core")]);
    table.row(vec![format!("CPU, under R, scraped every 15 s, {seconds} s"), format!("{loaded:.3} % of a core")]);
    let resident = truth::rss_bytes(daemon.pid());
    table.row(vec!["RSS".into(), format!("{} MiB", mebibytes(resident))]);
    table.row(vec!["RSS, peak (while loading)".into(), format!("{} MiB", mebibytes(peak_bytes(daemon.pid())))]);
    table.row(vec![
        "kernel memory of programs and maps at the start, without the states".into(),
        format!("{} MiB", mebibytes(of_kernel)),
    ]);
    table.row(vec!["the same with the first states".into(), format!("{} MiB", mebibytes(of_kernel + of_states))]);
    stop(daemon);

    let (mut started, mut stopped) = (Vec::new(), Vec::new());
    for _ in 0..starts {
        interrupt::check();
        let begin = Instant::now();
        let daemon = Daemon::start(&[]);
        let answer = daemon.get("/metrics", "");
        started.push(begin.elapsed().as_secs_f64());
        assert_eq!(answer.status, 200, "the first scrape");
        stopped.push(stop(daemon).as_secs_f64());
    }
    table.row(vec![format!("start to first good scrape, median of {starts}"), format!("{:.3} s", median(&started))]);
    table.row(vec![format!("SIGTERM to exit, median of {starts}"), format!("{:.3} s", median(&stopped))]);
    let notes = vec![
        target("own CPU, idle and scraped", idle, 0.15, "% of a core"),
        target("own CPU under R", loaded, 0.15, "% of a core"),
        target("RSS", resident as f64 / f64::from(1 << 20), 16.0, "MiB"),
        target("kernel memory at the start, without the states", of_kernel as f64 / f64::from(1 << 20), 8.0, "MiB"),
        target(
            "kernel memory at the start, with the first states",
            (of_kernel + of_states) as f64 / f64::from(1 << 20),
            8.0,
            "MiB",
        ),
        target("start to first good scrape", median(&started), 0.2, "s"),
    ];
    Section { name: "daemon", what: "The daemon itself.".into(), table, notes }
}

/// CPU that a process uses during a job, in percent of a core.
pub fn used(pid: u32, job: impl FnOnce()) -> f64 {
    let (before, start) = (cpu_of(pid), Instant::now());
    job();
    100.0 * (cpu_of(pid) - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// Scrapes this many times, each in the middle of an interval.
fn scraped(daemon: &Daemon, scrapes: u32) {
    for _ in 0..scrapes {
        interrupt::sleep(SCRAPE_EVERY / 2);
        daemon.scrape();
        interrupt::sleep(SCRAPE_EVERY / 2);
    }
}

fn stop(daemon: Daemon) -> Duration {
    let start = Instant::now();
    let status = daemon.stop();
    assert!(status.success(), "tcpmon daemon ended with {status}");
    start.elapsed()
}

/// Memory of the programs and maps that the daemon has open, by the kernel's own count. The socket states are not
/// included: they are mapped, and part of RSS.
fn kernel_bytes(pid: u32) -> u64 {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the daemon runs");
    let texts = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    let of_file = |text: String| {
        let id = line(&text, "map_id:").map(|id| ("map", id)).or_else(|| Some(("program", line(&text, "prog_id:")?)));
        Some((id?, memory(&text)?))
    };
    // Count each only once: some are open several times.
    texts.filter_map(of_file).collect::<BTreeMap<_, _>>().values().sum()
}

/// The same of the arrays of states. Nobody has them open: they are in another map.
fn state_bytes() -> u64 {
    let arrays = aya::maps::loaded_maps().flatten();
    let arrays = arrays.filter(|map| map.name_as_str() == Some("STATES") && map.value_size() > 4);
    let of_array = |array: aya::maps::MapInfo| {
        let map = array.fd().expect("the daemon runs");
        let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
        memory(&fs::read_to_string(path).expect("it is open")).expect("it is a map")
    };
    arrays.map(of_array).sum()
}

/// The rest of the line that begins so, in what `/proc/PID/fdinfo` says of a file.
fn line(text: &str, key: &str) -> Option<String> {
    Some(text.lines().find_map(|line| line.strip_prefix(key))?.trim().to_owned())
}

/// The memory of a program or map, by the same text.
fn memory(text: &str) -> Option<u64> {
    line(text, "memlock:")?.parse().ok()
}

fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has a peak");
    line.split_ascii_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("kilobytes") * 1024
}
