//! The invariants of every page of the watched daemon.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use tcpmon_tests::clock::monotonic_ns;
use tcpmon_tests::truth::{CpuCounters, HiddenEnds};
use tcpmon_tests::{Daemon, Page, Physics, emulated, truth};

use crate::traffic::{Flow, Steady};
use crate::world::World;

/// Counters of a group that must equal the bytes that its readers counted.
const SUMS: [&str; 2] = ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"];

/// How long the daemon may show a new group at zero, and some more time for the first page after that.
const NEWBORN: Duration = Duration::from_secs(75);

/// Number of last requests whose times a finding reports.
const REQUESTS: usize = 10;

/// Loss of connections whose end no program saw: at most as many as the kernel hid.
const UNSEEN: &str = "socket_end";

/// The daemon's own figures, each with the growth over a run that is still acceptable. Those of the process come from
/// the kernel.
pub const FIGURES: [(&str, f64); 9] = [
    ("RSS (KiB)", 512.0),
    ("descriptors", 2.0),
    ("threads", 1.0),
    ("entries in sockets", 64.0),
    ("entries in readers", 32.0),
    ("entries in drops", 16.0),
    ("groups", 8.0),
    ("hidden groups", 100.0),
    (PAGE_CPU, 2.0),
];

/// The only figure that is a time. CPU time does not depend on what else the host does.
pub const PAGE_CPU: &str = "CPU time of a page (ms)";

/// The watcher of one daemon.
pub struct Watch<'w> {
    world: &'w World,
    daemon: &'w Daemon,
    steady: &'w Steady,
    physics: Physics,
    /// Each figure over time in seconds.
    pub samples: Vec<Vec<(f64, f64)>>,
    /// Number of groups of each flow on the last page, and when it last changed.
    groups: [(usize, Instant); Flow::EXACT.len()],
    /// Losses on the last page, where not zero.
    pub lost: BTreeMap<String, f64>,
    /// Pages seen.
    pub pages: u64,
    /// When the last [`REQUESTS`] pages were requested, seconds.
    requests: Vec<f64>,
    /// Bytes on the last page, all groups together.
    pub received: f64,
    /// Alarms in the kernel's log before the run.
    alarms: usize,
    hidden: HiddenEnds,
    /// Number of hidden ends when it was last looked up.
    hidden_ends: f64,
}

impl<'w> Watch<'w> {
    pub fn new(world: &'w World, daemon: &'w Daemon, steady: &'w Steady, physics: Physics) -> Self {
        Self {
            world,
            daemon,
            steady,
            physics,
            samples: vec![Vec::new(); FIGURES.len()],
            groups: [(0, world.begun); Flow::EXACT.len()],
            lost: BTreeMap::new(),
            pages: 0,
            requests: Vec::new(),
            received: 0.0,
            alarms: alarms().len(),
            hidden: HiddenEnds::start(),
            hidden_ends: 0.0,
        }
    }

    /// Takes a page and checks it.
    pub fn look(&mut self) {
        let least = self.certain();
        let before = CpuCounters::read();
        let (text, time, cpu) = self.page();
        let after = CpuCounters::read();
        let most = self.possible();
        let page = match Page::parse(&text) {
            Ok(page) => page,
            Err(error) => return self.world.find(&format!("a page cannot be read: {error}")),
        };
        self.pages += 1;
        self.received = page.sum(SUMS[0], &[]);
        self.check_sums(&page, time, least, &most);
        if (page.has_host_counters() || !emulated::may_lack_host_counters())
            && let Err(error) = before.check(&page, &after)
        {
            self.world.find(&error);
        }
        self.note_losses(&page);
        self.sample(&page, cpu);
        self.check_log();
    }

    /// A page whose reading began after this call, how long it took, and the daemon's CPU time meanwhile. Older pages,
    /// which were made for other clients, count as pages of this scraper, too: a new group may be at zero on one of
    /// them.
    fn page(&mut self) -> (String, Duration, Duration) {
        let asked = monotonic_ns();
        loop {
            let (begun, cpu) = (Instant::now(), truth::cpu_time(self.daemon.pid()));
            let answer = self.daemon.get_shared("/metrics", "text/plain");
            let (time, cpu) = (begun.elapsed(), truth::cpu_time(self.daemon.pid()) - cpu);
            if answer.status != 200 {
                self.world.find(&format!("/metrics answered {}", answer.status));
            }
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            self.requests.push(begun.duration_since(self.world.begun).as_secs_f64());
            self.requests.drain(..self.requests.len().saturating_sub(REQUESTS));
            // The daemon judges by the times between this scraper's requests how long a new group has to stay at zero.
            if let Err(error) = self.physics.page(&text) {
                self.world.find(&format!("{error}; requests at {:.1?} s", self.requests));
            }
            if answer.began_ns.is_none_or(|began| began >= asked) {
                return (text, time, cpu);
            }
        }
    }

    /// Bytes that each flow's readers have certainly read.
    fn certain(&self) -> [u64; Flow::EXACT.len()] {
        Flow::EXACT.map(|flow| match flow {
            Flow::Steady => self.steady.least(),
            flow => flow.account(self.world).settled(),
        })
    }

    /// Bytes that may have been sent to them.
    fn possible(&self) -> [u64; Flow::EXACT.len()] {
        Flow::EXACT.map(|flow| match flow {
            Flow::Steady => self.steady.most(),
            flow => flow.account(self.world).planned(),
        })
    }

    fn check_sums(&mut self, page: &Page, time: Duration, least: [u64; Flow::EXACT.len()], most: &[u64]) {
        let lost = lost(page);
        for ((flow, groups), (least, most)) in Flow::EXACT.iter().zip(&mut self.groups).zip(least.into_iter().zip(most))
        {
            let service = format!("local:{}", flow.port());
            let each = |name| page.each(name, "process", &[("service", &service)]);
            let count = each(SUMS[0]).len();
            if count != groups.0 {
                *groups = (count, Instant::now());
            }
            let least = if groups.1.elapsed() < NEWBORN { 0 } else { least };
            for name in SUMS {
                let shown = each(name);
                let seen: f64 = shown.values().sum();
                let lacking = least as f64 - seen;
                if seen > *most as f64 || lacking > 0.0 && lacking > hidden_bytes(&self.hidden, *flow) {
                    self.world.find(&format!(
                        "{name} of {service} is {seen}, and its ends counted {least}..{most}; groups: {shown:?}; \
                         the page took {} ms; lost: {lost:?}, on the page before: {:?}",
                        time.as_millis(),
                        self.lost
                    ));
                }
            }
        }
    }

    fn note_losses(&mut self, page: &Page) {
        for (what, count) in lost(page) {
            if !self.lost.contains_key(&what) {
                eprintln!("{:.1} s: the first lost {what}", self.world.begun.elapsed().as_secs_f64());
            }
            self.lost.insert(what, count);
        }
        let unseen = self.lost.get(UNSEEN).copied().unwrap_or_default();
        if unseen > self.hidden_ends {
            self.hidden_ends = self.hidden.most() as f64;
        }
        if unseen > self.hidden_ends {
            self.world.find(&format!("{unseen} ends were not seen, and the kernel hid {}", self.hidden_ends));
        }
    }

    fn sample(&mut self, page: &Page, cpu: Duration) {
        let at = self.world.begun.elapsed().as_secs_f64();
        let pid = self.daemon.pid();
        let count = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, Iterator::count) as f64;
        let entries = |map: &str| page.value("tcpmon_map_entries", &[("map", map)]).unwrap_or(f64::NAN);
        let values = [
            truth::own_rss_bytes(pid) as f64 / 1024.0,
            count("fd"),
            count("task"),
            entries("sockets"),
            entries("readers"),
            entries("drops"),
            entries("groups"),
            entries("groups_hidden"),
            cpu.as_secs_f64() * 1e3,
        ];
        for (samples, value) in self.samples.iter_mut().zip(values) {
            samples.push((at, value));
        }
    }

    fn check_log(&mut self) {
        let alarms = alarms();
        for alarm in alarms.iter().skip(self.alarms) {
            self.world.find(&format!("the kernel's log has {alarm:?}"));
        }
        self.alarms = alarms.len();
    }

    /// Checks, once nothing is sent any more, that every sum is exact. `Err` tells what is missing.
    pub fn all_is_exact(&mut self) -> Result<(), String> {
        let (text, ..) = self.page();
        let page = Page::parse(&text)?;
        for flow in Flow::EXACT {
            let (service, account) = (format!("local:{}", flow.port()), flow.account(self.world));
            for name in SUMS {
                let seen = page.sum(name, &[("service", &service)]);
                let exact = match flow {
                    Flow::Steady => self.steady.reader.report().bytes,
                    _ => account.settled(),
                } as f64;
                let lacking = exact - seen;
                if lacking < 0.0 || lacking > 0.0 && lacking > hidden_bytes(&self.hidden, flow) {
                    let lost = lost(&page);
                    return Err(format!("{name} of {service} is {seen}, and {exact} bytes were read; lost: {lost:?}"));
                }
            }
        }
        let opened = |by| page.value("tcpmon_connections_opened_total", &[("counted_by", by)]).unwrap_or(f64::NAN);
        let late = page.value("tcpmon_sockets_found_late_total", &[]).unwrap_or(f64::NAN);
        let (kernel, programs) = (opened("kernel"), opened("programs"));
        // The kernel's counts of a namespace that came and went between two samples are never seen.
        if programs + late < kernel {
            return Err(format!(
                "the kernel opened {kernel} connections, the programs saw {programs}, {late} of them late"
            ));
        }
        Ok(())
    }
}

/// The most bytes that may be missing from the flow because the kernel hid ends of its connections: those that arrived
/// after the last pass.
fn hidden_bytes(hidden: &HiddenEnds, flow: Flow) -> f64 {
    (hidden.most_on(flow.port()) * flow.most_on_a_connection()) as f64
}

/// What a page says was lost, where not zero.
fn lost(page: &Page) -> BTreeMap<String, f64> {
    let samples = page.samples("tcpmon_lost_total").into_iter().filter(|sample| sample.value > 0.0);
    samples.map(|sample| (sample.labels["what"].clone(), sample.value)).collect()
}

fn alarms() -> Vec<String> {
    truth::kernel_alarms().unwrap_or_else(|error| vec![format!("it cannot be read: {error}")])
}
