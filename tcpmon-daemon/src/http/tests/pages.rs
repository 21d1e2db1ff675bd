//! Tests of the pages: their types, their formats and what they contain.

use super::*;

#[tokio::test]
async fn each_page_answers_with_its_type_and_others_do_not_exist() {
    let (server, _) = TestServer::start(FakeSource::default()).await;
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

#[test]
fn scrapers_are_told_apart_by_address_agent_and_format_cut_short() {
    let client = Client::from(SocketAddr::from(([10, 0, 0, 1], 1)));
    let key = |agent: &str, accept: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, agent.parse().expect("a value"));
        headers.insert(header::ACCEPT, accept.parse().expect("a value"));
        scraper_key(client, &headers)
    };
    assert_eq!(key("Prometheus/3", "text/plain"), "10.0.0.1\nPrometheus/3\ntext/plain");
    assert_eq!(key(&"x".repeat(1000), &"y".repeat(1000)).len(), "10.0.0.1\n\n".len() + 2 * MAX_HEADER_CHARS);
    assert_eq!(scraper_key(client, &HeaderMap::new()), "10.0.0.1\n\n");
}

#[tokio::test]
async fn head_takes_no_sample_and_other_methods_are_refused() {
    let (server, source) = TestServer::start(FakeSource::default()).await;
    let answer = server.ask("HEAD /metrics HTTP/1.1").await;
    let (status, head, body) = parts(&answer);
    assert_eq!((status, body, source.made.load(std::sync::atomic::Ordering::Relaxed)), (200, "", 0));
    assert!(head.contains("content-type: text/plain; version=0.0.4") && !head.contains("content-length"), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = server.ask(&format!("{method} /metrics HTTP/1.1\r\nContent-Length: 0")).await;
        assert_eq!(parts(&answer).0, 405, "{method}");
        assert!(parts(&answer).1.contains("allow: get,head"), "{answer}");
    }
}

#[tokio::test]
async fn the_format_is_negotiated_over_all_accept_lines() {
    let (server, _) = TestServer::start(FakeSource::default()).await;
    let request = "GET /metrics HTTP/1.1\r\nAccept: text/plain;q=0.5\r\nAccept: application/openmetrics-text";
    let answer = server.ask(request).await;
    let (_, head, body) = parts(&answer);
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_metrics_page_is_compressed_for_those_who_ask_for_it_and_always_says_that_it_varies() {
    let (server, _) = TestServer::start(FakeSource::default()).await;
    let plain = server.ask("GET /metrics HTTP/1.1\r\nAccept-Encoding: br, gzip;q=0").await;
    let (status, head, _) = parts(&plain);
    assert_eq!(status, 200);
    assert!(head.contains("vary: accept, accept-encoding\r\n") && !head.contains("content-encoding"), "{head}");
    // Two lines of a header are one list.
    let small = server.ask("GET /metrics HTTP/1.1\r\nAccept-Encoding: br\r\nAccept-Encoding: gzip").await;
    let (_, small, _) = parts(&small);
    assert!(small.contains("vary: accept, accept-encoding\r\n"), "{small}");
    assert!(small.contains("content-encoding: gzip\r\n"), "{small}");
    assert!(small.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{small}");
    let length = |head: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        line.expect("a length").parse::<usize>().expect("a number")
    };
    assert!((1..length(&head) / 3).contains(&length(&small)), "{head}\n{small}");
}

#[tokio::test]
async fn health_names_what_stalls_and_takes_no_sample() {
    let (server, source) = TestServer::start(FakeSource { takes: DEADLINE * 2, ..FakeSource::default() }).await;
    assert_eq!(parts(&server.ask("GET /healthz HTTP/1.1").await).0, 200);
    source.stalled.store(true, Relaxed);
    let answer = server.ask("GET /healthz HTTP/1.1").await;
    let (status, _, body) = parts(&answer);
    assert_eq!((status, body), (503, "the collector has not finished a pass for 34 s\n"));
    assert_eq!(source.made.load(Relaxed), 0);
}

#[tokio::test]
async fn a_failed_snapshot_is_a_500_with_the_reason() {
    let (server, _) = TestServer::start(FakeSource { fails: true, ..FakeSource::default() }).await;
    for path in ["/metrics", "/status"] {
        let answer = server.ask(&format!("GET {path} HTTP/1.1")).await;
        let (status, _, body) = parts(&answer);
        assert_eq!((status, body), (500, "the kernel returned an error: restart tcpmon\n"));
    }
}

#[tokio::test]
async fn the_status_has_probes_losses_and_programs() {
    let (server, _) = TestServer::start(FakeSource::default()).await;
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
