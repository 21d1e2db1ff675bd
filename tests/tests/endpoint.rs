//! The endpoint in a hostile network: TLS, certificates, passwords, clients that hoard connections. curl and promtool
//! serve as independent judges.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tcpmon_tests::truth::{cpu_time, peak_rss_bytes};
use tcpmon_tests::{Daemon, Namespace, eventually, is_emulated, report, tcpmon_binary};
use tempfile::TempDir;

/// Time limit for a scrape next to all other load: a fifth of Prometheus' default timeout.
const PROMPT: Duration = Duration::from_secs(2);

/// bcrypt of `right`, cost 10.
const HASH: &str = "$2b$10$QmwH20tjsqJAV5fn7bY5j.7AeoVr63cAs1ZDxkKpual/8oMWIaZ6a";

/// A directory with the certificates of one test, and its web config.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        folder.server("first");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("a file in the folder");
        self.path(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// Creates a new self-signed server certificate for 127.0.0.1 and this name.
    fn server(&self, name: &str) {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a good name");
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let key = KeyPair::generate().expect("a key");
        self.write("server.key", &key.serialize_pem());
        self.write("server.crt", &params.self_signed(&key).expect("a certificate").pem());
    }

    /// Creates an authority `NAME.crt`, and a client certificate with its key in `NAME-client.pem` that carries these
    /// names.
    fn clients(&self, name: &str, sans: Vec<SanType>) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        self.write(&format!("{name}.crt"), &params.self_signed(&key).expect("a certificate").pem());
        let authority = Issuer::new(params, key);
        let mut params = CertificateParams::default();
        params.subject_alt_names = sans;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        self.write(&format!("{name}-client.pem"), &(certificate.pem() + &key.serialize_pem()));
    }

    /// Writes a web config: the server's certificate, more lines for its section, then more lines for the file.
    fn tls(&self, section: &[&str], file: &str) -> String {
        let lines: String = section.iter().map(|line| format!("  {line}\n")).collect();
        let text = format!("tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n{lines}{file}");
        self.write("web.yml", &text)
    }

    /// curl that trusts the server's current certificate.
    fn https(&self, daemon: &Daemon, arguments: &[&str]) -> Answer {
        let (trust, url) = (self.path("server.crt"), format!("https://{}/metrics", daemon.address()));
        curl(Command::new("curl").arg("--cacert").arg(trust).args(arguments).arg(url))
    }
}

fn users() -> String {
    format!("basic_auth_users:\n  alice: {HASH}\n")
}

/// What curl received.
#[derive(Debug)]
struct Answer {
    /// HTTP status; 0 if there was none.
    status: u16,
    head: String,
    body: String,
    /// curl's error message.
    error: String,
}

fn curl(command: &mut Command) -> Answer {
    let limit = common::DEADLINE.as_secs().to_string();
    let output = command.args(["--silent", "--show-error", "--include", "--max-time", &limit]).output();
    let output = output.expect("curl is installed by `cargo xtask test`");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    Answer {
        status: head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default(),
        head: head.to_lowercase(),
        body: body.to_owned(),
        error: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[track_caller]
fn is_a_page(answer: &Answer) {
    assert!(answer.status == 200 && answer.body.contains("\ntcpmon_build_info{"), "{answer:?}");
}

#[test]
fn tls_is_served_and_plain_http_is_not() {
    let folder = Folder::new();
    let headers = "http_server_config:\n  http2: true\n  headers:\n    Strict-Transport-Security: max-age=60\n";
    let daemon = Daemon::start_secured(&["--web.config.file", &folder.tls(&[], headers)]);
    for version in ["--tlsv1.3", "--tls-max=1.2"] {
        let arguments: Vec<_> = version.split('=').collect();
        let answer = folder.https(&daemon, &arguments);
        is_a_page(&answer);
        assert!(answer.head.contains("strict-transport-security: max-age=60"), "{}", answer.head);
    }
    let old = folder.https(&daemon, &["--tls-max", "1.1"]);
    assert_eq!(old.status, 0, "{old:?}");
    let plain = curl(Command::new("curl").arg("--http0.9").arg(format!("http://{}/metrics", daemon.address())));
    assert!(plain.status == 0 && !plain.body.contains("tcpmon_"), "{plain:?}");
}

#[test]
fn each_client_auth_type_lets_in_whom_it_says() {
    let folder = Folder::new();
    folder.clients("friends", vec![SanType::DnsName("prometheus.example".try_into().unwrap())]);
    folder.clients("strangers", vec![SanType::DnsName("prometheus.example".try_into().unwrap())]);
    // Without a certificate, with one of an unknown authority, and with one of the configured authority.
    for (auth, authority, let_in) in [
        ("NoClientCert", "", [true, true, true]),
        ("RequestClientCert", "", [true, true, true]),
        ("RequireAnyClientCert", "", [false, true, true]),
        ("VerifyClientCertIfGiven", "client_ca_file: friends.crt", [true, false, true]),
        ("RequireAndVerifyClientCert", "client_ca_file: friends.crt", [false, false, true]),
    ] {
        let config = folder.tls(&[&format!("client_auth_type: {auth}"), authority], "");
        let daemon = Daemon::start_secured(&["--web.config.file", &config]);
        let (strange, good) = (folder.path("strangers-client.pem"), folder.path("friends-client.pem"));
        let certificates = [None, Some(strange), Some(good)];
        for (certificate, let_in) in certificates.into_iter().zip(let_in) {
            let arguments: Vec<_> = certificate.iter().flat_map(|file| ["--cert", file.to_str().unwrap()]).collect();
            for version in ["1.2", "1.3"] {
                let answer = folder.https(&daemon, &[&["--tls-max", version], arguments.as_slice()].concat());
                assert_eq!(answer.status == 200, let_in, "{auth} {certificate:?} TLS {version}: {answer:?}");
                assert!(let_in || answer.error.contains("curl: ("), "{auth} {certificate:?}: {answer:?}");
            }
        }
    }
}

#[test]
fn a_client_certificate_must_bear_an_allowed_name_exactly() {
    let folder = Folder::new();
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let sans = [
        ("dns", vec![dns("other.example"), dns("prometheus.example")], true),
        ("mail", vec![SanType::Rfc822Name("ops@example.org".try_into().unwrap())], true),
        ("address", vec![SanType::IpAddress([10, 0, 0, 1].into())], true),
        ("uri", vec![SanType::URI("spiffe://example/prometheus".try_into().unwrap())], true),
        ("longer", vec![dns("a.prometheus.example")], false),
        ("star", vec![dns("*.example")], false),
        ("none", vec![], false),
    ];
    let mut authorities = String::new();
    for (name, sans, _) in &sans {
        folder.clients(name, sans.clone());
        authorities += &fs::read_to_string(folder.path(&format!("{name}.crt"))).unwrap();
    }
    folder.write("all.crt", &authorities);
    let allowed = "client_allowed_sans: [prometheus.example, ops@example.org, 10.0.0.1, 'spiffe://example/prometheus']";
    let section = ["client_auth_type: RequireAndVerifyClientCert", "client_ca_file: all.crt", allowed];
    let daemon = Daemon::start_secured(&["--web.config.file", &folder.tls(&section, "")]);
    for (name, _, let_in) in sans {
        let certificate = folder.path(&format!("{name}-client.pem"));
        let answer = folder.https(&daemon, &["--cert", certificate.to_str().unwrap()]);
        assert_eq!(answer.status == 200, let_in, "{name}: {answer:?}");
    }
}

#[test]
fn a_password_is_asked_for_on_every_page_and_a_wrong_one_gets_nothing() {
    let folder = Folder::new();
    let daemon = Daemon::start_secured(&["--web.config.file", &folder.write("web.yml", &users())]);
    let ask = |path: &str, arguments: &[&str]| {
        curl(Command::new("curl").args(arguments).arg(format!("http://{}{path}", daemon.address())))
    };
    for path in ["/", "/metrics", "/status", "/healthz", "/nothing"] {
        let answer = ask(path, &[]);
        assert_eq!(answer.status, 401, "{path}: {answer:?}");
        assert!(answer.head.contains("www-authenticate: basic "), "{path}: {answer:?}");
    }
    for wrong in ["alice:wrong", "alice:", "bob:right", ":"] {
        assert_eq!(ask("/metrics", &["--user", wrong]).status, 401, "{wrong}");
    }
    is_a_page(&ask("/metrics", &["--user", "alice:right"]));
    assert_eq!(ask("/healthz", &["--user", "alice:right"]).status, 200);
}

#[test]
fn a_new_certificate_is_served_to_the_next_connection_and_a_bad_one_is_said() {
    let folder = Folder::new();
    let daemon = Daemon::start_secured(&["--web.config.file", &folder.tls(&[], "")]);
    is_a_page(&folder.https(&daemon, &[]));
    let old = fs::read_to_string(folder.path("server.crt")).unwrap();

    folder.write("server.crt", "no certificate");
    eventually(common::DEADLINE, "the bad certificate is named in the log", || {
        // The daemon checks the file only when a client connects.
        drop(TcpStream::connect(daemon.address()));
        daemon.stderr().contains("tls_server_config.cert_file")
    });
    let trust = folder.write("old.crt", &old);
    let url = format!("https://{}/metrics", daemon.address());
    let with_old = || curl(Command::new("curl").args(["--cacert", &trust, &url]));
    let until = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until {
        is_a_page(&with_old());
    }
    let errors = daemon.stderr().lines().filter(|line| line.contains("ERROR")).count();
    assert_eq!(errors, 1, "{}", daemon.stderr());
    let status = || {
        let url = format!("https://{}/status", daemon.address());
        let answer = curl(Command::new("curl").args(["--cacert", &trust, &url]));
        let status: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        (status["web_config"]["ok"].clone(), status["web_config"]["error"].clone())
    };
    let (ok, error) = status();
    assert!(ok == false && error.as_str().is_some_and(|error| error.contains("cert_file")), "{ok} {error}");

    folder.server("second");
    eventually(common::DEADLINE, "the new certificate is served", || match folder.https(&daemon, &[]) {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.error),
    });
    assert_eq!(with_old().status, 0, "the old certificate is served no more");
}

#[test]
fn a_bad_file_at_the_start_is_named_and_is_exit_code_2() {
    let folder = Folder::new();
    for (text, parts) in [
        ("no_such_key: 1\n", ["no_such_key", "line 1"]),
        ("tls_server_config:\n  cert_file: gone.crt\n  key_file: server.key\n", ["cert_file", "gone.crt"]),
    ] {
        let config = folder.write("web.yml", text);
        let refused = Daemon::try_start(&["--web.config.file", &config]).expect_err(text);
        assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
        for part in parts.into_iter().chain([config.as_str()]) {
            assert!(refused.stderr.contains(part), "{} lacks {part}", refused.stderr);
        }
        assert_eq!(refused.stderr.trim().lines().count(), 1, "{}", refused.stderr);
    }
}

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
    stream.set_read_timeout(Some(common::DEADLINE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Long: ").unwrap();
    // The write fails as soon as the other side stops accepting.
    let sent = (0..10_000).take_while(|_| stream.write_all(&[b'a'; 1_000]).is_ok()).count();
    drop(stream.write_all(b"\r\nHost: x\r\nConnection: close\r\n\r\n"));
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    assert!(!answer.contains("200 OK"), "{sent} kB were taken: {answer}");
    let url = format!("http://{}/metrics", daemon.address());
    scraped_promptly("a 10 MB header", || curl(Command::new("curl").arg(&url)));
    assert!(tcpmon_tests::truth::rss_bytes(daemon.pid()) < 100_000_000);
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
        eventually(common::DEADLINE, "a guess is denied", || denied.load(Ordering::Relaxed));
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
            std::thread::sleep(Duration::from_millis(260));
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
    if is_emulated() {
        report::not_supported("an emulated CPU takes longer for everything");
        return;
    }
    assert!(beside.iter().all(|(_, share)| *share < 0.1), "{beside:?}");
}

#[test]
fn ten_thousand_groups_and_256_slow_clients_fit_in_100_mib() {
    if is_emulated() {
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
    eventually(common::DEADLINE, "there are 10,000 groups", || {
        inside.run(|| ports.by_ref().take(500).for_each(connect));
        let status: serde_json::Value = serde_json::from_slice(&daemon.get("/status", "").body).unwrap();
        if status["groups"] == 10_000 { Ok(()) } else { Err(status["groups"].to_string()) }
    });

    let formats = ["text/plain", "application/openmetrics-text", "application/vnd.google.protobuf"];
    let mut hoard: Vec<TcpStream> = Vec::new();
    let mut readings = std::collections::BTreeSet::new();
    for batch in 0..16 {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {}\r\n\r\n", formats[batch % 3]);
        let mut asking = self::hoard(daemon.address(), 16, request.as_bytes());
        for stream in &mut asking {
            stream.set_read_timeout(Some(common::DEADLINE)).unwrap();
            let mut head = [0; 1_000];
            let count = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            readings.insert(head.lines().find(|line| line.starts_with("tcpmon-reading-began")).unwrap().to_owned());
        }
        // Each client has read the start of the response and reads no more.
        hoard.append(&mut asking);
        let (peak, now) = (peak_rss_bytes(daemon.pid()), tcpmon_tests::truth::rss_bytes(daemon.pid()));
        eprintln!("{} clients, {} readings: {now} bytes, {peak} at most", hoard.len(), readings.len());
        assert!(peak < 100 << 20, "{} clients: {peak} bytes", hoard.len());
    }
    assert!(hoard.len() == 256 && readings.len() >= 8, "{} readings", readings.len());
    // A client that reads at once gets the complete response.
    let text = String::from_utf8(daemon.get_shared("/metrics", "text/plain").body).unwrap();
    assert!(text.matches("\ntcpmon_receive_bytes_total{").count() == 10_000);
    assert!(peak_rss_bytes(daemon.pid()) < 100 << 20);
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_bare_port_answers_on_ipv4_where_ipv6_sockets_are_for_ipv6_alone() {
    let namespace = Namespace::new();
    namespace.set_sysctl("net.ipv6.bindv6only", "1");
    namespace.run(|| {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "ip is installed (package iproute2)");
    });
    let daemon = Daemon::start_in(&namespace, &["--web.listen-address", ":10793"]);
    assert_eq!(daemon.get("/healthz", "").status, 200);
    for address in ["127.0.0.1:10793", "[::1]:10793"] {
        let connected = namespace.run(|| TcpStream::connect(address));
        assert!(connected.is_ok(), "{address}: {connected:?}");
    }
}

/// A daemon that was given its socket as by systemd. Killed when dropped.
struct Activated(Child);

impl Drop for Activated {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_socket_of_systemd_is_served_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The shell puts the socket where systemd would put it; exec keeps the process id.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" daemon --web.systemd-socket";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(tcpmon_binary()).stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let daemon = Activated(command.spawn().unwrap());
    drop(command);
    is_a_page(&curl(Command::new("curl").arg(format!("http://{address}/metrics"))));
    let listening = Command::new("ss").args(["-Hltnp"]).output().expect("ss is installed by `cargo xtask test`");
    let listening = String::from_utf8_lossy(&listening.stdout).into_owned();
    let own: Vec<_> = listening.lines().filter(|line| line.contains(&format!("pid={},", daemon.0.id()))).collect();
    assert!(own.len() == 1 && own[0].contains(&address.to_string()), "{own:?}");
}

#[test]
fn without_a_socket_of_systemd_there_is_an_error_that_says_what_to_do() {
    let mut command = Command::new(tcpmon_binary());
    let output = command.args(["daemon", "--web.systemd-socket"]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("LISTEN_FDS") && stderr.contains("--web.systemd-socket"), "{stderr}");
    // Descriptor 3 is open, but nobody can connect to it.
    let script = "exec 3</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" daemon --web.systemd-socket";
    let output = Command::new("sh").args(["-c", script]).arg(tcpmon_binary()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("descriptor 3") && stderr.contains("ListenStream"), "{stderr}");
}

fn promtool_takes(file: &Path) -> (bool, String) {
    let output = Command::new("promtool").args(["check", "web-config"]).arg(file).output();
    let output = output.expect("promtool is installed by `cargo xtask test` (package prometheus)");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    (output.status.success(), said)
}

#[test]
fn promtool_takes_and_refuses_the_same_files() {
    let folder = Folder::new();
    folder.clients("friends", vec![]);
    let tls = |lines: &str| format!("tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n{lines}");
    let verify = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: friends.crt\n";
    for (text, good) in [
        (String::new(), true),
        (tls(""), true),
        (tls(verify), true),
        // Debian's promtool does not yet know `client_allowed_sans` and certificates within the file itself.
        (tls("  client_auth_type: RequireAnyClientCert\n"), true),
        (tls("  min_version: TLS13\n  max_version: TLS13\n  prefer_server_cipher_suites: false\n"), true),
        (tls("  cipher_suites: [TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, TLS_AES_128_GCM_SHA256]\n"), true),
        (tls("  curve_preferences: [X25519, CurveP256, CurveP384]\n"), true),
        (users(), true),
        (tls(&users()), true),
        ("http_server_config:\n  http2: false\n  headers:\n    X-Content-Type-Options: nosniff\n".into(), true),
        (tls("  unknown: 1\n"), false),
        ("unknown: 1\n".into(), false),
        (tls("  cert_file: server.crt\n"), false),
        (tls("  client_auth_type: Whoever\n"), false),
        (tls("  client_ca_file: friends.crt\n"), false),
        (tls("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: gone.crt\n"), false),
        (tls("  min_version: TLS99\n"), false),
        (tls("  cipher_suites: [NONE]\n"), false),
        (tls("  curve_preferences: [CurveP1]\n"), false),
        ("tls_server_config:\n  cert_file: server.crt\n".into(), false),
        ("tls_server_config:\n  cert_file: server.key\n  key_file: server.key\n".into(), false),
        ("basic_auth_users:\n  alice: right\n".into(), false),
        ("http_server_config:\n  headers:\n    Server: x\n".into(), false),
        ("http_server_config:\n  headers:\n    X-Frame-Options: allow\n".into(), false),
    ] {
        let file = folder.write("web.yml", &text);
        let (theirs, said) = promtool_takes(Path::new(&file));
        let ours = tcpmon::http::WebConfig::read(Path::new(&file)).map(drop).map_err(|error| error.to_string());
        assert_eq!((theirs, ours.is_ok()), (good, good), "{text}\npromtool: {said}\ntcpmon: {ours:?}");
    }
}
