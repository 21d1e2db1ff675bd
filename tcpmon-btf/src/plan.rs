//! What is to be attached: each probe with its purpose, and the decision for each kernel.

use tcpmon_common::tracepoint::{self, ExpectedArgument, ExpectedType, ITERATOR_FIELDS};

use crate::{ArgumentKind, Btf, kind};

/// A tracepoint (or hook) with the programs on it: when it is wanted, and what is lost without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Name of the tracepoint and of the program.
    pub name: &'static str,
    /// Name of a second program on the same tracepoint, which handles the events that come while the first one is
    /// running.
    pub second_program: Option<&'static str>,
    /// What its programs are attached to.
    pub hook: Hook,
    /// Whether it sees connections begin and end. Such a probe is attached before the open sockets are seeded, so that
    /// none is missed; all others afterwards, because they update the states of sockets.
    pub sees_lifecycle: bool,
    /// Whether nothing works without it.
    pub required: bool,
    /// What is lost without it; empty if it cannot be left out.
    pub lost_without: &'static str,
    /// Whether the daemon attaches it.
    pub daemon: bool,
    /// Whether a trace attaches it.
    pub trace: bool,
    /// The arguments that its programs take.
    pub arguments: &'static [ExpectedArgument],
}

/// What a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The tracepoint that has the probe's name.
    Tracepoint,
    /// The root of the visible control groups, where a sock_ops program is attached.
    RootCgroup,
}

/// Kernel functions that every program needs, each with the release that introduced it.
pub const FUNCTIONS: [(&str, &str); 2] = [("bpf_sock_from_file", "5.11"), ("bpf_task_storage_get", "5.13")];

/// All probes, in the order in which they are attached. Reads come before timeslices, so that no timeslice lacks its
/// reads.
pub const PROBES: [Probe; 11] = [
    Probe {
        sees_lifecycle: true,
        second_program: Some("inet_sock_set_state_again"),
        ..required("inet_sock_set_state", true, tracepoint::inet_sock_set_state::ARGUMENTS)
    },
    Probe {
        sees_lifecycle: true,
        second_program: Some("tcp_destroy_sock_again"),
        ..required("tcp_destroy_sock", true, tracepoint::tcp_destroy_sock::ARGUMENTS)
    },
    FORK,
    required("tcp_rcv_space_adjust", true, tracepoint::tcp_rcv_space_adjust::ARGUMENTS),
    required("tcp_probe", true, tracepoint::tcp_probe::ARGUMENTS),
    EXIT,
    SWITCH,
    optional(
        "tcp_rcvbuf_grow",
        "growth of receive buffers is inferred from their size, so growth because of many small packets counts, too",
        tracepoint::tcp_rcvbuf_grow::ARGUMENTS,
    ),
    optional("kfree_skb", "drops of received segments are not counted", tracepoint::kfree_skb::ARGUMENTS),
    optional("napi_poll", "NAPI polls are not counted", tracepoint::napi_poll::ARGUMENTS),
    MEMORY_LIMIT,
];

/// Processes that start other processes. Only a trace that follows processes attaches it, before it looks for their
/// readers.
pub const FORK: Probe = Probe {
    sees_lifecycle: true,
    daemon: false,
    ..required("sched_process_fork", true, tracepoint::sched_process_fork::ARGUMENTS)
};

/// Threads that lose their CPU. The daemon can do without it: [`EXIT`] then takes its place.
pub const SWITCH: Probe = Probe {
    lost_without: "timeslices of readers are not counted; their times are added up at each read instead",
    ..required("sched_switch", true, tracepoint::sched_switch::ARGUMENTS)
};

/// Threads that end. Attached only where [`SWITCH`] is switched off, which sees them, too.
pub const EXIT: Probe = required("sched_process_exit", false, tracepoint::sched_process_exit::ARGUMENTS);

/// Requests for socket memory that a limit refused.
pub const MEMORY_LIMIT: Probe = optional(
    "sock_exceed_buf_limit",
    "requests for socket memory that a limit refused are not counted",
    tracepoint::sock_exceed_buf_limit::ARGUMENTS,
);

/// A sock_ops program on the root control group, which complements `inet_sock_set_state`. It is attached only where
/// programs on tracepoints can be preempted.
pub const SOCK_OPS: Probe = Probe {
    hook: Hook::RootCgroup,
    sees_lifecycle: true,
    trace: true,
    ..optional(
        "sock_ops",
        "starts and ends of connections are missed while the programs that watch for them are preempted",
        &[],
    )
};

const fn required(name: &'static str, trace: bool, arguments: &'static [ExpectedArgument]) -> Probe {
    Probe { required: true, trace, ..optional(name, "", arguments) }
}

const fn optional(name: &'static str, lost_without: &'static str, arguments: &'static [ExpectedArgument]) -> Probe {
    Probe {
        name,
        second_program: None,
        hook: Hook::Tracepoint,
        sees_lifecycle: false,
        required: false,
        lost_without,
        daemon: true,
        trace: false,
        arguments,
    }
}

impl Probe {
    /// The names of its programs.
    pub fn programs(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.name].into_iter().chain(self.second_program)
    }
}

/// Those of [`FUNCTIONS`] that this kernel does not have.
pub fn missing_functions(btf: &Btf<'_>) -> Vec<&'static str> {
    FUNCTIONS.iter().map(|(name, _)| *name).filter(|name| !btf.has_function(name)).collect()
}

/// Whether a program on a tracepoint can be preempted, so that more than one interrupted instance can be waiting on a
/// CPU: newer kernels guard tracepoints with a kind of SRCU, and PREEMPT_RT runs softirqs in threads.
///
/// Programs run under RCU's read lock, which disables preemption unless the kernel has `CONFIG_PREEMPT_RCU`, as
/// Debian's for x86-64 do and that for arm64 does not. Only with it do threads count how deeply they nest that lock.
pub fn preemptible(btf: &Btf<'_>, version: &str) -> bool {
    let guard = btf.blob().find(kind::TYPEDEF, "class_srcu_fast_notrace_t");
    let nesting = btf.field("task_struct", "rcu_read_lock_nesting");
    guard.is_some() && nesting.is_some() || version.contains("PREEMPT_RT")
}

/// Tracepoints whose two programs can be preempted on one CPU at the same time, if no other program reports the events
/// that both miss. `sock_ops`: whether [`SOCK_OPS`] is attached, which reports those of `inet_sock_set_state`.
pub fn both_preemptible(preemptible: bool, sock_ops: bool) -> &'static [&'static str] {
    match (preemptible, sock_ops) {
        (false, _) => &[],
        (true, true) => &["tcp_destroy_sock"],
        (true, false) => &["inet_sock_set_state", "tcp_destroy_sock"],
    }
}

/// BTF id of the kernel function `bpf_rdonly_cast` (Linux 6.2), if this kernel has it.
pub fn cast_function(btf: &Btf<'_>) -> Option<u32> {
    btf.blob().find(kind::FUNC, "bpf_rdonly_cast")
}

/// Why a probe cannot be attached on this kernel: the tracepoint is missing, or an argument is not what its programs
/// are built for. `None` if it can be attached.
pub fn unsupported(probe: &Probe, btf: &Btf<'_>) -> Option<String> {
    // The sock_ops program relies only on the user-space ABI.
    if probe.hook == Hook::RootCgroup {
        return None;
    }
    let name = probe.name;
    let Some(there) = btf.tracepoint(name) else {
        return Some(format!("this kernel has no tracepoint {name}"));
    };
    let wrong = |argument: &&ExpectedArgument| match there.get(argument.position) {
        Some(found) => !is(found.kind, argument.kind),
        None => !argument.optional,
    };
    let argument = probe.arguments.iter().find(wrong)?;
    Some(format!("argument {} of this kernel's {name} is not {}", argument.position, in_words(argument.kind)))
}

fn is(found: ArgumentKind<'_>, kind: ExpectedType) -> bool {
    match (found, kind) {
        (ArgumentKind::Pointer(name), ExpectedType::Pointer(wanted))
        | (ArgumentKind::Enum(name), ExpectedType::Enum(wanted)) => name == wanted,
        (ArgumentKind::Integer { size, .. }, ExpectedType::Integer(wanted)) => size == wanted,
        _ => false,
    }
}

fn in_words(kind: ExpectedType) -> String {
    match kind {
        ExpectedType::Pointer(name) => format!("a struct {name}"),
        ExpectedType::Integer(bytes) => format!("a number of {bytes} bytes"),
        ExpectedType::Enum(name) => format!("an enum {name}"),
    }
}

/// Names the first field that is not where the iterator's program expects it; `None` if this kernel has all of them in
/// their places.
pub fn iterator_moved(btf: &Btf<'_>) -> Option<String> {
    let moved = |(structure, field, offset): &&(&str, &str, usize)| {
        btf.field(structure, field).is_none_or(|found| found.offset as usize != *offset)
    };
    let (structure, field, offset) = ITERATOR_FIELDS.iter().find(moved)?;
    Some(format!("{structure}.{field} is not at byte {offset} on this kernel"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn fixture<T>(label: &str, check: impl FnOnce(&Btf<'_>) -> T) -> T {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/btf");
        let bytes = fs::read(format!("{folder}/{label}.btf")).expect("a fixture");
        check(&Btf::parse(&bytes).expect("a fixture is BTF"))
    }

    #[test]
    fn every_kernel_passes_what_the_programs_take_or_the_probe_says_what_is_otherwise() {
        let socket = "argument 3 of this kernel's kfree_skb is not a struct sock";
        let reason = "argument 2 of this kernel's kfree_skb is not an enum skb_drop_reason";
        for label in
            ["5.10", "6.1", "6.12", "6.16", "6.17", "6.18deb", "6.18.44-host", "6.19", "7.0", "7.1", "7.2", "7.3"]
        {
            fixture(label, |btf| {
                assert_eq!(iterator_moved(btf), None, "{label}");
                let wrong: Vec<String> = PROBES.iter().filter_map(|probe| unsupported(probe, btf)).collect();
                let no_growth = "this kernel has no tracepoint tcp_rcvbuf_grow";
                let expected: &[&str] = match label {
                    "5.10" => &[no_growth, reason],
                    "6.1" => &[no_growth, socket],
                    "6.12" => &[no_growth],
                    _ => &[],
                };
                assert_eq!(wrong, expected, "{label}");
            });
        }
    }

    /// Tests each argument of each probe, as if this kernel had a different argument in its place.
    #[test]
    fn an_argument_that_has_moved_is_named_whichever_it_is() {
        fixture("7.3", |btf| {
            for probe in &PROBES {
                for (index, argument) in probe.arguments.iter().enumerate() {
                    for moved in [
                        ExpectedArgument { position: argument.position + 1, ..*argument },
                        ExpectedArgument { kind: ExpectedType::Pointer("nothing"), ..*argument },
                        ExpectedArgument { kind: ExpectedType::Integer(2), ..*argument },
                    ] {
                        let mut arguments = probe.arguments.to_vec();
                        arguments[index] = moved;
                        let there = btf.tracepoint(probe.name).expect("a tracepoint");
                        // The neighboring argument may be of the same kind, and an optional one may be absent.
                        let alike =
                            there.get(moved.position).map_or(moved.optional, |found| is(found.kind, moved.kind));
                        let probe = Probe { arguments: arguments.leak(), ..*probe };
                        let said = unsupported(&probe, btf).unwrap_or_default();
                        let position = format!("argument {} of this kernel's {}", moved.position, probe.name);
                        assert_eq!(said.contains(&position), !alike, "{moved:?}: {said}");
                    }
                }
            }
        });
    }

    #[test]
    fn no_probe_that_sees_connections_begin_comes_after_one_that_does_not() {
        assert!(PROBES.iter().map(|probe| !probe.sees_lifecycle).is_sorted());
    }
}
