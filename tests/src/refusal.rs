//! A kernel that refuses a command of bpf(2), as a hardened one does: a seccomp filter.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::must;

/// `enum bpf_cmd`.
pub const BPF_PROG_TEST_RUN: u64 = 10;

/// tcpmon itself passes no more bytes of attributes than this to bpf(2). The whole `union bpf_attr` has 152.
const OWN_ATTRIBUTES: u64 = 96;

/// Lets bpf(2) fail with EPERM in the program that is started, if its command is this one.
pub fn refuse(program: &mut Command, command: u64) {
    refuse_calls(program, vec![argument(0, SeccompCmpOp::Eq, command)]);
}

/// The same, but only where tcpmon makes the call itself: it passes the part of `union bpf_attr` that the command
/// reads, and aya always passes all of it. By `BPF_LINK_CREATE`, that is only what attaches `owners`.
pub fn refuse_own(program: &mut Command, command: u64) {
    let is_own = argument(2, SeccompCmpOp::Le, OWN_ATTRIBUTES);
    refuse_calls(program, vec![argument(0, SeccompCmpOp::Eq, command), is_own]);
}

/// A condition on an argument of a system call.
fn argument(number: u8, comparison: SeccompCmpOp, value: u64) -> SeccompCondition {
    must(SeccompCondition::new(number, SeccompCmpArgLen::Dword, comparison, value), "a condition")
}

/// Lets bpf(2) fail if its arguments meet all of these conditions.
fn refuse_calls(program: &mut Command, conditions: Vec<SeccompCondition>) {
    let rules = must(SeccompRule::new(conditions), "a rule");
    let filter = SeccompFilter::new(
        [(libc::SYS_bpf, vec![rules])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        must(TargetArch::try_from(std::env::consts::ARCH), "an architecture with seccomp filters"),
    );
    let filter: BpfProgram = must(must(filter, "a filter").try_into(), "a filter");
    let apply = move || seccompiler::apply_filter(&filter).map_err(|_| std::io::Error::last_os_error());
    #[expect(unsafe_code, reason = "a filter for the new process alone")]
    // SAFETY: between fork and exec, it makes two system calls.
    unsafe {
        program.pre_exec(apply)
    };
}
