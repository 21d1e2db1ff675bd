//! Rules about what tcpmon needs to run.

use super::{Advice, Answer, Check, Rule, find};
use crate::{
    doctor::facts::{Facts, Goal, RunFacts},
    kernel::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG},
    status::Verdict,
};

const OPERATING: &str = "docs/operating.md, capabilities";

/// The rules.
pub(super) static RULES: [Rule; 18] = [
    Rule {
        id: "run.build",
        wanted: "this binary has its eBPF programs",
        why: "without the programs, tcpmon sees nothing",
        source: "README.md",
        refuses: true,
        check: Check::Once(|facts, _| {
            find(
                !facts.run.prerequisites.object,
                || "this binary was built without its eBPF programs".into(),
                || "run `cargo xtask setup` and build again, or install a package".into(),
            )
        }),
    },
    Rule {
        id: "run.btf",
        wanted: "the kernel's type information can be read",
        why: "tcpmon looks up there where each field of the kernel's structures is",
        source: "docs/kernels.md",
        refuses: true,
        check: Check::Once(|facts, _| match &facts.run.prerequisites.btf {
            Ok(()) => Ok(None),
            Err(error) => Ok(Some(Advice {
                found: format!("/sys/kernel/btf/vmlinux cannot be read ({error})"),
                set: "boot a kernel that was built with CONFIG_DEBUG_INFO_BTF=y, and mount /sys".into(),
            })),
        }),
    },
    Rule {
        id: "run.kernel",
        wanted: "the kernel is 5.15 or newer",
        why: "the programs use functions that older kernels do not have",
        source: "docs/kernels.md",
        refuses: true,
        check: Check::Once(|facts, _| {
            let prerequisites = &facts.run.prerequisites;
            find(
                !prerequisites.missing_functions.is_empty(),
                || format!("kernel {} has no {}", prerequisites.release, prerequisites.missing_functions.join(", ")),
                || "boot Linux 5.15 or newer".into(),
            )
        }),
    },
    Rule {
        id: "run.lockdown",
        wanted: "the kernel is not locked down in confidentiality mode",
        why: "that mode forbids eBPF programs to read kernel memory",
        source: "security/security.c, lockdown_reasons",
        refuses: true,
        check: Check::Once(|facts, _| {
            let lockdown = facts.run.prerequisites.lockdown.as_deref().unwrap_or_default();
            find(
                lockdown.contains("[confidentiality]"),
                || "the kernel is locked down in confidentiality mode".into(),
                || "boot with lockdown=integrity or without lockdown".into(),
            )
        }),
    },
    Rule {
        id: "run.cap-bpf",
        wanted: "this process has CAP_BPF (or CAP_SYS_ADMIN)",
        why: "loading the programs needs it",
        source: OPERATING,
        refuses: true,
        check: Check::Once(|facts, _| capability(&facts.run, &[CAP_BPF, CAP_SYS_ADMIN], "CAP_BPF")),
    },
    Rule {
        id: "run.cap-perfmon",
        wanted: "this process has CAP_PERFMON (or CAP_SYS_ADMIN)",
        why: "reading kernel memory in the programs needs it",
        source: OPERATING,
        refuses: true,
        check: Check::Once(|facts, _| capability(&facts.run, &[CAP_PERFMON, CAP_SYS_ADMIN], "CAP_PERFMON")),
    },
    Rule {
        id: "run.cap-net-admin",
        wanted: "this process has CAP_NET_ADMIN (or CAP_SYS_ADMIN)",
        why: "without it, the sock_ops program is not attached; on Linux 7.0 and newer, where programs can be \
              preempted, the end of a connection can be missed",
        source: OPERATING,
        refuses: false,
        check: Check::Once(|facts, _| capability(&facts.run, &[CAP_NET_ADMIN, CAP_SYS_ADMIN], "CAP_NET_ADMIN")),
    },
    Rule {
        id: "run.cap-sys-admin",
        wanted: "this process has CAP_SYS_ADMIN",
        why: "without it, tcpmon sees TcpExt and IpExt counters and stuck sockets of its own network namespace only",
        source: OPERATING,
        refuses: false,
        check: Check::Once(|facts, _| capability(&facts.run, &[CAP_SYS_ADMIN], "CAP_SYS_ADMIN")),
    },
    Rule {
        id: "run.cap-sys-ptrace",
        wanted: "this process has CAP_SYS_PTRACE",
        why: "without it, tcpmon does not find the network namespaces of other users' processes",
        source: OPERATING,
        refuses: false,
        check: Check::Once(|facts, _| capability(&facts.run, &[CAP_SYS_PTRACE], "CAP_SYS_PTRACE")),
    },
    Rule {
        id: "run.cap-syslog",
        wanted: "this process has CAP_SYSLOG, or kernel.dmesg_restrict is 0",
        why: "without it, page-allocation failures are not counted",
        source: OPERATING,
        refuses: false,
        check: Check::Once(|facts, _| {
            if facts.run.dmesg_restrict.get().is_ok_and(|restricted| *restricted == 0) {
                return Ok(None);
            }
            capability(&facts.run, &[CAP_SYSLOG], "CAP_SYSLOG")
        }),
    },
    Rule {
        id: "run.security-module",
        wanted: "no security module keeps the programs from being loaded",
        why: "SELinux and AppArmor can deny bpf(2) to a process that has all capabilities",
        source: "the audit log and dmesg, which name the rule",
        refuses: true,
        check: Check::Once(security_module),
    },
    Rule {
        id: "run.programs",
        wanted: "the kernel accepts the programs, and every required probe is attached",
        why: "what the probes would have seen is missing",
        source: "docs/kernels.md",
        refuses: true,
        check: Check::Once(programs),
    },
    Rule {
        id: "run.probes",
        wanted: "every optional probe that this kernel offers is attached",
        why: "what the probe would have seen is missing",
        source: "docs/kernels.md",
        refuses: false,
        check: Check::Once(probes),
    },
    Rule {
        id: "run.cgroup-v2",
        wanted: "cgroup v2 is mounted",
        why: "without it there is no `cgroup` label, no socket memory of control groups and no sock_ops program",
        source: "docs/operating.md, docs/design/0008-second-programs.md",
        refuses: false,
        check: Check::Once(|facts, _| {
            find(
                !*facts.run.cgroup_v2.get()?,
                || "no cgroup v2 hierarchy is mounted below /sys/fs/cgroup".into(),
                || {
                    "boot with systemd.unified_cgroup_hierarchy=1; in a container, mount the host's /sys/fs/cgroup"
                        .into()
                },
            )
        }),
    },
    Rule {
        id: "run.bpf-jit",
        wanted: "the kernel compiles eBPF programs (net.core.bpf_jit_enable is not 0)",
        why: "interpreted programs are slower, and cannot call kernel functions",
        source: "docs/kernels.md",
        refuses: false,
        check: Check::Once(|facts, _| {
            find(
                *facts.run.bpf_jit_enable.get()? == 0,
                || "net.core.bpf_jit_enable is 0".into(),
                || "sysctl -w net.core.bpf_jit_enable=1".into(),
            )
        }),
    },
    Rule {
        id: "run.bpf-stats",
        wanted: "the kernel does not measure each run of an eBPF program (kernel.bpf_stats_enabled is 0)",
        why: "measuring costs two readings of the clock for every run of every program",
        source: "Documentation/admin-guide/sysctl/kernel.rst",
        refuses: false,
        check: Check::Once(|facts, _| {
            find(
                *facts.run.bpf_stats_enabled.get()? != 0,
                || "kernel.bpf_stats_enabled is 1".into(),
                || "sysctl -w kernel.bpf_stats_enabled=0, unless you are measuring".into(),
            )
        }),
    },
    Rule {
        id: "run.container",
        wanted: "tcpmon runs in the host's PID and network namespaces",
        why: "in other namespaces, process ids and network devices are those of the container; the sockets that \
              the programs see are those of the host",
        source: "docs/kubernetes.md",
        refuses: false,
        check: Check::Once(container),
    },
    Rule {
        id: "run.another",
        wanted: "no other tcpmon runs on this host, unless it is there for the devices of another network namespace",
        why: "each tcpmon runs its own programs at every segment and read, so the cost adds up",
        source: "docs/operating.md",
        refuses: false,
        check: Check::Once(|facts, _| {
            let others = facts.run.others.get()?;
            let list =
                || others.iter().map(|(pid, command)| format!("{pid} ({command})")).collect::<Vec<_>>().join(", ");
            find(
                !others.is_empty(),
                || format!("tcpmon is already running: {}", list()),
                || "scrape the one that runs, and stop the others".into(),
            )
        }),
    },
];

/// Whether this process has one of these capabilities.
fn capability(run: &RunFacts, any_of: &[u32], name: &str) -> Answer {
    let bits = run.prerequisites.capabilities.ok_or("/proc/self/status does not show the capabilities")?;
    find(
        !any_of.iter().any(|capability| bits >> capability & 1 == 1),
        || format!("the capability {name} is missing"),
        || format!("run as root, or with {name} (AmbientCapabilities= in a systemd unit)"),
    )
}

fn security_module(facts: &Facts, _: &Goal) -> Answer {
    let run = &facts.run;
    let (Err(refusal), Ok(confinement)) = (run.probes.get()?, run.confinement.get()) else { return Ok(None) };
    find(
        refusal.denied && is_confined(confinement),
        || {
            let modules = run.security_modules.get().map_or("unknown", |modules| modules.as_str());
            format!("{}; this process is confined by {confinement:?}, security modules: {modules}", refusal.missing)
        },
        || "allow bpf(2), perf events and reading /sys/kernel/btf in that profile, or run unconfined".into(),
    )
}

fn is_confined(confinement: &str) -> bool {
    !confinement.is_empty() && !confinement.contains("unconfined") && confinement != "kernel"
}

fn programs(facts: &Facts, goal: &Goal) -> Answer {
    match facts.run.probes.get()? {
        // The rule about security modules says more.
        Err(_) if security_module(facts, goal)?.is_some() => Ok(None),
        Err(refusal) => Ok(Some(Advice { found: refusal.missing.clone(), set: refusal.remedy.clone() })),
        Ok(_) => Ok(None),
    }
}

fn probes(facts: &Facts, _: &Goal) -> Answer {
    let Ok(probes) = facts.run.probes.get()? else { return Err("the programs are not loaded".into()) };
    let broken: Vec<_> = probes.iter().filter(|probe| probe.verdict == Verdict::Broken).collect();
    let list = || broken.iter().map(|probe| format!("{}: {}", probe.name, probe.reason)).collect::<Vec<_>>().join("; ");
    find(!broken.is_empty(), list, || "docs/runbooks/TcpmonProbeMissing.md".into())
}

fn container(facts: &Facts, _: &Goal) -> Answer {
    if !*facts.run.host_pid_namespace.get()? {
        return Ok(Some(Advice {
            found: "this process has a PID namespace of its own".into(),
            set: "hostPID: true, or docker run --pid=host".into(),
        }));
    }
    find(
        !*facts.run.first_network_namespace.get()?,
        || "this process is not in the network namespace of process 1".into(),
        || "hostNetwork: true, docker run --network=host, or leave `ip netns exec`".into(),
    )
}
