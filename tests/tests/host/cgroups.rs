//! Control groups: tcpmon shows the socket memory that the kernel charges to them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tcpmon_tests::{Daemon, Lab, MemoryCgroup, Traffic, eventually, report};

use crate::common::{DEADLINE, queued, sender, sources_and_probes};

const FAMILY: &str = "tcpmon_cgroup_socket_memory_bytes";

/// Bytes that wait in the queue of the control group's reader.
const QUEUED: u32 = 50_000;
/// More memory than the control group needs.
const LIMIT: u64 = 64 << 20;
const PAGES: usize = 20;
/// Control groups that come and go together.
const BRIEF: usize = 30;

/// Ends the other thread also if a page is wrong.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Socket memory of a control group, as the kernel shows it.
fn socket_memory(group: &Path) -> f64 {
    let stat = fs::read_to_string(group.join("memory.stat")).expect("the group is there");
    let sock = stat.lines().find_map(|line| line.strip_prefix("sock "));
    sock.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("no sock in {stat}"))
}

#[test]
fn socket_memory_of_a_control_group_is_that_of_memory_stat_while_others_come_and_go() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let source = |daemon: &Daemon| sources_and_probes(daemon)["cgroups"].clone();
    if let (false, reason) = source(&daemon) {
        return report::not_supported(&reason);
    }
    let group = MemoryCgroup::new("holder", LIMIT);
    let folder = group.path();
    let name = format!("/{}", folder.file_name().expect("it has a name").display());
    let reader = Traffic::reader(lab.receiver()).comm("holder").paused().spawn();
    fs::write(folder.join("cgroup.procs"), reader.pid().to_string()).expect("the reader can be moved");
    let sending = sender(&lab, &reader).bytes(QUEUED.into()).hold_open().spawn();
    eventually(DEADLINE, "all waits in the queue", || queued(&lab, &reader, QUEUED));
    // Every two seconds, the kernel sums up what its CPUs have charged.
    eventually(DEADLINE, "the kernel shows the charge", || (socket_memory(folder) >= f64::from(QUEUED)).then_some(()));

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (over, folder) = (&over, &folder);
        let come_and_go = scope.spawn(move || {
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) {
                let brief = |number| folder.with_file_name(format!("tcpmon-brief-{number}"));
                (0..BRIEF).for_each(|number| fs::create_dir(brief(number)).expect("a group can be made"));
                (0..BRIEF).for_each(|number| fs::remove_dir(brief(number)).expect("a group can be removed"));
                rounds += 1;
            }
            rounds
        });
        let enough = SetWhenDropped(over);
        for _ in 0..PAGES {
            eventually(DEADLINE, "a page with the group's socket memory", || {
                let before = socket_memory(folder);
                let page = daemon.page();
                let after = socket_memory(folder);
                if !page.has_host_counters() {
                    return Err("the host's counters are missing".to_owned());
                }
                let groups = page.samples(FAMILY);
                assert!(!groups.is_empty(), "one that vanished has cost all the others");
                let shown = page.sum(FAMILY, &[("cgroup", &name), ("capped", "true")]);
                if before == after && shown == before { Ok(()) } else { Err(format!("{before} {shown} {after}")) }
            });
        }
        drop(enough);
        let rounds = come_and_go.join().expect("groups came and went");
        assert!(rounds > 0, "no group came and went");
    });
    let memory = socket_memory(folder);
    assert!(memory >= f64::from(QUEUED), "{memory} bytes hold {QUEUED}");
    assert_eq!(source(&daemon), (true, String::new()));
    reader.resume();
    sending.finish();
    reader.wait();
}
