//! Tests of a web config that changes while it is in force.

use std::path::PathBuf;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

use super::*;

const USER: &str = "basic_auth_users:\n  a: $2b$04$EGdrhbKUv8Oc9vGiXX0HQOxSg445d458Muh7DAHskb6QbtCvdxcie\n";
const HEADER: &str = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        fs::write(&file, text).expect("written");
        file
    }

    fn web(&self, text: &str) -> WebConfig {
        let file = self.write("web.yml", text);
        WebConfig::read_with_interval(&file, Duration::ZERO).expect("a good file")
    }

    /// Writes certificate and key into one file.
    fn pair(&self, name: &str) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).expect("a key");
        self.write("pair.pem", &(cert.pem() + &signing_key.serialize_pem()));
    }
}

#[test]
fn unchanged_files_are_not_read_again() {
    let folder = Folder::new();
    let web = folder.web(HEADER);
    assert!(Arc::ptr_eq(&web.policy(), &web.policy()));
}

#[test]
fn a_changed_file_is_in_force_at_the_next_check_and_no_check_comes_too_soon() {
    let folder = Folder::new();
    let web = folder.web(HEADER);
    let slow = WebConfig::read(web.file()).expect("a good file");
    folder.write("web.yml", &(HEADER.to_owned() + USER));
    assert!(!web.policy().users.is_empty());
    assert!(slow.policy().users.is_empty(), "checked again within a second");
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported_until_it_is_valid() {
    let folder = Folder::new();
    let web = folder.web(HEADER);
    assert_eq!(web.problem(), None);
    folder.write("web.yml", "no_such_key: 1\n");
    assert!(web.problem().is_some_and(|problem| problem.contains("no_such_key")));
    assert_eq!(web.policy().headers.len(), 1);
    fs::remove_file(web.file()).expect("removed");
    assert!(web.problem().is_some_and(|problem| problem.contains("No such file")));
    folder.write("web.yml", &(HEADER.to_owned() + USER));
    assert_eq!(web.problem(), None);
    assert!(!web.policy().users.is_empty());
}

#[test]
fn a_changed_certificate_is_loaded_even_if_it_was_missing_before() {
    let folder = Folder::new();
    let web = folder.web(HEADER);
    let tls = HEADER.to_owned() + "tls_server_config:\n  cert_file: pair.pem\n  key_file: pair.pem\n";
    folder.write("web.yml", &tls);
    assert!(web.problem().is_some_and(|problem| problem.contains("pair.pem")));
    folder.pair("a");
    assert_eq!(web.problem(), None);
    let first = web.policy();
    folder.pair("another-name");
    assert!(!Arc::ptr_eq(&first, &web.policy()));
    assert!(web.policy().tls.is_some());
}

#[test]
fn tls_and_users_are_not_removed_without_a_restart() {
    let folder = Folder::new();
    folder.pair("a");
    let tls = "tls_server_config:\n  cert_file: pair.pem\n  key_file: pair.pem\n";
    let web = folder.web(&(tls.to_owned() + USER));
    for (text, key) in [("", "tls_server_config"), (USER, "tls_server_config"), (tls, "basic_auth_users")] {
        folder.write("web.yml", text);
        assert!(web.problem().is_some_and(|problem| problem.starts_with(key) && problem.contains("restart")), "{text}");
        assert!(web.policy().tls.is_some() && !web.policy().users.is_empty());
    }
}

/// A file that is being written can be cut at any byte.
#[test]
fn a_file_that_is_cut_anywhere_makes_the_endpoint_no_weaker() {
    let folder = Folder::new();
    folder.pair("a");
    let headers = [
        "Strict-Transport-Security: max-age=31536000; includeSubDomains; preload",
        "X-Content-Type-Options: nosniff",
        "X-Frame-Options: deny",
        "X-XSS-Protection: 1; mode=block",
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
    ]
    .map(|line| format!("    {line}\n"));
    let tls = [
        "cert_file: pair.pem",
        "key_file: pair.pem",
        "client_ca_file: pair.pem",
        "client_auth_type: RequireAndVerifyClientCert",
        "client_allowed_sans:\n    - prometheus\n    - grafana",
        "min_version: TLS13",
        "max_version: TLS13",
        "cipher_suites:\n    - TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\n    - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "curve_preferences:\n    - X25519\n    - CurveP256",
    ]
    .map(|lines| format!("  {lines}\n"));
    let users = [USER.split_inclusive('\n').skip(1).collect::<String>()];
    let mut sections: [(&str, Vec<String>); 3] = [
        ("basic_auth_users:\n", users.into()),
        ("http_server_config:\n  headers:\n", headers.into()),
        ("tls_server_config:\n", tls.into()),
    ];
    let whole = |sections: &[(&str, Vec<String>)]| -> String {
        sections.iter().map(|(head, entries)| (*head).to_owned() + &entries.concat()).collect()
    };
    let web = folder.web(&whole(&sections));
    let policy = web.policy();
    assert_eq!((policy.headers.len(), policy.guards.len()), (5, 17), "{:?}", policy.guards);
    for _ in 0..sections.len() {
        sections.rotate_left(1);
        for _ in 0..sections[2].1.len() {
            sections[2].1.rotate_left(1);
            // Each entry is the last one once, and only that one is cut: a file that is cut further ahead lacks whole
            // entries and is refused anyway.
            let text = whole(&sections);
            let last = sections[2].1.last().map_or(0, String::len);
            for end in (text.len() - last..text.len()).rev() {
                folder.write("web.yml", &text[..end]);
                let cut = web.policy();
                assert_eq!((&cut.headers, &cut.guards), (&policy.headers, &policy.guards), "{}", &text[..end]);
            }
            folder.write("web.yml", &text);
            assert_eq!(web.problem(), None, "{text}");
        }
    }
    folder.write("web.yml", "");
    assert!(web.problem().is_some_and(|problem| problem.starts_with("tls_server_config: ")), "{:?}", web.problem());
}

/// Each piece is written as if a reload had read the pieces before it.
#[test]
fn the_rest_of_a_cut_file_replaces_what_was_taken_of_it() {
    let folder = Folder::new();
    folder.pair("a");
    let tls = "tls_server_config:\n  cert_file: pair.pem\n  key_file: pair.pem\n";
    let names = tls.to_owned()
        + "  client_ca_file: pair.pem\n  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans:\n    - a";
    for pieces in [
        ["http_server_config:\n  headers:\n    Content-Security-Policy: default-src", " 'no", "ne'\n"],
        [names.as_str(), ".exam", "ple\n    - b.example\n"],
        [tls, "  curve_preferences:\n    - X25519", "\n    - CurveP256\n"],
        [tls, "  min_version: TLS12\n", "  max_version: TLS12\n"],
    ] {
        let web = folder.web(USER);
        let mut text = USER.to_owned();
        for piece in pieces {
            text += piece;
            folder.write("web.yml", &text);
            assert_eq!(web.problem(), None, "{text}");
        }
    }
}

#[test]
fn the_rest_of_a_cut_file_must_keep_earlier_guards_and_any_other_file_all_guards_in_force() {
    let folder = Folder::new();
    let header = "http_server_config:\n  headers:\n    Content-Security-Policy: default-src 'none'";
    // The cut text has been in force since the start.
    let web = folder.web(header);
    folder.write("web.yml", &format!("{header} *\n"));
    assert!(web.problem().is_some_and(|problem| problem.contains("restart")));
    // The cut text has been in force since a reload.
    let web = folder.web(USER);
    folder.write("web.yml", &format!("{USER}{header}"));
    assert_eq!(web.problem(), None);
    let policy = web.policy();
    for weaker in [format!("{USER}{}", header.replace("'none'", "*")), USER.to_owned(), String::new()] {
        folder.write("web.yml", &weaker);
        assert!(web.problem().is_some_and(|problem| problem.contains("restart")), "{weaker}");
        assert!(Arc::ptr_eq(&policy, &web.policy()), "{weaker}");
    }
    folder.write("web.yml", &format!("{USER}{header}; sandbox"));
    assert_eq!(web.problem(), None);
    folder.write("web.yml", header);
    assert!(web.problem().is_some_and(|problem| problem.starts_with("basic_auth_users: ")), "{:?}", web.problem());
}

#[test]
fn a_reload_that_weakens_a_setting_names_it_and_one_with_a_new_password_is_taken() {
    let folder = Folder::new();
    folder.pair("a");
    let rest = "tls_server_config:\n  cert_file: pair.pem\n  key_file: pair.pem\n  client_ca_file: pair.pem\n  \
                client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [a]\n  curve_preferences: \
                [X25519]\nhttp_server_config:\n  headers:\n    Strict-Transport-Security: max-age=31536000\n";
    let text = USER.to_owned() + rest;
    let web = folder.web(&text);
    for (key, old, new) in [
        ("tls_server_config.client_allowed_sans", "[a]", "[a, b]"),
        ("tls_server_config.client_auth_type", "RequireAndVerifyClientCert", "VerifyClientCertIfGiven"),
        ("tls_server_config.curve_preferences", "[X25519]", "[X25519, CurveP256]"),
        ("tls_server_config.max_version", "  curve", "  max_version: TLS12\n  curve"),
        ("http_server_config.headers.Strict-Transport-Security", "=31536000", "=3"),
    ] {
        folder.write("web.yml", &text.replacen(old, new, 1));
        let problem = web.problem().unwrap_or_else(|| panic!("{key} is weaker"));
        assert!(problem.starts_with(key) && problem.contains("restart"), "{problem}");
    }
    let other = "$2y$04$EGdrhbKUv8Oc9vGiXX0HQOxSg445d458Muh7DAHskb6QbtCvdxcie";
    folder.write("web.yml", &format!("basic_auth_users:\n  a: {other}\n  b: {other}\n{rest}"));
    assert_eq!(web.problem(), None);
}

#[test]
fn an_unreadable_file_at_startup_is_named() {
    let file = Path::new("/nonexistent/web.yml");
    let error = WebConfig::read(file).expect_err("no file").to_string();
    assert!(error.starts_with("web config file /nonexistent/web.yml: "), "{error}");
    assert!(error.ends_with("choose another file with --web.config.file, or omit it for plain HTTP"), "{error}");
}
