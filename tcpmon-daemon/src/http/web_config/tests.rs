//! Tests of web config files: what is accepted, and how everything else is refused.

use std::fs;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

use super::*;

const HASH: &str = "$2b$04$EGdrhbKUv8Oc9vGiXX0HQOxSg445d458Muh7DAHskb6QbtCvdxcie";

/// A folder with a certificate and its key, and a web config file next to them.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a", "b"] {
            let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).expect("a key");
            fs::write(folder.path().join(format!("{name}.crt")), cert.pem()).expect("written");
            fs::write(folder.path().join(format!("{name}.key")), signing_key.serialize_pem()).expect("written");
        }
        Self(folder)
    }

    fn load(&self, text: &str) -> Result<Policy, String> {
        let file = self.0.path().join("web.yml");
        fs::write(&file, text).expect("written");
        WebConfigFile::parse(&WebConfigFile::text(&file)?)?.policy(self.0.path())
    }

    #[track_caller]
    fn taken(&self, text: &str) -> Policy {
        self.load(text).unwrap_or_else(|problem| panic!("{text}\n{problem}"))
    }

    #[track_caller]
    fn refused(&self, text: &str, parts: &[&str]) {
        let problem = self.load(text).expect_err(text);
        for part in parts {
            assert!(problem.contains(part), "{text}\n{problem:?} lacks {part:?}");
        }
        assert!(!problem.contains('\n'), "{problem}");
    }
}

/// The section with a valid certificate and key, and these additional lines.
fn tls(lines: &str) -> String {
    format!("tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n  {}\n", lines.replace('\n', "\n  "))
}

#[test]
fn an_empty_file_requires_nothing() {
    for text in ["", "# nothing\n\n", "tls_server_config:\n", "tls_server_config: {}\nbasic_auth_users: {}\n"] {
        let policy = Folder::new().taken(text);
        assert!(policy.tls.is_none() && policy.users.is_empty() && policy.headers.is_empty(), "{text}");
    }
}

#[test]
fn every_key_of_the_format_is_known() {
    let folder = Folder::new();
    let text = tls(
        "client_ca_file: b.crt\nclient_auth_type: RequireAndVerifyClientCert\nclient_allowed_sans: [x]\nmin_version: \
         TLS12\n\
         max_version: TLS13\ncipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n\
         prefer_server_cipher_suites: false\ncurve_preferences: [CurveP256, X25519]",
    ) + "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: 0\n    \
         Content-Security-Policy: ''\nbasic_auth_users:\n  alice: "
        + HASH
        + "\n";
    let policy = folder.taken(&text);
    assert!(policy.tls.is_some() && !policy.users.is_empty());
    let headers: Vec<_> = policy.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(headers, [("x-frame-options", &b"deny"[..]), ("x-xss-protection", b"0")]);

    let pem = |file: &str| {
        let text = fs::read_to_string(folder.0.path().join(file)).expect("there");
        text.lines().map(|line| format!("    {line}\n")).collect::<String>()
    };
    let inline = format!("tls_server_config:\n  cert: |\n{}  key: |\n{}", pem("a.crt"), pem("a.key"));
    assert!(folder.taken(&inline).tls.is_some());
    for auth in ["RequestClientCert", "RequireAnyClientCert", "RequireClientCert", "NoClientCert"] {
        assert!(folder.taken(&tls(&format!("client_auth_type: {auth}"))).tls.is_some());
    }
}

#[test]
fn unknown_and_duplicate_keys_are_refused_by_name() {
    let folder = Folder::new();
    folder.refused("tls_config: {}\n", &["tls_config", "tls_server_config", "line 1"]);
    folder.refused(&tls("cert_fil: x"), &["cert_fil", "line 4"]);
    folder.refused("http_server_config:\n  http3: true\n", &["http3"]);
    folder.refused(&tls("cert_file: b.crt"), &["cert_file"]);
    folder.refused(&format!("basic_auth_users:\n  a: {HASH}\n  a: {HASH}\n"), &["duplicate", "a"]);
    folder.refused("http_server_config:\n  http2: maybe\n", &["boolean", "line 2", "docs/operating.md"]);
    folder.refused("basic_auth_users: [\n", &["line"]);
    folder.refused("rate_limit:\n  interval: 1s\n", &["rate_limit: not supported", "omit it"]);
}

#[test]
fn certificates_and_keys_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    folder.refused("tls_server_config:\n  key_file: a.key\n", &["cert_file is missing"]);
    folder.refused("tls_server_config:\n  cert_file: a.crt\n", &["key_file is missing"]);
    // In this case the toolkit serves plain HTTP.
    folder.refused("tls_server_config:\n  min_version: TLS13\n", &["cert_file is missing"]);
    let with = |cert, key| format!("tls_server_config:\n  cert_file: {cert}\n  key_file: {key}\n");
    let missing = folder.0.path().join("no.crt").display().to_string();
    folder.refused(&with("no.crt", "a.key"), &["tls_server_config.cert_file", &missing, "No such file"]);
    folder.refused(&with("a.crt", "no.key"), &["tls_server_config.key_file", "no.key"]);
    folder.refused(&with("a.key", "a.key"), &["tls_server_config.cert_file", "no PEM certificate"]);
    folder.refused(&with("a.crt", "a.crt"), &["tls_server_config.key_file", "no PEM private key"]);
    folder.refused(&with("a.crt", "b.key"), &["cert_file and key_file"]);
    folder.refused(&tls("cert: x"), &["tls_server_config.cert:", "cert_file"]);
    let verify = "client_auth_type: VerifyClientCertIfGiven\nclient_ca_file: ";
    folder.refused(&tls(&format!("{verify}a.key")), &["client_ca_file", "no PEM certificate"]);
}

#[test]
fn tls_settings_that_rustls_does_not_support_are_refused_with_those_that_it_does() {
    let folder = Folder::new();
    folder.refused(&tls("min_version: TLS11"), &["tls_server_config.min_version", "TLS11", "TLS12 or TLS13"]);
    folder.refused(&tls("min_version: TLS13\nmax_version: TLS12"), &["tls_server_config.max_version"]);
    let suite = "cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]";
    folder.refused(&tls(suite), &["TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
    folder.refused(&tls("curve_preferences: [CurveP521]"), &["CurveP521", "X25519, CurveP256, CurveP384"]);
}

#[test]
fn settings_that_are_more_permissive_than_they_look_are_refused() {
    let folder = Folder::new();
    folder.refused(&tls("client_auth_type: Any"), &["client_auth_type", "\"Any\"", "RequireAndVerifyClientCert"]);
    folder.refused(&tls("client_ca_file: b.crt"), &["client_ca_file", "client_auth_type: RequireAndVerify"]);
    folder.refused(&tls("client_allowed_sans: [x]"), &["client_allowed_sans", "client_auth_type: RequireAndVerify"]);
    for auth in ["VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] {
        folder.refused(&tls(&format!("client_auth_type: {auth}")), &["client_ca_file: missing"]);
    }
    for auth in ["RequestClientCert", "RequireAnyClientCert"] {
        let anybody = tls(&format!("client_auth_type: {auth}\nclient_allowed_sans: [x]"));
        folder.refused(&anybody, &["client_allowed_sans", "without an authority", "client_ca_file"]);
    }
    let nobody = "client_auth_type: RequireAnyClientCert\nclient_allowed_sans: []";
    folder.refused(&tls(nobody), &["client_allowed_sans", "rejects every client"]);
}

#[test]
fn users_and_headers_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    folder.refused("basic_auth_users:\n  bob: secret\n", &["basic_auth_users.bob", "htpasswd"]);
    let dear = HASH.replace("$04$", "$18$");
    folder.refused(&format!("basic_auth_users:\n  bob: {dear}\n"), &["basic_auth_users.bob", "cost 18", "cost 10"]);
    let header = |line: &str| format!("http_server_config:\n  headers:\n    {line}\n");
    folder.refused(&header("Server: x"), &["headers.Server: this header cannot be set", "X-Frame-Options"]);
    folder.refused(&header("X-Frame-Options: allow"), &["headers.X-Frame-Options", "deny or sameorigin"]);
    folder.refused(&header("Content-Security-Policy: \"a\\nb\""), &["headers.Content-Security-Policy", "one line"]);
}
