//! Tests of pages and connections, over real sockets.

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
    serve::{Limits, serve_within},
    *,
};
use crate::model::{
    host::{self, Host},
    snapshot::{Group, GroupCounters, GroupGauges, GroupKey, ProgramRuns, Snapshot, Verdict},
};

/// Longer than anything here takes, even on an emulated CPU.
const DEADLINE: Duration = Duration::from_secs(20);

struct Fake {
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

impl Default for Fake {
    fn default() -> Self {
        let (stalled, made) = Default::default();
        Self { since: Instant::now(), stalled, made, groups: 1, takes: Duration::ZERO, fails: false }
    }
}

impl Source for Arc<Fake> {
    fn health(&self) -> Result<(), Unavailable> {
        let stalled = self.stalled.load(Relaxed);
        if stalled { Err(Unavailable("the collector has not finished a pass for 34 s".into())) } else { Ok(()) }
    }

    async fn see(&self) -> Result<Observed, Unavailable> {
        self.made.fetch_add(1, Relaxed);
        sleep(self.takes).await;
        if self.fails {
            return Err(Unavailable("the kernel said no: restart tcpmon".into()));
        }
        let probe = |name: &str, verdict, reason: &str| crate::model::snapshot::Probe {
            name: name.into(),
            verdict,
            reason: reason.into(),
        };
        let group = Group {
            key: GroupKey::other(false),
            born: self.since,
            counters: GroupCounters {
                sockets: SocketTotals { received_bytes: 7, ..SocketTotals::default() },
                ..GroupCounters::default()
            },
            gauges: GroupGauges::default(),
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
            sources: vec![host::Source { name: "pressure", available: false, reason: missing() }],
            ..Host::default()
        };
        Ok(Observed { snapshot: Arc::new(snapshot), host: Arc::new(host) })
    }
}

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(source: Fake) -> (Self, Arc<Fake>) {
        Self::start_within(Limits::default(), source).await
    }

    async fn start_within(limits: Limits, source: Fake) -> (Self, Arc<Fake>) {
        let source = Arc::new(source);
        let address = "127.0.0.1:0".parse().expect("an address");
        let listeners = bind(&[address]).await.expect("a free port");
        let address = listeners[0].local_addr().expect("an address");
        let path = "/metrics".parse().expect("a path");
        let router = router(Arc::clone(&source), Arc::new(Identity::read()), &path, None);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve_within(limits, listeners, router, None, async { drop(stopped.await) }));
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

/// Everything received until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    // A reset counts as the end, too.
    let end = timeout(DEADLINE, stream.read_to_string(&mut answer)).await;
    drop(end.expect("the server closes the connection"));
    answer
}

/// Status, head in lower case, body.
fn parts(answer: &str) -> (u16, String, &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), head.to_lowercase(), body)
}

#[tokio::test]
async fn each_page_answers_with_its_type_and_others_do_not_exist() {
    let (server, _) = Server::start(Fake::default()).await;
    for (path, status, kind, part) in [
        ("/", 200, "text/html; charset=utf-8", "<a href=\"/metrics\">"),
        ("/healthz", 200, "text/plain; charset=utf-8", "ok"),
        ("/status", 200, "application/json", "\"probes\""),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "tcpmon_build_info{"),
        ("/metrics/", 404, "text/plain; charset=utf-8", "no such page"),
        ("/favicon.ico", 404, "text/plain; charset=utf-8", "no such page"),
    ] {
        let answer = server.ask(&format!("GET {path} HTTP/1.1")).await;
        let (got, head, body) = parts(&answer);
        assert_eq!(got, status, "{path}");
        assert!(head.contains(&format!("content-type: {kind}\r\n")), "{path}: {head}");
        assert!(body.contains(part), "{path}: {body}");
    }
}

#[tokio::test]
async fn a_new_group_is_at_zero_on_the_first_page_of_metrics_and_other_pages_do_not_count() {
    let (server, _) = Server::start(Fake::default()).await;
    let server = &server;
    // Gets a sample that was started after this call.
    let ask = async |path: &str, agent: &str| {
        let asked = clock();
        let answer = loop {
            let answer = server.ask(&format!("GET {path} HTTP/1.1\r\nUser-Agent: {agent}")).await;
            if began(&answer) >= asked {
                break answer;
            }
        };
        received(&answer)
    };
    assert_eq!(ask("/status", "a").await, None);
    let first = server.ask("GET /metrics HTTP/1.1\r\nUser-Agent: a").await;
    assert_eq!([received(&first), ask("/metrics", "a").await], [Some(0), Some(7)]);
}

fn received(answer: &str) -> Option<u64> {
    let mut lines = answer.lines();
    lines.find_map(|line| line.strip_prefix("tcpmon_receive_bytes_total{")?.split(' ').nth(1)?.parse().ok())
}

#[tokio::test]
async fn a_reading_that_is_shared_shows_a_new_group_at_zero_to_all_who_share_it() {
    let (server, _) = Server::start(Fake::default()).await;
    let mut shown = Vec::new();
    // The first request takes the sample, and at that time it is not known that others will share it.
    for request in ["GET /status", "GET /metrics", "GET /metrics", "GET /metrics"] {
        let answer = server.ask(&format!("{request} HTTP/1.1\r\nUser-Agent: {}", shown.len())).await;
        shown.push((began(&answer), received(&answer)));
    }
    let first = shown[1].0;
    for (began, received) in &shown[1..] {
        assert!(*began > first || *received == Some(0), "{shown:?}");
    }
}

#[test]
fn what_tells_scrapers_apart_is_address_agent_and_format_cut_short() {
    let client = Client::from(SocketAddr::from(([10, 0, 0, 1], 1)));
    let name = |agent: &str, accept: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, agent.parse().expect("a value"));
        headers.insert(header::ACCEPT, accept.parse().expect("a value"));
        scraper(client, &headers)
    };
    assert_eq!(name("Prometheus/3", "text/plain"), "10.0.0.1\nPrometheus/3\ntext/plain");
    assert_eq!(name(&"x".repeat(1000), &"y".repeat(1000)).len(), "10.0.0.1\n\n".len() + 2 * MOST_WORDS);
    assert_eq!(scraper(client, &HeaderMap::new()), "10.0.0.1\n\n");
}

#[tokio::test]
async fn head_has_no_body_and_other_methods_are_refused() {
    let (server, _) = Server::start(Fake::default()).await;
    let answer = server.ask("HEAD /metrics HTTP/1.1").await;
    let (status, head, body) = parts(&answer);
    assert_eq!((status, body), (200, ""));
    assert!(head.contains("content-length: ") && !head.contains("content-length: 0"), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = server.ask(&format!("{method} /metrics HTTP/1.1\r\nContent-Length: 0")).await;
        assert_eq!(parts(&answer).0, 405, "{method}");
        assert!(parts(&answer).1.contains("allow: get,head"), "{answer}");
    }
}

#[tokio::test]
async fn the_format_is_negotiated_over_all_accept_lines() {
    let (server, _) = Server::start(Fake::default()).await;
    let request = "GET /metrics HTTP/1.1\r\nAccept: text/plain;q=0.5\r\nAccept: application/openmetrics-text";
    let answer = server.ask(request).await;
    let (_, head, body) = parts(&answer);
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn health_names_what_stalls_and_makes_no_reading() {
    let (server, source) = Server::start(Fake { takes: DEADLINE * 2, ..Fake::default() }).await;
    assert_eq!(parts(&server.ask("GET /healthz HTTP/1.1").await).0, 200);
    source.stalled.store(true, Relaxed);
    let answer = server.ask("GET /healthz HTTP/1.1").await;
    let (status, _, body) = parts(&answer);
    assert_eq!((status, body), (503, "the collector has not finished a pass for 34 s\n"));
    assert_eq!(source.made.load(Relaxed), 0);
}

/// When an answer's sample was started.
fn began(answer: &str) -> Duration {
    let (_, head, _) = parts(answer);
    let value = head.lines().find_map(|line| line.strip_prefix("tcpmon-reading-began: "));
    Duration::from_secs_f64(value.and_then(|value| value.parse().ok()).expect("seconds"))
}

fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.try_into().expect("the clock runs forward")
}

#[tokio::test]
async fn all_that_is_asked_within_250_ms_shares_one_reading_and_no_answer_is_older() {
    let (server, source) = Server::start(Fake::default()).await;
    let life = Duration::from_millis(250);
    let mut readings = Vec::new();
    for path in ["/metrics", "/status"].into_iter().cycle().take(40) {
        let asked = clock();
        let answer = server.ask(&format!("GET {path} HTTP/1.1")).await;
        assert_eq!(parts(&answer).0, 200);
        let began = began(&answer);
        assert!(began + life >= asked, "{began:?}, asked at {asked:?}");
        readings.push(began);
    }
    readings.dedup();
    assert_eq!(readings.len(), source.made.load(Relaxed));
    assert!(readings.len() < 40, "some are shared");
    for pair in readings.windows(2) {
        assert!(pair[1] - pair[0] >= life, "{pair:?}");
    }
}

#[tokio::test]
async fn failures_are_shared_too() {
    let (server, source) =
        Server::start(Fake { fails: true, takes: Duration::from_millis(100), ..Fake::default() }).await;
    let asking = ["/metrics", "/status"].map(|path| format!("GET {path} HTTP/1.1"));
    let [first, second] = &asking;
    let (first, second) = tokio::join!(server.ask(first), server.ask(second));
    assert_eq!([parts(&first).0, parts(&second).0], [500, 500]);
    assert_eq!(source.made.load(Relaxed), 1);
}

#[tokio::test]
async fn who_hangs_up_does_not_have_the_reading_begun_anew() {
    let takes = Duration::from_millis(200);
    let (server, source) = Server::start(Fake { takes, ..Fake::default() }).await;
    for _ in 0..20 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
        while source.made.load(Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let begin = clock();
    let answer = server.ask("GET /metrics HTTP/1.1").await;
    let made = source.made.load(Relaxed);
    assert!(made == 1 || began(&answer) + takes > begin, "{made} readings");
    assert!(made <= 2, "{made} readings");
}

#[tokio::test]
async fn clients_that_ask_in_a_loop_get_some_answers_of_a_reading_and_then_wait_for_the_next() {
    const CLIENTS: usize = 50;
    let (server, source) = Server::start(Fake::default()).await;
    let (server, begin) = (Arc::new(server), Instant::now());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let server = Arc::clone(&server);
        clients.spawn(async move {
            let mut answers = 0;
            while begin.elapsed() < Duration::from_secs(2) {
                assert_eq!(parts(&server.ask("GET /metrics HTTP/1.1").await).0, 200);
                answers += 1;
            }
            answers
        });
    }
    let answers: usize = clients.join_all().await.into_iter().sum();
    // Four at once, one every 10 ms, and one for each client that waited for the sample.
    let most = source.made.load(Relaxed) * (4 + 25 + CLIENTS);
    assert!(answers <= most, "{answers} answers, {most} at most");
}

#[tokio::test]
async fn a_client_that_trickles_is_cut_off_when_its_answer_has_taken_too_long() {
    let limits = Limits { send: Duration::from_millis(500), ..Limits::default() };
    let (server, _) = Server::start_within(limits, Fake { groups: 400, ..Fake::default() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let (mut taken, mut piece) = (0, vec![0; 4096]);
    let mut first = None;
    let end = loop {
        match timeout(DEADLINE, stream.read(&mut piece)).await.expect("data or an end") {
            Ok(0) => break "closed",
            Ok(count) => taken += count,
            Err(_) => break "reset",
        }
        first.get_or_insert_with(Instant::now);
        // 200 kB/s: each piece is taken in good time.
        sleep(Duration::from_millis(20)).await;
    };
    let took = first.expect("it began").elapsed();
    assert!(end == "reset" && taken < 3_000_000, "{end} after {taken} bytes and {took:?}");
    assert!(took >= limits.send, "{took:?}");
}

#[tokio::test]
async fn a_failed_snapshot_is_a_500_that_says_why() {
    let (server, _) = Server::start(Fake { fails: true, ..Fake::default() }).await;
    for path in ["/metrics", "/status"] {
        let answer = server.ask(&format!("GET {path} HTTP/1.1")).await;
        let (status, _, body) = parts(&answer);
        assert_eq!((status, body), (500, "the kernel said no: restart tcpmon\n"));
    }
}

#[tokio::test]
async fn the_status_tells_probes_losses_and_programs() {
    let (server, _) = Server::start(Fake::default()).await;
    let answer = server.ask("GET /status HTTP/1.1").await;
    let status: serde_json::Value = serde_json::from_str(parts(&answer).2).expect("JSON");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status["uptime_seconds"].as_f64().is_some_and(|uptime| uptime >= 0.0));
    assert_eq!(status["probes"][1]["verdict"], "broken");
    assert_eq!(status["probes"][1]["reason"], "no BTF");
    assert_eq!(status["sources"][0]["available"], false);
    assert!(status["sources"][0]["reason"].as_str().is_some_and(|reason| reason.contains("/proc/pressure/memory")));
    assert!(status["web_config"].is_null());
    assert_eq!(status["losses"]["drop_entry"], 7);
    assert_eq!(status["ignored_sockets"]["mptcp"], 8);
    assert!(status["programs"][0]["runs"].is_null());
    assert_eq!(status["programs"][1]["run_seconds"], 1.5);
    assert_eq!(status["groups_suppressed"], 0);
}

#[tokio::test]
async fn it_stops_within_a_second_whatever_clients_hold_open() {
    let (server, _) = Server::start(Fake { takes: DEADLINE * 2, ..Fake::default() }).await;
    let silent = server.connect().await;
    let mut half = server.connect().await;
    half.write_all(b"GET /metr").await.expect("sent");
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.expect("an answer");
    let mut stuck = server.connect().await;
    stuck.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    sleep(Duration::from_millis(50)).await;

    let took = server.stop().await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    for stream in [silent, half, stuck] {
        assert_eq!(rest(stream).await, "");
    }
}

#[tokio::test]
async fn a_request_under_way_is_answered_before_the_stop() {
    let (server, _) = Server::start(Fake { takes: Duration::from_millis(200), ..Fake::default() }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    sleep(Duration::from_millis(50)).await;
    let address = server.address;
    let took = server.stop().await;
    assert!(took < Duration::from_millis(650), "{took:?}");
    assert_eq!(parts(&rest(stream).await).0, 200);
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn an_unfinished_header_is_given_up() {
    let limits = Limits { header: Duration::from_millis(100), ..Limits::default() };
    let (server, _) = Server::start_within(limits, Fake::default()).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").await.expect("sent");
    let begin = Instant::now();
    rest(slow).await;
    assert!(begin.elapsed() >= limits.header);
}

#[tokio::test]
async fn at_the_bound_the_connection_that_waits_longest_goes_and_not_one_that_is_worked_on() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let (server, _) = Server::start_within(limits, Fake { takes: Duration::from_millis(300), ..Fake::default() }).await;
    let mut asking = server.connect().await;
    asking.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sent");
    let begin = Instant::now();
    let silent = server.connect().await;
    let mut used = server.connect().await;
    let mut answer = [0; 15];
    used.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    used.read_exact(&mut answer).await.expect("an answer");

    assert_eq!(parts(&server.ask("GET /healthz HTTP/1.1").await).0, 200);
    assert_eq!(rest(silent).await, "");
    assert!(begin.elapsed() < limits.header / 2, "{:?}", begin.elapsed());
    used.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    used.read_exact(&mut answer).await.expect("a second answer");
    assert_eq!(parts(&rest(asking).await).0, 200);
}

#[tokio::test]
async fn every_listener_gets_its_turn() {
    let any = || "127.0.0.1:0".parse().expect("an address");
    let listeners = bind(&[any(), any()]).await.expect("free ports");
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().expect("an address")).collect();
    let path = "/metrics".parse().expect("a path");
    let router = router(Arc::new(Fake::default()), Arc::new(Identity::read()), &path, None);
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(serve_within(Limits::default(), listeners, router, None, async { drop(stopped.await) }));
    for address in [addresses[0], addresses[1], addresses[1], addresses[0]] {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.expect("sent");
        assert_eq!(parts(&rest(stream).await).0, 200);
    }
    drop(stop);
    timeout(DEADLINE, task).await.expect("the server stops").expect("no panic");
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_address_and_a_remedy() {
    let taken = bind(&["127.0.0.1:0".parse().expect("an address")]).await.expect("a free port");
    let address = taken[0].local_addr().expect("an address").to_string();
    let error = bind(&[address.parse().expect("an address")]).await.expect_err("taken").to_string();
    assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
    assert!(error.ends_with("or choose another with --web.listen-address"), "{error}");
}

#[tokio::test]
async fn a_bare_port_listens_on_every_address() {
    let listeners = bind(&[":0".parse().expect("an address")]).await.expect("a free port");
    let port = listeners[0].local_addr().expect("an address").port();
    TcpStream::connect(("127.0.0.1", port)).await.expect("IPv4 is served");
}

#[test]
fn addresses_are_read_in_the_forms_of_exporters() {
    for text in [":10793", "127.0.0.1:10793", "[::1]:10793", "0.0.0.0:1"] {
        assert_eq!(text.parse::<ListenAddress>().expect(text).to_string(), text);
    }
    for text in ["", "10793", "127.0.0.1", "::1:10793x", "localhost:10793", ":", ":65536", "1.2.3.4:-1"] {
        let error = text.parse::<ListenAddress>().expect_err(text).to_string();
        assert!(error.contains(&format!("{text:?}")) && error.contains("`:10793`"), "{error}");
    }
}

#[test]
fn the_metrics_cannot_hide_another_page() {
    for path in ["/metrics", "/a/b-c_d.e", "/metrics/"] {
        assert_eq!(path.parse::<TelemetryPath>().expect(path).to_string(), path);
    }
    for path in ["", "/", "metrics", "/healthz", "/status", "/{a}", "/a b", "/a?b", "/\u{e4}", "/<b>"] {
        assert!(path.parse::<TelemetryPath>().is_err(), "{path}");
    }
}
