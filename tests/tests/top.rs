//! `tcpmon top` in a real terminal and as text, on real traffic, with programs of its own and with a daemon's.

mod common;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{DEADLINE, queued, run, sender, tcpmon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tcpmon_tests::refusal::{self, BPF_PROG_TEST_RUN};
use tcpmon_tests::tmux::Tmux;
use tcpmon_tests::traffic::{Between, Call, Reader};
use tcpmon_tests::{Browser, Daemon, Lab, Traffic, at_least, clock, equal, eventually, tcpmon_binary, truth};
use tempfile::TempDir;

/// Maximum number of bytes in one read of the slow reader.
const CHUNK: usize = 64 << 10;

/// Rows of `tcpmon top --once --format json` with these arguments.
#[track_caller]
fn rows(arguments: &[&str]) -> Vec<Value> {
    rows_of(&mut tcpmon(&[]), arguments)
}

/// The same by a command that gets the arguments after its own.
#[track_caller]
fn rows_of(command: &mut Command, arguments: &[&str]) -> Vec<Value> {
    let command = command.args(["top", "--once", "--format", "json"]).args(arguments);
    let output = command.stdin(Stdio::null()).output().expect("it can be started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

#[track_caller]
fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"))
}

fn command_line(arguments: &str) -> String {
    format!("{} top {arguments}", tcpmon_binary().display())
}

/// A reader that computes between its reads, and its sender.
fn slow_reader(lab: &Lab) -> (Reader, impl Sized) {
    let reader = Traffic::reader(lab.receiver()).comm("top-slow").chunk(CHUNK).until_exit();
    let reader = reader.between(Between::Spin(300)).log_reads().spawn();
    let sender = sender(lab, &reader).spawn();
    eventually(DEADLINE, "data flow", || at_least(reader.report().bytes, 1_000_000));
    (reader, sender)
}

/// The only row of this reader, by a command that shows so many seconds. The rate must be one that the reader's own log
/// has, in an interval of the row's length while the command ran.
#[track_caller]
fn row_of(reader: &Reader, command: &mut Command, arguments: &[&str], seconds: u64) -> Value {
    let (pid, interval) = (reader.pid().to_string(), format!("{seconds}s"));
    let begun_ns = clock::monotonic_ns();
    let rows = rows_of(command, &[arguments, &["--sockets", "--pid", &pid, "--interval", &interval]].concat());
    let ended_ns = clock::monotonic_ns();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let length = number(row, "interval_seconds");
    let length_ns = (length * 1e9).round() as u64;
    assert!((seconds * 1_000_000_000..=ended_ns - begun_ns).contains(&length_ns), "{row}");
    let (least, most) = read_in(length_ns, (begun_ns, ended_ns), &reader.report().log);
    // The log has a read when it is over: one may be under way at either end of the interval.
    let (least, most) = (least as f64 - CHUNK as f64, most as f64 + CHUNK as f64);
    let read = number(row, "read_bytes_per_second") * length;
    assert!(least <= read && read <= most, "{read} bytes, {least} to {most} by the reader's log: {row}");
    row.clone()
}

/// The least and the most bytes in an interval of this length between two moments, by a log of reads.
fn read_in(length_ns: u64, (from_ns, to_ns): (u64, u64), log: &[Call]) -> (u64, u64) {
    let mut sums = vec![0_u64];
    for read in log {
        sums.push(sums[sums.len() - 1] + read.bytes);
    }
    let read_by = |at_ns: u64| sums[log.partition_point(|read| read.at_ns <= at_ns)];
    let last_start = to_ns - length_ns;
    // The sum changes only where the start or the end of the interval passes a read.
    let passes = log.iter().flat_map(|read| [read.at_ns, read.at_ns.saturating_sub(length_ns)]);
    let starts = passes.flat_map(|at_ns| [at_ns.saturating_sub(1), at_ns]).chain([from_ns, last_start]);
    let starts = starts.filter(|start| (from_ns..=last_start).contains(start));
    starts.fold((u64::MAX, 0), |(least, most), start| {
        let read = read_by(start + length_ns) - read_by(start);
        (least.min(read), most.max(read))
    })
}

#[test]
fn rows_say_what_the_reader_the_kernel_and_the_sender_say() {
    let lab = Lab::new();
    let (reader, _sender) = slow_reader(&lab);
    let stuck = Traffic::reader(lab.receiver()).comm("top-stuck").paused().spawn();
    let _sender_of_stuck = sender(&lab, &stuck).bytes(50_000).spawn();
    eventually(DEADLINE, "the data wait", || {
        // With a FIN behind them.
        queued(&lab, &stuck, 50_001).or_else(|_| queued(&lab, &stuck, 50_000))
    });

    let row = row_of(&reader, &mut tcpmon(&[]), &["--own"], 2);
    assert_eq!((&row["limited_by"], &row["process"]), (&"application".into(), &"top-slow".into()));
    assert!(number(&row["limited"], "application") >= 0.9, "{row}");
    assert!(row["advice"].as_str().is_some_and(|advice| advice.contains("while the reader computes")), "{row}");
    assert_eq!(row["local_port"], u64::from(reader.port()));
    // What the kernel says of the same socket.
    let kernel = truth::sockets(lab.receiver()).into_iter().find(|socket| socket.is_connection_to(reader.port()));
    let kernel = kernel.expect("it is open");
    assert_eq!(row["remote_port"], u64::from(kernel.remote.port()));

    let port = stuck.port().to_string();
    let sockets = rows(&["--own", "--sockets", "--port", &port, "--sort", "wait"]);
    let mine: Vec<_> = sockets.iter().filter(|row| row["local_port"] == u64::from(stuck.port())).collect();
    let [row] = &mine[..] else { panic!("{sockets:?}") };
    assert_eq!((number(row, "queue_bytes"), &row["stuck"]), (50_000.0, &true.into()));
    assert_eq!(number(row, "received_bytes_per_second"), 0.0);

    let groups = rows(&["--own", "--comm", "top-slow", "--interval", "1s"]);
    let [group] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((&group["connections"], &group["limited_by"]), (&1.into(), &"application".into()), "{group}");
    assert_eq!(rows(&["--own", "--sockets", "--limit", "1", "--sort", "received"]).len(), 1);
}

#[test]
fn in_a_time_namespace_the_rows_are_the_same() {
    let lab = Lab::new();
    let (reader, _sender) = slow_reader(&lab);
    let row = row_of(&reader, &mut common::a_day_ahead(), &["--own"], 2);
    // It always has data, and computes or waits for a CPU.
    let [computing, waiting] = ["application", "scheduler"].map(|cause| number(&row["limited"], cause));
    assert!(computing + waiting >= 0.9, "{row}");
}

#[test]
fn a_daemon_gives_the_same_rows_without_privileges() {
    let lab = Lab::new();
    let (reader, _sender) = slow_reader(&lab);
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("tcpmon.sock");
    let socket = path.to_str().expect("text");
    let daemon = Daemon::start(&["--live-socket", socket, "--cgroup-label"]);
    let pid = reader.pid().to_string();
    let by_root = rows(&["--daemon", socket, "--sockets", "--pid", &pid]);
    assert_eq!(by_root[0]["limited_by"], "application", "{by_root:?}");

    // A user that has nothing but the group of the socket.
    for part in [directory.path(), &path] {
        std::os::unix::fs::chown(part, None, Some(4_711)).expect("changed");
    }
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o750)).expect("changed");
    // The program may be in a directory that only root can enter.
    let binary = directory.path().join("tcpmon");
    fs::copy(tcpmon_binary(), &binary).expect("copied");
    let by_nobody = |group: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", &format!("--regid={group}"), "--clear-groups", "--no-new-privs"]);
        command.arg(&binary).args(["top", "--once", "--format", "json", "--sockets", "--daemon", socket]);
        command
    };
    let output = by_nobody("4711").output().expect("setpriv can be started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.lines().any(|line| line.contains("\"top-slow\"")), "{text}");
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("changed");
    let (code, error) = run(&mut by_nobody("65534"));
    assert!(code == Some(1) && error.contains("Permission denied"), "{code:?} {error}");

    // What is sent to the socket changes nothing, and the daemon's own page is as right as before.
    let page = daemon.scrape();
    assert_eq!(page.sum("tcpmon_lost_total", &[("what", "impossible_socket")]), 0.0);
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
    let (code, error) = run(tcpmon(&["top", "--once", "--daemon", socket]).stdin(Stdio::null()));
    assert!(code == Some(1) && error.contains("no daemon listens at"), "{code:?} {error}");
}

#[test]
fn where_the_kernel_runs_no_program_for_user_space_the_row_is_as_right() {
    let lab = Lab::new();
    let (reader, _sender) = slow_reader(&lab);
    let mut refused = tcpmon(&[]);
    refusal::refuse(&mut refused, BPF_PROG_TEST_RUN);
    let row = row_of(&reader, &mut refused, &["--own"], 2);
    assert_eq!(row["limited_by"], "application", "{row}");
}

/// The daemon forgets what nobody has asked for in ten seconds, and makes a pass of its own ten seconds after the last.
#[test]
fn an_interval_that_is_longer_than_the_daemon_waits_shows_what_happened_in_it() {
    const BURST: u64 = 1_000_000;
    let lab = Lab::new();
    let (reader, _sender) = slow_reader(&lab);
    // A connection that is at rest before the daemon's own pass and after it.
    let resting = Traffic::reader(lab.receiver()).comm("top-rests").chunk(CHUNK).until_exit().log_reads().spawn();
    let bursts = sender(&lab, &resting).paused().spawn();
    let read = |bytes| eventually(DEADLINE, "the burst is read", || equal(resting.report().bytes, bytes));
    assert_eq!(bursts.send(1000), 1000);
    read(1000);
    let directory = TempDir::new().expect("a directory");
    // Each daemon is asked in another way.
    let sockets = ["scraped", "alone", "from-ten-seconds-on", "all-the-time"].map(|name| {
        let path = directory.path().join(name);
        path.to_str().expect("text").to_owned()
    });
    let daemons = sockets.each_ref().map(|socket| Daemon::start(&["--live-socket", socket]));
    let row = |socket: &str, seconds| row_of(&reader, &mut tcpmon(&[]), &["--daemon", socket], seconds);
    let whole_burst = |socket: &str| {
        let row = row_of(&resting, &mut tcpmon(&[]), &["--daemon", socket], 15);
        // It has no read under way at either end of the interval.
        let read = number(&row, "read_bytes_per_second") * number(&row, "interval_seconds");
        assert_eq!(read.round(), BURST as f64, "{row}");
    };
    let begun = Instant::now();
    let wait_until = |second| {
        eventually(DEADLINE, "that second has come", || begun.elapsed() >= Duration::from_secs(second));
    };
    // A second client, up to the end of the long interval.
    let short = |socket: &str, from| {
        wait_until(from);
        while begun.elapsed() < Duration::from_secs(14) {
            row(socket, 1);
        }
    };
    thread::scope(|scope| {
        let [scraped, alone, late, always] = &sockets;
        scope.spawn(|| {
            // After this scrape, the daemon makes no pass of its own before the view asks again.
            wait_until(5);
            daemons[0].scrape();
        });
        scope.spawn(|| row(scraped, 12));
        for socket in [alone, late, always] {
            scope.spawn(|| row(socket, 15));
        }
        for socket in [late, always] {
            scope.spawn(|| whole_burst(socket));
        }
        // The first client from a time on at which the daemon has made its own pass.
        scope.spawn(|| short(late, 12));
        scope.spawn(|| short(always, 0));
        wait_until(4);
        assert_eq!(bursts.send(BURST), BURST);
        read(1000 + BURST);
    });
}

#[test]
fn the_screen_shows_and_does_what_keys_say_and_gives_the_terminal_back() {
    let lab = Lab::new();
    let (reader, _sender) = slow_reader(&lab);
    let paced = Traffic::reader(lab.receiver()).comm("top-paced").until_exit().spawn();
    let _sender_of_paced = sender(&lab, &paced).rate(50_000_000).message(32 << 10).spawn();
    let stuck = Traffic::reader(lab.receiver()).comm("top-stuck").paused().spawn();
    let _sender_of_stuck = sender(&lab, &stuck).bytes(50_000).spawn();
    let all = Tmux::start(110, 20, &[], &command_line("--own --sockets --interval 500ms --sort limited"));
    all.shows(&["top-slow", "application", "top-paced", "upstream 100%", "top-stuck", "stuck"]);
    keep_picture(&all, "top.png", 110, 20);
    drop(all);
    let terminal =
        Tmux::start(100, 30, &[("LC_ALL", "C.UTF-8")], &command_line("--own --interval 500ms --comm top-slow"));
    let screen = terminal.shows(&["tcpmon top", "top-slow", "application", "own programs", "softnet drops"]);
    assert!(screen.contains("⇒ top-slow: application"), "{screen}");
    terminal.keys(&["Enter"]);
    terminal.shows(&["REMOTE", "in top-slow"]);
    terminal.keys(&["Enter"]);
    let screen = terminal.shows(&["mean wait", "buffer used", "timeslices", "ESTAB", "limited by"]);
    assert!(screen.contains(&format!("pid {}", reader.pid())), "{screen}");
    // Its past grows.
    terminal.shows(&["AAAAAAAAAA"]);
    keep_picture(&terminal, "top-connection.png", 100, 30);
    terminal.keys(&["Escape"]);
    terminal.shows(&["REMOTE"]);
    terminal.keys(&["/", "n", "o", "n", "e", "Enter"]);
    terminal.shows(&["no connections match"]);
    terminal.keys(&["Escape"]);
    terminal.shows(&["top-slow"]);
    terminal.keys(&["p"]);
    terminal.shows(&["PAUSED"]);
    terminal.keys(&["?"]);
    terminal.shows(&["the sender or the path is the limit"]);
    terminal.keys(&["x", "p"]);
    terminal.resize(80, 24);
    eventually(DEADLINE, "the screen has the new size", || {
        let screen = terminal.screen();
        let fits = screen.lines().all(|line| line.chars().count() <= 80) && screen.lines().count() == 24;
        if fits && screen.contains("q quit") { Ok(()) } else { Err(screen) }
    });
    terminal.resize(220, 60);
    terminal.shows(&["GROWN", "AGE"]);
    terminal.keys(&["q"]);
    ended(&terminal, "ended with 0");

    // A signal.
    let terminal = Tmux::start(80, 24, &[("NO_COLOR", "1"), ("LC_ALL", "C")], &command_line("--own --sockets"));
    let screen = terminal.shows(&["=> ", "top-slow"]);
    assert!(screen.is_ascii(), "{screen}");
    kill(child_of(terminal.shell()), Signal::SIGTERM).expect("a process of ours");
    ended(&terminal, "ended with 0");
    // A terminal that can do little, and Ctrl-C.
    let terminal = Tmux::start(80, 24, &[], &format!("env TERM=dumb {}", command_line("--own")));
    let screen = terminal.shows(&["tcpmon top", "vRECV", "top-slow"]);
    assert!(screen.is_ascii(), "{screen}");
    terminal.keys(&["C-c"]);
    ended(&terminal, "ended with 0");
}

/// The terminal is as it was: what was there before is on the screen again, and lines can be typed.
#[track_caller]
fn ended(terminal: &Tmux, how: &str) {
    let screen = terminal.shows(&["before", how, "icanon"]);
    assert!(!screen.contains("-icanon") && !screen.contains("tcpmon top"), "{screen}");
}

/// The only child of a process.
fn child_of(pid: u32) -> Pid {
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let child = eventually(DEADLINE, "the shell has a child", || children().trim().parse::<i32>().ok());
    Pid::from_raw(child)
}

#[test]
fn top_without_a_terminal_or_capabilities_or_with_too_short_an_interval_is_refused() {
    let (code, error) = run(tcpmon(&["top", "--own"]).stdin(Stdio::null()));
    assert!(code == Some(1) && error.contains("not a terminal: use --once"), "{code:?} {error}");
    let (code, error) = run(tcpmon(&["top", "--interval", "1ms"]).stdin(Stdio::null()));
    assert!(code == Some(2) && error.contains("the minimum is 100ms"), "{code:?} {error}");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-bpf,-sys_admin"]).arg(tcpmon_binary()).args(["top", "--once", "--own"]);
    let (code, error) = run(command.stdin(Stdio::null()));
    assert!(code == Some(3), "{code:?} {error}");
}

#[test]
fn thousands_of_connections_are_all_shown() {
    let lab = Lab::new();
    let connections = 2_000;
    let listener = lab.receiver().run(|| TcpListener::bind((lab.receiver().v4, 0))).expect("a port");
    let address = listener.local_addr().expect("an address");
    let _idle: Vec<_> = (0..connections)
        .map(|_| {
            let client = lab.sender().run(|| TcpStream::connect(address)).expect("it listens");
            (client, listener.accept().expect("a connection"))
        })
        .collect();
    // Both ends of each are on this host.
    let shown = rows(&["--own", "--sockets", "--port", &address.port().to_string()]);
    assert_eq!(shown.len(), 2 * connections);
    let others: Vec<_> =
        shown.iter().filter(|row| !row["limited_by"].is_null() || number(row, "queue_bytes") != 0.0).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Draws the terminal for the README, if a folder for pictures is named.
fn keep_picture(terminal: &Tmux, name: &str, width: u32, height: u32) {
    let Some(folder) = std::env::var_os("TCPMON_PICTURES") else { return };
    let directory = TempDir::new().expect("a directory");
    let (text, page) = (directory.path().join("screen.ansi"), directory.path().join("screen.html"));
    fs::write(&text, terminal.colored()).expect("written");
    let html = Command::new("aha").args(["--black", "-f"]).arg(&text).output().expect("aha is installed");
    fs::write(&page, html.stdout).expect("written");
    // A character of the browser's font of fixed width.
    let browser = Browser::start(width * 8 + 24, height * 15 + 130);
    browser.show(&page);
    browser.picture(&std::path::Path::new(&folder).join(name));
}
