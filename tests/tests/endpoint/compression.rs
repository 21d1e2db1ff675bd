//! The metrics page compressed: what curl asks for, and what gunzip makes of it.

use std::io::{Seek as _, Write as _};
use std::process::{Command, Stdio};

use tcpmon_tests::{Daemon, eventually};
use tempfile::tempfile;

use crate::common::DEADLINE;

/// Head in lower case, and body as it is sent.
fn ask(daemon: &Daemon, arguments: &[&str]) -> (String, Vec<u8>) {
    let url = format!("http://{}/metrics", daemon.address());
    let limit = DEADLINE.as_secs().to_string();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--include", "--max-time", &limit]).args(arguments).arg(url);
    let mut answer = curl.output().expect("curl is installed by `cargo xtask test`").stdout;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head") + 4;
    let body = answer.split_off(end);
    (String::from_utf8(answer).expect("a head is text").to_lowercase(), body)
}

fn gunzip(compressed: &[u8]) -> Vec<u8> {
    let mut file = tempfile().expect("a file");
    file.write_all(compressed).expect("room in the file");
    file.rewind().expect("a file");
    let output = Command::new("gunzip").stdin(file).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = output.expect("gunzip is part of Debian");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Everything before the metrics of the process, which change from page to page of a sample.
fn before_process(page: &[u8]) -> &[u8] {
    let name = b"process_cpu_seconds";
    // In protobuf, lengths precede the name.
    &page[..page.windows(name.len()).position(|window| window == name).expect("a whole page") - 10]
}

#[test]
fn gunzip_makes_the_same_page_in_every_format_of_what_is_sent_compressed() {
    let daemon = Daemon::start(&[]);
    for format in [
        "text/plain; version=0.0.4",
        "application/openmetrics-text; version=1.0.0",
        "application/vnd.google.protobuf; proto=io.prometheus.client.metricfamily; encoding=delimited",
    ] {
        let accept = format!("Accept: {format}");
        let began = |head: &str| head.lines().find(|line| line.starts_with("tcpmon-reading-began")).map(str::to_owned);
        eventually(DEADLINE, "two pages are made from one sample", || {
            let (plain_head, plain) = ask(&daemon, &["-H", &accept]);
            let (head, body) = ask(&daemon, &["-H", &accept, "-H", "Accept-Encoding: gzip"]);
            if began(&head) != began(&plain_head) {
                return Err("one is younger".to_owned());
            }
            assert!(!plain_head.contains("content-encoding"), "{plain_head}");
            assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
            for head in [&plain_head, &head] {
                assert!(head.contains(&format!("\r\ncontent-type: {format}")), "{head}");
                assert!(head.contains("\r\nvary: accept, accept-encoding\r\n"), "{head}");
            }
            assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
            assert!(body.len() < plain.len() / 3, "{} of {} bytes", body.len(), plain.len());
            assert!(before_process(&gunzip(&body)) == before_process(&plain), "{format}");
            Ok(())
        });
    }
}

#[test]
fn curl_unpacks_the_page_and_gets_it_as_it_is_unless_it_asks() {
    let daemon = Daemon::start(&[]);
    let build = b"\ntcpmon_build_info{";
    let is_there = |body: &[u8]| body.windows(build.len()).any(|window| window == build);
    for (arguments, coded) in [
        (&["--compressed"][..], true),
        (&[], false),
        (&["-H", "Accept-Encoding: identity"], false),
        (&["-H", "Accept-Encoding: gzip;q=0, *"], false),
    ] {
        let (head, body) = ask(&daemon, arguments);
        assert_eq!(head.contains("\r\ncontent-encoding: gzip\r\n"), coded, "{arguments:?}: {head}");
        assert!(head.starts_with("http/1.1 200 ") && is_there(&body), "{arguments:?}: {head}");
    }
    let (head, body) = ask(&daemon, &["--head"]);
    assert!(head.starts_with("http/1.1 200 ") && body.is_empty(), "{head}");
}
