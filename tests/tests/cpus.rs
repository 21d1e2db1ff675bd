//! CPUs: many of them, some that do not exist yet, and some that go offline and come back while tcpmon runs.

mod common;

use std::fs;
use std::thread;

use common::{DEADLINE, has_two_cpus, lost, sender};
use tcpmon_tests::fault::OfflineCpu;
use tcpmon_tests::physics::{Limits, Physics, Start};
use tcpmon_tests::traffic::Threads;
use tcpmon_tests::truth::{CpuCounters, tracepoints_are_preemptible};
use tcpmon_tests::{Daemon, Lab, Page, Traffic, emulated, eventually, report};

/// How often each CPU goes offline.
const TIMES: u32 = 2;

/// A page, compared with the kernel's counters before and after it, CPU by CPU.
fn look(daemon: &Daemon, physics: &mut Physics) -> Page {
    let before = CpuCounters::read();
    let (text, page) = eventually(DEADLINE, "a page with the host's counters", || {
        let text = String::from_utf8(daemon.get("/metrics", "text/plain").body).expect("a page is text");
        let page = Page::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        page.has_host_counters().then_some((text, page))
    });
    physics.page(&text).unwrap_or_else(|error| panic!("{error}"));
    before.check(&page, &CpuCounters::read()).unwrap_or_else(|error| panic!("{error}"));
    page
}

#[test]
fn every_sum_is_exact_while_cpus_go_offline_and_come_back() {
    if !emulated::cpus_may_go_offline() {
        return report::not_supported("only the machines of `cargo xtask vm` may lose a CPU");
    }
    if !has_two_cpus() {
        return;
    }
    let cpus = thread::available_parallelism().expect("the number of CPUs is known").get() as u32;
    let list = |name| fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).expect("/sys is mounted");
    // On Linux 7.2 and on arm64, every possible CPU is present.
    let could_have_more = cfg!(target_arch = "x86_64") && !tracepoints_are_preemptible();
    assert!(!could_have_more || list("possible") != list("online"), "the machine could have more CPUs than it has");

    let (lab, start) = (Lab::new(), Start::now());
    let daemon = Daemon::start(&[]);
    let mut physics = Physics::new(Limits::of_host(64e6), start);
    let flows = 2 * u64::from(cpus);
    let reader = Traffic::reader(lab.receiver()).comm("nomad").threads(Threads::PerFlow).connections(flows).spawn();
    let sending = sender(&lab, &reader).comm("sender").flows(flows).rate(50_000).spawn();
    eventually(DEADLINE, "all connections have brought something", || {
        let readers = look(&daemon, &mut physics).sum("tcpmon_map_entries", &[("map", "readers")]);
        (readers >= flows as f64).then_some(())
    });
    for _ in 0..TIMES {
        for cpu in 1..cpus {
            let offline = OfflineCpu::new(cpu);
            look(&daemon, &mut physics);
            drop(offline);
            look(&daemon, &mut physics);
        }
    }
    let sent = sending.finish();
    let read = reader.wait();
    assert_eq!((sent.bytes, sent.broken, read.broken), (read.bytes, 0, 0));
    eventually(DEADLINE, &format!("received and read are {} bytes", read.bytes), || {
        let page = look(&daemon, &mut physics);
        let sums = ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"]
            .map(|name| page.sum(name, &[("process", "nomad")]) as u64);
        if sums == [read.bytes; 2] { Ok(()) } else { Err(format!("{sums:?}")) }
    });
    assert_eq!(lost(&look(&daemon, &mut physics)), 0.0);
}
