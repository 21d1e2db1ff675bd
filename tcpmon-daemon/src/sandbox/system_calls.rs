//! System calls: a list of those that a thread may use, enforced by the kernel (seccomp).
//!
//! No thread may start a program, write to a file that is not open, open a socket to the network, load a program into
//! the kernel, map memory that can be executed, or create a namespace.

#![expect(unsafe_code, reason = "a signal handler")]

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use super::ThreadRole;
use crate::kernel::{GROWING_COMMANDS, READING_COMMANDS};

/// System calls of every thread: memory, locks, clocks, signals, its own end, and files that it may read.
const COMMON: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_tgkill,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// System calls of the endpoint: connections that others open, and what waits for them.
const ENDPOINT: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // To wait for the flight recorder.
    libc::SYS_wait4,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// System calls of the host thread: netlink. The filter cannot check where it connects and sends to, which is in
/// memory, but none of its sockets reaches another host.
const HOST: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    // For the clock of addresses.
    libc::SYS_times,
];

/// `FIONBIO` and `SIOCETHTOOL`: the requests that the threads make with ioctl(2).
const FIONBIO: u64 = 0x5421;
const SIOCETHTOOL: u64 = 0x8946;

/// Flags of clone(2) that create namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// The system calls that a thread may use.
pub(super) struct AllowedCalls(BTreeMap<c_long, Vec<SeccompRule>>);

impl AllowedCalls {
    /// The system calls that a thread with this role needs.
    pub(super) fn of(role: ThreadRole) -> Self {
        let mut calls = Self(COMMON.iter().map(|call| (*call, Vec::new())).collect());
        // Only to read existing files.
        let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
        calls.allow_if(libc::SYS_openat, &[bits_clear(2, writes)]);
        #[cfg(target_arch = "x86_64")]
        calls.allow_if(libc::SYS_open, &[bits_clear(1, writes)]);
        calls.allow_if(libc::SYS_mmap, &[bits_clear(2, libc::PROT_EXEC)]);
        calls.allow_if(libc::SYS_mprotect, &[bits_clear(2, libc::PROT_EXEC)]);
        // A new thread sets its own name.
        calls.allow_if(libc::SYS_prctl, &[equals(0, libc::PR_SET_NAME as u64)]);
        // Without an address, so only to a connected peer. Any thread may get a signal, whose handler (tokio's) sends a
        // byte to the endpoint's thread.
        calls.allow_if(libc::SYS_sendto, &[is_null(4)]);
        match role {
            ThreadRole::Endpoint => {
                calls.allow(ENDPOINT);
                calls.allow_if(libc::SYS_ioctl, &[equals(1, FIONBIO)]);
                // Only threads, not processes or namespaces. clone3 is refused as unknown, because its flags are in
                // memory.
                let threads = libc::CLONE_VM | libc::CLONE_THREAD;
                let operation = SeccompCmpOp::MaskedEq(u64::from((threads | NAMESPACES).cast_unsigned()));
                calls.allow_if(libc::SYS_clone, &[condition(0, operation, threads as u64)]);
                calls.allow(&[libc::SYS_clone3]);
            }
            ThreadRole::Collector => {
                // Only its own priority.
                calls.allow_if(libc::SYS_setpriority, &[equals(0, libc::PRIO_PROCESS.into()), equals(1, 0)]);
                for command in READING_COMMANDS {
                    calls.allow_if(libc::SYS_bpf, &[equals(0, command.cast_unsigned())]);
                }
            }
            ThreadRole::Grower => {
                calls.allow(&[libc::SYS_epoll_pwait]);
                for command in GROWING_COMMANDS {
                    calls.allow_if(libc::SYS_bpf, &[equals(0, command.cast_unsigned())]);
                }
            }
            ThreadRole::Host => {
                calls.allow(HOST);
                for family in [libc::AF_NETLINK, libc::AF_UNIX] {
                    calls.allow_if(libc::SYS_socket, &[equals(0, family as u64)]);
                }
                calls.allow_if(libc::SYS_ioctl, &[equals(1, SIOCETHTOOL)]);
                calls.allow_if(libc::SYS_setns, &[equals(1, libc::CLONE_NEWNET as u64)]);
            }
        }
        calls
    }

    fn allow(&mut self, calls: &[c_long]) {
        self.0.extend(calls.iter().map(|call| (*call, Vec::new())));
    }

    fn allow_if(&mut self, call: c_long, conditions: &[SeccompCondition]) {
        let rule = SeccompRule::new(conditions.to_vec()).expect("there are conditions");
        self.0.entry(call).or_default().push(rule);
    }

    /// Confines the calling thread. From then on, a [`FORBIDDEN`] call ends the process with a message. The inner error
    /// says why the kernel cannot confine it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn confine(self) -> io::Result<Result<(), String>> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(report_violations);
        let unknown = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let clone3 = filter(unknown, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
        let allowed = filter(self.0, SeccompAction::Trap, SeccompAction::Allow);
        // This filter last, because it does not allow another one.
        for filter in [clone3, allowed] {
            match apply_filter(&filter) {
                Ok(()) => {}
                // The kernel was built without CONFIG_SECCOMP_FILTER.
                Err(seccompiler::Error::Seccomp(error)) if is_missing(&error) => {
                    return Ok(Err(format!(
                        "system calls are not restricted: the kernel has no seccomp filters ({error})"
                    )));
                }
                Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error)) => return Err(error),
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
        Ok(Ok(()))
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

fn filter(rules: BTreeMap<c_long, Vec<SeccompRule>>, otherwise: SeccompAction, matched: SeccompAction) -> BpfProgram {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).expect("tcpmon is not built for others");
    let filter = SeccompFilter::new(rules, otherwise, matched, architecture).expect("the two actions differ");
    filter.try_into().expect("the rules fit into a filter")
}

/// A condition on an argument of 32 bits; the bits above them may be anything.
fn condition(argument: u8, comparison: SeccompCmpOp, value: u64) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, comparison, value).expect("a call has six arguments")
}

fn equals(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Eq, value)
}

/// None of these bits is set.
fn bits_clear(argument: u8, bits: i32) -> SeccompCondition {
    condition(argument, SeccompCmpOp::MaskedEq(u64::from(bits.cast_unsigned())), 0)
}

fn is_null(argument: u8) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0).expect("a call has six arguments")
}

/// Calls that only an intruder makes here, or makes with arguments that are not allowed: they end the process. All
/// other calls that are not allowed come from libraries that are newer than this list, and get ENOSYS, as on an older
/// kernel.
const FORBIDDEN: &[c_long] = &[
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_clone,
    libc::SYS_connect,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_finit_module,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_ftruncate,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_kill,
    libc::SYS_linkat,
    libc::SYS_listen,
    libc::SYS_memfd_create,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_mmap,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_mprotect,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pivot_root,
    libc::SYS_pkey_mprotect,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_renameat2,
    libc::SYS_request_key,
    libc::SYS_seccomp,
    libc::SYS_sendto,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setns,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_settimeofday,
    libc::SYS_setuid,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_symlinkat,
    libc::SYS_tkill,
    libc::SYS_truncate,
    libc::SYS_umount2,
    libc::SYS_unlinkat,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// From now on, a call that is not allowed writes a message with its number; one of [`FORBIDDEN`] ends the process.
fn report_violations() {
    // SAFETY: a structure of numbers, a set of signals and an optional function: zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_flags = libc::SA_SIGINFO;
    action.sa_sigaction = violation as *const () as usize;
    // SAFETY: the handler has the signature that SA_SIGINFO requires, and calls only what a handler may call.
    unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
}

/// Handles SIGSYS.
extern "C" fn violation(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    // si_syscall, for which libc has no name: after si_signo, si_errno, si_code, padding and si_call_addr.
    const SI_SYSCALL: usize = 24;
    // SAFETY: the kernel passes a siginfo_t of SIGSYS, which has an int there.
    let number = unsafe { info.cast::<u8>().add(SI_SYSCALL).cast::<libc::c_int>().read_unaligned() };
    let is_forbidden = FORBIDDEN.contains(&c_long::from(number));
    if is_forbidden {
        let mut message = *b"tcpmon: the sandbox does not allow system call 0000: report this; `sandbox = false` in \
                             the config file switches it off\n";
        write_with_number(&mut message, number);
        // SAFETY: it may be called in a signal handler.
        unsafe { libc::_exit(1) };
    }
    if !WARNED.swap(true, Ordering::Relaxed) {
        let mut message = *b"tcpmon: the sandbox does not know system call 0000, which fails as on a kernel without \
                             it: report this\n";
        write_with_number(&mut message, number);
    }
    // SAFETY: the kernel passes the registers of the thread, which it restores when the handler returns.
    unsafe { set_result(&mut *context.cast::<libc::ucontext_t>(), -i64::from(libc::ENOSYS)) };
}

/// Writes the message to standard error, with the number instead of the zeros.
fn write_with_number(message: &mut [u8], number: libc::c_int) {
    let digits = message.iter().position(|byte| *byte == b'0').unwrap_or_default();
    for (place, power) in [1000, 100, 10, 1].into_iter().enumerate() {
        message[digits + place] = b'0' + (number / power % 10) as u8;
    }
    // SAFETY: it may be called in a signal handler; the message is alive.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
}

/// Sets the result of the system call that caused the signal.
#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
}

/// Sets the result of the system call that caused the signal.
#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, result: i64) {
    context.uc_mcontext.regs[0] = result.cast_unsigned();
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    /// If this variable is set to the number of a system call, the test below is the process that makes the call.
    const CALL: &str = "TCPMON_TEST_FORBIDDEN_CALL";

    #[test]
    fn a_thread_that_wants_its_rights_back_ends_the_process() {
        if let Some(number) = env::var(CALL).ok().and_then(|number| number.parse::<c_long>().ok()) {
            AllowedCalls::of(ThreadRole::Host).confine().expect("no error").expect("the kernel has seccomp filters");
            // SAFETY: each of these calls takes numbers and pointers, and fails at these.
            unsafe { libc::syscall(number, -1, 0, 0) };
            return;
        }
        let this = env::current_exe().expect("a test is a file");
        for number in [
            libc::SYS_capset,
            libc::SYS_setresuid,
            libc::SYS_setgroups,
            libc::SYS_setfsgid,
            libc::SYS_fsopen,
            libc::SYS_seccomp,
            libc::SYS_swapon,
            libc::SYS_clock_settime,
        ] {
            let mut child = Command::new(&this);
            child.args([
                "--exact",
                "sandbox::system_calls::tests::a_thread_that_wants_its_rights_back_ends_the_process",
            ]);
            let output = child.env(CALL, number.to_string()).output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{number}: {said}");
            assert!(said.contains(&format!("does not allow system call {number:04}:")), "{said}");
        }
    }
}
