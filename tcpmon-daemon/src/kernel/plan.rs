//! What is to be attached: each probe with its intent, and the decision per kernel.

use super::btf::{Btf, kind};

/// When a probe is wanted, and what is lost without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Name of the tracepoint and of the program.
    pub name: &'static str,
    /// Name of a second program on the same tracepoint, which takes the events that come while the first one runs.
    pub twin: Option<&'static str>,
    /// Nothing works without it.
    pub required: bool,
    /// What is lost without it; empty when required.
    pub lost_without: &'static str,
    /// Attached in the daemon.
    pub daemon: bool,
    /// Attached by a trace.
    pub trace: bool,
}

/// All probes, in the order in which they are attached: first those that watch sockets come and go, so that none is
/// missed while the open ones are seeded; reads before timeslices, so that none of these lacks its reads.
pub const PROBES: [Probe; 9] = [
    Probe { twin: Some("inet_sock_set_state_again"), ..required("inet_sock_set_state", true) },
    Probe { twin: Some("tcp_destroy_sock_again"), ..required("tcp_destroy_sock", false) },
    required("tcp_rcv_space_adjust", true),
    required("tcp_probe", false),
    required("sched_switch", true),
    optional("tcp_rcvbuf_grow", "growth of receive buffers is inferred from their size at the next segment or read"),
    optional("kfree_skb", "drops of received segments are not counted"),
    optional("napi_poll", "NAPI polls are not counted"),
    optional("sock_exceed_buf_limit", "requests for socket memory that a limit refused are not counted"),
];

/// A callback of the root control group beside `inet_sock_set_state`, for a daemon where programs on tracepoints can be
/// preempted.
pub const CALLBACK: Probe = optional(
    "sock_ops",
    "begins and ends of connections are missed while the programs that watch for them are preempted",
);

const fn required(name: &'static str, trace: bool) -> Probe {
    Probe { name, twin: None, required: true, lost_without: "", daemon: true, trace }
}

const fn optional(name: &'static str, lost_without: &'static str) -> Probe {
    Probe { name, twin: None, required: false, lost_without, daemon: true, trace: false }
}

impl Probe {
    /// Names of its programs.
    pub fn programs(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.name].into_iter().chain(self.twin)
    }
}

/// Whether a program on a tracepoint can be preempted, so that more than one interrupted run waits on a CPU: newer
/// kernels guard tracepoints by a kind of SRCU, and PREEMPT_RT runs softirqs in threads.
pub fn preemptible(btf: &Btf<'_>, version: &str) -> bool {
    btf.blob().find(kind::TYPEDEF, "class_srcu_fast_notrace_t").is_some() || version.contains("PREEMPT_RT")
}

/// Tracepoints of which both programs can be held up at one time, with nothing else to tell what they miss.
pub fn held_up(preemptible: bool, called_back: bool) -> &'static [&'static str] {
    match (preemptible, called_back) {
        (false, _) => &[],
        (true, true) => &["tcp_destroy_sock"],
        (true, false) => &["inet_sock_set_state", "tcp_destroy_sock"],
    }
}

/// Whether the programs must take the states of sockets out of the map when these end. Otherwise the kernel does it when
/// it frees the socket; on kernels with this function that nulls a pointer which a walk through the map follows
/// (`__bpf_sk_storage_map_seq_show`, and 7.3 oopsed there). Elsewhere it is left to the kernel: what a program deletes is
/// freed late, after all programs have been waited for.
pub fn deletes_ended(btf: &Btf<'_>) -> bool {
    btf.has_function("bpf_selem_unlink_nofail")
}

/// Why a probe cannot be attached on this kernel, if it cannot.
pub fn unsupported(probe: &Probe, btf: &Btf<'_>) -> Option<String> {
    if btf.tracepoint(probe.name).is_none() {
        return Some(format!("this kernel has no tracepoint {}", probe.name));
    }
    if probe.name == "kfree_skb" {
        let arguments = btf.tracepoint(probe.name)?;
        let names_socket =
            arguments.iter().any(|argument| matches!(argument.kind, super::btf::ArgumentKind::Pointer("sock")));
        if !names_socket {
            return Some("this kernel's kfree_skb does not name the receiving socket".into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn states_are_deleted_on_kernels_that_cannot_do_it_safely() {
        let old =
            ["5.10", "6.1", "6.12", "6.16", "6.17", "6.18deb", "6.18.44-host", "6.19"].map(|label| (label, false));
        let new = ["7.0", "7.1", "7.2", "7.3rc7", "7.3"].map(|label| (label, true));
        for (label, expected) in old.into_iter().chain(new) {
            // Also compiled into xtask, beside the daemon.
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tcpmon-daemon/tests/fixtures/btf");
            let bytes = fs::read(format!("{folder}/{label}.btf")).expect("a fixture");
            let btf = Btf::parse(&bytes).expect("a fixture is BTF");
            assert_eq!(deletes_ended(&btf), expected, "{label}");
        }
    }
}
