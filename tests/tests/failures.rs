//! System calls of the daemon that fail once, and its end at any moment: it goes on, or ends with one sentence, and it
//! loses nothing.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{DEADLINE, loaded, sender, sources_and_probes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use tcpmon_tests::traffic::{Reader, Sender};
use tcpmon_tests::{Daemon, Lab, MemoryCgroup, Page, Refused, Traffic, dice, equal, eventually, report, tcpmon_binary};
use tempfile::TempDir;

/// System calls that a daemon makes while it runs, each with an error that it can have.
const WHILE_IT_RUNS: [(&str, &str); 28] = [
    ("accept4", "EMFILE"),
    ("accept4", "ECONNABORTED"),
    ("bind", "ENOMEM"),
    ("bpf", "ENOMEM"),
    ("close", "EINTR"),
    ("connect", "ENOMEM"),
    ("epoll_ctl", "ENOMEM"),
    ("epoll_wait", "EINTR"),
    ("getdents64", "ENOMEM"),
    ("getsockname", "ENOBUFS"),
    ("getsockopt", "ENOBUFS"),
    ("ioctl", "ENODEV"),
    ("newfstatat", "ENOMEM"),
    ("openat", "EMFILE"),
    ("openat", "ENOENT"),
    ("read", "EIO"),
    ("read", "ENOMEM"),
    ("recvfrom", "ENOBUFS"),
    ("sendto", "ENOBUFS"),
    ("sendto", "EPIPE"),
    ("setns", "ENOMEM"),
    ("setpriority", "EPERM"),
    ("setsockopt", "ENOBUFS"),
    ("shutdown", "ENOTCONN"),
    ("socket", "EMFILE"),
    ("statx", "ENOMEM"),
    ("write", "EAGAIN"),
    ("writev", "ECONNRESET"),
];

/// Threads of a daemon that runs, besides its first one.
const OWN_THREADS: u32 = 4;

/// System calls for memory and threads that a daemon makes while it starts, with an error that each can have, and which
/// of these calls fails: the first ones are those of the dynamic linker.
const OF_MEMORY: [(&str, &str, u32); 12] = [
    ("capget", "EPERM", 1),
    ("capset", "EPERM", 1),
    ("clone3", "EAGAIN", 1),
    ("getpriority", "ESRCH", 1),
    ("madvise", "ENOMEM", 1),
    ("mmap", "ENOMEM", 30),
    ("mprotect", "ENOMEM", 7),
    ("mremap", "ENOMEM", 1),
    ("munmap", "ENOMEM", 2),
    ("sched_getaffinity", "EPERM", 1),
    ("setpriority", "EACCES", 1),
    ("sigaltstack", "ENOMEM", 1),
];

/// The same for files and settings of the process.
const OF_FILES: [(&str, &str, u32); 11] = [
    ("fcntl", "EMFILE", 1),
    ("getdents64", "ENOMEM", 3),
    ("getrandom", "ENOSYS", 1),
    ("lseek", "ESPIPE", 1),
    ("openat", "EMFILE", 30),
    ("openat", "ENOENT", 40),
    ("poll", "ENOMEM", 1),
    ("prctl", "EINVAL", 2),
    ("prlimit64", "EPERM", 1),
    ("read", "EIO", 30),
    ("statx", "ENOMEM", 1),
];

/// The same for programs, maps and the event loop.
const OF_PROGRAMS: [(&str, &str, u32); 10] = [
    ("bpf", "ENOMEM", 1),
    ("bpf", "ENOMEM", 10),
    ("bpf", "EPERM", 40),
    ("bpf", "ENOSPC", 80),
    ("epoll_create1", "EMFILE", 1),
    ("epoll_ctl", "ENOSPC", 1),
    ("epoll_pwait", "EINTR", 1),
    ("epoll_wait", "EINTR", 1),
    ("eventfd2", "EMFILE", 1),
    ("setns", "ENOMEM", 1),
];

/// The same for sockets.
const OF_SOCKETS: [(&str, &str, u32); 12] = [
    ("accept4", "ECONNABORTED", 1),
    ("bind", "EADDRINUSE", 1),
    ("connect", "EPERM", 1),
    ("getsockname", "ENOBUFS", 1),
    ("listen", "EADDRINUSE", 1),
    ("recvfrom", "EINTR", 1),
    ("setsockopt", "ENOMEM", 1),
    ("shutdown", "ENOTCONN", 1),
    ("socket", "EMFILE", 1),
    ("socket", "EMFILE", 4),
    ("socketpair", "EMFILE", 1),
    ("writev", "EPIPE", 1),
];

/// The same where programs may not ask sockets for their cookies (docs/kernels.md).
const OF_COOKIES: [(&str, &str, u32); 2] = [("pidfd_getfd", "EPERM", 1), ("pidfd_open", "EMFILE", 1)];

/// The same for the sandbox. Without a part of it, the daemon goes on and says so.
const OF_THE_SANDBOX: [(&str, &str, u32); 4] = [
    ("landlock_add_rule", "ENOMEM", 1),
    ("landlock_create_ruleset", "EOPNOTSUPP", 1),
    ("landlock_restrict_self", "E2BIG", 1),
    ("seccomp", "EINVAL", 1),
];

/// System calls that fail only if the caller passes a wrong pointer or number, or that nobody but the dynamic linker
/// and the language's runtime makes, outside of tcpmon's own code.
const NEVER_FAIL: [&str; 20] = [
    "access",
    "arch_prctl",
    "brk",
    "clock_gettime",
    "execve",
    "exit",
    "exit_group",
    "futex",
    "gettid",
    "pread64",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "times",
    "uname",
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
        eventually(DEADLINE, "all is read", || equal(self.reader.report().bytes, self.sent));
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
    /// Makes a system call of a running process fail in each of its threads: of those with this name the first from now
    /// on, the second, and so on.
    fn into(pid: u32, call: &str, error: &str, when: u32) -> Self {
        let log = TempDir::new().expect("a temporary directory");
        let mut strace = strace(&log.path().join("log"), call, error, when);
        let strace = strace.args(["-p", &pid.to_string()]).stderr(Stdio::null()).spawn();
        let injection = Self { strace: strace.expect("strace is installed by `cargo xtask test`"), log };
        eventually(DEADLINE, "strace traces each thread", || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
            let mut states = threads.map(|thread| fs::read_to_string(thread.path().join("status")));
            // A thread may end at any time.
            !states.any(|status| status.is_ok_and(|status| status.contains("TracerPid:\t0\n")))
        });
        injection
    }

    /// Whether a call has failed.
    fn has_happened(&self) -> bool {
        fs::read_to_string(self.log.path().join("log")).is_ok_and(|log| log.contains("(INJECTED)"))
    }

    /// Lets the process go on without strace.
    fn end(&mut self) {
        if let Ok(None) = self.strace.try_wait() {
            let _ = kill(Pid::from_raw(self.strace.id().cast_signed()), Signal::SIGINT);
            let _ = self.strace.wait();
        }
    }

    /// Ends it. Returns how many of the calls the process has made meanwhile.
    fn calls(mut self, call: &str) -> u32 {
        self.end();
        let log = fs::read_to_string(self.log.path().join("log")).expect("strace has written a log");
        log.matches(&format!(" {call}(")).count() as u32
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        self.end();
    }
}

fn strace(log: &Path, call: &str, error: &str, when: u32) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", &format!("trace={call}")]);
    strace.args(["-e", &format!("inject={call}:error={error}:when={when}")]);
    strace.arg("-o").arg(log);
    strace
}

/// The names of the system calls in strace's log, whose lines begin with a thread: `123 read(...`.
fn calls(log: &str) -> BTreeSet<&str> {
    let names = log.lines().filter_map(|line| {
        let name = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(name)
    });
    names.collect()
}

#[test]
fn each_system_call_of_a_daemon_is_one_that_fails_here() {
    let lab = Lab::new();
    let mut known = Known::new(&lab);
    let folder = TempDir::new().expect("a temporary directory");
    let log = folder.path().join("log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-D", "-o"]).arg(&log).arg(tcpmon_binary());
    let daemon = Daemon::try_start_by(strace, &[]).unwrap_or_else(|refused| panic!("{refused:?}"));
    known.send();
    known.is_on(&daemon.scrape(), 0).unwrap_or_else(|lacks| panic!("{lacks}"));
    sources_and_probes(&daemon);
    daemon.signal(Signal::SIGHUP);
    eventually(DEADLINE, "it reads its configuration again", || {
        let said = daemon.stderr();
        if said.contains("reloaded the configuration") { Ok(()) } else { Err(said) }
    });
    daemon.signal(Signal::SIGTERM);
    let (status, said) = daemon.wait();
    let log = fs::read_to_string(log).expect("strace has written a log");
    // The sandbox ends a thread at a call that it does not allow, by SIGSYS.
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("SIGSYS")).collect();
    assert!(status.success(), "{status}: {said}{refused:?}");
    let of_the_start = [&OF_MEMORY[..], &OF_FILES, &OF_PROGRAMS, &OF_SOCKETS, &OF_COOKIES, &OF_THE_SANDBOX].concat();
    let failing = WHILE_IT_RUNS.iter().map(|(call, _)| *call).chain(of_the_start.iter().map(|(call, ..)| *call));
    // The C library starts threads by `clone` where there is no `clone3`, which the sandbox hides.
    let known: BTreeSet<&str> = failing.chain(NEVER_FAIL).chain(["clone"]).collect();
    let unknown: Vec<&str> = calls(&log).into_iter().filter(|call| !known.contains(call)).collect();
    assert!(unknown.is_empty(), "no test makes these fail: {}", unknown.join(", "));
}

#[test]
fn a_system_call_that_fails_while_it_runs_costs_no_byte() {
    let lab = Lab::new();
    // strace replaces the number of a call that it makes fail, and the sandbox does not know that number.
    let daemon = Daemon::start(&["--sandbox=false"]);
    let mut known = Known::new(&lab);
    let sound = sources_and_probes(&daemon);
    for (call, error) in WHILE_IT_RUNS {
        let injection = Injection::into(daemon.pid(), call, error, 1);
        eventually(DEADLINE, &format!("{call} fails with {error}"), || {
            known.send();
            let _ = daemon.try_page();
            injection.has_happened()
        });
        drop(injection);
        known.send();
        let page = daemon.scrape();
        known.is_on(&page, 0).unwrap_or_else(|lacks| panic!("after {call} {error}: {lacks}\n{}", daemon.stderr()));
        let sources = || equal(sources_and_probes(&daemon), sound.clone());
        eventually(DEADLINE, &format!("all sources are back after {call} {error}"), sources);
    }
    let said = daemon.stderr();
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// A client of the daemon's local socket.
struct LiveView {
    stream: UnixStream,
    /// The last pass that it has got.
    pass: u64,
}

impl LiveView {
    /// Asks for what has changed since the last answer. Returns how many connections with this process are in it.
    fn changed(&mut self, process: &str) -> usize {
        let request = [&b"tcpm"[..], &2_u16.to_le_bytes(), &self.pass.to_le_bytes()].concat();
        self.stream.write_all(&request).expect("the daemon reads");
        let mut head = [0; 11];
        self.stream.read_exact(&mut head).expect("the daemon answers");
        let length = u32::from_le_bytes([head[7], head[8], head[9], head[10]]);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).expect("the daemon answers");
        assert_eq!(head[6], 0, "{}", String::from_utf8_lossy(&body));
        // The first number, seven bits a byte, the lowest first.
        let last = body.iter().position(|byte| byte & 0x80 == 0).expect("a number");
        self.pass = body[..=last].iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f));
        // The group of the process has the name once.
        let names = body.windows(process.len()).filter(|bytes| *bytes == process.as_bytes());
        names.count().checked_sub(1).expect("a group")
    }
}

#[test]
fn changes_found_by_a_pass_before_it_failed_are_shown_by_the_next_one() {
    let lab = Lab::new();
    let folder = TempDir::new().expect("a temporary directory");
    let path = folder.path().join("tcpmon.sock");
    let daemon = Daemon::start(&["--sandbox=false", "--live-socket", path.to_str().expect("text")]);
    let mut known = Known::new(&lab);
    known.send();
    let mut view = LiveView { stream: UnixStream::connect(&path).expect("the daemon listens"), pass: 0 };
    assert_eq!(view.changed("known"), 1);
    eventually(DEADLINE, "nothing changes any more", || equal(view.changed("known"), 0));
    // More calls than a pass makes.
    let none = Injection::into(daemon.pid(), "bpf", "ENOMEM", 60_000);
    assert_eq!(daemon.try_page().expect("an answer").status, 200);
    let calls = none.calls("bpf");
    let mut failed = 0;
    // By the last ones, a pass has shown all sockets. How many there are differs a little.
    for when in calls - 12..=calls {
        let injection = Injection::into(daemon.pid(), "bpf", "ENOMEM", when);
        known.send();
        let refused = daemon.try_page().expect("an answer").status != 200;
        drop(injection);
        assert_eq!(view.changed("known"), 1, "after call {when} of {calls}, refused: {refused}\n{}", daemon.stderr());
        failed += u32::from(refused);
    }
    assert!(failed > 0, "no pass of {calls} calls failed");
    known.is_on(&daemon.scrape(), 0).unwrap_or_else(|lacks| panic!("{lacks}"));
}

#[test]
fn a_call_for_memory_or_threads_that_fails_at_the_start_is_named_or_costs_nothing() {
    // Besides its own threads, a daemon has some that load programs: as many as there are CPUs, less one. With more
    // than four CPUs, not all of its own are reached.
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let threads = (2..OWN_THREADS + cpus.min(4)).map(|when| ("clone3", "EAGAIN", when));
    fail_at_the_start(&OF_MEMORY.into_iter().chain(threads).collect::<Vec<_>>(), &["--sandbox=false"]);
}

#[test]
fn a_call_for_files_that_fails_at_the_start_is_named_or_costs_nothing() {
    fail_at_the_start(&OF_FILES, &["--sandbox=false"]);
}

#[test]
fn a_call_for_programs_that_fails_at_the_start_is_named_or_costs_nothing() {
    fail_at_the_start(&OF_PROGRAMS, &["--sandbox=false"]);
}

#[test]
fn a_call_for_sockets_that_fails_at_the_start_is_named_or_costs_nothing() {
    fail_at_the_start(&OF_SOCKETS, &["--sandbox=false"]);
}

#[test]
fn a_call_for_cookies_that_fails_at_the_start_costs_nothing() {
    let lab = Lab::new();
    let mut known = Known::new(&lab);
    for call in &OF_COOKIES {
        if !fails_at_the_start(&mut known, call, &["--sandbox=false"]) {
            report::not_supported("on this kernel, programs may ask sockets for their cookies");
            return;
        }
    }
}

#[test]
fn a_call_for_the_sandbox_that_fails_at_the_start_is_named_or_costs_nothing() {
    fail_at_the_start(&OF_THE_SANDBOX, &[]);
}

fn fail_at_the_start(calls: &[(&str, &str, u32)], flags: &[&str]) {
    let lab = Lab::new();
    let mut known = Known::new(&lab);
    for call in calls {
        assert!(fails_at_the_start(&mut known, call, flags), "{call:?} was not called as often");
    }
}

/// Starts a daemon for which one call of this name fails: it counts all, or ends in order. Returns whether it made that
/// call.
#[track_caller]
fn fails_at_the_start(known: &mut Known, (call, error, when): &(&str, &str, u32), flags: &[&str]) -> bool {
    // It has no cookie.
    let _new = TcpListener::bind("127.0.0.1:0").expect("a port");
    let log = TempDir::new().expect("a temporary directory");
    let mut command = strace(&log.path().join("log"), call, error, *when);
    // Then the process that is started is tcpmon, and strace a child of it.
    command.args(["-D", "--seccomp-bpf"]).arg(tcpmon_binary());
    let before = known.sent;
    match Daemon::try_start_by(command, flags) {
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
            let said = daemon.stderr();
            assert!(!said.contains("panicked"), "{call} {error} {when}: {said}");
            assert_eq!(daemon.stop().code(), Some(0), "{call} {error}");
        }
        Err(refused) => {
            ended_in_order(&refused, &format!("after {call} {error}"));
        }
    }
    fs::read_to_string(log.path().join("log")).unwrap_or_default().contains("(INJECTED)")
}

/// It ended with one sentence, the last after the lines of its log, and the exit code for that.
#[track_caller]
fn ended_in_order(refused: &Refused, when: &str) {
    let said = &refused.stderr;
    let is_sentence = |line: &&str| line.starts_with("tcpmon: ");
    let sentences = said.lines().filter(is_sentence).count();
    assert!(sentences == 1 && said.lines().next_back().is_some_and(|line| is_sentence(&line)), "{when}: {said}");
    // The verifier may have written thousands of lines.
    let never = ["panicked", "Verifier output", "processed "];
    assert!(!never.iter().any(|words| said.contains(words)), "{when}: {said}");
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
    let mut dice = dice::seeded();
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
