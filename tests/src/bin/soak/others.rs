//! Actors that trouble the host or the daemon: processes, traces, a second daemon, hostile clients, pressure.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, SockAddr, Socket, Type};
use tcpmon_tests::fault::{TcpMemoryPressure, WrongClock};
use tcpmon_tests::physics::Start;
use tcpmon_tests::{Daemon, MemoryCgroup, Physics, Trace, Traffic, emulated};

use crate::traffic::{Flow, PINNED, Steady};
use crate::world::{World, one_of};

/// Time for a trace to end once it is told to.
const DEADLINE: Duration = Duration::from_secs(120);

/// Source address of the hostile clients.
const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Processes and threads that come and go and have nothing to do with TCP.
pub fn processes(world: &World, seed: u64) {
    world.keep_acting(seed, "bystanders", Duration::from_secs(1), |dice| {
        let count = dice.u32(20..=100);
        if dice.bool() {
            for _ in 0..count {
                let status = Command::new("true").status().expect("true can be run");
                assert!(status.success(), "true: {status}");
            }
            return "processes";
        }
        thread::scope(|scope| (0..count).for_each(|_| drop(scope.spawn(|| ()))));
        "threads"
    });
}

/// Traces of the steady reader and of the whole host, ended in every way.
pub fn traces(world: &World, seed: u64, steady: &Steady) {
    let pid = steady.reader.pid().to_string();
    let port = Flow::Steady.port().to_string();
    world.keep_acting(seed, "traces", Duration::from_secs(3), |dice| {
        let filter = one_of(dice, &[["--pid", &pid], ["--port", &port], ["--comm", "soak-steady"]]);
        let time = Duration::from_millis(dice.u64(100..=4_000));
        match dice.u8(..4) {
            0 => {
                let traced = Trace::run(&["--all", "--duration", &format!("{}ms", time.as_millis())], DEADLINE);
                assert!(traced.status.success(), "{}: {}", traced.status, traced.stderr);
                "all, by its duration"
            }
            1 => {
                let trace = Trace::start(&filter);
                world.rest(time);
                trace.signal(Signal::SIGKILL);
                trace.wait(DEADLINE);
                "killed"
            }
            _ => {
                let before = steady.least();
                let trace = Trace::start(&filter);
                let begun = steady.least() + Steady::uncounted();
                world.rest(time);
                let end = steady.least();
                trace.signal(one_of(dice, &[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]));
                let traced = trace.wait(DEADLINE);
                let after = steady.least() + Steady::uncounted();
                assert!(traced.status.success(), "{}: {}", traced.status, traced.stderr);
                let totals = traced.records.iter().filter(|record| record["type"] == "socket");
                let steady = totals.filter(|record| record["local_port"] == Flow::Steady.port());
                let read: u64 = steady.filter_map(|record| record["read_bytes"].as_u64()).sum();
                let (least, most) = (end.saturating_sub(begun), after - before);
                assert!(
                    (least..=most).contains(&read),
                    "a trace of {time:?} has {read} bytes, and the reader counted {least}..{most}; {}",
                    traced.records.last().map(ToString::to_string).unwrap_or_default(),
                );
                "compared with the reader"
            }
        }
    });
}

/// A second daemon, with other limits, that is started and ended again and again.
pub fn second_daemon(world: &World, seed: u64) {
    world.keep_acting(seed, "second daemon", Duration::from_secs(2), |dice| {
        let options: &[&str] = one_of(
            dice,
            &[
                &["--max-groups", "8", "--group-ttl", "2s"],
                &["--max-readers", "8", "--max-drop-entries", "8"],
                &["--ring-bytes", "4096"],
                &["--cgroup-label"],
                &["--probes.profile", "light"],
                &[],
            ],
        );
        let mut physics = Physics::new(crate::limits(), Start::now()).groups_end();
        let daemon = Daemon::start(options);
        for _ in 0..dice.u32(1..=15) {
            let page = daemon.get_shared("/metrics", "text/plain");
            assert_eq!(page.status, 200, "{}", String::from_utf8_lossy(&page.body));
            let page = String::from_utf8(page.body).expect("a page is text");
            physics.page(&page).unwrap_or_else(|error| panic!("{options:?}: {error}"));
            world.rest(Duration::from_millis(dice.u64(..2_000)));
        }
        match one_of(dice, &[Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGKILL]) {
            Signal::SIGKILL => {
                drop(daemon);
                "killed"
            }
            signal => {
                daemon.signal(signal);
                let (status, stderr) = daemon.wait();
                assert!(status.success(), "{signal}: {status}: {stderr}");
                "ended by a signal"
            }
        }
    });
}

/// Clients that do what no client should. None of them gets more than 100 connections or five seconds.
pub fn hostile_clients(world: &World, seed: u64) {
    world.keep_acting(seed, "hostile clients", Duration::from_secs(2), |dice| {
        let hold = Duration::from_millis(dice.u64(..3_000));
        let one = || hostile(world.daemon);
        match dice.u8(..6) {
            0 => {
                let _silent: Vec<TcpStream> = (0..dice.u32(1..=100)).filter_map(|_| one()).collect();
                world.rest(hold);
                "silent"
            }
            1 => {
                let noise: Vec<u8> = (0..dice.usize(1..=100_000)).map(|_| dice.u8(..)).collect();
                if let Some(mut client) = one() {
                    let _ = client.write_all(&noise);
                    let _ = client.read(&mut [0; 4_096]);
                }
                "noise"
            }
            2 => {
                for mut client in (0..dice.u32(1..=30)).filter_map(|_| one()) {
                    let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
                    let _ = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
                }
                "reset before the answer"
            }
            3 => {
                if let Some(mut client) = one() {
                    for byte in b"GET /metrics HTTP/1.1\r\nHost: " {
                        let _ = client.write_all(&[*byte]);
                        world.rest(hold / 30);
                    }
                }
                "a byte at a time"
            }
            4 => {
                if let Some(mut client) = one() {
                    let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ");
                    let _ = client.write_all(&vec![b'x'; 1 << 20]);
                }
                "a header without an end"
            }
            _ => {
                let clients: Vec<TcpStream> = (0..dice.u32(1..=20)).filter_map(|_| one()).collect();
                for mut client in &clients {
                    let _ = client.write_all(&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4));
                }
                world.rest(hold);
                "requests whose answers are not read"
            }
        }
    });
}

fn hostile(daemon: SocketAddr) -> Option<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    socket.bind(&SockAddr::from(SocketAddr::from((HOSTILE, 0)))).ok()?;
    socket.connect_timeout(&SockAddr::from(daemon), Duration::from_secs(5)).ok()?;
    for set in [Socket::set_read_timeout, Socket::set_write_timeout] {
        set(&socket, Some(Duration::from_secs(5))).ok()?;
    }
    Some(socket.into())
}

/// Pressure on CPUs, memory, clock and configuration.
pub fn pressure(world: &World, seed: u64) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    world.keep_acting(seed, "pressure", Duration::from_secs(5), |dice| {
        let time = Duration::from_millis(dice.u64(200..=3_000));
        match dice.u8(..6) {
            0 => {
                let _hogs: Vec<_> = (0..cpus).map(|cpu| Traffic::hog(cpu, dice.i32(-5..=19))).collect();
                world.rest(time);
                "CPU hogs"
            }
            1 => {
                let _pressure = TcpMemoryPressure::new();
                world.rest(time);
                "TCP memory pressure"
            }
            2 => {
                reclaim(time);
                "page cache in a small control group"
            }
            3 => {
                let _clock = WrongClock::new(dice.i64(-90..=90));
                world.rest(time);
                "clock stepped"
            }
            _ => reload(world, dice),
        }
    });
}

/// Makes the daemon reload its configuration: a valid one, or one that it has to refuse.
fn reload(world: &World, dice: &mut Rng) -> &'static str {
    let refused = dice.u8(..3) == 0;
    let text = if refused { "max_groups = \"many\"\n".to_owned() } else { config(one_of(dice, &["info", "warn"])) };
    // By renaming, as an editor does: the daemon must never read half a file.
    let new = world.config.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, &world.config)).expect("the config file can be written");
    kill(Pid::from_raw(world.pid.cast_signed()), Signal::SIGHUP).expect("the daemon runs");
    if refused { "configuration refused" } else { "configuration loaded again" }
}

/// The configuration of the watched daemon.
pub fn config(level: &str) -> String {
    let pins: Vec<String> = PINNED.iter().map(|name| format!("{name:?}")).collect();
    format!("group_ttl = \"30d\"\npin = [{}]\n\n[log]\nlevel = \"{level}\"\n", pins.join(", "))
}

/// Writes a file from within a control group that is too small for its pages, so that the kernel reclaims them.
fn reclaim(time: Duration) {
    let group = MemoryCgroup::new("soak", 16 << 20);
    let file = tempfile::NamedTempFile::new().expect("there is a place for temporary files");
    let script = "echo $$ > \"$0/cgroup.procs\" && exec timeout \"$1\" dd if=/dev/zero of=\"$2\" bs=1M count=200";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(group.path()).arg(format!("{:.3}", time.as_secs_f64())).arg(file.path());
    let output = command.output().expect("sh can be run");
    // 124: `timeout` ended it.
    let is_killed = output.status.signal() == Some(libc::SIGKILL) || output.status.code() == Some(128 + libc::SIGKILL);
    let is_expected =
        [Some(0), Some(124)].contains(&output.status.code()) || emulated::memory_may_run_out() && is_killed;
    assert!(is_expected, "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}
