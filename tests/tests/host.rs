//! The host's network: tcpmon shows what the kernel's own files show.

#[path = "host/cgroups.rs"]
mod cgroups;
mod common;
#[path = "host/families.rs"]
mod families;
#[path = "host/memory.rs"]
mod memory;
#[path = "host/namespaces.rs"]
mod namespaces;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::{ffi::OsStrExt, fs::MetadataExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{DEADLINE, leaves_no_entries, sender, sources_and_probes};
use tcpmon_tests::fault::{RingOverrun, StuckSockets};
use tcpmon_tests::lab::End;
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::traffic::Threads;
use tcpmon_tests::truth::{self, CpuCounters, State};
use tcpmon_tests::{Daemon, Killed, Lab, Namespace, Page, Traffic, emulated, equal, eventually};

const TCP_EVENTS: &str = "tcpmon_tcp_events_total";
const IP_EVENTS: &str = "tcpmon_ip_events_total";

#[test]
fn softnet_and_context_switches_lie_between_two_readings_and_move_with_traffic() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let look = || {
        let before = CpuCounters::read();
        let page = daemon.scrape();
        before.check(&page, &CpuCounters::read()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            page.samples("tcpmon_softnet_processed_total").len(),
            before.softnet.len(),
            "each CPU, and no other"
        );
        (page.sum("tcpmon_softnet_processed_total", &[]), page.sum("tcpmon_context_switches_total", &[]))
    };
    let first = look();
    let reader = Traffic::reader(lab.receiver()).spawn();
    let flow = sender(&lab, &reader).bytes(3_000_000).hold_open().spawn();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 3_000_000));
    let [packets, reads] = [received(lab.receiver()), truth::switches(reader.pid(), reader.pid()).voluntary];
    let last = look();
    // Every packet on the wire went through a CPU, and the reader had to wait for some of them.
    assert!(packets > 50 && last.0 - first.0 >= packets as f64, "{first:?} {last:?}, {packets} packets");
    assert!(reads > 0 && last.1 - first.1 >= reads as f64, "{first:?} {last:?}, {reads} of the reader");
    flow.finish();
}

/// Number of packets that the end's device has received.
fn received(end: &End) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/rx_packets", end.device);
    let text = end.with_own_sys(|| fs::read_to_string(&path)).expect("the device is there");
    text.trim().parse().expect("a number")
}

/// The counters in `TcpExt` and `IpExt` of a namespace, by family and event.
fn events(namespace: &Namespace) -> BTreeMap<(&'static str, String), u64> {
    let tables = [(TCP_EVENTS, "TcpExt:"), (IP_EVENTS, "IpExt:")];
    let all = tables.map(|(family, title)| {
        truth::netstat(namespace, title).into_iter().map(move |(event, count)| ((family, event), count))
    });
    all.into_iter().flatten().collect()
}

#[test]
fn every_event_of_tcp_and_ip_is_that_of_all_namespaces_and_stays_when_one_goes() {
    let (host, daemon) = (Namespace::current(), Daemon::start(&[]));
    let host_before = events(&host);
    let first = daemon.scrape();
    // Its namespaces are younger than tcpmon, so that all of their events are shown.
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).paused().spawn();
    let flow = sender(&lab, &reader).bytes(20_000_000).hold_open().spawn();
    eventually(DEADLINE, "the window closes", || {
        events(lab.receiver())[&(TCP_EVENTS, "TCPToZeroWindowAdv".into())] > 0
    });
    reader.resume();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 20_000_000));
    let in_lab = || {
        let mut sum = events(lab.sender());
        for (event, count) in events(lab.receiver()) {
            *sum.entry(event).or_default() += count;
        }
        sum
    };
    let last = eventually(DEADLINE, "what came in is the lab's, and no more than the host's own beside it", || {
        let expected = in_lab();
        let page = daemon.scrape();
        let host_after = events(&host);
        for ((family, event), count) in &expected {
            let shown = |page: &Page| page.value(family, &[("event", event)]).ok_or(format!("no {event}"));
            let rise = shown(&page)? - shown(&first)?;
            let key = (*family, event.clone());
            let most = count + host_after[&key] - host_before[&key];
            if rise < *count as f64 || rise > most as f64 {
                return Err(format!("{event} has risen by {rise}, not by {count} to {most}"));
            }
        }
        if in_lab() == expected { Ok(page) } else { Err("the lab is not at rest".to_owned()) }
    });
    for event in ["TCPHPHits", "TCPPureAcks", "TCPToZeroWindowAdv"] {
        assert!(in_lab()[&(TCP_EVENTS, event.into())] > 0, "{event}");
    }
    let octets = in_lab()[&(IP_EVENTS, "InOctets".into())];
    assert!(octets > 20_000_000, "{octets}");

    flow.finish();
    reader.wait();
    drop(lab);
    let mut before = last;
    for _ in 0..10 {
        let page = daemon.scrape();
        for sample in [TCP_EVENTS, IP_EVENTS].iter().flat_map(|family| before.samples(family)) {
            let event = sample.labels["event"].as_str();
            let now = page.value(&sample.name, &[("event", event)]);
            assert!(now >= Some(sample.value), "{event} fell from {} to {now:?}", sample.value);
        }
        before = page;
    }
}

#[test]
fn stuck_sockets_and_orphans_are_those_of_proc_and_end_with_the_fault() {
    let daemon = Daemon::start(&[]);
    let shown = |page: &Page| {
        let of = |family, state| page.value(family, &[("state", state)]).expect(family);
        let others = page.sum("tcpmon_stuck_sockets", &[]) - of("tcpmon_stuck_sockets", "fin_wait_1");
        let (sockets, bytes) = ("tcpmon_stuck_sockets", "tcpmon_stuck_send_queue_bytes");
        [of(sockets, "fin_wait_1"), of(bytes, "fin_wait_1"), others]
    };
    let before = shown(&daemon.scrape());
    let fault = StuckSockets::new(3);
    eventually(DEADLINE, "the sockets in FIN_WAIT1 are those of net/tcp", || {
        let queues = truth::send_queues(fault.namespace(), State::FinWait1);
        let expected = [queues.len() as u64, queues.iter().sum(), 0];
        let orphans = truth::sockstat().orphans;
        let page = daemon.scrape();
        let rise: Vec<f64> = shown(&page).iter().zip(before).map(|(now, before)| now - before).collect();
        let seen = (rise, page.value("tcpmon_orphan_sockets", &[]));
        let right = expected[0] == 3 && orphans >= 3 && truth::sockstat().orphans == orphans;
        let expected = (expected.map(|number| number as f64).to_vec(), Some(orphans as f64));
        if right && seen == expected { Ok(()) } else { Err(format!("{seen:?} instead of {expected:?}")) }
    });
    drop(fault);
    eventually(DEADLINE, "the figures are what they were", || {
        let now = shown(&daemon.scrape());
        if now == before { Ok(()) } else { Err(format!("{now:?}, {before:?} before")) }
    });
}

#[test]
fn ring_sizes_are_those_of_ethtool_and_devices_without_a_ring_have_none() {
    let page = Daemon::start(&[]).scrape();
    for entry in fs::read_dir("/sys/class/net").unwrap() {
        let device = entry.unwrap().file_name().into_string().unwrap();
        let output = Command::new("ethtool").args(["-g", &device]).stdin(Stdio::null()).output();
        let output = output.expect("ethtool is installed (package ethtool)");
        let text = String::from_utf8(output.stdout).unwrap();
        // `RX:` appears twice: the maximum and the current setting. A device that refuses, or has neither, has no ring.
        let sizes: Vec<f64> = text.lines().filter_map(|line| line.strip_prefix("RX:")?.trim().parse().ok()).collect();
        let shown = ["tcpmon_device_rx_ring_max_entries", "tcpmon_device_rx_ring_entries"]
            .map(|family| page.value(family, &[("device", &device)]));
        assert_eq!(shown.iter().flatten().copied().collect::<Vec<_>>(), sizes, "{device}\n{text}");
    }
}

#[test]
fn overruns_of_a_veth_are_what_its_ring_did_not_take_from_zero_on() {
    let fault = RingOverrun::new();
    let daemon = Daemon::start_in(fault.namespace(), &[]);
    let labels = [("device", fault.device()), ("counter", "tx_dropped")];
    let shown = || daemon.scrape().value("tcpmon_device_rx_overruns_total", &labels);
    let before = fault.dropped();
    assert_eq!(shown(), Some(before as f64));
    fault.begin();
    fault.end();
    let dropped = fault.dropped();
    assert!(dropped > before, "{dropped}, {before} before");
    eventually(DEADLINE, "the next look at the devices, once a second, shows the drops", || {
        let shown = shown();
        if shown == Some(dropped as f64) { Ok(()) } else { Err(format!("{shown:?} of {dropped}")) }
    });
    let page = daemon.scrape();
    assert_eq!(page.samples("tcpmon_device_rx_overruns_total").len(), 1, "lo has no ring");
    assert_eq!(page.samples("tcpmon_device_rx_ring_entries").len(), 0, "nor has a veth descriptors");
}

#[test]
fn a_device_with_an_alias_in_latin_1_hides_no_device() {
    let fault = RingOverrun::new();
    let daemon = Daemon::start_in(fault.namespace(), &[]);
    let shown = || daemon.scrape().samples("tcpmon_device_rx_overruns_total").len();
    assert_eq!(shown(), 1);
    let alias = std::ffi::OsStr::from_bytes(b"B\xfcro");
    let set = fault.namespace().run(|| {
        Command::new("ip").args(["link", "set", "dev", fault.device(), "alias"]).arg(alias).status().expect("iproute2")
    });
    assert!(set.success(), "ip link set alias: {set}");
    // The devices are read once a second.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        assert_eq!(shown(), 1);
    }
}

#[test]
fn a_namespace_that_may_not_be_entered_is_named_and_all_else_is_there() {
    let lab = Lab::new();
    let _inside = Traffic::reader(lab.receiver()).paused().spawn();
    let name = format!("net:[{}]", fs::metadata(lab.receiver().path()).unwrap().ino());
    let daemon = Daemon::start_without("-sys_admin");
    let page = daemon.scrape();
    let reason = sources_and_probes(&daemon).remove("network_namespaces").unwrap().1;
    assert!(reason.contains(&name), "{name} is not in {reason:?}");
    families::shown_where_the_source_is_on(&page, &sources_and_probes(&daemon));
    assert!(page.value(TCP_EVENTS, &[("event", "TCPPureAcks")]).is_some(), "those of its own namespace");
    // With the capability there is nothing to name.
    let able = Daemon::start(&[]);
    able.scrape();
    let reason = sources_and_probes(&able).remove("network_namespaces").unwrap().1;
    assert!(!reason.contains(&name), "{reason}");
}

#[test]
fn processes_that_may_not_be_inspected_are_logged_once_however_often_the_reason_changes() {
    let daemon = Daemon::start_without("-sys_ptrace,-sys_admin");
    let reason = || sources_and_probes(&daemon).remove("network_namespaces").unwrap().1;
    let hidden = |reason: &str| reason.contains("CAP_SYS_PTRACE");
    let (first, mut processes) = (reason(), Vec::new());
    assert!(hidden(&first), "{first}");
    let mut reasons = std::collections::BTreeSet::from([first]);
    eventually(DEADLINE, "the reason changes five times", || {
        processes.push(Killed(Command::new("tail").args(["-f", "/dev/null"]).spawn().expect("tail is there")));
        reasons.insert(reason());
        if reasons.len() > 5 { Ok(()) } else { Err(format!("{reasons:?}")) }
    });
    let said = daemon.stderr();
    assert_eq!(said.lines().filter(|line| line.contains("network_namespaces") && hidden(line)).count(), 1, "{said}");
}

#[test]
fn without_the_kernel_log_only_its_family_is_missing_and_the_log_says_so_once() {
    let _restricted = HostSysctl::set("kernel.dmesg_restrict", "1");
    let daemon = Daemon::start_without("-syslog,-sys_admin");
    let page = daemon.scrape();
    let (available, reason) = sources_and_probes(&daemon).remove("kernel_log").unwrap();
    assert!(!available && reason.contains("/dev/kmsg"), "{available} {reason}");
    assert_eq!(page.samples("tcpmon_page_allocation_failures_total").len(), 0);
    families::shown_where_the_source_is_on(&page, &sources_and_probes(&daemon));
    let said = daemon.stderr();
    for _ in 0..5 {
        daemon.scrape();
    }
    assert_eq!(daemon.stderr(), said);
}

#[test]
fn every_family_of_the_host_is_shown_or_its_source_is_off() {
    let daemon = Daemon::start(&[]);
    daemon.scrape();
    families::shown_where_the_source_is_on(&daemon.scrape(), &sources_and_probes(&daemon));
    // Only the host's own namespace has tcp_mem.
    let lab = Lab::new();
    let daemon = Daemon::start_in(lab.sender(), &[]);
    daemon.scrape();
    let (page, mut told) = (daemon.scrape(), sources_and_probes(&daemon));
    families::shown_where_the_source_is_on(&page, &told);
    let (available, reason) = told.remove("tcp_memory").unwrap();
    assert!(!available && reason.contains("tcp_mem"), "{available} {reason}");
}

#[test]
fn a_source_that_is_switched_off_is_not_shown_and_status_tells_it_from_one_that_cannot_be_read() {
    const OFF: [&str; 6] = ["netstat", "psi", "sockstat", "softnet", "stat", "zones"];
    let flags = OFF.map(|source| format!("--collect.{source}=false"));
    let daemon = Daemon::start(&flags.each_ref().map(String::as_str));
    daemon.scrape();
    let page = daemon.scrape();
    families::shown_where_the_source_is_on(&page, &sources_and_probes(&daemon));
    let status = daemon.status();
    let sources = status["sources"].as_array().unwrap().iter();
    let mut off: Vec<_> = sources.filter(|source| source["switched_off"] == true).collect();
    off.sort_by_key(|source| source["name"].as_str());
    let names: Vec<_> = off.iter().filter_map(|source| source["name"].as_str()).collect();
    assert_eq!(names, OFF);
    for source in off {
        assert!(source["available"] == false && source["reason"] != "", "{source}");
    }
    for source in OFF {
        assert_eq!(page.value("tcpmon_host_source_available", &[("source", source)]), None);
    }
    assert_eq!(page.value("tcpmon_host_source_available", &[("source", "inet_diag")]), Some(1.0));
    assert_eq!(page.samples("tcpmon_connections_opened_total").len(), 0, "there is nothing to compare with");
}

#[test]
fn a_probe_that_is_switched_off_is_not_loaded_nor_shown_and_status_says_what_is_missing() {
    let _stats = HostSysctl::set("kernel.bpf_stats_enabled", "1");
    let lab = Lab::new();
    let daemon = Daemon::start(&["--probes.profile=light"]);
    // Cause polls, and drops with a reason.
    let reader = Traffic::reader(lab.receiver()).comm("dropping").drop_one_in(10).spawn();
    sender(&lab, &reader).message(1000).bytes(100_000).spawn().wait();
    assert_eq!(reader.wait().bytes, 100_000);
    // Threads that have exited no longer count as readers.
    let rounds = leaves_no_entries(&daemon, &["readers"], || {
        let threads = Traffic::reader(lab.receiver()).comm("threads").connections(50).threads(Threads::PerFlow).spawn();
        // Between two reads a thread sleeps, which brings the kernel's count of its CPU time up to date: of a thread
        // that reads everything in one timeslice, nothing is known without sched_switch.
        sender(&lab, &threads).connections(50).message(10_000).rate(200_000).bytes(100_000).spawn().wait();
        assert_eq!(threads.wait().bytes, 5_000_000);
    });
    let page = daemon.scrape();
    let of_threads = |name| page.sum(name, &[("process", "threads")]);
    assert_eq!(of_threads("tcpmon_receive_bytes_total"), (5_000_000 * rounds) as f64);
    let on_cpu = of_threads("tcpmon_reader_cpu_seconds_total");
    assert!(on_cpu > 0.0, "{on_cpu} s");
    let (limited, observed) =
        (of_threads("tcpmon_receive_limited_seconds_total"), of_threads("tcpmon_socket_seconds_total"));
    // Both are whole nanoseconds, of which each sum of floats rounds some.
    assert!((limited - observed).abs() <= 20.0 * f64::EPSILON * observed, "{limited} and {observed}");
    families::shown_where_the_source_is_on(&page, &sources_and_probes(&daemon));
    assert_eq!(page.sum("tcpmon_receive_bytes_total", &[("process", "dropping")]), 100_000.0);
    for absent in ["tcpmon_receive_drops_total", "tcpmon_timeslices_total", "tcpmon_timeslice_arrived_bytes_total"] {
        assert_eq!(page.samples(absent).len(), 0, "{absent}");
    }
    let status = daemon.status();
    for (name, missing) in [
        ("sched_switch", "timeslices of readers are not counted"),
        ("napi_poll", "NAPI polls are not counted"),
        ("kfree_skb", "drops of received segments"),
    ] {
        let mut probes = status["probes"].as_array().unwrap().iter();
        let probe = probes.find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("no {name} in {status}"));
        let reason = probe["reason"].as_str().unwrap();
        assert_eq!(probe["verdict"], "switched_off", "{probe}");
        assert!(reason.starts_with(&format!("switched off by probes.{name}: ")) && reason.contains(missing), "{probe}");
        assert_eq!(page.value("tcpmon_probe_attached", &[("probe", name)]), None);
        let programs = status["programs"].as_array().unwrap();
        assert!(programs.iter().all(|program| program["name"] != name), "{status}");
    }
    assert_eq!(page.value("tcpmon_probe_attached", &[("probe", "tcp_probe")]), Some(1.0));
}

#[test]
fn who_asks_at_the_same_time_shares_a_pass() {
    const ASKING: usize = 40;
    let _stats = HostSysctl::set("kernel.bpf_stats_enabled", "1");
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).threads(Threads::Epoll).connections(100).spawn();
    let idle = sender(&lab, &reader).flows(100).paused().spawn();
    // A metrics page shows the runs before its own pass. It depends on the kernel which program looks at sockets.
    let runs = || {
        let page = daemon.scrape();
        let each = ["look", "look_probed"].map(|name| page.sum("tcpmon_bpf_program_runs_total", &[("program", name)]));
        each.iter().sum::<f64>()
    };
    runs();
    // The daemon's own passes may come between two pages.
    let pages: [f64; 5] = std::array::from_fn(|_| runs());
    let second = pages[4];
    let pass = pages.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
    assert!(pass >= 1.0, "a pass looks at the sockets, and ran no program");
    let ask = |_| {
        let mut stream = TcpStream::connect(daemon.address()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: tcpmon\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    let asking: Vec<TcpStream> = daemon.stopped_while(|| (0..ASKING).map(ask).collect());
    for mut stream in asking {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    }
    let caused = runs() - second - pass; // minus the pass of the second page
    let most = emulated::shared_passes(ASKING);
    assert!(caused >= pass / 2.0 && caused < pass * most as f64, "{caused} runs, {pass} a pass");
    drop(idle);
}
