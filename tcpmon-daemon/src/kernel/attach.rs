//! Loads and attaches the programs of each probe, and the iterators.

use std::fs::File;

use aya::{
    Btf as KernelTypes, Ebpf,
    programs::{BtfTracePoint, CgroupAttachMode, Iter, ProgramError, ProgramFd, SockOps},
};
use tcpmon_btf::plan::{Probe, SOCK_OPS};

use super::{
    loader::{LoadError, REPORT},
    support::{CannotRun, refused},
};
use crate::{
    host::cgroup,
    model::snapshot::{ProbeStatus, Verdict},
};

/// A probe whose programs are loaded, or that has been found impossible here.
pub struct Loaded {
    probe: &'static Probe,
    status: ProbeStatus,
}

impl Loaded {
    /// Loads the programs of a probe. `unsupported`: why this kernel cannot have the probe, if it cannot. If the kernel
    /// refuses an optional probe, the status reports that.
    pub fn load(
        ebpf: &mut Ebpf,
        probe: &'static Probe,
        unsupported: Option<String>,
        types: &KernelTypes,
    ) -> Result<Self, LoadError> {
        if let Some(reason) = unsupported {
            if probe.required {
                return Err(CannotRun { missing: reason, remedy: REPORT.into() }.into());
            }
            return Ok(Self { probe, status: status(probe, Verdict::Unsupported, reason) });
        }
        let loaded = probe.programs().try_for_each(|name| program(ebpf, name)?.load(probe.name, types));
        Self::from_result(probe, loaded)
    }

    /// Loads the sock_ops program.
    pub fn load_sock_ops(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let loaded = sock_ops(ebpf).and_then(SockOps::load);
        Self::from_result(&SOCK_OPS, loaded)
    }

    fn from_result(probe: &'static Probe, loaded: Result<(), ProgramError>) -> Result<Self, LoadError> {
        let status = match loaded {
            Ok(()) => status(probe, Verdict::Attached, String::new()),
            Err(error) => broken(probe, &error)?,
        };
        Ok(Self { probe, status })
    }

    /// See [`Probe::sees_lifecycle`].
    pub fn sees_lifecycle(&self) -> bool {
        self.probe.sees_lifecycle
    }

    /// Attaches what was loaded; the status says so if that fails.
    pub fn attach(self, ebpf: &mut Ebpf) -> Result<ProbeStatus, LoadError> {
        let Self { probe, status } = self;
        if status.verdict != Verdict::Attached {
            return Ok(status);
        }
        if probe.name == SOCK_OPS.name {
            return attach_sock_ops(ebpf, status);
        }
        match probe.programs().try_for_each(|name| program(ebpf, name)?.attach().map(drop)) {
            Ok(()) => Ok(status),
            Err(error) => broken(probe, &error),
        }
    }
}

/// Attaches the sock_ops program to the root of the visible control groups, for all sockets below it.
fn attach_sock_ops(ebpf: &mut Ebpf, loaded: ProbeStatus) -> Result<ProbeStatus, LoadError> {
    let root = cgroup::root().map_err(|error| error.to_string());
    let root = match root.and_then(|root| File::open(&root).map_err(|error| format!("{}: {error}", root.display()))) {
        Ok(root) => root,
        Err(reason) => return Ok(status(&SOCK_OPS, Verdict::Unsupported, reason)),
    };
    // The sock_ops programs of others stay attached: a link never takes a control group exclusively.
    match sock_ops(ebpf).and_then(|program| program.attach(root, CgroupAttachMode::Single)) {
        Ok(_) => Ok(loaded),
        Err(error) => broken(&SOCK_OPS, &error),
    }
}

fn sock_ops(ebpf: &mut Ebpf) -> Result<&mut SockOps, ProgramError> {
    ebpf.program_mut(SOCK_OPS.name).expect("the object of this build has the sock_ops program").try_into()
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint, ProgramError> {
    ebpf.program_mut(name).expect("the object of this build has the programs of each probe").try_into()
}

/// The status of a probe that the kernel refused although it should offer it.
fn broken(probe: &Probe, error: &ProgramError) -> Result<ProbeStatus, LoadError> {
    let refusal = refused(&format!("the program on {}", probe.name), error);
    if probe.required { Err(refusal.into()) } else { Ok(status(probe, Verdict::Broken, refusal.missing)) }
}

fn status(probe: &Probe, verdict: Verdict, reason: String) -> ProbeStatus {
    let reason = if reason.is_empty() { reason } else { format!("{reason}: {}", probe.lost_without) };
    ProbeStatus { name: probe.name.into(), verdict, reason }
}

/// Loads the program of an iterator over `target`.
pub fn load_iterator(
    ebpf: &mut Ebpf,
    program: &'static str,
    target: &'static str,
    types: &KernelTypes,
) -> Result<ProgramFd, LoadError> {
    let what = format!("the iterator {target}");
    let iter: &mut Iter = ebpf
        .program_mut(program)
        .expect("the object of this build has its iterators")
        .try_into()
        .map_err(|error: ProgramError| refused(&what, &error))?;
    iter.load(target, types).map_err(|error| refused(&what, &error))?;
    let fd = iter.fd().map_err(|error| refused(&what, &error))?.try_clone();
    Ok(fd.map_err(|error| refused(&what, &error))?)
}
