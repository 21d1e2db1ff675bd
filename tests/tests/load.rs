//! Clients of the endpoint that are many, slow or greedy do not lock a scraper out, and cost little.

mod common;
#[path = "common/curl.rs"]
mod curl;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::DEADLINE;
use curl::{Answer, Folder, curl, is_a_page, users};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tcpmon_tests::truth::{cpu_time, peak_own_rss_bytes};
use tcpmon_tests::{Daemon, Namespace, emulated, eventually, report};

/// Time limit for a scrape next to all other load: a fifth of Prometheus' default timeout.
const PROMPT: Duration = Duration::from_secs(2);

/// Raises the limit of descriptors as far as this process may: it plays many clients.
fn many_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a limit that may be raised");
    assert!(hard >= 3_000, "this process may have {hard} descriptors, and needs 3,000: raise `ulimit -Hn`");
}

/// Connections that have each sent this and are then silent. It is expected that the other side closes some of them.
fn hoard(address: SocketAddr, count: usize, sent: &[u8]) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        drop(stream.write_all(sent));
        stream
    };
    (0..count).map(open).collect()
}

#[track_caller]
fn scraped_promptly(what: &str, scrape: impl Fn() -> Answer) {
    for _ in 0..3 {
        let start = Instant::now();
        is_a_page(&scrape());
        assert!(start.elapsed() < PROMPT, "{what}: {:?}", start.elapsed());
    }
}

#[test]
fn hoarders_of_connections_do_not_delay_a_scrape() {
    many_descriptors();
    let daemon = Daemon::start(&[]);
    let url = format!("http://{}/metrics", daemon.address());
    let scrape = || curl(Command::new("curl").arg(&url));
    for (what, sent) in [
        ("1,000 idle connections", &b""[..]),
        ("1,000 unfinished headers", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: a"),
        ("1,000 kept alive", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("1,000 that do not take their page", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
    ] {
        let hoard = hoard(daemon.address(), 1_000, sent);
        scraped_promptly(what, scrape);
        drop(hoard);
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(descriptors < 600, "{descriptors} descriptors are open");
}

#[test]
fn an_endless_header_is_cut_off() {
    let daemon = Daemon::start(&[]);
    let mut stream = TcpStream::connect(daemon.address()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Long: ").unwrap();
    // The write fails as soon as the other side stops accepting.
    let sent = (0..10_000).take_while(|_| stream.write_all(&[b'a'; 1_000]).is_ok()).count();
    drop(stream.write_all(b"\r\nHost: x\r\nConnection: close\r\n\r\n"));
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    assert!(!answer.contains("200 OK"), "{sent} kB were taken: {answer}");
    let url = format!("http://{}/metrics", daemon.address());
    scraped_promptly("a 10 MB header", || curl(Command::new("curl").arg(&url)));
    let rss = tcpmon_tests::truth::own_rss_bytes(daemon.pid());
    assert!(rss < 100_000_000, "{rss} bytes");
}

#[test]
fn unfinished_handshakes_do_not_delay_a_scrape() {
    many_descriptors();
    let folder = Folder::new();
    let daemon = Daemon::start_secured(&["--web.config.file", &folder.tls(&[], "")]);
    // A handshake record that announces 512 bytes and contains one.
    let hoard = hoard(daemon.address(), 1_000, &[0x16, 3, 1, 2, 0, 1]);
    scraped_promptly("1,000 unfinished handshakes", || folder.https(&daemon, &[]));
    drop(hoard);
}

#[test]
fn guesses_at_passwords_do_not_delay_a_scrape() {
    let folder = Folder::new();
    let daemon = Daemon::start_secured(&["--web.config.file", &folder.write("web.yml", &users())]);
    let (done, denied) = (AtomicBool::new(false), AtomicBool::new(false));
    let guess = || {
        while !done.load(Ordering::Relaxed) {
            let guess = b"GET / HTTP/1.0\r\nAuthorization: Basic YWxpY2U6d3Jvbmc=\r\n\r\n";
            let mut answer = String::new();
            let mut stream = TcpStream::connect(daemon.address()).unwrap();
            let asked = stream.write_all(guess).and_then(|()| stream.read_to_string(&mut answer));
            if asked.is_ok() && answer.contains(" 401 ") {
                denied.store(true, Ordering::Relaxed);
            }
        }
    };
    let url = format!("http://{}/metrics", daemon.address());
    let scrape = |source: &str| curl(Command::new("curl").args(["--user", "alice:right", "--interface", source, &url]));
    std::thread::scope(|scope| {
        // Stops the guesses also when an assertion fails.
        let _end = End(&done);
        for _ in 0..32 {
            scope.spawn(guess);
        }
        eventually(DEADLINE, "a guess is denied", || denied.load(Ordering::Relaxed));
        scraped_promptly("a first password from elsewhere", || scrape("127.0.0.2"));
        scraped_promptly("a known password from where the guesses come", || scrape("127.0.0.1"));
    });
}

/// One scrape over a connection of its own, as fast as the response arrives.
fn ask(address: SocketAddr) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)
}

#[test]
fn fifty_clients_in_a_loop_cost_a_tenth_of_a_core_and_do_not_delay_a_scraper_beside_them() {
    const CLIENTS: usize = 50;
    const ROUNDS: usize = 3;
    let time = Duration::from_secs(4);
    let daemon = Daemon::start(&[]);
    let address = daemon.address();
    let loaded = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    // Median time of a regular scraper's requests, and the share of a core that the daemon used meanwhile.
    let scraped = || {
        let (begin, before) = (Instant::now(), cpu_time(daemon.pid()));
        let mut took = Vec::new();
        while begin.elapsed() < time {
            let start = Instant::now();
            ask(address).expect("an answer");
            took.push(start.elapsed());
            // Stay out of step with the samples, which come every 250 to 312 ms: a request at the moment when the
            // others get their answers waits for the next sample, and with a constant pause so would the request after
            // it.
            std::thread::sleep(Duration::from_millis(260 + took.len() as u64 * 97 % 250));
        }
        took.sort();
        let share = (cpu_time(daemon.pid()) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
        (took[took.len() / 2], share)
    };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let _end = End(&done);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if loaded.load(Ordering::Relaxed) {
                        ask(address).expect("an answer");
                        answers.fetch_add(1, Ordering::Relaxed);
                    } else {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            alone.push(scraped());
            loaded.store(true, Ordering::Relaxed);
            beside.push(scraped());
            loaded.store(false, Ordering::Relaxed);
        }
    });
    let answers = answers.load(Ordering::Relaxed);
    eprintln!("alone {alone:?}, beside {CLIENTS} clients {beside:?}, who had {answers} answers");
    assert!(answers > CLIENTS * ROUNDS, "they were in a loop: {answers}");
    let slowest = |rounds: &[(Duration, f64)]| rounds.iter().map(|(median, _)| *median).max().expect("rounds");
    assert!(slowest(&beside) < slowest(&alone) + Duration::from_millis(20), "alone {alone:?}, beside {beside:?}");
    if emulated::is_too_slow_for_load() {
        report::not_supported("an emulated CPU takes longer for everything");
        return;
    }
    assert!(beside.iter().all(|(_, share)| *share < 0.1), "{beside:?}");
}

#[test]
fn ten_thousand_groups_and_256_slow_clients_fit_in_100_mib() {
    if emulated::is_too_slow_for_load() {
        report::not_supported("an emulated CPU takes minutes for 10,000 groups");
        return;
    }
    many_descriptors();
    let daemon = Daemon::start(&["--max-groups", "10000"]);
    let inside = Namespace::new();
    inside.run(|| {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "ip is installed (package iproute2)");
    });
    // Each end of a connection creates a group, which stays after the connection has ended.
    let connect = |port: u16| {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let mut sender = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let (mut receiver, mut byte) = (listener.accept().expect("it was connected to").0, [0]);
        sender.write_all(b"x").expect("it is taken");
        receiver.read_exact(&mut byte).expect("it comes");
        receiver.write_all(b"y").expect("it is taken");
        sender.read_exact(&mut byte).expect("it comes");
    };
    let mut ports = 20_000..32_000;
    eventually(DEADLINE, "there are 10,000 groups", || {
        inside.run(|| ports.by_ref().take(500).for_each(connect));
        let status = daemon.status();
        if status["groups"] == 10_000 { Ok(()) } else { Err(status["groups"].to_string()) }
    });

    let formats = ["text/plain", "application/openmetrics-text", "application/vnd.google.protobuf"];
    let mut hoard: Vec<TcpStream> = Vec::new();
    let mut readings = std::collections::BTreeSet::new();
    for batch in 0..16 {
        let coding = ["identity", "gzip"][batch / 3 % 2];
        let accept = format!("Accept: {}\r\nAccept-Encoding: {coding}", formats[batch % 3]);
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n\r\n");
        let mut asking = self::hoard(daemon.address(), 16, request.as_bytes());
        for stream in &mut asking {
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let mut head = [0; 1_000];
            let count = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            readings.insert(head.lines().find(|line| line.starts_with("tcpmon-reading-began")).unwrap().to_owned());
        }
        // Each client has read the start of the response and reads no more.
        hoard.append(&mut asking);
        let (peak, now) = (peak_own_rss_bytes(daemon.pid()), tcpmon_tests::truth::own_rss_bytes(daemon.pid()));
        eprintln!("{} clients, {} readings: {now} bytes, {peak} at most", hoard.len(), readings.len());
        assert!(peak < 100 << 20, "{} clients: {peak} bytes", hoard.len());
    }
    assert!(hoard.len() == 256 && readings.len() >= 8, "{} readings", readings.len());
    // A client that reads at once gets the complete response.
    let text = String::from_utf8(daemon.get_shared("/metrics", "text/plain").body).unwrap();
    assert_eq!(text.matches("\ntcpmon_receive_bytes_total{").count(), 10_000);
    for format in formats {
        for coding in ["identity", "gzip"] {
            let (accept, coding) = (format!("Accept: {format}"), format!("Accept-Encoding: {coding}"));
            let url = format!("http://{}/metrics", daemon.address());
            let output = Command::new("curl")
                .args(["-sS", "-o", "/dev/null", "-w", "%{size_download} bytes in %{time_total} s"])
                .args(["-H", &accept, "-H", &coding, &url])
                .output()
                .expect("curl is installed by `cargo xtask test`");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            eprintln!("{accept}, {coding}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }
    let rss = peak_own_rss_bytes(daemon.pid());
    assert!(rss < 100 << 20, "{rss} bytes");
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
