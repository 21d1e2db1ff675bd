//! Loads and attaches the programs of each probe, and the iterator.

use std::fs::File;

use aya::{
    Btf as KernelTypes, Ebpf,
    programs::{BtfTracePoint, CgroupAttachMode, Iter, ProgramError, SockOps, iter::IterLink},
};
use tcpmon_btf::plan::{Hook, Probe};

use super::{
    iterator,
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
    /// Loads the programs of a probe, unless there is a reason why not. If the kernel refuses an optional probe, the
    /// status reports that.
    pub fn load(
        ebpf: &mut Ebpf,
        probe: &'static Probe,
        why_not: Option<(Verdict, String)>,
        types: &KernelTypes,
    ) -> Result<Self, LoadError> {
        if let Some((verdict, reason)) = why_not {
            if probe.required && verdict != Verdict::SwitchedOff {
                return Err(CannotRun { missing: reason, remedy: REPORT.into() }.into());
            }
            return Ok(Self { probe, status: status(probe, verdict, reason) });
        }
        let loaded = match probe.hook {
            Hook::Tracepoint => probe.programs().try_for_each(|name| tracepoint(ebpf, name)?.load(probe.name, types)),
            Hook::RootCgroup => sock_ops(ebpf, probe).and_then(SockOps::load),
        };
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
        let attached = match probe.hook {
            Hook::Tracepoint => probe.programs().try_for_each(|name| tracepoint(ebpf, name)?.attach().map(drop)),
            Hook::RootCgroup => match open_root_cgroup() {
                // The sock_ops programs of others stay attached: a link never takes a control group exclusively.
                Ok(root) => {
                    sock_ops(ebpf, probe).and_then(|program| program.attach(root, CgroupAttachMode::Single).map(drop))
                }
                Err(reason) => return Ok(self::status(probe, Verdict::Unsupported, reason)),
            },
        };
        match attached {
            Ok(()) => Ok(status),
            Err(error) => broken(probe, &error),
        }
    }
}

/// Opens the root of the visible control groups: a program there sees all sockets below it.
fn open_root_cgroup() -> Result<File, String> {
    let root = cgroup::root().map_err(|error| error.to_string())?;
    File::open(&root).map_err(|error| format!("{}: {error}", root.display()))
}

fn sock_ops<'a>(ebpf: &'a mut Ebpf, probe: &Probe) -> Result<&'a mut SockOps, ProgramError> {
    ebpf.program_mut(probe.name).expect("the object of this build has the sock_ops program").try_into()
}

fn tracepoint<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint, ProgramError> {
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

/// Runs the iterator that starts to watch the sockets that are open.
pub fn seed(ebpf: &mut Ebpf, types: &KernelTypes) -> Result<impl FnOnce() -> Result<(), CannotRun> + use<>, CannotRun> {
    let what = "the iterator task_file";
    let program = ebpf.program_mut("seed").expect("the object of this build has its iterator");
    let mut load = || -> Result<IterLink, ProgramError> {
        let iter: &mut Iter = program.try_into()?;
        iter.load("task_file", types)?;
        let link = iter.attach()?;
        iter.take_link(link)
    };
    let link = load().map_err(|error| refused(what, &error))?;
    Ok(move || {
        let file = link.into_file().map_err(|error| refused(what, &error))?;
        // It writes nothing: reading it to its end runs the program for every open file.
        iterator::read(file).map(drop).map_err(|error| refused(what, &error))
    })
}
