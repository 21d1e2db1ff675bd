//! The privileges that tcpmon needs, those that it gives up, and what an attacker who has taken over one of its threads
//! can still do.

mod common;
#[path = "privileges/intruder.rs"]
mod intruder;
#[path = "privileges/registers.rs"]
mod registers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::{DEADLINE, sender, sources_and_probes};
use intruder::{Argument, Intruder, Outcome};
use nix::sys::signal::Signal;
use tcpmon_tests::daemon::Refused;
use tcpmon_tests::sysctl::HostSysctl;
use tcpmon_tests::{Daemon, Lab, Page, Trace, Traffic, equal, eventually, tcpmon_binary};

/// The capabilities that the documentation names.
const NEEDED: [&str; 6] = ["bpf", "perfmon", "net_admin", "sys_admin", "sys_ptrace", "syslog"];

/// CAP_SYS_PTRACE and CAP_SYS_ADMIN.
const ENTERS_NAMESPACES: u64 = 1 << 19 | 1 << 21;

/// CAP_BPF: to make room for more sockets.
const GROWS: u64 = 1 << 39;

/// CAP_SYS_NICE: to give up the highest priority for a while.
const CHANGES_PRIORITY: u64 = 1 << 23;

/// The capabilities that the thread of this name keeps.
fn kept_by(name: &str) -> u64 {
    match name {
        "host" => ENTERS_NAMESPACES,
        "grower" | "placer" => GROWS,
        "collector" => CHANGES_PRIORITY,
        _ => 0,
    }
}

/// Whether this kernel can confine files.
#[expect(unsafe_code, reason = "a system call that no crate wraps")]
fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    // SAFETY: with this flag, the kernel reads nothing and returns its version.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) > 0 }
}

/// A field of `/proc/PID/task/TID/status`.
fn field(thread: &str, name: &str) -> String {
    let value = thread.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {thread}")).trim().to_owned()
}

/// `status` of each thread, by number.
fn threads(pid: u32) -> BTreeMap<i32, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let number = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let status = |thread: i32| Some((thread, fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?));
    tasks.filter_map(number).filter_map(status).collect()
}

/// The thread of this name.
#[track_caller]
fn thread(pid: u32, name: &str) -> i32 {
    let threads = threads(pid);
    let found = threads.iter().find(|(_, status)| field(status, "Name") == name);
    *found.unwrap_or_else(|| panic!("no thread {name} in {threads:?}")).0
}

/// Starts the daemon as an unprivileged user, with these capabilities and no others.
fn as_nobody(capabilities: &[&str]) -> Result<Daemon, Box<Refused>> {
    // That user may not be able to reach the build folder.
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our folder");
    let program = folder.path().join("tcpmon");
    fs::copy(tcpmon_binary(), &program).expect("there is room for it");
    let set: String = capabilities.iter().map(|capability| format!(",+{capability}")).collect();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .args(["--bounding-set", "--inh-caps", "--ambient-caps"].map(|sets| format!("{sets}=-all{set}")))
        .arg(program);
    Daemon::try_start_by(command, &[]).map_err(Box::new)
}

#[test]
fn every_thread_gives_up_what_it_does_not_need() {
    // A name is looked up before anything is given up.
    let daemon = Daemon::start(&["--web.listen-address", "localhost:0"]);
    daemon.scrape();
    let threads = threads(daemon.pid());
    // The endpoint, the collector, the host thread and the two that make room for more sockets. Those that the endpoint
    // starts for pages inherit what it has.
    assert!(threads.len() >= 5, "{threads:?}");
    for thread in threads.values() {
        let kept = kept_by(&field(thread, "Name"));
        for (set, kept) in [("CapEff", kept), ("CapPrm", kept), ("CapInh", 0), ("CapAmb", 0), ("CapBnd", 0)] {
            assert_eq!(u64::from_str_radix(&field(thread, set), 16), Ok(kept), "{set} of {thread}");
        }
        assert_eq!((&*field(thread, "NoNewPrivs"), &*field(thread, "Seccomp")), ("1", "2"), "{thread}");
    }
    let status = daemon.status();
    let has_landlock = has_landlock();
    let told = &status["sandbox"];
    assert_eq!((told["system_calls"].as_bool(), told["files"].as_bool()), (Some(true), Some(has_landlock)), "{told}");
    assert_eq!(told["reason"] == "", has_landlock, "{told}");
}

#[test]
fn threads_that_must_act_in_time_have_the_highest_priority() {
    let daemon = Daemon::start(&[]);
    for (name, nice) in [("grower", -20), ("placer", -20), ("collector", -20), ("tcpmon", 0), ("host", 0)] {
        let tid = thread(daemon.pid(), name);
        // Except during passes, when the collector has the same priority as everybody else.
        eventually(DEADLINE, "its priority", || {
            let stat = fs::read_to_string(format!("/proc/{}/task/{tid}/stat", daemon.pid())).expect("it runs");
            let after_name = stat.rsplit(") ").next().unwrap_or_default();
            let seen = after_name.split(' ').nth(16).and_then(|nice| nice.parse().ok());
            if seen == Some(nice) { Ok(()) } else { Err(format!("{name}: {seen:?}")) }
        });
    }
}

/// The kernel delivers a signal to another thread if the first one already has one pending.
#[test]
#[expect(unsafe_code, reason = "no crate used here has tgkill")]
fn a_signal_is_handled_whichever_thread_gets_it() {
    let daemon = Daemon::start(&[]);
    for (tid, number) in threads(daemon.pid()).into_keys().zip(1..) {
        // SAFETY: the call takes only numbers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, daemon.pid(), tid, libc::SIGHUP) };
        assert_eq!(sent, 0, "the thread {tid} is there");
        eventually(DEADLINE, "it reads its configuration again", || {
            let times = daemon.stderr().matches("reloaded the configuration").count();
            if times >= number { Ok(()) } else { Err(daemon.stderr()) }
        });
    }
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn without_the_sandbox_capabilities_are_given_up_all_the_same() {
    let daemon = Daemon::start(&["--sandbox=false"]);
    for thread in threads(daemon.pid()).values().filter(|thread| field(thread, "Name") != "host") {
        let kept = format!("{:016x}", kept_by(&field(thread, "Name")));
        assert_eq!((&*field(thread, "CapPrm"), &*field(thread, "Seccomp")), (&*kept, "0"), "{thread}");
    }
    let status = daemon.status();
    assert_eq!(status["sandbox"]["reason"], "switched off by sandbox = false", "{status}");
}

#[test]
fn a_trace_gives_up_all_capabilities_but_that_to_make_room_for_sockets() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).spawn();
    let trace = Trace::start(&["--pid", &reader.pid().to_string()]);
    let flow = sender(&lab, &reader).bytes(100_000).hold_open().spawn();
    eventually(DEADLINE, "all is read", || equal(reader.report().bytes, 100_000));
    for thread in threads(trace.pid()).values() {
        let kept = kept_by(&field(thread, "Name"));
        for (set, kept) in [("CapEff", kept), ("CapPrm", kept), ("CapInh", 0), ("CapAmb", 0), ("CapBnd", 0)] {
            assert_eq!(field(thread, set), format!("{kept:016x}"), "{set} of {thread}");
        }
        assert_eq!(field(thread, "NoNewPrivs"), "1", "{thread}");
    }
    drop(flow);
    let traced = trace.stop();
    let slices = traced.records.iter().filter(|record| record["type"] == "timeslice");
    let bytes: u64 = slices.filter_map(|record| record["read_bytes"].as_u64()).sum();
    assert_eq!(bytes, 100_000);
}

#[test]
fn a_user_with_the_six_capabilities_sees_what_root_sees() {
    let _restricted = HostSysctl::set("kernel.dmesg_restrict", "1");
    // Drops and histograms are shown only once there are some. Their probes are compared below.
    let families = |page: Page| {
        let mut families = page.types;
        families.retain(|name, kind| name != "tcpmon_receive_drops_total" && kind != "histogram");
        families
    };
    let root = Daemon::start(&[]);
    let (shown, told) = (families(root.scrape()), sources_and_probes(&root));
    drop(root);
    let nobody = as_nobody(&NEEDED).expect("it starts");
    assert_eq!(
        field(&threads(nobody.pid())[&nobody.pid().cast_signed()], "Uid").split_whitespace().next(),
        Some("65534")
    );
    assert_eq!(families(nobody.scrape()), shown);
    assert_eq!(sources_and_probes(&nobody), told);
}

#[test]
fn without_one_of_the_six_what_depends_on_it_is_off_and_says_so() {
    // A process in another network namespace.
    let lab = Lab::new();
    let _inside = Traffic::reader(lab.receiver()).paused().spawn();
    let _restricted = HostSysctl::set("kernel.dmesg_restrict", "1");
    let all = as_nobody(&NEEDED).expect("it starts");
    let complete = sources_and_probes(&all);
    drop(all);
    for missing in NEEDED {
        let rest: Vec<&str> = NEEDED.into_iter().filter(|capability| *capability != missing).collect();
        let daemon = as_nobody(&rest).unwrap_or_else(|refused| panic!("without {missing}: {}", refused.stderr));
        let told = sources_and_probes(&daemon);
        let differ: BTreeSet<&str> =
            told.iter().filter(|(name, state)| complete[*name] != **state).map(|(name, _)| name.as_str()).collect();
        let expected: &[&str] = match missing {
            // CAP_SYS_ADMIN includes what these three allow.
            "bpf" | "perfmon" | "net_admin" => &[],
            "sys_admin" | "sys_ptrace" => &["network_namespaces"],
            "syslog" if sys_admin_reads_the_kernel_log() => &[],
            "syslog" => &["kernel_log"],
            other => panic!("{other}"),
        };
        assert_eq!(differ, expected.iter().copied().collect(), "without {missing}: {told:?}");
        for name in expected {
            let capability = format!("CAP_{}", missing.to_uppercase());
            assert!(told[*name].1.contains(&capability), "{name} without {missing}: {}", told[*name].1);
        }
    }
}

#[test]
fn with_too_little_it_names_what_is_missing() {
    let fewest = as_nobody(&["bpf", "perfmon", "net_admin"]).expect("it starts");
    assert_eq!(fewest.scrape().value("tcpmon_build_info", &[]), Some(1.0));
    drop(fewest);
    for (capabilities, named) in [(&["perfmon"], "CAP_BPF"), (&["bpf"], "CAP_PERFMON")] {
        let refused = as_nobody(capabilities).expect_err("it cannot load its programs");
        assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
        assert!(refused.stderr.contains(named), "{}", refused.stderr);
    }
}

/// Whether this kernel accepts CAP_SYS_ADMIN for the kernel log, as old ones do.
fn sys_admin_reads_the_kernel_log() -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-syslog", "sh", "-c", ": < /dev/kmsg"]);
    command.status().expect("setpriv is there").success()
}

/// System calls that no thread of the daemon may make.
fn forbidden() -> Vec<(i64, Vec<Argument>)> {
    let flags = libc::O_WRONLY | libc::O_CREAT;
    let file = "/tmp/tcpmon-intruder";
    vec![
        (libc::SYS_openat, vec![libc::AT_FDCWD.into(), file.into(), flags.into(), 0o600.into()]),
        (libc::SYS_openat, vec![libc::AT_FDCWD.into(), file.into(), libc::O_RDWR.into()]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_creat, vec![file.into(), 0o600.into()]),
        (libc::SYS_unlinkat, vec![libc::AT_FDCWD.into(), file.into(), 0.into()]),
        (libc::SYS_socket, vec![libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0.into()]),
        (libc::SYS_socket, vec![libc::AF_INET6.into(), libc::SOCK_DGRAM.into(), 0.into()]),
        (libc::SYS_socket, vec![libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0.into()]),
        // BPF_PROG_LOAD and BPF_PROG_GET_FD_BY_ID.
        (libc::SYS_bpf, vec![5.into(), 0.into(), 0.into()]),
        (libc::SYS_bpf, vec![13.into(), 0.into(), 0.into()]),
        (libc::SYS_execve, vec!["/bin/true".into(), 0.into(), 0.into()]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_fork, vec![]),
        (libc::SYS_clone, vec![(libc::SIGCHLD | libc::CLONE_NEWUSER).into(), 0.into()]),
        (libc::SYS_unshare, vec![libc::CLONE_NEWUSER.into()]),
        (libc::SYS_setns, vec![0.into(), libc::CLONE_NEWNS.into()]),
        (libc::SYS_mount, vec!["none".into(), "/tmp".into(), "tmpfs".into(), 0.into(), 0.into()]),
        (libc::SYS_ptrace, vec![0.into()]),
        (libc::SYS_kill, vec![0.into(), 0.into()]),
        (libc::SYS_init_module, vec![0.into(), 0.into(), 0.into()]),
        (libc::SYS_perf_event_open, vec![0.into()]),
        (libc::SYS_io_uring_setup, vec![1.into(), 0.into()]),
        (libc::SYS_mprotect, vec![0.into(), 4096.into(), (libc::PROT_READ | libc::PROT_EXEC).into()]),
        (libc::SYS_setuid, vec![0.into()]),
        (libc::SYS_setresuid, vec![0.into(), 0.into(), 0.into()]),
        (libc::SYS_setgroups, vec![0.into(), 0.into()]),
        (libc::SYS_capset, vec![0.into(), 0.into()]),
        (libc::SYS_seccomp, vec![0.into(), 0.into(), 0.into()]),
        (libc::SYS_fsopen, vec!["tmpfs".into(), 0.into()]),
        (libc::SYS_swapon, vec![file.into(), 0.into()]),
        (libc::SYS_clock_settime, vec![0.into(), 0.into()]),
    ]
}

#[test]
fn an_intruder_cannot_load_write_start_or_connect() {
    let daemon = Daemon::start(&[]);
    daemon.scrape();
    let has_landlock = has_landlock();
    for name in ["tcpmon", "collector", "host", "grower", "placer"] {
        let intruder = Intruder::in_thread(thread(daemon.pid(), name));
        // A call that is allowed succeeds, which shows that the attempts are real.
        let pid = intruder.call(libc::SYS_getpid, &[]);
        assert_eq!(pid, Outcome::Returned(daemon.pid().into()), "{name}");
        let open = |file| intruder.call(libc::SYS_openat, &[libc::AT_FDCWD.into(), file, libc::O_RDONLY.into()]);
        // Two threads read no file at all.
        let grows = ["grower", "placer"].contains(&name);
        if !grows {
            let Outcome::Returned(descriptor @ 0..) = open("/proc/self/status".into()) else { panic!("{name}") };
            assert_eq!(intruder.call(libc::SYS_close, &[descriptor.into()]), Outcome::Returned(0));
        }

        for (number, arguments) in forbidden() {
            let outcome = intruder.call(number, &arguments);
            assert_eq!(outcome, Outcome::Refused, "{name}: system call {number}{arguments:?}");
        }
        // Only two threads may create maps (BPF_MAP_CREATE). These attributes are not valid ones.
        let creates = intruder.call(libc::SYS_bpf, &[0.into(), 0.into(), 0.into()]);
        assert_eq!(creates != Outcome::Refused, grows, "{name}: {creates:?}");
        let unknown = intruder.call(libc::SYS_clone3, &[0.into(), 0.into()]);
        assert!(
            [Outcome::Returned((-libc::ENOSYS).into()), Outcome::Refused].contains(&unknown),
            "{name}: {unknown:?}"
        );
        if name != "host" {
            for number in [libc::SYS_connect, libc::SYS_bind] {
                assert_eq!(intruder.call(number, &[0.into(), 0.into(), 0.into()]), Outcome::Refused, "{name}");
            }
            if has_landlock {
                assert_eq!(open("/sys/kernel/btf/vmlinux".into()), Outcome::Returned((-libc::EACCES).into()), "{name}");
            }
        }
    }
    // The threads are unharmed.
    assert_eq!(daemon.scrape().value("tcpmon_build_info", &[]), Some(1.0));
}

#[test]
fn a_call_that_is_not_allowed_ends_the_daemon_with_a_message() {
    let daemon = Daemon::start(&[]);
    let intruder = Intruder::in_thread(thread(daemon.pid(), "collector"));
    intruder.go_and_call(libc::SYS_socket, &[libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0.into()]);
    let (ended, said) = daemon.wait();
    assert_eq!(ended.code(), Some(1), "{said}");
    let call = format!("does not allow system call {:04}", libc::SYS_socket);
    assert!(said.contains(&call) && said.contains("sandbox = false"), "{said}");
}

#[test]
fn a_call_that_the_sandbox_does_not_know_fails_as_on_a_kernel_without_it_and_is_said_once() {
    // No kernel has this system call.
    const UNKNOWN: i64 = 999;
    let daemon = Daemon::start(&[]);
    for _ in 0..2 {
        Intruder::in_thread(thread(daemon.pid(), "collector")).go_and_call(UNKNOWN, &[]);
        eventually(DEADLINE, "the call is said", || daemon.stderr().contains("does not know system call 0999"));
        // The thread goes on.
        assert_eq!(daemon.scrape().value("tcpmon_build_info", &[]), Some(1.0));
    }
    daemon.signal(Signal::SIGTERM);
    let (ended, said) = daemon.wait();
    assert_eq!((ended.code(), said.matches("does not know system call").count()), (Some(0), 1), "{said}");
}
