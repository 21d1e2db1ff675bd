//! The daemon as its operator sees it: status, polls, labels, and refusals.

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{DEADLINE, run};
use tcpmon_tests::traffic::Threads;
use tcpmon_tests::{Cgroup, Daemon, Lab, Page, Traffic, equal, eventually, tcpmon_binary, truth};

#[test]
fn the_status_tells_probes_and_losses_and_agrees_with_the_metrics() {
    let daemon = Daemon::start(&[]);
    let status = daemon.status();
    let probes = status["probes"].as_array().unwrap();
    assert!(probes.len() >= 8, "{status}");
    let page = daemon.scrape();
    for probe in probes {
        let attached = f64::from(u8::from(probe["verdict"] == "attached"));
        let name = probe["name"].as_str().unwrap();
        assert_eq!(page.value("tcpmon_probe_attached", &[("probe", name)]), Some(attached), "{probe}");
        assert_eq!(probe["reason"] == "", attached == 1.0, "{probe}");
    }
    assert!(status["losses"].is_object() || status["losses"].is_array(), "{status}");
    // By the kernel's own list, the sock_ops program is attached to a control group where it is needed, and the status
    // reports it.
    let links = std::fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap();
    let to_cgroups = links.filter(|link| {
        let text = std::fs::read_to_string(link.as_ref().unwrap().path()).unwrap_or_default();
        text.lines().any(|line| line == "link_type:\tcgroup")
    });
    let said = probes.iter().filter(|probe| probe["name"] == "sock_ops" && probe["verdict"] == "attached");
    // With PREEMPT_RT, interrupt handlers and softirqs are threads, too.
    let threaded = std::fs::read_to_string("/proc/version").unwrap().contains("PREEMPT_RT");
    let needed = usize::from(truth::tracepoints_are_preemptible() || threaded);
    assert_eq!((to_cgroups.count(), said.count()), (needed, needed), "{status}");
    assert_eq!(daemon.get("/healthz", "").status, 200);
    assert_eq!(daemon.get("/nothing", "").status, 404);
    let landing = String::from_utf8(daemon.get("/", "").body).unwrap();
    assert!(landing.contains("/metrics") && landing.contains("/status"), "{landing}");
}

#[test]
fn napi_polls_of_veths_are_those_of_the_device_and_one_device() {
    let lab = Lab::with(tcpmon_tests::LabOptions { napi: true, ..Default::default() });
    let device = lab.receiver().device.clone();
    let path = format!("/sys/class/net/{device}/statistics/rx_packets");
    let packets = || -> f64 {
        let text = lab.receiver().with_own_sys(|| std::fs::read_to_string(&path)).unwrap();
        text.trim().parse().unwrap()
    };
    let daemon = Daemon::start(&[]);
    // Packets from the set-up of the wire (neighbours, IPv6), some of which arrived before tcpmon watched.
    let unwatched = packets();
    let reader = Traffic::reader(lab.receiver()).spawn();
    common::sender(&lab, &reader).bytes(3_000_000).spawn().wait();
    reader.wait();
    tcpmon_tests::eventually(common::DEADLINE, "the polls' work is what the device received", || {
        let before = packets();
        let page = daemon.scrape();
        let seen = page.value("tcpmon_napi_packets_total", &[("device", "veth*")]).unwrap_or_default();
        let after = packets();
        let all = before - unwatched..=after;
        if all.contains(&seen) { Ok(()) } else { Err(format!("{seen}, device {all:?}")) }
    });
}

#[test]
fn a_missing_capability_or_btf_is_reported_in_one_line_with_exit_code_3() {
    // Runs without the capability: setpriv is part of util-linux, as unshare is.
    let binary = tcpmon_binary();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]);
    // The checkout may be in a directory that only root may enter, so the binary is copied to one that everyone may
    // enter.
    let copy = tempfile::tempdir().unwrap();
    std::fs::set_permissions(copy.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copied = copy.path().join("tcpmon");
    std::fs::copy(&binary, &copied).unwrap();
    let (code, stderr) = run(command.arg(&copied).args(["daemon", "--web.listen-address", "127.0.0.1:0"]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("CAP_BPF"), "{stderr}");
    assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");

    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$0\" daemon"]).arg(&binary);
    let (code, stderr) = run(&mut command);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("/sys/kernel/btf/vmlinux"), "{stderr}");
    assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");
}

#[test]
fn in_a_time_namespace_a_second_is_a_second() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("elsewhen").until_exit().spawn();
    let _sender = common::sender(&lab, &reader).message(1000).rate(100_000).spawn();
    let begun = Instant::now();
    let daemon = Daemon::try_start_by(common::a_day_ahead(), &[]).unwrap_or_else(|refused| panic!("{refused:?}"));
    // How long the one socket has been watched, at a moment between two others.
    let watched = || {
        let before = Instant::now();
        let seconds = daemon.scrape().sum("tcpmon_socket_seconds_total", &[("process", "elsewhen")]);
        (before, seconds, Instant::now())
    };
    let first = eventually(common::DEADLINE, "the socket is on the page", || {
        Some(watched()).filter(|(_, seconds, _)| *seconds > 0.0)
    });
    assert!(first.1 <= (first.2 - begun).as_secs_f64(), "{first:?} since {begun:?}");
    eventually(common::DEADLINE, "a second is over", || first.2.elapsed() >= Duration::from_secs(1));
    let second = watched();
    let (least, most) = (second.0 - first.2, second.2 - first.0);
    let seconds = second.1 - first.1;
    assert!(least.as_secs_f64() <= seconds && seconds <= most.as_secs_f64(), "{seconds} s in {least:?} to {most:?}");
}

#[test]
fn pid_0_is_never_a_reader() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("many").threads(Threads::Epoll).connections(16).spawn();
    common::sender(&lab, &reader).flows(16).bytes(1_000_000).spawn().wait();
    reader.wait();
    let page: Page = daemon.scrape();
    let mut idle = page.samples("tcpmon_timeslices_total");
    idle.retain(|sample| sample.labels.get("process").is_some_and(|process| process.starts_with("swapper")));
    assert!(idle.is_empty(), "{idle:?}");
}

#[test]
fn the_cgroup_label_is_the_readers_pod_and_container_and_stays_it_after_its_end() {
    const UID: &str = "6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904";
    let id = "0123456789abcdef".repeat(4);
    let lab = Lab::new();
    let top = Cgroup::new("label");
    let parts = ["kubepods", "burstable", &format!("pod{UID}"), &id];
    // Innermost first, because they are dropped in this order.
    let mut cgroups = VecDeque::from([top]);
    for part in parts {
        cgroups.push_front(cgroups[0].child(part));
    }
    let daemon = Daemon::start(&["--cgroup-label"]);
    let reader = Traffic::reader(lab.receiver()).comm("grouped").spawn();
    cgroups[0].take(reader.pid());
    let sender = common::sender(&lab, &reader).bytes(1_000).hold_open().spawn();
    eventually(common::DEADLINE, "all is read", || equal(reader.report().bytes, 1_000));
    let label = format!("pod/{UID}/{}", &id[..12]);
    let mine = [("process", "grouped"), ("cgroup", label.as_str())];
    let page = daemon.scrape();
    let seen = page.sum("tcpmon_receive_bytes_total", &mine);
    assert_eq!(seen, 1_000.0, "{:?}", page.samples("tcpmon_receive_bytes_total"));
    let identity = [mine[1], ("pod_uid", UID), ("container_id", &id)];
    assert_eq!(page.sum("tcpmon_cgroup_info", &identity), 1.0, "{:?}", page.samples("tcpmon_cgroup_info"));
    // When the daemon takes in the last records, the process is gone, so its control group cannot be looked up any
    // more.
    daemon.stopped_while(|| {
        sender.finish();
        reader.wait();
        drop(reader);
    });
    eventually(common::DEADLINE, "the reader's last timeslice is its pod's", || {
        let page = daemon.scrape();
        let lost = page.sum("tcpmon_timeslices_total", &[("process", "grouped"), ("cgroup", "other")]);
        assert_eq!(lost, 0.0, "{:?}", page.samples("tcpmon_timeslices_total"));
        page.sum("tcpmon_timeslices_total", &[mine[0], mine[1], ("end", "exited")]) == 1.0
    });
}

#[test]
fn the_cgroup_label_is_that_of_a_reader_that_has_ended_before_tcpmon_looks() {
    let lab = Lab::new();
    let cgroups = [Cgroup::new("first"), Cgroup::new("second")];
    let names = cgroups.each_ref().map(|cgroup| {
        let name = cgroup.path().file_name().expect("it has a name");
        format!("/{}", name.to_str().expect("a name in ASCII"))
    });
    let daemon = Daemon::start(&["--cgroup-label"]);
    let received = |page: &Page, cgroup: &str| {
        page.sum("tcpmon_receive_read_bytes_total", &[("process", "brief"), ("cgroup", cgroup)])
    };
    daemon.stopped_while(|| {
        let reader = Traffic::reader(lab.receiver()).comm("brief").connections(2).spawn();
        for (cgroup, bytes) in cgroups.iter().zip([1_000, 20_000]) {
            cgroup.take(reader.pid());
            let before = reader.report().bytes;
            common::sender(&lab, &reader).bytes(bytes).spawn().wait();
            eventually(common::DEADLINE, "all is read", || equal(reader.report().bytes, before + bytes));
        }
        reader.wait();
    });
    eventually(common::DEADLINE, "both connections are there", || {
        let page = daemon.scrape();
        let seen = names.each_ref().map(|name| received(&page, name));
        if seen == [1_000.0, 20_000.0] { Ok(()) } else { Err(format!("{:?}", page.samples("tcpmon_cgroup_info"))) }
    });
    assert_eq!(received(&daemon.scrape(), "other"), 0.0);
}

#[test]
fn a_killed_daemon_leaves_no_program_and_no_map_in_the_kernel() {
    let before = common::loaded();
    let daemon = Daemon::start(&[]);
    daemon.scrape();
    let of_daemon: Vec<BTreeSet<u32>> =
        common::loaded().iter().zip(&before).map(|(now, before)| now - before).collect();
    assert!(of_daemon.iter().all(|ids| ids.len() > 9), "{of_daemon:?}");
    drop(daemon);
    eventually(DEADLINE, "they are gone", || {
        let left: Vec<BTreeSet<u32>> = common::loaded().iter().zip(&of_daemon).map(|(now, ids)| now & ids).collect();
        if left.iter().all(BTreeSet::is_empty) { Ok(()) } else { Err(format!("{left:?}")) }
    });
}
