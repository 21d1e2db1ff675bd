//! Other tools that watch TCP with eBPF programs on tracepoints. `cargo xtask bench --peers` installs them.

use std::env;
use std::io::Write as _;
use std::time::Duration;

use tcpmon_tests::eventually;
use tcpmon_tests::lab::End;
use tempfile::NamedTempFile;

use crate::bpf;
use crate::child::Child;

/// Time limit for a tool to load its programs, and to end.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where xtask has installed Rezolus.
const REZOLUS_BIN: &str = "REZOLUS_BIN";

/// The two samplers that watch received segments. The second one is a kprobe, which not every kernel lets Rezolus
/// attach.
const REZOLUS_CONFIG: &str = r#"
[general]
listen = "127.0.0.1:0"
[log]
level = "error"
[defaults]
enabled = false
[samplers.tcp_packet_latency]
enabled = true
[samplers.tcp_receive]
enabled = true
"#;

/// The smallest program that counts segments and bytes by port, and reads by process and port.
const BPFTRACE_PROGRAM: &str = "\
    tracepoint:tcp:tcp_probe { @segments[args->sport] = count(); @bytes[args->sport] = sum(args->data_len); } \
    tracepoint:tcp:tcp_rcv_space_adjust { @reads[comm, args->sport] = count(); }";

/// bpftrace looks for tracepoints in debugfs; if the host has not mounted it, it is mounted in a mount namespace of its
/// own. The output goes to /dev/null, because what bpftrace prints when it ends would fill a pipe that nobody reads.
const BPFTRACE_SHELL: &str = "[ -d /sys/kernel/debug/tracing ] || mount -t debugfs debugfs /sys/kernel/debug; \
                              exec bpftrace -e \"$0\" >/dev/null";

/// A running tool.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    _config: Option<NamedTempFile>,
}

impl Peer {
    /// Starts Rezolus' agent and waits until its programs are loaded.
    pub fn rezolus() -> Self {
        let program = env::var(REZOLUS_BIN).unwrap_or_else(|_| "rezolus".to_owned());
        let mut config = NamedTempFile::new().expect("there is a folder for temporary files");
        config.write_all(REZOLUS_CONFIG.as_bytes()).expect("the folder has room for a file");
        let path = config.path().to_str().expect("names of temporary files are UTF-8").to_owned();
        Self::loaded(Child::spawn(&End::host(), &program, &[&path]), Some(config))
    }

    /// Starts bpftrace and waits until its programs are loaded.
    pub fn bpftrace() -> Self {
        Self::loaded(
            Child::spawn(&End::host(), "unshare", &["--mount", "sh", "-c", BPFTRACE_SHELL, BPFTRACE_PROGRAM]),
            None,
        )
    }

    fn loaded(child: Child, config: Option<NamedTempFile>) -> Self {
        eventually(DEADLINE, "the other tool loads its programs", || !bpf::of_process(child.pid()).is_empty());
        Self { child, _config: config }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Ends the tool.
    pub fn stop(self) {
        self.child.end(DEADLINE);
    }
}
