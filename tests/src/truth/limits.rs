//! Refused memory as the kernel's own trace has it: the event `sock:sock_exceed_buf_limit`, one line a refusal.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::must;

/// Where tracefs is mounted, in a mount namespace that nobody else sees. It exists in every kernel that has tracing.
const MOUNT: &str = "/sys/kernel/tracing";

/// Refusals from the start on; the trace is an instance of its own, removed when dropped.
#[derive(Debug)]
pub struct LimitTrace {
    instance: PathBuf,
}

impl LimitTrace {
    /// Begins to trace.
    #[track_caller]
    pub fn start() -> Self {
        let trace = Self { instance: format!("instances/tcpmon-limits-{}", std::process::id()).into() };
        trace.with_instance(|instance| {
            must(fs::create_dir(instance), format!("making {} (the kernel needs CONFIG_FTRACE)", instance.display()));
            let enable = instance.join("events/sock/sock_exceed_buf_limit/enable");
            must(fs::write(&enable, "1"), format!("writing {}", enable.display()));
        });
        trace
    }

    /// Refusals of TCP sockets so far: to send, and to receive.
    #[track_caller]
    pub fn counts(&self) -> [u64; 2] {
        let text = self.with_instance(|instance| must(fs::read_to_string(instance.join("trace")), "reading the trace"));
        count(&text)
    }

    /// Runs `job` on a thread that has tracefs mounted.
    fn with_instance<T: Send>(&self, job: impl FnOnce(&Path) -> T + Send) -> T {
        let inside = || {
            let (none, nothing) = (None::<&str>, MsFlags::empty());
            must(unshare(CloneFlags::CLONE_NEWNS), "making a mount namespace (run as root)");
            must(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none), "making all mounts private");
            must(mount(Some("tracefs"), MOUNT, Some("tracefs"), nothing, none), "mounting tracefs");
            job(&Path::new(MOUNT).join(&self.instance))
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for LimitTrace {
    fn drop(&mut self) {
        if let Err(error) = self.with_instance(|instance| fs::remove_dir(instance)) {
            eprintln!("{} could not be removed from tracefs: {error}", self.instance.display());
        }
    }
}

/// A trace that lost lines is no truth.
fn count(text: &str) -> [u64; 2] {
    let written = text.lines().find_map(|line| line.split_once("entries-in-buffer/entries-written: "));
    let (kept, rest) = written.and_then(|(_, rest)| rest.split_once('/')).expect("a trace begins with its entries");
    assert_eq!(Some(kept), rest.split_ascii_whitespace().next(), "the trace has lost lines");
    ["kind=SK_MEM_SEND", "kind=SK_MEM_RECV"].map(|kind| {
        let refused = |line: &&str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.contains(&kind) && (words.contains(&"proto:TCP") || words.contains(&"proto:TCPv6"))
        };
        text.lines().filter(refused).count() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tcp_are_counted_by_kind() {
        let line = |protocol, kind| format!("x-1 [0] ..s. 1.2: sock_exceed_buf_limit: proto:{protocol} kind={kind}\n");
        let text = "# entries-in-buffer/entries-written: 4/4   #P:2\n#\n".to_owned()
            + &line("TCP", "SK_MEM_SEND")
            + &line("TCPv6", "SK_MEM_RECV")
            + &line("TCP", "SK_MEM_RECV")
            + &line("UDP", "SK_MEM_RECV");
        assert_eq!(count(&text), [1, 2]);
    }

    #[test]
    #[should_panic(expected = "the trace has lost lines")]
    fn a_trace_that_lost_lines_is_refused() {
        count("# entries-in-buffer/entries-written: 3/4   #P:2\n");
    }
}
