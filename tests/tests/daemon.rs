//! The daemon as its operator meets it: formats, status, start and stop, and refusals.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tcpmon_tests::traffic::Threads;
use tcpmon_tests::{Daemon, Lab, Page, Traffic, tcpmon_binary, truth};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0";
const PROTOBUF: &str = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// Runs tcpmon to its end and returns exit code and stderr.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().expect("tcpmon can be started");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn tcpmon(arguments: &[&str]) -> Command {
    let mut command = Command::new(tcpmon_binary());
    command.args(arguments);
    command
}

#[test]
fn every_format_is_served_by_its_type() {
    let daemon = Daemon::start(&[]);
    let text = daemon.get("/metrics", "");
    assert_eq!((text.status, text.content_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let open = daemon.get("/metrics", OPENMETRICS);
    assert!(open.content_type.starts_with("application/openmetrics-text; version=1.0.0"), "{}", open.content_type);
    assert!(open.body.ends_with(b"# EOF\n"));
    let binary = daemon.get("/metrics", PROTOBUF);
    assert!(binary.content_type.starts_with("application/vnd.google.protobuf"), "{}", binary.content_type);
    assert!(binary.body.windows(24).any(|window| window == b"tcpmon_receive_bytes_tot"));
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("promtool").spawn();
    common::sender(&lab, &reader).bytes(1_000_000).spawn().wait();
    reader.wait();
    let page = daemon.get("/metrics", "").body;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by `cargo xtask test` (package prometheus)");
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), &page).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.trim(), "", "promtool says nothing about a good page");
}

#[test]
fn the_status_tells_probes_and_losses_and_agrees_with_the_metrics() {
    let daemon = Daemon::start(&[]);
    let status: serde_json::Value = serde_json::from_slice(&daemon.get("/status", "").body).unwrap();
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
    // The kernel's own list: the callback is linked to control groups where it is needed, and the status says so.
    let links = std::fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap();
    let to_cgroups = links.filter(|link| {
        let text = std::fs::read_to_string(link.as_ref().unwrap().path()).unwrap_or_default();
        text.lines().any(|line| line == "link_type:\tcgroup")
    });
    let said = probes.iter().filter(|probe| probe["name"] == "sock_ops" && probe["verdict"] == "attached");
    // With PREEMPT_RT, everything is a thread.
    let threaded = std::fs::read_to_string("/proc/version").unwrap().contains("PREEMPT_RT");
    let needed = usize::from(truth::tracepoints_are_preemptible() || threaded);
    assert_eq!((to_cgroups.count(), said.count()), (needed, needed), "{status}");
    assert_eq!(daemon.get("/healthz", "").status, 200);
    assert_eq!(daemon.get("/nothing", "").status, 404);
    let landing = String::from_utf8(daemon.get("/", "").body).unwrap();
    assert!(landing.contains("/metrics") && landing.contains("/status"), "{landing}");
}

#[test]
fn napi_polls_are_those_of_the_device() {
    let lab = Lab::with(tcpmon_tests::LabOptions { napi: true, ..Default::default() });
    let daemon = Daemon::start(&[]);
    let device = lab.receiver().device.clone();
    let reader = Traffic::reader(lab.receiver()).spawn();
    common::sender(&lab, &reader).bytes(3_000_000).spawn().wait();
    reader.wait();
    let path = format!("/sys/class/net/{device}/statistics/rx_packets");
    let packets = || -> f64 {
        let text = lab.receiver().with_own_sys(|| std::fs::read_to_string(&path)).unwrap();
        text.trim().parse().unwrap()
    };
    tcpmon_tests::eventually(common::DEADLINE, "the polls' work is what the device received", || {
        let before = packets();
        let page = daemon.scrape();
        let seen = page.value("tcpmon_napi_packets_total", &[("device", &device)]).unwrap_or_default();
        // Packets of the wire's own set-up (neighbours, IPv6) may have come before tcpmon did.
        let after = packets();
        if seen <= after && seen >= before - 20.0 { Ok(()) } else { Err(format!("{seen}, device {before} .. {after}")) }
    });
}

#[test]
fn sigterm_and_sigint_end_it_within_a_second_even_with_an_open_connection() {
    let daemon = Daemon::start(&[]);
    let _idle = std::net::TcpStream::connect(daemon.address()).unwrap();
    let start = Instant::now();
    let status = daemon.stop();
    assert!(status.success(), "{status}");
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
}

#[test]
fn a_taken_port_is_named_and_is_exit_code_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, stderr) = run(&mut tcpmon(&["daemon", "--web.listen-address", &address]));
    assert_eq!(code, Some(1), "{stderr}");
    let said = format!(
        "tcpmon: cannot listen on {address}: Address already in use (os error 98): stop what listens there \
         (`ss -ltnp` names it) or choose another with --web.listen-address\n"
    );
    assert_eq!(stderr, said, "the cause once, then the remedy");
}

#[test]
fn a_bad_flag_or_config_is_named_and_is_exit_code_2() {
    let (code, stderr) = run(&mut tcpmon(&["daemon", "--no-such-flag"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--no-such-flag"), "{stderr}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tcpmon.toml");
    std::fs::write(&file, "max_groups = 10\nno_such_key = 1\n").unwrap();
    let (code, stderr) = run(tcpmon(&["daemon", "--config"]).arg(&file));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("no_such_key") && stderr.contains('2'), "key and line: {stderr}");
    let (code, stderr) = run(&mut tcpmon(&["trace"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--all"), "{stderr}");
}

#[test]
fn what_it_cannot_do_without_is_one_sentence_and_exit_code_3() {
    // Without the capability: setpriv is part of util-linux, as unshare is.
    let binary = tcpmon_binary();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]);
    // The checkout may lie where only root may look, so the binary is handed over as an open file.
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
fn pid_0_is_never_a_reader() {
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    let reader = Traffic::reader(lab.receiver()).comm("many").threads(Threads::Epoll).connections(16).spawn();
    common::sender(&lab, &reader).flows(16).bytes(1_000_000).spawn().wait();
    reader.wait();
    let page: Page = daemon.scrape();
    let idle = page
        .samples("tcpmon_timeslices_total")
        .into_iter()
        .filter(|sample| sample.labels.iter().any(|(name, value)| name == "process" && value.starts_with("swapper")));
    assert_eq!(idle.count(), 0);
    assert!(truth::rss_bytes(daemon.pid()) > 0);
}

#[test]
fn systemd_is_told_when_it_answers_and_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(common::DEADLINE)).unwrap();
    let mut child =
        tcpmon(&["daemon", "--web.listen-address", "127.0.0.1:0"]).env("NOTIFY_SOCKET", &path).spawn().unwrap();
    let told = || {
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).expect("tcpmon notifies in time");
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    assert_eq!(told(), "READY=1");
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(told(), "STOPPING=1");
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_cgroup_label_is_the_readers_control_group() {
    let lab = Lab::new();
    let daemon = Daemon::start(&["--cgroup-label"]);
    let reader = Traffic::reader(lab.receiver()).comm("grouped").spawn();
    let sender = common::sender(&lab, &reader).bytes(1_000).hold_open().spawn();
    tcpmon_tests::eventually(common::DEADLINE, "all is read", || reader.report().bytes == 1_000);
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", reader.pid())).unwrap();
    let expected = text.lines().find_map(|line| line.strip_prefix("0::")).expect("cgroup v2 is mounted");
    let page = daemon.scrape();
    let seen = page.sum("tcpmon_receive_bytes_total", &[("process", "grouped"), ("cgroup", expected)]);
    assert_eq!(seen, 1_000.0, "{:?}", page.samples("tcpmon_receive_bytes_total"));
    sender.finish();
    reader.wait();
}

#[test]
fn groups_beyond_the_limit_are_counted_and_keep_their_bytes() {
    let lab = Lab::new();
    // One for `other`, and one for whoever comes first: that is this test, which asks.
    let daemon = Daemon::start(&["--max-groups", "2"]);
    daemon.scrape();
    let reader = Traffic::reader(lab.receiver()).comm("late").spawn();
    common::sender(&lab, &reader).bytes(12_345).spawn().wait();
    reader.wait();
    tcpmon_tests::eventually(common::DEADLINE, "its bytes are in the group `other`", || {
        let page = daemon.scrape();
        let late = page.sum("tcpmon_receive_bytes_total", &[("process", "late")]);
        let other = page.sum("tcpmon_receive_bytes_total", &[("process", "other")]);
        let suppressed = page.value("tcpmon_groups_suppressed_total", &[]).unwrap();
        if late == 0.0 && other >= 12_345.0 && suppressed > 0.0 {
            Ok(())
        } else {
            Err(format!("late {late}, other {other}, suppressed {suppressed}"))
        }
    });
}
