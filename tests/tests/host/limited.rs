//! A daemon that lacks capabilities.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use tcpmon_tests::{Page, eventually, free_port, tcpmon_binary};

use crate::common::DEADLINE;

/// `tcpmon daemon` under setpriv(1). Killed when dropped.
pub struct Limited {
    child: Child,
    address: SocketAddr,
    stderr: tempfile::NamedTempFile,
}

impl Limited {
    /// Starts it without the given capabilities, written as in `-sys_admin,-syslog`, and waits until it answers.
    #[track_caller]
    pub fn without(capabilities: &str) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a free port")));
        let stderr = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", &format!("--bounding-set={capabilities}")]).arg(tcpmon_binary());
        command.args(["daemon", "--web.listen-address", &address.to_string()]);
        command.stdin(Stdio::null()).stderr(stderr.reopen().expect("it is still there"));
        let child = command.spawn().expect("setpriv is there (package util-linux)");
        let daemon = Self { child, address, stderr };
        let healthy = || match daemon.try_get("/healthz") {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error}\n{}", daemon.stderr())),
        };
        eventually(DEADLINE, "tcpmon daemon answers", healthy);
        daemon
    }

    /// The body of a response.
    #[track_caller]
    pub fn get(&self, path: &str) -> Vec<u8> {
        self.try_get(path).unwrap_or_else(|error| panic!("asking tcpmon for {path}: {error}"))
    }

    /// Its metrics.
    #[track_caller]
    pub fn scrape(&self) -> Page {
        let text = String::from_utf8(self.get("/metrics")).expect("a page is text");
        Page::parse(&text).expect("a page of metrics")
    }

    /// What it has written to stderr so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.stderr.path()).expect("it is still there")
    }

    fn try_get(&self, path: &str) -> Result<Vec<u8>, minreq::Error> {
        Ok(minreq::get(format!("http://{}{path}", self.address)).with_timeout(DEADLINE.as_secs()).send()?.into_bytes())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For each source and probe in `/status`, by name: whether it is on, and the reason.
pub fn status(body: &[u8]) -> BTreeMap<String, (bool, String)> {
    let status: serde_json::Value = serde_json::from_slice(body).expect("/status is JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let list = |name: &str| status[name].as_array().expect(name).iter();
    let sources = list("sources").map(|source| {
        let available = source["available"].as_bool().expect("yes or no");
        (text(&source["name"]), (available, text(&source["reason"])))
    });
    let probes =
        list("probes").map(|probe| (text(&probe["name"]), (probe["verdict"] == "attached", text(&probe["reason"]))));
    sources.chain(probes).collect()
}
