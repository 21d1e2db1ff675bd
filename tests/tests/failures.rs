//! System calls of the daemon that fail once, and its end at any moment: it goes on, or ends with one sentence, and it
//! loses nothing.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{DEADLINE, loaded, sender, sources_and_probes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use tcpmon_tests::traffic::{Reader, Sender};
use tcpmon_tests::{Daemon, Lab, MemoryCgroup, Page, Refused, Traffic, eventually, tcpmon_binary};
use tempfile::TempDir;

/// System calls that a daemon makes while it runs, each with an error that it can have.
const WHILE_IT_RUNS: [(&str, &str); 16] = [
    ("accept4", "EMFILE"),
    ("accept4", "ECONNABORTED"),
    ("bpf", "ENOMEM"),
    ("close", "EINTR"),
    ("getdents64", "ENOMEM"),
    ("ioctl", "ENODEV"),
    ("openat", "EMFILE"),
    ("openat", "ENOENT"),
    ("read", "EIO"),
    ("read", "ENOMEM"),
    ("recvfrom", "ENOBUFS"),
    ("sendto", "ENOBUFS"),
    ("sendto", "EPIPE"),
    ("setns", "ENOMEM"),
    ("socket", "EMFILE"),
    ("statx", "ENOMEM"),
];

/// System calls that a daemon makes while it starts, with an error that each can have, and which of these calls fails.
const AT_THE_START: [(&str, &str, u32); 20] = [
    ("bind", "EADDRINUSE", 1),
    ("bpf", "ENOMEM", 1),
    ("bpf", "ENOMEM", 10),
    ("bpf", "EPERM", 40),
    ("bpf", "ENOSPC", 80),
    ("capset", "EPERM", 1),
    ("clone3", "EAGAIN", 1),
    ("clone3", "EAGAIN", 2),
    ("epoll_create1", "EMFILE", 1),
    ("eventfd2", "EMFILE", 1),
    ("getdents64", "ENOMEM", 3),
    ("listen", "EADDRINUSE", 1),
    ("mmap", "ENOMEM", 30),
    ("openat", "EMFILE", 30),
    ("openat", "ENOENT", 40),
    ("prctl", "EINVAL", 2),
    ("read", "EIO", 30),
    ("setns", "ENOMEM", 1),
    ("socket", "EMFILE", 1),
    ("socket", "EMFILE", 4),
];

/// Times of kills after the start: it is ready after about 300 ms.
const KILLED_WITHIN: Duration = Duration::from_millis(500);
const KILLS: usize = 15;

/// A connection whose bytes are known.
struct Known {
    reader: Reader,
    sender: Sender,
    sent: u64,
}

impl Known {
    fn new(lab: &Lab) -> Self {
        let reader = Traffic::reader(lab.receiver()).comm("known").until_exit().spawn();
        let sender = sender(lab, &reader).paused().spawn();
        Self { reader, sender, sent: 0 }
    }

    /// Sends some more.
    fn send(&mut self) {
        self.sent += self.sender.send(10_000);
        eventually(DEADLINE, "all is read", || self.reader.report().bytes == self.sent);
    }

    /// The page has all of it, since the daemon was started.
    fn is_on(&self, page: &Page, since: u64) -> Result<(), String> {
        for name in ["tcpmon_receive_bytes_total", "tcpmon_receive_read_bytes_total"] {
            let seen = page.sum(name, &[("process", "known")]);
            if seen != (self.sent - since) as f64 {
                return Err(format!("{name} {seen} of {}", self.sent - since));
            }
        }
        Ok(())
    }
}

/// strace, which makes system calls of a process fail. Ended when dropped.
struct Injection {
    strace: Child,
    log: TempDir,
}

impl Injection {
    /// Makes the next of these system calls of a running process fail in each of its threads.
    fn into(pid: u32, call: &str, error: &str) -> Self {
        let log = TempDir::new().expect("a temporary directory");
        let mut strace = strace(&log.path().join("log"), call, error, 1);
        let strace = strace.args(["-p", &pid.to_string()]).stderr(Stdio::null()).spawn();
        Self { strace: strace.expect("strace is installed by `cargo xtask test`"), log }
    }

    /// Whether a call has failed.
    fn has_happened(&self) -> bool {
        fs::read_to_string(self.log.path().join("log")).is_ok_and(|log| log.contains("(INJECTED)"))
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        // It lets the process go on.
        let _ = kill(Pid::from_raw(self.strace.id().cast_signed()), Signal::SIGINT);
        let _ = self.strace.wait();
    }
}

fn strace(log: &Path, call: &str, error: &str, when: u32) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", &format!("trace={call}")]);
    strace.args(["-e", &format!("inject={call}:error={error}:when={when}")]);
    strace.arg("-o").arg(log);
    strace
}

#[test]
fn a_system_call_that_fails_while_it_runs_costs_no_byte() {
    let lab = Lab::new();
    // strace replaces the number of a call that it makes fail, and the sandbox does not know that number.
    let daemon = Daemon::start(&["--sandbox=false"]);
    let mut known = Known::new(&lab);
    let sound = sources_and_probes(&daemon);
    for (call, error) in WHILE_IT_RUNS {
        let injection = Injection::into(daemon.pid(), call, error);
        eventually(DEADLINE, &format!("{call} fails with {error}"), || {
            known.send();
            let _ = daemon.try_page();
            injection.has_happened()
        });
        drop(injection);
        known.send();
        let page = daemon.scrape();
        known.is_on(&page, 0).unwrap_or_else(|lacks| panic!("after {call} {error}: {lacks}\n{}", daemon.stderr()));
        let sources = || (sources_and_probes(&daemon) == sound).then_some(());
        eventually(DEADLINE, &format!("all sources are back after {call} {error}"), sources);
    }
    let said = daemon.stderr();
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn a_system_call_that_fails_at_the_start_is_named_or_costs_nothing() {
    let lab = Lab::new();
    let mut known = Known::new(&lab);
    for (call, error, when) in AT_THE_START {
        let log = TempDir::new().expect("a temporary directory");
        let mut command = strace(&log.path().join("log"), call, error, when);
        // Then the process that is started is tcpmon, and strace a child of it.
        command.args(["-D", "--seccomp-bpf"]).arg(tcpmon_binary());
        let before = known.sent;
        match Daemon::try_start_by(command, &["--sandbox=false"]) {
            Ok(daemon) => {
                known.send();
                // The call can fail later, too, in another thread: then a page is refused and the next one is right.
                eventually(DEADLINE, &format!("all is counted after {call} {error} {when}"), || {
                    let answer = daemon.try_page()?;
                    let text = String::from_utf8(answer.body).map_err(|error| error.to_string())?;
                    if answer.status != 200 {
                        return Err(text);
                    }
                    known.is_on(&Page::parse(&text)?, before)
                });
                assert_eq!(daemon.stop().code(), Some(0), "{call} {error}");
            }
            Err(refused) => {
                ended_in_order(&refused, &format!("after {call} {error}"));
            }
        }
        let log = fs::read_to_string(log.path().join("log")).unwrap_or_default();
        assert!(log.contains("(INJECTED)"), "{call} was called less than {when} times");
    }
}

/// It ended with one sentence and the exit code for that.
#[track_caller]
fn ended_in_order(refused: &Refused, when: &str) {
    let last = refused.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("tcpmon: ") && !refused.stderr.contains("panicked"), "{when}: {}", refused.stderr);
    assert!(matches!(refused.status.code(), Some(1 | 3)), "{when}: {:?}", refused.status);
}

#[track_caller]
fn nothing_is_left(before: &[BTreeSet<u32>; 2]) {
    eventually(DEADLINE, "no program and no map is left", || {
        let left: Vec<BTreeSet<u32>> = loaded().iter().zip(before).map(|(now, before)| now - before).collect();
        if left.iter().all(BTreeSet::is_empty) { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn killed_at_any_moment_it_leaves_nothing_and_the_next_one_is_right() {
    let lab = Lab::new();
    let mut known = Known::new(&lab);
    let before = loaded();
    let mut dice = fastrand::Rng::new();
    println!("seed {}", dice.get_seed());
    for _ in 0..KILLS {
        let mut daemon = Command::new(tcpmon_binary())
            .args(["daemon", "--web.listen-address", "127.0.0.1:0"])
            .stderr(Stdio::null())
            .spawn()
            .expect("tcpmon can be started");
        std::thread::sleep(KILLED_WITHIN.mul_f64(dice.f64()));
        daemon.kill().expect("a process of ours");
        daemon.wait().expect("it ends");
    }
    nothing_is_left(&before);
    let since = known.sent;
    let daemon = Daemon::start(&[]);
    known.send();
    let page = daemon.scrape();
    known.is_on(&page, since).unwrap_or_else(|lacks| panic!("{lacks}"));
}

#[test]
fn without_memory_it_does_not_start_or_is_killed_and_leaves_nothing() {
    let before = loaded();
    let mut starts = 0;
    for megabytes in [2, 4, 8, 12, 16, 24, 48, 256] {
        let group = MemoryCgroup::new("failures", megabytes << 20);
        match Daemon::try_start_by(group.command(&tcpmon_binary()), &[]) {
            Ok(daemon) => {
                starts += 1;
                drop(daemon);
            }
            Err(refused) if refused.status.signal() == Some(Signal::SIGKILL as i32) => {}
            Err(refused) => ended_in_order(&refused, &format!("with {megabytes} MB")),
        }
        eventually(DEADLINE, "its processes are gone", || {
            fs::read_to_string(group.path().join("cgroup.procs")).is_ok_and(|processes| processes.is_empty())
        });
    }
    assert!((1..8).contains(&starts), "{starts} of 8 starts");
    nothing_is_left(&before);
}
