//! Whether tcpmon can run here: facts about the kernel and this process, and the decision from them.

use std::{error::Error, fs, io};

use aya::maps::MapError;
use tcpmon_btf::plan::FUNCTIONS;

/// The facts that were found. An unknown fact does not cause a refusal.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Prerequisites {
    /// `uname -r`.
    pub release: String,
    /// Whether `/sys/kernel/btf/vmlinux` can be read. In JSON: why not, or `null`.
    #[serde(rename = "btf_error", serialize_with = "error")]
    pub btf: Result<(), String>,
    /// Effective capabilities of this process, as a bit set; `None` if `/proc` does not show them. In JSON: the names
    /// of those that matter here.
    #[serde(serialize_with = "names")]
    pub capabilities: Option<u64>,
    /// Text of `/sys/kernel/security/lockdown`, if that file exists.
    pub lockdown: Option<String>,
    /// Required kernel functions that are missing.
    pub missing_functions: Vec<&'static str>,
    /// Whether the eBPF object is part of this build.
    pub object: bool,
}

fn error<S: serde::Serializer>(result: &Result<(), String>, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&result.as_ref().err(), serializer)
}

/// The names of the capabilities that matter to tcpmon.
fn names<S: serde::Serializer>(capabilities: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    let known = [
        (CAP_BPF, "CAP_BPF"),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
        (CAP_PERFMON, "CAP_PERFMON"),
        (CAP_SYS_ADMIN, "CAP_SYS_ADMIN"),
        (CAP_SYS_PTRACE, "CAP_SYS_PTRACE"),
        (CAP_SYSLOG, "CAP_SYSLOG"),
    ];
    let names = capabilities
        .map(|set| known.iter().filter(|(bit, _)| set >> bit & 1 != 0).map(|(_, name)| *name).collect::<Vec<_>>());
    serde::Serialize::serialize(&names, serializer)
}

/// One sentence: what is missing, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot run here: {missing}; {remedy}")]
pub struct CannotRun {
    /// What is missing.
    pub missing: String,
    /// What to do about it.
    pub remedy: String,
}

/// The remedy for a refusal whose reason tcpmon does not know.
const UNKNOWN: &str = "report this with the output of `uname -a`";

/// Bits of `linux/capability.h`.
pub const CAP_NET_ADMIN: u32 = 12;
/// Reading and entering what belongs to other processes.
pub const CAP_SYS_PTRACE: u32 = 19;
/// Includes what [`CAP_BPF`], [`CAP_PERFMON`] and [`CAP_NET_ADMIN`] allow, among much else.
pub const CAP_SYS_ADMIN: u32 = 21;
/// Reading the kernel log if `kernel.dmesg_restrict` is 1.
pub const CAP_SYSLOG: u32 = 34;
/// Programs that read kernel memory.
pub const CAP_PERFMON: u32 = 38;
/// Loading programs.
pub const CAP_BPF: u32 = 39;

/// The facts that can be found without loading anything, except those that need the kernel's types.
pub fn prerequisites() -> Prerequisites {
    Prerequisites {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        btf: fs::File::open(super::VMLINUX_BTF).map(drop).map_err(|error| error.to_string()),
        capabilities: fs::read_to_string("/proc/self/status").ok().as_deref().and_then(capabilities),
        lockdown: fs::read_to_string("/sys/kernel/security/lockdown").ok(),
        missing_functions: Vec::new(),
        object: !super::OBJECT.is_empty(),
    }
}

/// Decides from the facts alone.
///
/// # Errors
/// The first fact that prevents tcpmon from running here.
pub fn decide(facts: &Prerequisites) -> Result<(), CannotRun> {
    let refuse = |missing: String, remedy: &str| Err(CannotRun { missing, remedy: remedy.into() });
    if !facts.object {
        return refuse(
            "this binary was built without its eBPF programs".into(),
            "run `cargo xtask setup` and build again",
        );
    }
    if let Err(error) = &facts.btf {
        return refuse(
            format!("the kernel's type information {} cannot be read ({error})", super::VMLINUX_BTF),
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (5.15 or newer) and mount /sys",
        );
    }
    if let Some(bits) = facts.capabilities {
        let has = |capability: u32| bits >> capability & 1 == 1;
        if !has(CAP_SYS_ADMIN) {
            for (capability, name) in [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")] {
                if !has(capability) {
                    return refuse(
                        format!("the capability {name} is missing"),
                        "run as root, or with CAP_BPF and CAP_PERFMON (AmbientCapabilities= in a systemd unit)",
                    );
                }
            }
        }
    }
    if facts.lockdown.as_deref().is_some_and(|modes| modes.contains("[confidentiality]")) {
        return refuse(
            "the kernel is locked down in confidentiality mode, which forbids eBPF programs to read kernel memory"
                .into(),
            "boot with lockdown=integrity or without lockdown",
        );
    }
    if let Some(function) = facts.missing_functions.first() {
        let since = FUNCTIONS.iter().find(|(name, _)| name == function).map_or("5.15", |(_, since)| since);
        return refuse(
            format!("kernel {} is too old: it has no {function} (Linux {since})", facts.release),
            "tcpmon supports Linux 5.15 and newer",
        );
    }
    Ok(())
}

impl CannotRun {
    /// Whether the kernel refused because of a missing permission.
    pub fn is_denied(&self) -> bool {
        // Not EACCES: that is also how the verifier rejects a program.
        self.missing.contains("Operation not permitted") || self.missing.contains("os error 1)")
    }

    /// Whether the kernel may accept other programs for the same purpose: it lacks neither memory nor descriptors, nor
    /// does it forbid programs altogether.
    pub fn is_of_program(&self) -> bool {
        self.remedy == UNKNOWN
    }
}

/// Reports a refusal by the kernel in the same form.
pub fn refused(what: &str, error: &(dyn Error + 'static)) -> CannotRun {
    let allowed = prerequisites().capabilities.is_none_or(|bits| bits & (1 << CAP_SYS_ADMIN | 1 << CAP_BPF) != 0);
    let remedy = match system_error(error) {
        Some(libc::EPERM) if allowed => {
            "this kernel, its LSM policy or a seccomp filter forbids that even to root: allow it, or run another kernel"
        }
        Some(libc::EPERM) => "run as root, or with CAP_BPF and CAP_PERFMON (AmbientCapabilities= in a systemd unit)",
        Some(libc::ENOMEM) => {
            "give tcpmon more memory (MemoryMax= in a systemd unit), or lower max_sockets, max_readers or ring_bytes"
        }
        Some(libc::EMFILE) => "raise the limit of open files (LimitNOFILE= in a systemd unit, or `ulimit -n`)",
        Some(libc::ENFILE) => "raise fs.file-max",
        // A map is full. Only the maps of filters have entries that the command line chooses.
        Some(libc::E2BIG) => "choose fewer processes, names or ports",
        _ => UNKNOWN,
    };
    CannotRun { missing: format!("the kernel refused {what} ({})", reason(error)), remedy: remedy.into() }
}

/// The same for an operation on a map.
pub fn refused_map(name: &str, error: &MapError) -> CannotRun {
    refused(&format!("the map {name}"), error)
}

/// The number of the system's error behind this one.
fn system_error(error: &(dyn Error + 'static)) -> Option<i32> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
        None => error.source().and_then(system_error),
        number => number,
    }
}

/// The kernel's error, and the verifier's objection: one line of what may be thousands.
fn reason(error: &dyn Error) -> String {
    let mut reasons: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let (error_text, log) = text.split_once("Verifier output:").unwrap_or((&text, ""));
        let error_text = error_text.trim().trim_end_matches('.').to_owned();
        if !reasons.iter().any(|known| known.contains(&error_text)) {
            reasons.push(error_text);
        }
        // The log ends with statistics of the verifier, and aya appends the error once more.
        let is_objection = |line: &&str| {
            let is_statistics = ["processed ", "verification time ", "stack depth ", "peak_states ", ": "];
            !line.is_empty() && !is_statistics.iter().any(|start| line.starts_with(start))
        };
        reasons.extend(log.lines().map(str::trim).rfind(is_objection).map(str::to_owned));
        next = error.source();
    }
    reasons.join(": ")
}

/// Parses the line `CapEff` of `/proc/PID/status`.
fn capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    fn able() -> Prerequisites {
        Prerequisites {
            release: "6.12.0".into(),
            btf: Ok(()),
            capabilities: Some(1 << CAP_BPF | 1 << CAP_PERFMON),
            lockdown: Some("none [integrity] confidentiality\n".into()),
            missing_functions: Vec::new(),
            object: true,
        }
    }

    #[test]
    fn an_able_host_is_accepted_and_an_unknown_fact_does_not_refuse() {
        assert_eq!(decide(&able()), Ok(()));
        assert_eq!(decide(&Prerequisites { capabilities: None, lockdown: None, ..able() }), Ok(()));
        assert_eq!(decide(&Prerequisites { capabilities: Some(1 << CAP_SYS_ADMIN), ..able() }), Ok(()));
    }

    #[test]
    fn each_missing_thing_is_named_with_a_remedy() {
        let cases = [
            (Prerequisites { object: false, ..able() }, "eBPF programs", "cargo xtask setup"),
            (
                Prerequisites { btf: Err("No such file".into()), ..able() },
                "/sys/kernel/btf/vmlinux",
                "CONFIG_DEBUG_INFO_BTF",
            ),
            (Prerequisites { capabilities: Some(1 << CAP_BPF), ..able() }, "CAP_PERFMON", "AmbientCapabilities"),
            (Prerequisites { capabilities: Some(1 << CAP_PERFMON), ..able() }, "CAP_BPF", "run as root"),
            (
                Prerequisites { lockdown: Some("none integrity [confidentiality]".into()), ..able() },
                "locked down",
                "integrity",
            ),
            (Prerequisites { missing_functions: vec!["bpf_task_storage_get"], ..able() }, "5.13", "5.15"),
        ];
        for (facts, missing, remedy) in cases {
            let refusal = decide(&facts).expect_err("must refuse");
            assert!(refusal.missing.contains(missing), "{refusal}");
            assert!(refusal.remedy.contains(remedy), "{refusal}");
            assert!(!refusal.to_string().contains('\n'));
        }
    }

    #[test]
    fn a_refusal_is_one_line_with_the_error_and_what_the_verifier_objected_to() {
        let error = |text: &str| -> Box<dyn Error> { text.into() };
        let log = "the BPF_PROG_LOAD syscall returned Permission denied (os error 13). Verifier output: 0: R1=ctx()\n\
                   ; a line @ look.rs:1\nR1 invalid mem access 'scalar'\nverification time 12 usec\nstack depth 0+8\n\
                   processed 9 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n";
        assert_eq!(
            reason(&*error(log)),
            "the BPF_PROG_LOAD syscall returned Permission denied (os error 13): R1 invalid mem access 'scalar'"
        );
        let denied = "the BPF_PROG_LOAD syscall returned Operation not permitted (os error 1). Verifier output: \
                      processed 0 insns (limit 1000000)\n: Operation not permitted (os error 1)";
        let refusal = refused("the look", &*error(denied));
        assert!(refusal.is_denied() && !refusal.to_string().contains("insns"), "{refusal}");
        assert!(!refusal.to_string().contains('\n'), "{refusal}");
    }

    #[test]
    fn the_remedy_is_that_of_the_systems_error() {
        for (code, remedy) in [
            (libc::ENOMEM, "MemoryMax="),
            (libc::EMFILE, "LimitNOFILE="),
            (libc::E2BIG, "fewer processes"),
            (libc::EINVAL, "uname -a"),
        ] {
            let error = MapError::SyscallError(SyscallError { call: "bpf_map_create", io_error: error_of(code) });
            let refusal = refused_map("DROPS", &error);
            assert!(refusal.remedy.contains(remedy), "{refusal}");
            assert!(refusal.missing.starts_with("the kernel refused the map DROPS ("), "{refusal}");
            assert!(refusal.missing.contains(&error_of(code).to_string()) && !refusal.is_denied(), "{refusal}");
        }
        let denied = refused("it", &error_of(libc::EPERM));
        assert!(denied.is_denied() && !denied.remedy.contains("uname"), "{denied}");
    }

    fn error_of(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn effective_capabilities_are_read_from_status() {
        assert_eq!(capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(capabilities("Name:\tx\n"), None);
        assert_eq!(capabilities("CapEff: zz\n"), None);
    }
}
