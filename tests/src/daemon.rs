//! `tcpmon daemon`, started for a test and queried over HTTP.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::clock::monotonic_ns;
use crate::process::{Process, tcpmon_binary};
use crate::truth::{self, State};
use crate::{Namespace, Page, emulated, eventually, free_port, must, refusal};

/// Time limit to start, to answer and to stop: generous, for an emulated machine that has other work.
const DEADLINE: Duration = Duration::from_secs(120);

/// What a daemon that has started does.
const HEALTHY: &str = "answers 200 at /healthz";

/// Header for [`Response::began_ns`], in seconds.
const BEGAN: &str = "tcpmon-reading-began";

/// Parses the value of [`BEGAN`].
fn nanoseconds(began: &str) -> Option<u64> {
    let (seconds, fraction) = began.trim().split_once('.')?;
    let fraction: u64 = fraction.parse().ok().filter(|_| fraction.len() == 9)?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction)
}

/// A running daemon. Killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    namespace: Namespace,
    address: SocketAddr,
}

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// `Content-Type`, empty when absent.
    pub content_type: String,
    /// Time at which its sample was started, `CLOCK_MONOTONIC`; `None` if the response is not made from a sample.
    pub began_ns: Option<u64>,
    /// Body, not interpreted.
    pub body: Vec<u8>,
}

/// A daemon that failed to start.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Daemon {
    /// Starts a daemon with these additional flags on a free port and waits until `/healthz` answers 200.
    #[track_caller]
    pub fn start(flags: &[&str]) -> Self {
        Self::start_in(&Namespace::current(), flags)
    }

    /// Like [`Daemon::start`], but in this namespace: the daemon sees that namespace's devices and listens there.
    #[track_caller]
    pub fn start_in(namespace: &Namespace, flags: &[&str]) -> Self {
        Self::expect_started(Self::try_start_in(namespace, flags))
    }

    /// Like [`Daemon::start`], for flags under which `/healthz` does not answer every client: waits until the daemon
    /// listens.
    #[track_caller]
    pub fn start_secured(flags: &[&str]) -> Self {
        let listens = |daemon: &Self| TcpStream::connect(daemon.address).map(drop).map_err(|error| error.to_string());
        let command = Command::new(tcpmon_binary());
        Self::expect_started(Self::try_start_until(command, &Namespace::current(), flags, "listens", listens))
    }

    /// Like [`Daemon::try_start`], started by a command that gets the daemon's arguments after its own, such as
    /// `setpriv --bounding-set=-syslog tcpmon`.
    pub fn try_start_by(command: Command, flags: &[&str]) -> Result<Self, Refused> {
        Self::try_start_until(command, &Namespace::current(), flags, HEALTHY, Self::healthy)
    }

    /// Starts it as root without these capabilities, written as in `-sys_admin,-syslog`.
    #[track_caller]
    pub fn start_without(capabilities: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={capabilities}")).arg(tcpmon_binary());
        Self::expect_started(Self::try_start_by(command, &[]))
    }

    /// Like [`Daemon::start`], for a daemon that may refuse to start.
    pub fn try_start(flags: &[&str]) -> Result<Self, Refused> {
        Self::try_start_in(&Namespace::current(), flags)
    }

    fn try_start_in(namespace: &Namespace, flags: &[&str]) -> Result<Self, Refused> {
        Self::try_start_until(Command::new(tcpmon_binary()), namespace, flags, HEALTHY, Self::healthy)
    }

    /// Starts a daemon for which the kernel [refuses](refusal::refuse) a command of bpf(2).
    pub fn try_start_refusing(command: u64, flags: &[&str]) -> Result<Self, Refused> {
        let mut daemon = Command::new(tcpmon_binary());
        refusal::refuse(&mut daemon, command);
        Self::try_start_by(daemon, flags)
    }

    /// The same, but only where tcpmon makes the call [itself](refusal::refuse_own).
    pub fn try_start_refusing_own(command: u64, flags: &[&str]) -> Result<Self, Refused> {
        let mut daemon = Command::new(tcpmon_binary());
        refusal::refuse_own(&mut daemon, command);
        Self::try_start_by(daemon, flags)
    }

    /// Starts a daemon for which the kernel [refuses](refusal::refuse_program) one eBPF program until it loads another.
    #[track_caller]
    pub fn start_refusing_program(refused: &str, last: &str) -> Self {
        let mut daemon = Command::new(tcpmon_binary());
        refusal::hold(&mut daemon);
        let daemon = Self::spawn(daemon, &Namespace::current(), &[]);
        refusal::refuse_program(daemon.pid(), refused, last);
        Self::expect_started(daemon.until(HEALTHY, Self::healthy))
    }

    #[track_caller]
    fn expect_started(started: Result<Self, Refused>) -> Self {
        match started {
            Ok(daemon) => daemon,
            Err(refused) => panic!("tcpmon daemon ended with {}:\n{}", refused.status, refused.stderr),
        }
    }

    fn healthy(&self) -> Result<(), String> {
        match self.try_get("/healthz", "") {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("status {}", answer.status)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn try_start_until(
        command: Command,
        namespace: &Namespace,
        flags: &[&str],
        what: &str,
        ready: impl Fn(&Self) -> Result<(), String>,
    ) -> Result<Self, Refused> {
        Self::spawn(command, namespace, flags).until(what, ready)
    }

    fn spawn(mut command: Command, namespace: &Namespace, flags: &[&str]) -> Self {
        let address = free_address(namespace);
        command.args(["daemon", "--web.listen-address", &address.to_string()]).args(flags);
        namespace.start_inside(&mut command, true);
        Self { process: Process::spawn(&mut command), namespace: namespace.clone(), address }
    }

    fn until(mut self, what: &str, ready: impl Fn(&Self) -> Result<(), String>) -> Result<Self, Refused> {
        let ended = eventually(DEADLINE, &format!("tcpmon daemon {what}"), || match self.process.exited() {
            Some(status) => Ok(Some(status)),
            None => ready(&self).map(|()| None),
        });
        if ended.is_none() {
            return Ok(self);
        }
        let status = self.process.wait(DEADLINE);
        Err(Refused { status, stderr: self.stderr() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its metrics, once no group is held at zero for being new. Polls until then, as a regular scraper does.
    #[track_caller]
    pub fn scrape(&self) -> Page {
        eventually(DEADLINE, "a page shows all truly", || {
            let page = self.page();
            match page.value("tcpmon_groups_held_at_zero", &[]) {
                Some(0.0) if emulated::may_lack_host_counters() && !page.has_host_counters() => {
                    Err("the host's counters are missing".into())
                }
                Some(0.0) => Ok(page),
                held => Err(format!("{held:?} groups are held at zero")),
            }
        })
    }

    /// Its metrics from a single response, with zeros for new groups.
    #[track_caller]
    pub fn page(&self) -> Page {
        let answer = self.get("/metrics", "text/plain");
        let text = must(String::from_utf8(answer.body), "reading a page of metrics");
        assert_eq!(answer.status, 200, "/metrics answered {text}");
        must(Page::parse(&text), "parsing a page of metrics")
    }

    /// Requests its metrics, and does not mind if it does not answer.
    pub fn try_page(&self) -> Result<Response, String> {
        self.try_get("/metrics", "text/plain").map_err(|error| error.to_string())
    }

    /// Requests a path; an empty `accept` sends no such header. If the response is made from a sample, it covers
    /// everything that happened before this call: requests are repeated until the sample was started later.
    #[track_caller]
    pub fn get(&self, path: &str, accept: &str) -> Response {
        let asked = monotonic_ns();
        loop {
            let answer = self.get_shared(path, accept);
            if answer.began_ns.is_none_or(|began| began >= asked) {
                return answer;
            }
        }
    }

    /// Like [`Daemon::get`], but takes tcpmon's first response, which may be made from a sample that other clients have
    /// shared.
    #[track_caller]
    pub fn get_shared(&self, path: &str, accept: &str) -> Response {
        must(self.try_get(path, accept), format!("asking tcpmon for {path}"))
    }

    /// `/status`, requested like [`Daemon::get`].
    #[track_caller]
    pub fn status(&self) -> Value {
        must(serde_json::from_slice(&self.get("/status", "").body), "parsing /status")
    }

    /// What it has written to stderr so far.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Stops the daemon (SIGSTOP) while `run` runs, so that it reads nothing from the kernel. First waits until
    /// connections to it are closed at both ends.
    #[track_caller]
    pub fn stopped_while<T>(&self, run: impl FnOnce() -> T) -> T {
        eventually(DEADLINE, "tcpmon has closed what it answered", || {
            let mut open = truth::sockets(&self.namespace);
            open.retain(|socket| [socket.local, socket.remote].contains(&self.address));
            open.retain(|socket| !matches!(socket.state, State::Listen | State::TimeWait));
            if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
        });
        self.process.signal(Signal::SIGSTOP);
        let result = run();
        self.process.signal(Signal::SIGCONT);
        result
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for it to end after a signal; returns its exit status and what it wrote to stderr.
    pub fn wait(mut self) -> (ExitStatus, String) {
        (self.process.wait(DEADLINE), self.stderr())
    }

    /// Ends it with SIGTERM.
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.wait(DEADLINE)
    }

    fn try_get(&self, path: &str, accept: &str) -> Result<Response, minreq::Error> {
        let mut request = minreq::get(format!("http://{}{path}", self.address)).with_timeout(DEADLINE.as_secs());
        if !accept.is_empty() {
            request = request.with_header("Accept", accept);
        }
        let answer = self.namespace.run(|| request.with_follow_redirects(false).send())?;
        Ok(Response {
            status: answer.status_code,
            content_type: answer.header("content-type").unwrap_or_default().to_owned(),
            began_ns: answer.header(BEGAN).and_then(nanoseconds),
            body: answer.into_bytes(),
        })
    }
}

/// A loopback address of this namespace whose port was free a moment ago.
pub(crate) fn free_address(namespace: &Namespace) -> SocketAddr {
    let port = must(namespace.run(free_port), "looking for a free port");
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
