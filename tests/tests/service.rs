//! The daemon as a service manager and an operator's shell see it: what it tells them, signals, refusals, health,
//! stalls.

mod common;

use std::io::Write as _;
use std::time::{Duration, Instant};

use common::{run, tcpmon};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tcpmon_tests::{Daemon, Killed, Lab, Traffic};

#[test]
fn systemd_is_told_when_it_answers_and_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(common::DEADLINE)).unwrap();
    let mut command = tcpmon(&["daemon", "--web.listen-address", "127.0.0.1:0"]);
    let mut child = Killed(command.env("NOTIFY_SOCKET", &path).spawn().unwrap());
    let told = || {
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).expect("tcpmon notifies in time");
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    assert_eq!(told(), "READY=1");
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(told(), "STOPPING=1");
    let ended = child.wait().unwrap();
    assert!(ended.success(), "{ended}");
}

/// A daemon that reports its state to systemd.
struct Notifying {
    daemon: Killed,
    socket: std::os::unix::net::UnixDatagram,
    _directory: tempfile::TempDir,
}

impl Notifying {
    fn start(arguments: &[&str], watchdog: Option<Duration>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(common::DEADLINE)).expect("a time");
        let mut command = tcpmon(&["daemon", "--web.listen-address", "127.0.0.1:0"]);
        command.args(arguments).env("NOTIFY_SOCKET", &path);
        if let Some(interval) = watchdog {
            command.env("WATCHDOG_USEC", interval.as_micros().to_string());
        }
        let daemon = Killed(command.spawn().expect("tcpmon can be started"));
        Self { daemon, socket, _directory: directory }
    }

    fn told(&self) -> String {
        let mut buffer = [0; 200];
        let length = self.socket.recv(&mut buffer).expect("tcpmon notifies in time");
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(Pid::from_raw(self.daemon.id().cast_signed()), signal).expect("it runs");
    }
}

/// Keeps one thread stopped while it lives, as a debugger does. The test's own thread has to drop it.
struct StoppedThread(Pid);

impl StoppedThread {
    fn thread(pid: u32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        let named =
            |task: &std::path::Path| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let task = tasks.flatten().map(|task| task.path()).find(|task| named(task)).expect("the thread runs");
        let number = task.file_name().and_then(|name| name.to_str()?.parse().ok());
        let thread = Pid::from_raw(number.expect("threads have numbers"));
        ptrace::seize(thread, ptrace::Options::empty()).expect("it may be traced");
        ptrace::interrupt(thread).expect("it is traced");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
        Self(thread)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn a_collector_that_stalls_is_named_on_every_page_and_recovers_without_loss() {
    const CONNECTIONS: u64 = 200;
    const BYTES: u64 = CONNECTIONS * 1_001;
    let lab = Lab::new();
    let daemon = Daemon::start(&[]);
    daemon.page();
    let stopped = StoppedThread::thread(daemon.pid(), "collector");
    let reader = Traffic::reader(lab.receiver()).comm("meanwhile").connections(CONNECTIONS).spawn();
    let sender = common::sender(&lab, &reader).connections(CONNECTIONS).parallel(2).bytes(1_001).spawn();
    assert_eq!((sender.wait().bytes, reader.wait().bytes), (BYTES, BYTES));
    for path in ["/metrics", "/status"] {
        // The last sample may still be recent enough to be shared.
        let text = tcpmon_tests::eventually(common::DEADLINE, "an answer is made of a new reading", || {
            let begin = Instant::now();
            let answer = daemon.get_shared(path, "");
            assert!(begin.elapsed() < Duration::from_secs(8), "{path}: {:?}", begin.elapsed());
            (answer.status == 500).then(|| String::from_utf8(answer.body).unwrap())
        });
        assert!(text.starts_with("the collector has not answered for "), "{text}");
    }
    let begin = Instant::now();
    let health = daemon.get("/healthz", "");
    assert!(begin.elapsed() < Duration::from_secs(1), "it waits for nothing: {:?}", begin.elapsed());
    let text = String::from_utf8(health.body).unwrap();
    assert!(health.status == 503 && text.starts_with("the collector has not answered for "), "{text}");
    tcpmon_tests::eventually(2 * common::DEADLINE, "it says how long there was no pass", || {
        let text = String::from_utf8(daemon.get("/healthz", "").body).unwrap();
        if text.starts_with("the collector has not finished a pass for 3") { Ok(()) } else { Err(text) }
    });
    drop(stopped);
    tcpmon_tests::eventually(common::DEADLINE, "it recovers", || daemon.get("/healthz", "").status == 200);
    for name in ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"] {
        tcpmon_tests::eventually(common::DEADLINE, "what came and ended meanwhile is counted", || {
            let seen = daemon.page().sum(name, &[("process", "meanwhile")]);
            if seen == BYTES as f64 { Ok(()) } else { Err(format!("{name}: {seen}")) }
        });
    }
    let lost = daemon.page().value("tcpmon_lost_total", &[("what", "socket_state")]);
    assert_eq!(lost, Some(0.0));
}

#[test]
fn the_watchdog_is_fed_at_half_its_interval_and_not_while_the_collector_stalls() {
    let interval = Duration::from_secs(1);
    let daemon = Notifying::start(&[], Some(interval));
    let told = daemon.told();
    assert!(["READY=1", "WATCHDOG=1"].contains(&told.as_str()), "{told}");
    daemon.told();
    for _ in 0..6 {
        let begin = Instant::now();
        assert_eq!(daemon.told(), "WATCHDOG=1");
        assert!(begin.elapsed() < interval, "{:?}", begin.elapsed());
    }
    let stopped = StoppedThread::thread(daemon.daemon.id(), "collector");
    daemon.socket.set_read_timeout(Some(2 * interval)).unwrap();
    let mut buffer = [0; 100];
    // The watchdog is fed until the collector has been silent for five seconds.
    let fed = std::iter::from_fn(|| daemon.socket.recv(&mut buffer).ok()).take(30).count();
    assert!(fed < 30, "it is fed for ever");
    drop(stopped);
    daemon.socket.set_read_timeout(Some(common::DEADLINE)).unwrap();
    assert_eq!(daemon.told(), "WATCHDOG=1");
}

#[test]
fn without_a_watchdog_none_is_fed() {
    let daemon = Notifying::start(&[], None);
    assert_eq!(daemon.told(), "READY=1");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.told(), "STOPPING=1");
}

#[test]
fn sigquit_ends_it_in_order() {
    let daemon = Daemon::start(&[]);
    daemon.signal(Signal::SIGQUIT);
    let (status, stderr) = daemon.wait();
    assert!(status.success() && stderr.contains("tcpmon has stopped"), "{status}: {stderr}");
}

#[test]
fn sighup_puts_in_force_what_can_change_and_names_what_cannot() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tcpmon.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("log.level = \"info\"\nmax_groups = 100\ngroup_ttl = \"1h\"\n");
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    let capacity = |daemon: &Daemon| daemon.page().value("tcpmon_map_capacity", &[("map", "groups")]);
    assert_eq!(capacity(&daemon), Some(100.0));
    let said = |what: &str| {
        tcpmon_tests::eventually(common::DEADLINE, what, || {
            let stderr = daemon.stderr();
            if stderr.contains(what) { Ok(stderr) } else { Err(stderr) }
        })
    };
    let counts = |what: &str| daemon.stderr().matches(what).count();

    write("max_groups = 150\nno_such_key = 1\n");
    daemon.signal(Signal::SIGHUP);
    let stderr = said("cannot reload the configuration; the previous one stays in force");
    assert!(stderr.contains("line 2") && stderr.contains("no_such_key"), "{stderr}");
    assert_eq!(capacity(&daemon), Some(100.0));

    write("log.level = \"debug\"\nmax_groups = 150\nmax_readers = 5000\nring_bytes = 4194304\n");
    daemon.signal(Signal::SIGHUP);
    said("reloaded the configuration");
    let stderr = said("cannot change while tcpmon runs");
    let warning = stderr.lines().find(|line| line.contains("cannot change")).unwrap();
    assert!(warning.contains("max_readers, ring_bytes") && !warning.contains("log."), "{warning}");
    assert_eq!(capacity(&daemon), Some(150.0));
    // The new log level is in force: a failed request is logged at level debug.
    drop(std::net::TcpStream::connect(daemon.address()).map(|mut stream| stream.write_all(b"nonsense\r\n\r\n")));
    said("DEBUG");

    write("max_groups = 10\n");
    daemon.signal(Signal::SIGHUP);
    tcpmon_tests::eventually(common::DEADLINE, "it says that it has fewer groups", || {
        daemon.stderr().lines().any(|line| line.contains("cannot change") && line.contains("max_groups")).then_some(())
    });
    assert_eq!((capacity(&daemon), counts("cannot reload the configuration")), (Some(150.0), 1));
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
}

#[test]
fn systemd_is_told_that_the_configuration_is_read_again() {
    let daemon = Notifying::start(&[], None);
    assert_eq!(daemon.told(), "READY=1");
    let before = tcpmon_tests::clock::monotonic_ns() / 1_000;
    daemon.signal(Signal::SIGHUP);
    let told = daemon.told();
    let (reloading, time) = told.split_once('\n').expect("two lines");
    let time: u64 = time.strip_prefix("MONOTONIC_USEC=").and_then(|time| time.parse().ok()).expect(&told);
    assert!(reloading == "RELOADING=1" && time >= before, "{told}");
    assert_eq!(daemon.told(), "READY=1");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.told(), "STOPPING=1");
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
        "tcpmon: cannot listen on {address}: Address already in use (os error 98): stop the process that listens \
         there (`ss -ltnp` shows it), or choose another address with --web.listen-address\n"
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
