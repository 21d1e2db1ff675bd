//! curl as a client, and the files that the endpoint and curl are given.
#![allow(dead_code, reason = "each test of the endpoint uses a part of it")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tcpmon_tests::Daemon;
use tempfile::TempDir;

use crate::common::DEADLINE;

/// bcrypt of `right`, cost 10.
pub const HASH: &str = "$2b$10$QmwH20tjsqJAV5fn7bY5j.7AeoVr63cAs1ZDxkKpual/8oMWIaZ6a";

/// A directory with the certificates of one test, and its web config.
pub struct Folder(pub TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        folder.server("first");
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("a file in the folder");
        self.path(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// Creates a new self-signed server certificate for 127.0.0.1 and this name.
    pub fn server(&self, name: &str) {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a good name");
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let key = KeyPair::generate().expect("a key");
        self.write("server.key", &key.serialize_pem());
        self.write("server.crt", &params.self_signed(&key).expect("a certificate").pem());
    }

    /// Creates an authority `NAME.crt`, and a client certificate with its key in `NAME-client.pem` that carries these
    /// names.
    pub fn clients(&self, name: &str, sans: Vec<SanType>) {
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
    pub fn tls(&self, section: &[&str], file: &str) -> String {
        let lines: String = section.iter().map(|line| format!("  {line}\n")).collect();
        let text = format!("tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n{lines}{file}");
        self.write("web.yml", &text)
    }

    /// curl that trusts the server's current certificate.
    pub fn https(&self, daemon: &Daemon, arguments: &[&str]) -> Answer {
        let (trust, url) = (self.path("server.crt"), format!("https://{}/metrics", daemon.address()));
        curl(Command::new("curl").arg("--cacert").arg(trust).args(arguments).arg(url))
    }
}

pub fn users() -> String {
    format!("basic_auth_users:\n  alice: {HASH}\n")
}

/// What curl received.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status; 0 if there was none.
    pub status: u16,
    pub head: String,
    pub body: String,
    /// curl's error message.
    pub error: String,
}

pub fn curl(command: &mut Command) -> Answer {
    let limit = DEADLINE.as_secs().to_string();
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
pub fn is_a_page(answer: &Answer) {
    assert!(answer.status == 200 && answer.body.contains("\ntcpmon_build_info{"), "{answer:?}");
}
