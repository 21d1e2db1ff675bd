//! A server that tcpmon is tested with: a child process in a network namespace that has a directory of its own and
//! answers in JSON.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::free_address;
use crate::process::Process;
use crate::{Namespace, eventually, must};

/// Time limit to start and to answer: generous, for an emulated machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running server. Killed when dropped, or when the thread that started it ends.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    namespace: Namespace,
    address: SocketAddr,
    /// Its configuration and data, which are removed with it.
    _directory: TempDir,
}

impl Server {
    /// Starts `program` in the namespace and waits until `/-/ready` answers 200. `configure` gets the server's
    /// directory and the address to listen on, and returns the flags.
    #[track_caller]
    pub(crate) fn start(
        program: &str,
        namespace: &Namespace,
        configure: impl FnOnce(&Path, SocketAddr) -> Vec<String>,
    ) -> Self {
        let directory = must(tempfile::tempdir(), format!("making a directory for {program}"));
        let address = free_address(namespace);
        let mut command = namespace.command(program);
        command.args(configure(directory.path(), address)).current_dir(directory.path());
        let process = Process::spawn(&mut command);
        let mut server = Self { process, namespace: namespace.clone(), address, _directory: directory };
        eventually(DEADLINE, &format!("{program} answers 200 at /-/ready"), || {
            if let Some(status) = server.process.exited() {
                panic!("{program} ended with {status}");
            }
            server.ask("/-/ready", &[]).map(drop)
        });
        server
    }

    /// The address it listens on, in its namespace.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The JSON response to a query; an error is the response that came instead.
    pub(crate) fn json(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let text = self.ask(path, parameters)?;
        serde_json::from_str(&text).map_err(|error| format!("{path} answered {text:?}: {error}"))
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Result<String, String> {
        let encoded = |(name, value): &(&str, &str)| format!("{name}={}", percent_encoded(value));
        let query: Vec<String> = parameters.iter().map(encoded).collect();
        let url = format!("http://{}{path}?{}", self.address, query.join("&"));
        let request = minreq::get(url).with_timeout(DEADLINE.as_secs());
        let answer = self.namespace.run(|| request.send()).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(answer.as_bytes()).into_owned();
        if answer.status_code == 200 { Ok(text) } else { Err(format!("{} {text}", answer.status_code)) }
    }
}

/// Encodes everything but letters and digits as `%XX`, which is correct anywhere in a URL.
fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_survives_its_way_through_a_url() {
        assert_eq!(percent_encoded("a{b=\"+ é\"}"), "a%7Bb%3D%22%2B%20%C3%A9%22%7D");
    }
}
