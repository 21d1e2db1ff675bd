//! The arms of a benchmark: what runs next to a workload.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tcpmon_tests::lab::End;
use tcpmon_tests::{Daemon, Trace, eventually};

use crate::child::{Child, cpu_of};
use crate::endpoint::FloorProgram;
use crate::peer::Peer;
use crate::{bpf, interrupt};

/// Time limit for a monitor to become idle, and for a child process to end.
const DEADLINE: Duration = Duration::from_secs(30);
/// A monitor counts as idle when, over this time...
const SETTLE: Duration = Duration::from_millis(200);
/// ...it used no more than this share of a CPU.
const IDLE: f64 = 0.03;
/// Interval between two runs of `ss` in [`Arm::Ss`].
const SS_EVERY: Duration = Duration::from_millis(100);
/// Interval between two scrapes of the daemon, counted in measured time.
const SCRAPE_EVERY: Duration = Duration::from_secs(5);

/// What runs next to a workload, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub enum Arm {
    /// Nothing: the baseline.
    Off,
    /// Nothing again (A/A): the difference that the method sees where there is none.
    Null,
    /// Empty eBPF programs on the daemon's tracepoints.
    Floor,
    /// `tcpmon daemon`, scraped every 5 s.
    Daemon,
    /// The daemon without `sched_switch`, not scraped.
    NoSwitch,
    /// The daemon without `napi_poll`, not scraped.
    NoNapi,
    /// The daemon without `kfree_skb`, not scraped.
    NoDrops,
    /// The daemon with the profile `light`, scraped every 5 s.
    Light,
    /// `tcpmon trace` of the server, to a file.
    Trace,
    /// `ss -tmi` in the server's namespace every 100 ms.
    Ss,
    /// Rezolus with its samplers tcp_packet_latency and tcp_receive, not scraped.
    Rezolus,
    /// bpftrace that counts segments and reads by process and port.
    Bpftrace,
}

/// A running arm. End it with [`Monitor::lower`].
#[derive(Debug)]
pub struct Monitor {
    what: What,
    programs: BTreeSet<u32>,
}

#[derive(Debug)]
enum What {
    Nothing,
    Floor(Child),
    Daemon(Daemon),
    Trace(Trace),
    Ss(Ss),
    Peer(Peer),
}

/// When to scrape the daemon: every 5 s of measured time, summed over runs, because no daemon lives longer than one
/// run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrapes {
    run: u32,
}

impl Arm {
    /// The arms that run if none is named.
    pub const DEFAULT: [Self; 7] =
        [Self::Off, Self::Null, Self::Floor, Self::Daemon, Self::Light, Self::Trace, Self::Ss];
    /// The arms that also run with `--peers`.
    pub const PEERS: [Self; 2] = [Self::Rezolus, Self::Bpftrace];

    /// The arm's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Null => "null",
            Self::Floor => "floor",
            Self::Daemon => "daemon",
            Self::NoSwitch => "daemon, no sched_switch",
            Self::NoNapi => "daemon, no napi_poll",
            Self::NoDrops => "daemon, no kfree_skb",
            Self::Light => "daemon, light",
            Self::Trace => "trace",
            Self::Ss => "ss -tmi",
            Self::Rezolus => "Rezolus",
            Self::Bpftrace => "bpftrace",
        }
    }

    /// Starts the arm next to a server at `end` and waits until it is idle.
    pub fn raise(self, end: &End, server: u32) -> Monitor {
        let what = match self {
            Self::Off | Self::Null => What::Nothing,
            Self::Floor => {
                let mut floor = Child::role(&End::host(), "floor", &[]);
                floor.line();
                What::Floor(floor)
            }
            Self::Daemon => What::Daemon(Daemon::start(&[])),
            Self::NoSwitch => What::Daemon(Daemon::start(&["--probes.sched-switch=false"])),
            Self::NoNapi => What::Daemon(Daemon::start(&["--probes.napi-poll=false"])),
            Self::NoDrops => What::Daemon(Daemon::start(&["--probes.kfree-skb=false"])),
            Self::Light => What::Daemon(Daemon::start(&["--probes.profile=light"])),
            Self::Trace => What::Trace(Trace::start(&["--pid", &server.to_string()])),
            Self::Ss => What::Ss(Ss::start(end)),
            Self::Rezolus => What::Peer(Peer::rezolus()),
            Self::Bpftrace => What::Peer(Peer::bpftrace()),
        };
        Monitor::when_idle(what, self.name())
    }
}

impl Monitor {
    /// Starts the daemon of another build and waits until it is idle.
    pub fn of_build(tcpmon: &Path) -> Self {
        let daemon = Daemon::try_start_by(Command::new(tcpmon), &[]);
        let daemon = daemon.unwrap_or_else(|refused| panic!("{}: {}", tcpmon.display(), refused.stderr));
        Self::when_idle(What::Daemon(daemon), "the other build")
    }

    fn when_idle(what: What, name: &str) -> Self {
        let mut monitor = Self { what, programs: BTreeSet::new() };
        monitor.wait_until_idle();
        if let Some(pid) = monitor.pid() {
            monitor.programs = bpf::of_process(pid);
            assert!(!monitor.programs.is_empty(), "{name} holds no eBPF program");
        }
        monitor
    }

    /// CPU time that the arm has used so far.
    pub fn cpu(&self) -> Duration {
        match &self.what {
            What::Ss(ss) => ss.cpu(),
            _ => self.pid().map(cpu_of).unwrap_or_default(),
        }
    }

    /// The daemon, if this arm is one.
    pub fn daemon(&self) -> Option<&Daemon> {
        if let What::Daemon(daemon) = &self.what { Some(daemon) } else { None }
    }

    /// The kernel's counts for the floor's programs, if this arm is the floor.
    pub fn floor(&mut self) -> Option<Vec<FloorProgram>> {
        let What::Floor(floor) = &mut self.what else { return None };
        floor.send_line("programs");
        Some(serde_json::from_str(&floor.line()).expect("the floor answers in JSON"))
    }

    /// The kernel's counts for the arm's programs.
    pub fn counts(&self) -> BTreeMap<String, (u64, u64)> {
        bpf::counts(&self.programs)
    }

    /// Ends the arm and waits until the kernel has freed its programs. Returns the number of records that a trace lost.
    pub fn lower(self) -> u64 {
        let mut lost = 0;
        match self.what {
            What::Nothing => {}
            What::Floor(floor) => drop(floor.wait(DEADLINE)),
            What::Daemon(daemon) => {
                let status = daemon.stop();
                assert!(status.success(), "tcpmon daemon ended with {status}");
            }
            What::Trace(trace) => {
                let traced = trace.stop();
                let last = traced.records.last();
                let trailer = last.unwrap_or_else(|| panic!("a trace without a record: {}", traced.stderr));
                let causes = trailer["lost"].as_object().into_iter().flatten();
                lost = causes.filter_map(|(_, count)| count.as_u64()).sum();
            }
            What::Ss(ss) => drop(ss),
            What::Peer(peer) => peer.stop(),
        }
        bpf::wait_until_gone(&self.programs);
        lost
    }

    fn pid(&self) -> Option<u32> {
        match &self.what {
            What::Nothing | What::Ss(_) => None,
            What::Floor(floor) => Some(floor.pid()),
            What::Daemon(daemon) => Some(daemon.pid()),
            What::Trace(trace) => Some(trace.pid()),
            What::Peer(peer) => Some(peer.pid()),
        }
    }

    fn wait_until_idle(&self) {
        let Some(pid) = self.pid() else { return interrupt::sleep(SETTLE) };
        eventually(DEADLINE, "the monitor becomes idle", || {
            let before = cpu_of(pid);
            interrupt::sleep(SETTLE);
            let part = (cpu_of(pid) - before).as_secs_f64() / SETTLE.as_secs_f64();
            if part <= IDLE { Ok(()) } else { Err(format!("{:.1} % of a CPU", part * 100.0)) }
        });
    }
}

impl Scrapes {
    /// The offset in the next run, which has this length, at which to scrape; `None` if no scrape is due in it.
    pub fn next(&mut self, run: Duration) -> Option<Duration> {
        let begin = run * self.run;
        self.run += 1;
        // Half an interval late, so that no scrape falls on the boundary between two runs.
        let shifted = begin + SCRAPE_EVERY / 2;
        let due = SCRAPE_EVERY * u32::try_from(shifted.as_nanos().div_ceil(SCRAPE_EVERY.as_nanos())).ok()?;
        let at = due - shifted;
        (at < run).then_some(at)
    }
}

/// Runs `job` and scrapes the daemon at that offset into it.
pub fn scraped<T>(daemon: Option<&Daemon>, at: Option<Duration>, job: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        if let (Some(daemon), Some(at)) = (daemon, at) {
            scope.spawn(move || {
                thread::sleep(at);
                daemon.scrape();
            });
        }
        job()
    })
}

/// `ss -tmi`, run repeatedly.
#[derive(Debug)]
struct Ss {
    stop: Arc<AtomicBool>,
    cpu_ns: Arc<std::sync::atomic::AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Ss {
    fn start(end: &End) -> Self {
        let (stop, cpu_ns) = (Arc::default(), Arc::default());
        let (stopped, used, end) = (Arc::clone(&stop), Arc::clone(&cpu_ns), end.clone());
        let thread = thread::spawn(move || {
            let stopped: Arc<AtomicBool> = stopped;
            let used: Arc<std::sync::atomic::AtomicU64> = used;
            let mut due = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let cpu = Child::spawn(&end, "ss", &["-tmi"]).wait(DEADLINE).cpu;
                used.fetch_add(u64::try_from(cpu.as_nanos()).unwrap_or(0), Ordering::Relaxed);
                due += SS_EVERY;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Self { stop, cpu_ns, thread: Some(thread) }
    }

    fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Ss {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("ss failed: see above");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_two_seconds_are_scraped_two_times_in_five() {
        let mut scrapes = Scrapes::default();
        let run = Duration::from_secs(2);
        let moments: Vec<Option<u64>> = (0..10).map(|_| scrapes.next(run).map(|at| at.as_millis() as u64)).collect();
        let half = Some(500);
        let late = Some(1500);
        assert_eq!(moments, [None, half, None, late, None, None, half, None, late, None]);
    }
}
