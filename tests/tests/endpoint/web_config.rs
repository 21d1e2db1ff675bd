//! TLS, client certificates and passwords: `--web.config.file`.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rcgen::SanType;
use tcpmon_tests::{Daemon, eventually};

use crate::{
    common::DEADLINE,
    curl::{Folder, curl, is_a_page, users},
};

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
    eventually(DEADLINE, "the bad certificate is named in the log", || {
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
    eventually(DEADLINE, "the new certificate is served", || match folder.https(&daemon, &[]) {
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
