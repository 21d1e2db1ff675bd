//! Tests of how connections are served, limited and closed.

use super::*;

#[tokio::test]
async fn a_client_that_reads_slowly_is_cut_off_at_the_deadline() {
    let limits = ConnectionLimits { send_timeout: Duration::from_millis(500), ..ConnectionLimits::default() };
    let (server, _) = TestServer::start_with_limits(limits, FakeSource { groups: 400, ..FakeSource::default() }).await;
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
    let took = first.expect("the server answers").elapsed();
    assert!(end == "reset" && taken < 3_000_000, "{end} after {taken} bytes and {took:?}");
    assert!(took >= limits.send_timeout, "{took:?}");
}

#[tokio::test]
async fn the_server_stops_within_a_second_whatever_clients_hold_open() {
    let (server, _) = TestServer::start(FakeSource { takes: DEADLINE * 2, ..FakeSource::default() }).await;
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
async fn a_request_in_progress_is_answered_before_the_stop() {
    let (server, _) =
        TestServer::start(FakeSource { takes: Duration::from_millis(200), ..FakeSource::default() }).await;
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
async fn a_connection_with_an_unfinished_header_is_closed() {
    let limits = ConnectionLimits { header_timeout: Duration::from_millis(100), ..ConnectionLimits::default() };
    let (server, _) = TestServer::start_with_limits(limits, FakeSource::default()).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").await.expect("sent");
    let begin = Instant::now();
    rest(slow).await;
    assert!(begin.elapsed() >= limits.header_timeout);
}

#[tokio::test]
async fn at_the_limit_the_connection_that_waits_longest_is_closed_and_not_one_with_a_request_in_progress() {
    let limits = ConnectionLimits { max_connections: 3, ..ConnectionLimits::default() };
    let (server, _) = TestServer::start_with_limits(
        limits,
        FakeSource { takes: Duration::from_millis(300), ..FakeSource::default() },
    )
    .await;
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
    assert!(begin.elapsed() < limits.header_timeout / 2, "{:?}", begin.elapsed());
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
    let endpoint = Endpoint::new(Arc::new(FakeSource::default()), Arc::new(Identity::read()), path, None);
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(serve_with_limits(ConnectionLimits::default(), listeners, endpoint, async {
        drop(stopped.await)
    }));
    for address in [addresses[0], addresses[1], addresses[1], addresses[0]] {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.expect("sent");
        assert_eq!(parts(&rest(stream).await).0, 200);
    }
    drop(stop);
    timeout(DEADLINE, task).await.expect("the server stops").expect("no panic");
}
