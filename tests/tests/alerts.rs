//! The alert rules and dashboards with a real Prometheus, a real Alertmanager, real traffic and real faults.
//!
//! The rules are those of `dashboards/`, only faster ([`rules::rescaled`]). Rules for conditions that cannot be caused
//! on a test machine are left to their unit tests.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tcpmon_tests::dashboard::{PanelQuery, panel_queries};
use tcpmon_tests::fault::{RingOverrun, SlowReader, StuckSockets, TcpMemoryPressure};
use tcpmon_tests::page::Sample;
use tcpmon_tests::prometheus::{Alert, PrometheusOptions};
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::{Alertmanager, Daemon, Lab, Namespace, Prometheus, Traffic, eventually, rules, truth};

/// Time limit for an alert to pass through a scrape, a window, its `for`, and Alertmanager; and for a panel to have
/// data.
const DEADLINE: Duration = Duration::from_secs(60);
/// Matches the alerts that count: those about the host, and those about processes that the test started for this
/// purpose. The servers that a test runs next to them share two CPUs with everything else. They really do wait for a
/// CPU, but that is not what is tested. Some kernels hide ends of connections ([`truth::HiddenEnds`]): an alert on
/// these is right.
const OF_THE_TEST: &str = "process=~\"|healthy|fault-.*\",what!=\"socket_end\"";

/// Alerts that the faults may also cause, depending on their timing: a small buffer may limit its sender, and memory
/// pressure the connections beside it.
const SIDE_EFFECTS: [&str; 3] = ["TcpmonLimitedByWindow", "TcpmonLimitedByMemory", "TcpmonReceiveDrops"];
/// The rule in which an operator sets the URLs of runbooks and dashboards (`dashboards/README.md`).
const LINKS: &str = "groups: [{name: links, rules: [{record: 'tcpmon:links', expr: 'vector(1)', labels: {docs: \
                     'https://docs.example', grafana: 'https://grafana.example'}}]}]\n";

/// A metric family that a host may be unable to provide.
struct Absence {
    family: &'static str,
    /// Part of the name of the source that must report this in `/status`.
    source: &'static str,
    /// Whether this host cannot provide it, determined without tcpmon.
    holds: fn() -> bool,
}

/// The families that panels may lack, and why.
const ABSENCES: [Absence; 1] = [Absence {
    family: "tcpmon_cgroup_socket_memory_bytes",
    source: "cgroup",
    holds: no_memory_controller_in_cgroup_v2,
}];

/// The host's devices need not count overruns, so the panels with this family are tested where a device does.
const OVERRUNS: &str = "tcpmon_device_rx_overruns_total";

#[test]
fn every_fault_of_sockets_and_memory_is_paged_and_every_panel_has_data() {
    let _stats = HostSysctl::set("kernel.bpf_stats_enabled", "1"); // needed for the figures of two panels
    let host = Namespace::current();
    let daemon = Daemon::start(&[]);
    let hidden = truth::HiddenEnds::start();
    let stack = Stack::start(&host, &daemon);
    let rules: Vec<String> = rule_files().iter().map(|path| rules::rescaled(&read(path))).collect();
    let native = PrometheusOptions { native_histograms: true, rules: &rules, ..PrometheusOptions::default() };
    let native = Prometheus::start(&host, &daemon, native);

    let healthy = Healthy::start();
    stack.quiet_for_15_scrapes();

    let full = SlowReader::with_full_buffer("fault-full");
    let starved = SlowReader::starved("fault-starved", 0);
    let crowded = SlowReader::outnumbered("fault-crowded", 0);
    let small = SlowReader::with_small_buffer("fault-small");
    let stuck = StuckSockets::new(24);
    // Some panels show what sockets lost.
    let lab = Lab::new();
    let losing = Traffic::reader(lab.receiver()).comm("fault-losing").drop_one_in(10).until_exit().spawn();
    let losing_from = Traffic::sender(lab.sender()).to(losing.address()).rate(200_000).message(1000).spawn();
    let generous = HostSysctl::set("net.ipv4.tcp_mem", "1000000000 1000000000 1000000000");
    let reader = |name, comm: &str, reader: &tcpmon_tests::traffic::Reader| {
        ExpectedAlert::new(name, &[("process", comm), ("service", &format!("local:{}", reader.port()))])
    };
    let alerts = [
        reader("TcpmonLimitedByApplication", "fault-full", full.reader()),
        reader("TcpmonReaderStarved", "fault-starved", starved.reader()),
        reader("TcpmonLimitedByScheduler", "fault-crowded", crowded.reader()),
        reader("TcpmonReceiveBufferStuckSmall", "fault-small", small.reader()),
        // Nobody reads the byte that each of the stuck connections got before its path broke.
        ExpectedAlert::new("TcpmonReaderStalled", &[("process", "fault-orphan")]),
        ExpectedAlert::new("TcpmonFinWait1PileUp", &[("state", "fin_wait_1")]),
        ExpectedAlert::new("TcpmonTcpMemoryLimitAboveMemory", &[]),
    ];
    alerts.iter().for_each(|alert| stack.fires(alert));
    let mut queries = queries();
    queries.retain(|query| !shows_overruns(query));
    without_what_cannot_be(&mut queries, &daemon);
    every_panel_has_data(&queries, &[&stack.prometheus, &native]);
    drop((full, starved, crowded, small, stuck, losing_from, losing, generous));
    alerts.iter().for_each(|alert| stack.resolves(alert));

    let pressure = ExpectedAlert::new("TcpmonTcpMemoryPressure", &[]);
    let fault = TcpMemoryPressure::new();
    stack.fires(&pressure);
    drop(fault);
    stack.resolves(&pressure);
    healthy.end();

    let down = ExpectedAlert::new("TcpmonDown", &[("instance", "tcpmon")]);
    let page = daemon.scrape();
    let losses = page.samples("tcpmon_lost_total");
    let unseen = page.value("tcpmon_lost_total", &[("what", "socket_end")]).unwrap_or(0.0);
    hidden.explain(unseen as u64);
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
    stack.fires(&down);
    let expected = alerts.iter().chain([&pressure, &down]).map(|alert| alert.name.to_owned()).collect();
    let mut ever = stack.ever("firing");
    ever.retain(|name| !SIDE_EFFECTS.contains(&name.as_str()));
    assert_eq!(ever, expected, "every other alert is quiet: {losses:?}");
}

#[test]
fn a_ring_overrun_is_paged_with_its_device_and_resolves() {
    let fault = RingOverrun::new();
    // The daemon sees the devices of its own namespace: here, the device that counts what the ring does not take.
    let daemon = Daemon::start_in(fault.namespace(), &[]);
    let stack = Stack::start(fault.namespace(), &daemon);
    fault.begin();
    let overrun = ExpectedAlert::new("TcpmonRxOverrun", &[("device", fault.device())]);
    stack.fires(&overrun);
    let mut queries = queries();
    queries.retain(shows_overruns);
    assert!(!queries.is_empty(), "some panel shows overruns");
    every_panel_has_data(&queries, &[&stack.prometheus]);
    fault.end();
    eventually(DEADLINE, "one of its counters is the kernel's own", || {
        let (page, dropped) = (daemon.scrape(), fault.dropped() as f64);
        let counters = page.samples(OVERRUNS);
        let is_it = |sample: &&Sample| sample.labels["device"] == fault.device() && sample.value == dropped;
        if counters.iter().any(is_it) { Ok(()) } else { Err(format!("{counters:?}, not {dropped}")) }
    });
    stack.resolves(&overrun);
    assert_eq!(stack.ever("firing"), BTreeSet::from([overrun.name.to_owned()]), "every other alert is quiet");
}

/// Prometheus with the rules of `dashboards/`, and Alertmanager.
struct Stack {
    prometheus: Prometheus,
    alertmanager: Alertmanager,
    /// When the rules had data to evaluate for the first time.
    begin: Instant,
}

/// An alert that the test waits for.
struct ExpectedAlert {
    name: &'static str,
    labels: Vec<(&'static str, String)>,
}

impl ExpectedAlert {
    fn new(name: &'static str, labels: &[(&'static str, &str)]) -> Self {
        Self { name, labels: labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect() }
    }

    fn is(&self, alert: &Alert) -> bool {
        let labels: Vec<_> = self.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        alert.name == self.name && alert.bears(&labels)
    }
}

impl Stack {
    #[track_caller]
    fn start(namespace: &Namespace, daemon: &Daemon) -> Self {
        let alertmanager = Alertmanager::start(namespace);
        let mut rules: Vec<String> = rule_files().iter().map(|path| rules::rescaled(&read(path))).collect();
        rules.push(LINKS.to_owned());
        let options =
            PrometheusOptions { rules: &rules, alertmanager: Some(&alertmanager), ..PrometheusOptions::default() };
        let prometheus = Prometheus::start(namespace, daemon, options);
        // Prometheus evaluates its rules for some seconds before it knows what to scrape, so TcpmonAbsent fires at
        // first.
        eventually(DEADLINE, "the daemon is scraped, and no alert is left of the time before", || {
            let up = prometheus.value("up")?;
            let left = (prometheus.alerts()?, alertmanager.alerts()?);
            let absent = |alert: &Alert| alert.name == "TcpmonAbsent";
            let over = !left.0.iter().chain(&left.1).any(absent);
            if up == 1.0 && over { Ok(()) } else { Err(format!("up {up}, {left:?}")) }
        });
        Self { prometheus, alertmanager, begin: Instant::now() }
    }

    /// Waits until every window (10 s) and every `for` (2 s) has passed, and checks that nothing has fired.
    #[track_caller]
    fn quiet_for_15_scrapes(&self) {
        let scrapes = || self.prometheus.value(&format!("sum(sum_over_time(up[{}s]))", self.seconds()));
        eventually(DEADLINE, "15 scrapes have been answered", || scrapes().is_ok_and(|count| count >= 15.0));
        assert_eq!(self.ever("firing"), BTreeSet::new(), "{:#?}", self.prometheus.alerts());
    }

    /// Waits until the alert is active in Alertmanager, and checks that it was pending before, if it has a `for`.
    #[track_caller]
    fn fires(&self, expected: &ExpectedAlert) {
        eventually(DEADLINE, &format!("{} {:?} is active", expected.name, expected.labels), || {
            let active = self.alertmanager.alerts()?.into_iter().find(|alert| expected.is(alert));
            active.ok_or_else(|| format!("at Prometheus: {:#?}", self.prometheus.alerts()))
        });
        let alerts = self.prometheus.alerts().expect("Prometheus tells its alerts");
        let firing = alerts.iter().find(|alert| expected.is(alert) && alert.state == "firing");
        let links = &firing.unwrap_or_else(|| panic!("{} does not fire: {alerts:#?}", expected.name)).annotations;
        assert_eq!(links["runbook_url"], format!("https://docs.example/docs/runbooks/{}.md", expected.name));
        assert!(links["dashboard_url"].starts_with("https://grafana.example/d/tcpmon-"), "{links:?}");
        let rules = self.prometheus.alerting_rules().expect("Prometheus tells its rules");
        if rules[expected.name] {
            assert!(self.ever("pending").contains(expected.name), "{} was never pending", expected.name);
        }
    }

    /// Waits until the alert is gone from both.
    #[track_caller]
    fn resolves(&self, expected: &ExpectedAlert) {
        eventually(DEADLINE, &format!("{} {:?} is over", expected.name, expected.labels), || {
            let mut alerts = self.prometheus.alerts()?;
            alerts.extend(self.alertmanager.alerts()?);
            alerts.retain(|alert| expected.is(alert));
            if alerts.is_empty() { Ok(()) } else { Err(format!("{alerts:#?}")) }
        });
    }

    /// Names of the alerts that have been in this state since the start.
    fn ever(&self, state: &str) -> BTreeSet<String> {
        let selector = format!("alertstate=\"{state}\",{OF_THE_TEST}");
        let names = self.prometheus.alerted(&selector, self.seconds());
        names.expect("Prometheus keeps the states of its alerts").into_iter().collect()
    }

    /// Whole seconds since the start, at least one.
    fn seconds(&self) -> u64 {
        self.begin.elapsed().as_secs().max(1)
    }
}

/// Traffic without any problem.
struct Healthy {
    reader: tcpmon_tests::traffic::Reader,
    sender: tcpmon_tests::traffic::Sender,
    _lab: Lab,
}

impl Healthy {
    fn start() -> Self {
        let lab = Lab::new();
        let reader = Traffic::reader(lab.receiver()).comm("healthy").spawn();
        let sender = common::sender(&lab, &reader).rate(1_000_000).message(100_000).spawn();
        Self { reader, sender, _lab: lab }
    }

    /// Checks that the traffic has continued all the time and has lost nothing.
    fn end(self) {
        assert_eq!(self.sender.finish().bytes, self.reader.wait().bytes);
    }
}

/// Each query of each panel of each dashboard.
fn queries() -> Vec<PanelQuery> {
    let queries: Vec<PanelQuery> = dashboards().iter().flat_map(|path| panel_queries(&read(path))).collect();
    assert!(queries.len() > 50, "{} queries", queries.len());
    queries
}

/// Removes the queries that this host cannot answer, and checks that the daemon reports the reason.
#[track_caller]
fn without_what_cannot_be(queries: &mut Vec<PanelQuery>, daemon: &Daemon) {
    let status = daemon.status();
    for Absence { family, source, .. } in ABSENCES.iter().filter(|absence| (absence.holds)()) {
        assert!(daemon.scrape().samples(family).is_empty(), "{family} cannot be here");
        let mut sources = status["sources"].as_array().into_iter().flatten();
        let source = sources.find(|found| found["name"].as_str().is_some_and(|name| name.contains(source)));
        let said = source.is_some_and(|source| source["available"] == false && source["reason"] != "");
        assert!(said, "/status does not say why there is no {family}: {status:#}");
        queries.retain(|query| !query.expression.contains(family));
    }
}

/// Checks that each query has data in each Prometheus.
#[track_caller]
fn every_panel_has_data(queries: &[PanelQuery], prometheuses: &[&Prometheus]) {
    for prometheus in prometheuses {
        let mut silent = queries.to_vec();
        eventually(DEADLINE, "every panel has data", || {
            silent.retain(|query| {
                let samples = prometheus.query(&query.expression);
                let samples = samples.unwrap_or_else(|error| panic!("{query:?}: {error}"));
                samples.iter().all(|sample| sample.value.is_nan())
            });
            if silent.is_empty() { Ok(()) } else { Err(format!("nothing for {silent:#?}")) }
        });
    }
}

fn no_memory_controller_in_cgroup_v2() -> bool {
    let controllers = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers"];
    let listed = controllers.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    !listed.split_whitespace().any(|name| name == "memory")
}

/// Whether a query needs the family, or what a recording rule derives from it.
fn shows_overruns(query: &PanelQuery) -> bool {
    [OVERRUNS, "place=\"ring\""].iter().any(|part| query.expression.contains(part))
}

fn rule_files() -> Vec<PathBuf> {
    let mut files = files_of("yaml");
    files.retain(|path| !path.to_string_lossy().ends_with("_test.yaml"));
    assert!(!files.is_empty(), "no rules in dashboards/");
    files
}

fn dashboards() -> Vec<PathBuf> {
    files_of("json")
}

fn files_of(extension: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards");
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.expect("a directory can be listed").path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
