//! The host's memory: tcpmon shows what the kernel's own files and its own trace show.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use tcpmon_tests::fault::TcpMemoryPressure;
use tcpmon_tests::lab::End;
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::traffic::{Reader, Sender, Threads};
use tcpmon_tests::truth::{self, LimitTrace};
use tcpmon_tests::{Daemon, Lab, Namespace, Page, Traffic, eventually};

use crate::common::{DEADLINE, sender};

const BYTES: &str = "tcpmon_tcp_memory_bytes";
const LIMIT: &str = "tcpmon_tcp_memory_limit_bytes";
const PRESSURE_SECONDS: &str = "tcpmon_tcp_memory_pressure_seconds_total";
const REFUSED: &str = "tcpmon_memory_limit_exceeded_total";

/// Minimum number of pages that the stalled connections hold.
const HELD_PAGES: u64 = 4_096;

/// Maximum time for which the host is short of memory.
const SHORT: Duration = Duration::from_secs(5);

/// Longer than several of the kernel's ticks, the unit in which it measures how long memory is short.
const TICKS: Duration = Duration::from_millis(100);

/// Connections whose data nobody reads, once they hold enough memory.
fn stalled(lab: &Lab) -> (Sender, Reader) {
    lab.set_sysctl("net.ipv4.tcp_rmem", "4096\t4194304\t8388608");
    lab.set_sysctl("net.ipv4.tcp_wmem", "4096\t4194304\t8388608");
    let before = truth::sockstat().pages;
    let reader = Traffic::reader(lab.receiver()).paused().connections(8).threads(Threads::Epoll).spawn();
    let flows = sender(lab, &reader).flows(8).spawn();
    eventually(DEADLINE, "stalled connections hold memory", || {
        let pages = truth::sockstat().pages;
        if pages >= before + HELD_PAGES { Ok(()) } else { Err(format!("{pages} pages, {before} before")) }
    });
    (flows, reader)
}

/// TCP memory in pages, from a metrics page during which the kernel's own figure did not change.
fn at_rest(daemon: &Daemon) -> u64 {
    eventually(DEADLINE, "the kernel has one figure before and after, and tcpmon the same", || {
        let before = truth::sockstat().pages;
        let shown = daemon.scrape().value(BYTES, &[]);
        let seen = [before, truth::sockstat().pages].map(|pages| (pages * truth::page_bytes()) as f64);
        if seen.map(Some) == [shown; 2] { Ok(before) } else { Err(format!("{shown:?}, sockstat {seen:?}")) }
    })
}

#[test]
fn tcp_memory_is_that_of_sockstat_and_its_limits_are_tcp_mem() {
    let daemon = Daemon::start(&[]);
    let page = daemon.scrape();
    let limits = End::host().sysctl("net.ipv4.tcp_mem");
    let limits: Vec<u64> = limits.split_ascii_whitespace().map(|pages| pages.parse().unwrap()).collect();
    for (level, pages) in ["low", "pressure", "max"].iter().zip(limits) {
        assert_eq!(page.value(LIMIT, &[("level", level)]), Some((pages * truth::page_bytes()) as f64), "{level}");
    }
    let before = at_rest(&daemon);
    let lab = Lab::new();
    let flows = stalled(&lab);
    let held = at_rest(&daemon);
    assert!(held >= before + HELD_PAGES, "{before} pages, then {held}");
    drop(flows);
    eventually(DEADLINE, "it falls with the connections", || at_rest(&daemon) < before + HELD_PAGES / 2);
}

#[test]
fn memory_pressure_is_that_of_net_protocols() {
    let daemon = Daemon::start(&[]);
    let same = |pressure: bool| {
        eventually(DEADLINE, "the kernel says the same before and after, and tcpmon, too", || {
            let before = truth::tcp_memory().pressure;
            let shown = daemon.scrape().value("tcpmon_tcp_memory_pressure", &[]);
            let seen = (before, shown, truth::tcp_memory().pressure);
            if seen == (pressure, Some(pressure.into()), pressure) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    };
    same(false);
    let fault = TcpMemoryPressure::new();
    same(true);
    drop(fault);
    same(false);
}

#[test]
fn refused_memory_and_the_time_of_pressure_are_what_the_kernel_traced_and_counted() {
    let (trace, daemon) = (LimitTrace::start(), Daemon::start(&[]));
    let milliseconds = |namespace: &Namespace| truth::netstat(namespace, "TcpExt:")["TCPMemoryPressuresChrono"];
    let host = Namespace::current();
    let host_before = milliseconds(&host);
    let shown = |page: &Page| {
        let refused = ["send", "receive"].map(|kind| page.value(REFUSED, &[("kind", kind)]).expect(kind) as u64);
        (refused, page.value(PRESSURE_SECONDS, &[]).expect(PRESSURE_SECONDS))
    };
    // Where programs can be preempted, a program may miss events on its CPU meanwhile; these are counted.
    let missed = |page: &Page| {
        page.value("tcpmon_lost_total", &[("what", "recursion_sock_exceed_buf_limit")]).expect("the loss") as u64
    };
    let first = shown(&daemon.scrape());
    assert_eq!((first.0, trace.counts()), ([0, 0], [0, 0]), "before the test");
    // Its namespaces are younger than tcpmon, so that all that they count is shown.
    let lab = Lab::new();
    let stalled = stalled(&lab);
    let reader = Traffic::reader(lab.receiver()).spawn();
    // The send buffer has a fixed size. The kernel shrinks any other until the request counts as the last one that it
    // allows.
    let _busy = sender(&lab, &reader).rate(10_000_000).send_buffer(1 << 20).spawn();
    let used = truth::sockstat().pages;
    // From now on the whole host is short of memory for sockets, including tcpmon's own endpoint, so it is scraped
    // afterwards.
    let tcp_mem = HostSysctl::set("net.ipv4.tcp_mem", &format!("{} {} {}", used / 4, used / 2, used / 2));
    let since = Instant::now();
    eventually(SHORT, "memory is refused, to send and to receive, for longer than a tick of the kernel", || {
        let counts = trace.counts();
        let enough = counts[0] > 0 && counts[1] > 0 && since.elapsed() >= TICKS;
        if enough { Ok(()) } else { Err(format!("{counts:?}")) }
    });
    drop(tcp_mem);
    // On a small host, the memory that they hold is enough to cause pressure by itself.
    drop(stalled);
    eventually(DEADLINE, "the pressure is over", || !truth::tcp_memory().pressure);
    eventually(DEADLINE, "tcpmon's count is that of the trace, and its time what namespaces count", || {
        let (refused, in_lab) = (trace.counts(), milliseconds(lab.sender()) + milliseconds(lab.receiver()));
        let page = daemon.scrape();
        let (now, missed) = (shown(&page), missed(&page));
        let at_host = milliseconds(&host) - host_before;
        // The time counts for the namespace of the socket that ended the pressure.
        let rise = ((now.1 - first.1) * 1e3).round() as u64;
        let right = (in_lab..=in_lab + at_host).contains(&rise) && in_lab + at_host > 0;
        let all = now.0.iter().sum::<u64>() + missed == refused.iter().sum::<u64>();
        let each = now.0.iter().zip(refused).all(|(shown, refused)| *shown <= refused);
        if right && all && each && trace.counts() == refused {
            Ok(())
        } else {
            Err(format!(
                "{now:?}, missed {missed}, refused {refused:?}, {rise} ms, the lab {in_lab}, the host {at_host}"
            ))
        }
    });
}

#[test]
fn zones_are_those_of_zoneinfo_and_buddyinfo_whenever_they_hold_still() {
    let daemon = Daemon::start(&[]);
    let page_bytes = truth::page_bytes() as f64;
    let shown = |page: &Page| -> BTreeMap<(String, String), truth::Zone> {
        let zones = page.samples("tcpmon_zone_managed_bytes").into_iter().map(|sample| {
            let (node, zone) = (sample.labels["node"].clone(), sample.labels["zone"].clone());
            let labels = [("node", node.as_str()), ("zone", zone.as_str())];
            let pages = |bytes: Option<f64>| (bytes.expect("a family of zones") / page_bytes) as u64;
            let watermark =
                |level| pages(page.value("tcpmon_zone_watermark_bytes", &[labels[0], labels[1], ("level", level)]));
            let order = |order: usize| {
                let order = order.to_string();
                page.value("tcpmon_zone_free_blocks", &[labels[0], labels[1], ("order", &order)])
            };
            let figures = truth::Zone {
                managed: pages(Some(sample.value)),
                free: pages(page.value("tcpmon_zone_free_bytes", &labels)),
                watermarks: ["min", "low", "high"].map(watermark),
                free_blocks: (0..).map_while(order).map(|count| count as u64).collect(),
            };
            ((node, zone), figures)
        });
        zones.collect()
    };
    let mut missing: BTreeSet<_> = truth::zones().into_keys().collect();
    assert_eq!(shown(&daemon.scrape()).into_keys().collect::<BTreeSet<_>>(), missing);
    // Memory changes all the time. A zone counts as checked once two samples around a metrics page agree; then all its
    // values must match. Builds that run beside this test, at idle priority, would not let it hold still: they get
    // nothing as long as all CPUs have something else to do.
    let cpus = thread::available_parallelism().expect("the number of CPUs").get();
    let _hogs: Vec<_> = (0..cpus).map(|cpu| Traffic::hog(cpu, 0)).collect();
    eventually(DEADLINE, "each zone holds still around a page, which shows it to the page and block", || {
        let before = truth::zones();
        let page = shown(&daemon.scrape());
        let after = truth::zones();
        missing.retain(|key| before.get(key) != after.get(key) || page.get(key) != before.get(key));
        let look = |key| format!("{:?}\n{:?}\n{:?}", before.get(key), page.get(key), after.get(key));
        missing.first().map_or(Ok(()), |key| Err(format!("{key:?}\n{}", look(key))))
    });
}

#[test]
fn time_stalled_for_memory_lies_between_two_readings() {
    let daemon = Daemon::start(&[]);
    let before = truth::memory_stalls_us();
    let page = daemon.scrape();
    let after = truth::memory_stalls_us();
    for (index, kind) in ["some", "full"].into_iter().enumerate() {
        let shown = page.value("tcpmon_psi_memory_stalled_seconds_total", &[("kind", kind)]);
        let shown = shown.map(|seconds| (seconds * 1e6).round() as u64);
        let [before, after] = [before, after].map(|stalls| stalls.map(|stalls| stalls[index]));
        assert!(before <= shown && shown <= after, "{kind}: {before:?} {shown:?} {after:?}");
    }
}
