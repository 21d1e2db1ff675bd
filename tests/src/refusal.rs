//! A kernel that refuses a command of bpf(2), as a hardened one does: a seccomp filter; or one eBPF program: ptrace.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
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

/// Lets the program that is started wait for [`refuse_program`] before its first instruction.
pub fn hold(program: &mut Command) {
    let trace = || ptrace::traceme().map_err(Into::into);
    #[expect(unsafe_code, reason = "a tracer for the new process alone")]
    // SAFETY: between fork and exec, it makes one system call.
    unsafe {
        program.pre_exec(trace)
    };
}

/// Lets a program go on that this thread has started and that waits. Until its first thread loads an eBPF program with
/// the name `last`, bpf(2) fails with EINVAL if it loads one with the name `refused`. The kernel's names have at most
/// 15 bytes.
pub fn refuse_program(process: u32, refused: &str, last: &str) {
    const BPF_PROG_LOAD: u64 = 5;
    /// `prog_name` in `union bpf_attr`.
    const NAME: u64 = 48;
    let process = Pid::from_raw(process.cast_signed());
    let wait = || must(waitpid(process, Some(WaitPidFlag::__WALL)), "waiting for a traced process");
    let word = |address: u64| must(ptrace::read(process, address as ptrace::AddressType), "reading its memory");
    assert!(matches!(wait(), WaitStatus::Stopped(..)), "it stops at its first instruction");
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL;
    must(ptrace::setoptions(process, options), "options of ptrace");
    let mut signal = None;
    loop {
        must(ptrace::syscall(process, signal.take()), "going on");
        match wait() {
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Stopped(_, for_it) => {
                signal = Some(for_it);
                continue;
            }
            ended => panic!("it loads no program with the name {last}: {ended:?}"),
        }
        let call = must(ptrace::syscall_info(process), "a system call");
        if call.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            continue;
        }
        #[expect(unsafe_code, reason = "a union")]
        // SAFETY: these are the fields of a stop at a call's entry.
        let call = unsafe { call.u.entry };
        if call.nr != libc::SYS_bpf.cast_unsigned() || call.args[0] != BPF_PROG_LOAD {
            continue;
        }
        let attributes = call.args[1];
        let name = [0, 8].map(|at| word(attributes + NAME + at).to_ne_bytes()).concat();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if name == last.as_bytes() {
            break;
        }
        if name == refused.as_bytes() {
            // No kernel knows this kind of program.
            must(ptrace::write(process, attributes as ptrace::AddressType, -1), "writing its memory");
        }
    }
    must(ptrace::detach(process, None), "leaving it alone");
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
