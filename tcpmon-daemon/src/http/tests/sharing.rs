//! Tests of the samples that requests share.

use super::*;

#[tokio::test]
async fn a_new_group_is_at_zero_on_the_first_page_of_metrics_and_other_pages_do_not_count() {
    let (server, _) = TestServer::start(FakeSource::default()).await;
    let server = &server;
    // Gets a sample that was started after this call.
    let ask = async |path: &str, agent: &str| {
        let asked = clock();
        let answer = loop {
            let answer = server.ask(&format!("GET {path} HTTP/1.1\r\nUser-Agent: {agent}")).await;
            if sample_start(&answer) >= asked {
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
async fn a_shared_sample_shows_a_new_group_at_zero_to_all_clients_that_share_it() {
    let (server, _) = TestServer::start(FakeSource::default()).await;
    let mut shown = Vec::new();
    // The first request takes the sample, before it is known that others will share it.
    for request in ["GET /status", "GET /metrics", "GET /metrics", "GET /metrics"] {
        let answer = server.ask(&format!("{request} HTTP/1.1\r\nUser-Agent: {}", shown.len())).await;
        shown.push((sample_start(&answer), received(&answer)));
    }
    let first = shown[1].0;
    for (sample_start, received) in &shown[1..] {
        assert!(*sample_start > first || *received == Some(0), "{shown:?}");
    }
}

#[tokio::test]
async fn requests_within_250_ms_share_one_sample_and_no_answer_is_older() {
    let (server, source) = TestServer::start(FakeSource::default()).await;
    let life = Duration::from_millis(250);
    let mut samples = Vec::new();
    for path in ["/metrics", "/status"].into_iter().cycle().take(40) {
        let asked = clock();
        let answer = server.ask(&format!("GET {path} HTTP/1.1")).await;
        assert_eq!(parts(&answer).0, 200);
        let sample_start = sample_start(&answer);
        assert!(sample_start + life >= asked, "{sample_start:?}, asked at {asked:?}");
        samples.push(sample_start);
    }
    samples.dedup();
    assert_eq!(samples.len(), source.made.load(Relaxed));
    assert!(samples.len() < 40, "some are shared");
    for pair in samples.windows(2) {
        assert!(pair[1] - pair[0] >= life, "{pair:?}");
    }
}

#[tokio::test]
async fn failures_are_shared_too() {
    let (server, source) =
        TestServer::start(FakeSource { fails: true, takes: Duration::from_millis(100), ..FakeSource::default() }).await;
    let asking = ["/metrics", "/status"].map(|path| format!("GET {path} HTTP/1.1"));
    let [first, second] = &asking;
    let (first, second) = tokio::join!(server.ask(first), server.ask(second));
    assert_eq!([parts(&first).0, parts(&second).0], [500, 500]);
    assert_eq!(source.made.load(Relaxed), 1);
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_cause_a_second_sample() {
    let takes = Duration::from_millis(200);
    let (server, source) = TestServer::start(FakeSource { takes, ..FakeSource::default() }).await;
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
    assert!(made == 1 || sample_start(&answer) + takes > begin, "{made} samples");
    assert!(made <= 2, "{made} samples");
}

#[tokio::test]
async fn clients_that_request_in_a_loop_get_some_answers_of_a_sample_and_then_wait_for_the_next() {
    const CLIENTS: usize = 50;
    let (server, source) = TestServer::start(FakeSource::default()).await;
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

/// When an answer's sample was started.
fn sample_start(answer: &str) -> Duration {
    let (_, head, _) = parts(answer);
    let value = head.lines().find_map(|line| line.strip_prefix("tcpmon-reading-began: "));
    Duration::from_secs_f64(value.and_then(|value| value.parse().ok()).expect("seconds"))
}

fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.try_into().expect("the clock runs forward")
}
