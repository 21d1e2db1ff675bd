//! Receive rings that really overrun, on emulated NICs (`cargo xtask vm`): tcpmon shows what the kernel counts, its
//! counters never go backwards, and the alert's expression is true for the devices that lose packets and for no others.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::DEADLINE;
use tcpmon_tests::fault::Nic;
use tcpmon_tests::{Daemon, Page, eventually, report, rules, truth};

const OVERRUNS: &str = "tcpmon_device_rx_overruns_total";
/// What the alert compares overruns with.
const PACKETS: [&str; 2] = ["tcpmon_napi_packets_total", "tcpmon_softnet_processed_total"];
const EXHAUSTED: &str = "tcpmon_napi_budget_exhausted_total";
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards/alerts.yaml");

/// As many frames as arrive in two seconds; the emulated CPUs process about half of them.
const FRAMES: u32 = 150_000;
/// Bytes of a jumbo frame.
const JUMBO: u16 = 8_900;
/// If nothing has arrived for this long, the flood is over.
const QUIET: Duration = Duration::from_secs(1);

/// This driver adds up overruns in rtnetlink's counter.
#[test]
fn an_8139_overruns_by_what_rtnetlink_counts() {
    let Some(flooded) = Flooded::new("8139cp", FRAMES, 128) else { return };
    flooded.overruns_are(|nic| nic.counter("rx_missed_errors"));
    flooded.alerts(true);
}

/// This driver counts overruns in ethtool only. Its ring is so cheap to empty that an emulated CPU could keep up
/// without the packet sockets.
#[test]
fn a_vmxnet3_overruns_by_what_ethtool_counts_and_rtnetlink_does_not() {
    let _listeners = Nic::find("vmxnet3").map(|nic| nic.listeners(400));
    let Some(flooded) = Flooded::new("vmxnet3", FRAMES, 128) else { return };
    flooded.overruns_are(|nic| nic.driver_counter("pkts rx OOB"));
    assert_eq!(flooded.nic.counter("rx_missed_errors") + flooded.nic.counter("rx_fifo_errors"), 0);
    flooded.alerts(true);
}

/// This driver shows a 16-bit register of the chip, which has wrapped more than once by the end.
#[test]
fn a_pcnet32_overruns_by_all_rounds_of_its_16_bit_counter() {
    let Some(flooded) = Flooded::new("pcnet32", FRAMES, 128) else { return };
    flooded.overruns_are_modulo(1 << 16, |nic| nic.counter("rx_missed_errors"));
    flooded.alerts(true);
}

/// This NIC loses nothing itself: the side that sends to it waits.
#[test]
fn a_virtio_net_that_uses_up_every_budget_does_not_overrun() {
    let Some(flooded) = Flooded::new("virtio_net", FRAMES, 128) else { return };
    assert_eq!(flooded.overruns(&flooded.last), 0.0);
    flooded.report("0", 0.0);
    assert!(flooded.exhausted > 100, "{} polls used their budget up", flooded.exhausted);
    flooded.alerts(false);
}

/// This NIC takes three descriptors of a page each per frame, and loses the frame if only one or two are left. A larger
/// page takes the whole frame, and QEMU waits for it. QEMU does not clear the counter when it is read, so it goes on
/// rising.
#[test]
fn an_e1000_with_jumbo_frames_overruns_by_what_rtnetlink_counts() {
    let Some(flooded) = Flooded::new("e1000", FRAMES / 5, JUMBO) else { return };
    let counted = |nic: &Nic| nic.counter("rx_missed_errors");
    if truth::page_bytes() > JUMBO.into() {
        assert_eq!((flooded.overruns(&flooded.last), counted(&flooded.nic)), (0.0, 0));
        flooded.report("0", 0.0);
        flooded.alerts(false);
    } else {
        flooded.overruns_are(counted);
        flooded.alerts(true);
    }
}

/// A NIC that has been flooded, and what was seen of it.
struct Flooded {
    driver: String,
    nic: Nic,
    daemon: Daemon,
    first: Page,
    last: Page,
    /// Polls that used up their budget, by the kernel's own trace; tcpmon has counted the same number.
    exhausted: usize,
}

impl Flooded {
    /// Floods the NIC with this driver. If there is no such NIC, reports that and returns `None`.
    fn new(driver: &str, frames: u32, bytes: u16) -> Option<Self> {
        let Some(nic) = Nic::find(driver) else {
            report::not_supported("only the machines of `cargo xtask vm` have NICs that may be flooded");
            return None;
        };
        let (daemon, trace) = (Daemon::start(&[]), truth::Trace::start("napi/napi_poll"));
        let first = daemon.scrape();
        let mut flooded = Self { driver: driver.to_owned(), last: daemon.scrape(), nic, daemon, first, exhausted: 0 };
        flooded.nic.flood(frames, bytes);
        let arrived = |nic: &Nic| nic.counter("rx_packets");
        let (mut packets, mut since) = (arrived(&flooded.nic), Instant::now());
        while since.elapsed() < QUIET {
            let page = flooded.daemon.scrape();
            let (before, now) = (flooded.overruns(&flooded.last), flooded.overruns(&page));
            assert!(now >= before, "overruns go backwards, from {before} to {now}");
            flooded.last = page;
            if arrived(&flooded.nic) != packets {
                (packets, since) = (arrived(&flooded.nic), Instant::now());
            }
        }
        flooded.exhausted = eventually(DEADLINE, "tcpmon counts the polls that the kernel traces", || {
            let lines = trace.lines();
            let of_device = format!("for device {} work ", flooded.nic.device());
            let polls = lines.iter().filter_map(|line| line.split_once(&of_device)?.1.split_once(" budget "));
            let exhausted = polls.filter(|(work, budget)| work == budget).count();
            let page = flooded.daemon.scrape();
            let labels = [("device", flooded.nic.device())];
            let count = |page: &Page| page.value(EXHAUSTED, &labels).unwrap_or_default();
            let seen = count(&page) - count(&flooded.first);
            if seen == exhausted as f64 { Ok(exhausted) } else { Err(format!("{seen}, the kernel {exhausted}")) }
        });
        Some(flooded)
    }

    /// All overruns of the device on a metrics page.
    fn overruns(&self, page: &Page) -> f64 {
        page.sum(OVERRUNS, &[("device", self.nic.device())])
    }

    /// Checks that tcpmon shows the kernel's value, which is the same before and after, and that it is not 0.
    fn overruns_are(&self, kernel: impl Fn(&Nic) -> u64) {
        self.overruns_are_modulo(u64::MAX, kernel);
    }

    /// The same for a kernel counter that wraps at `modulus`.
    fn overruns_are_modulo(&self, modulus: u64, kernel: impl Fn(&Nic) -> u64) {
        eventually(DEADLINE, "tcpmon shows what the kernel counts", || {
            let (before, shown, after) = (kernel(&self.nic), self.overruns(&self.daemon.scrape()), kernel(&self.nic));
            let same = before == after && shown as u64 % modulus == after;
            if same && shown > 0.0 {
                self.report(&after.to_string(), shown);
                Ok(())
            } else {
                Err(format!("kernel {before}, tcpmon {shown}, kernel {after}"))
            }
        });
    }

    /// Reports the figures for `docs/lab.md`.
    fn report(&self, kernel: &str, shown: f64) {
        let frames = self.nic.counter("rx_packets");
        report::line("lab", &format!("rings\t{}\t{frames}\t{kernel}\t{shown}\t{}", self.driver, self.exhausted));
    }

    /// A family before and after the flood, as input for promtool.
    fn series(&self, family: &str) -> Vec<serde_json::Value> {
        let samples = self.last.samples(family).into_iter();
        let series = samples.map(|sample| {
            let labels: Vec<_> = sample.labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
            let before: Vec<_> = sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let before = self.first.value(family, &before).unwrap_or_default();
            let name = format!("{family}{{{}}}", labels.join(","));
            serde_json::json!({ "series": name, "values": format!("{before} {}x5", sample.value) })
        });
        series.collect()
    }

    /// Makes promtool determine for which devices the alert's expression holds, from what was scraped before and after
    /// the flood: for this one, or for none.
    fn alerts(&self, expected: bool) {
        let rules = fs::read_to_string(ALERTS).expect("the machine has the rules");
        let expression = rules::expression(&rules, "TcpmonRxOverrun").expect("there is such an alert");
        let families = PACKETS.into_iter().chain([OVERRUNS]);
        let series: Vec<_> = families.flat_map(|family| self.series(family)).collect();
        let labels = format!("{{device=\"{}\"}}", self.nic.device());
        let samples = if expected { vec![serde_json::json!({ "labels": labels, "value": 1 })] } else { Vec::new() };
        let query = format!("count by (device) ({expression})");
        // promtool expects YAML, and JSON is valid YAML.
        let test = serde_json::json!({ "tests": [{
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [{ "expr": query, "eval_time": "4m", "exp_samples": samples }],
        }] });
        let folder = tempfile::tempdir().expect("there is room for a small file");
        let file = folder.path().join("test.yaml");
        fs::write(&file, test.to_string()).expect("there is room for a small file");
        let output = Command::new("promtool").args([Path::new("test"), Path::new("rules"), &file]).output();
        let output = output.expect("promtool is installed by `cargo xtask test` (package prometheus)");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{test}");
    }
}
