//! Tests of pages and connections, over real sockets, with an artificial source of data.

mod listening;
mod pages;
mod serving;
mod sharing;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tcpmon_common::socket::SocketTotals;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    serve::{ConnectionLimits, serve_with_limits},
    *,
};
use crate::{
    host_state::{Host, SourceStatus},
    model::snapshot::{Group, GroupCounters, GroupGauges, GroupKey, ProgramRuns, Snapshot},
    status::{ProbeStatus, Verdict},
};

/// Longer than anything here takes, even on an emulated CPU.
const DEADLINE: Duration = Duration::from_secs(20);

struct FakeSource {
    /// When its group was created.
    since: Instant,
    stalled: AtomicBool,
    /// Number of samples taken.
    made: AtomicUsize,
    /// Number of groups.
    groups: usize,
    /// How long a sample takes.
    takes: Duration,
    fails: bool,
}

impl Default for FakeSource {
    fn default() -> Self {
        let (stalled, made) = Default::default();
        Self { since: Instant::now(), stalled, made, groups: 1, takes: Duration::ZERO, fails: false }
    }
}

impl DataSource for Arc<FakeSource> {
    fn health(&self) -> Result<(), Unavailable> {
        let stalled = self.stalled.load(Relaxed);
        if stalled { Err(Unavailable("the collector has not finished a pass for 34 s".into())) } else { Ok(()) }
    }

    async fn sample(&self) -> Result<Observed, Unavailable> {
        self.made.fetch_add(1, Relaxed);
        sleep(self.takes).await;
        if self.fails {
            return Err(Unavailable("the kernel returned an error: restart tcpmon".into()));
        }
        let probe =
            |name: &str, verdict, reason: &str| ProbeStatus { name: name.into(), verdict, reason: reason.into() };
        let group = Group {
            key: GroupKey::other(false).into(),
            born: self.since,
            counters: GroupCounters {
                sockets: SocketTotals { received_bytes: 7, ..SocketTotals::default() },
                ..GroupCounters::default()
            },
            gauges: GroupGauges::default(),
            histograms: true,
        };
        let snapshot = Snapshot {
            groups: vec![group; self.groups],
            probes: vec![probe("tcp_probe", Verdict::Attached, ""), probe("kfree_skb", Verdict::Broken, "no BTF")],
            losses: vec![("drop_entry".into(), 7)],
            ignored: vec![("mptcp", 8)],
            programs: vec![
                ProgramRuns { name: "a".into(), runs: None, run_time: None },
                ProgramRuns { name: "b".into(), runs: Some(2), run_time: Some(Duration::from_millis(1500)) },
            ],
            ..Snapshot::default()
        };
        let missing = || "/proc/pressure/memory is not there: no memory stalls".into();
        let host = Host {
            sources: vec![SourceStatus { name: "pressure", available: false, switched_off: false, reason: missing() }],
            ..Host::default()
        };
        Ok(Observed { snapshot: Arc::new(snapshot), host: Arc::new(host), ..Observed::default() })
    }
}

struct TestServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl TestServer {
    async fn start(source: FakeSource) -> (Self, Arc<FakeSource>) {
        Self::start_with_limits(ConnectionLimits::default(), source).await
    }

    async fn start_with_limits(limits: ConnectionLimits, source: FakeSource) -> (Self, Arc<FakeSource>) {
        let source = Arc::new(source);
        let address = "127.0.0.1:0".parse().expect("an address");
        let listeners = bind(&[address]).await.expect("a free port");
        let address = listeners[0].local_addr().expect("an address");
        let path = "/metrics".parse().expect("a path");
        let endpoint = Endpoint::new(Arc::clone(&source), Arc::new(Identity::read()), path, None);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve_with_limits(limits, listeners, endpoint, async { drop(stopped.await) }));
        (Self { address, stop, task }, source)
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    async fn ask(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        let request = format!("{request}\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        rest(stream).await
    }

    /// Stops the server; returns how long that took.
    async fn stop(self) -> Duration {
        let begin = Instant::now();
        self.stop.send(()).expect("the server runs");
        timeout(DEADLINE, self.task).await.expect("the server stops").expect("no panic");
        begin.elapsed()
    }
}

/// Everything received until the server closes the connection; a compressed body is not text.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset counts as the end, too.
    let end = timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    drop(end.expect("the server closes the connection"));
    String::from_utf8_lossy(&answer).into_owned()
}

/// Status, head in lower case, body.
fn parts(answer: &str) -> (u16, String, &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), head.to_lowercase(), body)
}
