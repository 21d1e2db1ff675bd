//! Loads and attaches the programs of each probe, and the iterator.

use std::{
    collections::HashMap,
    fs::File,
    num::NonZero,
    sync::{Mutex, PoisonError},
    thread,
};

use aya::{
    Btf as KernelTypes, Ebpf,
    programs::{BtfTracePoint, CgroupAttachMode, Iter, Program, ProgramError, SockOps, iter::IterLink},
};
use tcpmon_btf::plan::{Hook, Probe};

use super::{
    cookies, iterator,
    loader::REPORT,
    support::{CannotRun, refused},
};
use crate::{
    host::cgroup,
    status::{ProbeStatus, Verdict},
};

/// A probe whose programs are loaded, or that cannot run here.
pub struct Loaded {
    probe: &'static Probe,
    status: ProbeStatus,
}

/// A probe, and if it must not be attached, why not.
pub type PlannedProbe = (&'static Probe, Option<(Verdict, String)>);

/// A program to be loaded, and the number of the probe that it belongs to.
type Job<'a> = (usize, &'a mut Program);

impl Loaded {
    /// Loads the programs of the probes, except those with a reason not to. If the kernel refuses an optional probe,
    /// its status reports that.
    pub fn load_all(ebpf: &mut Ebpf, probes: &[PlannedProbe], types: &KernelTypes) -> Result<Vec<Self>, CannotRun> {
        let mut programs: HashMap<_, _> = ebpf.programs_mut().collect();
        let mut jobs = Vec::new();
        for (number, (probe, why_not)) in probes.iter().enumerate() {
            match why_not {
                Some((verdict, reason)) if probe.required && *verdict != Verdict::SwitchedOff => {
                    return Err(CannotRun { missing: reason.clone(), remedy: REPORT.into() });
                }
                Some(_) => {}
                None => jobs.extend(probe.programs().map(|name| {
                    (number, programs.remove(name).expect("the object of this build has the programs of each probe"))
                })),
            }
        }
        let mut errors = load_at_once(jobs, probes, types);
        let loaded = probes.iter().enumerate().map(|(number, (probe, why_not))| {
            let status = match (why_not, errors.remove(&number)) {
                (Some((verdict, reason)), _) => status(probe, *verdict, reason.clone()),
                (None, None) => status(probe, Verdict::Attached, String::new()),
                (None, Some(error)) => broken(probe, &error)?,
            };
            Ok(Self { probe, status })
        });
        loaded.collect()
    }

    /// See [`Probe::sees_lifecycle`].
    pub fn sees_lifecycle(&self) -> bool {
        self.probe.sees_lifecycle
    }

    /// Attaches what was loaded; the status says so if that fails.
    pub fn attach(self, ebpf: &mut Ebpf) -> Result<ProbeStatus, CannotRun> {
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

/// Loads the programs on as many threads as there are CPUs, because the kernel takes up to a tenth of a second to
/// verify one. Returns the errors by the number of the probe.
fn load_at_once(jobs: Vec<Job<'_>>, probes: &[PlannedProbe], types: &KernelTypes) -> HashMap<usize, ProgramError> {
    let others = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len()).saturating_sub(1);
    let (jobs, errors) = (Mutex::new(jobs), Mutex::new(HashMap::new()));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || {
        while let Some((number, program)) = next() {
            if let Err(error) = load(program, probes[number].0, types) {
                errors.lock().unwrap_or_else(PoisonError::into_inner).insert(number, error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            // If no thread can be started, this one loads what is left.
            let _ = thread::Builder::new().name("loader".into()).spawn_scoped(scope, work);
        }
        work();
    });
    errors.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn load(program: &mut Program, probe: &Probe, types: &KernelTypes) -> Result<(), ProgramError> {
    match probe.hook {
        Hook::Tracepoint => <&mut BtfTracePoint>::try_from(program)?.load(probe.name, types),
        Hook::RootCgroup => <&mut SockOps>::try_from(program)?.load(),
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
fn broken(probe: &Probe, error: &ProgramError) -> Result<ProbeStatus, CannotRun> {
    let refusal = refused(&format!("the program on {}", probe.name), error);
    if probe.required { Err(refusal) } else { Ok(status(probe, Verdict::Broken, refusal.missing)) }
}

fn status(probe: &Probe, verdict: Verdict, reason: String) -> ProbeStatus {
    let reason = if reason.is_empty() { reason } else { format!("{reason}: {}", probe.lost_without) };
    ProbeStatus { name: probe.name.into(), verdict, reason }
}

/// Runs the iterator that starts to watch the sockets that are open.
///
/// The verifier of some kernels lets no program pass the socket of a file to a helper. Then no program can create the
/// cookie of such a socket, and tcpmon asks each socket for it before.
pub fn seed(ebpf: &mut Ebpf, types: &KernelTypes) -> Result<impl FnOnce() -> Result<(), CannotRun> + use<>, CannotRun> {
    let what = "the iterator task_file";
    let mut load = |name| -> Result<IterLink, ProgramError> {
        let program = ebpf.program_mut(name).expect("the object of this build has these iterators");
        let iter: &mut Iter = program.try_into()?;
        iter.load("task_file", types)?;
        let link = iter.attach()?;
        iter.take_link(link)
    };
    let loaded = match load("seed") {
        Ok(seed) => Ok((seed, None)),
        Err(_) => load("seed_with_cookies").and_then(|seed| Ok((seed, Some(load("without_cookie")?)))),
    };
    let (seed, without_cookie) = loaded.map_err(|error| refused(what, &error))?;
    Ok(move || {
        let read = |link: IterLink| {
            let file = link.into_file().map_err(|error| refused(what, &error))?;
            iterator::read(file).map_err(|error| refused(what, &error))
        };
        if let Some(link) = without_cookie {
            cookies::create(&iterator::records(&read(link)?));
        }
        // It writes nothing: reading it to its end runs the program for every open file.
        read(seed).map(drop)
    })
}
