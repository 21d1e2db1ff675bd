//! Loads the programs, attaches them, and seeds the sockets that are already open.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd},
};

use aya::{
    Btf as AyaBtf, Ebpf, EbpfLoader, Endianness,
    maps::{ArrayOfMaps, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf, Stack},
    programs::{BtfTracePoint, CgroupAttachMode, Iter, ProgramError, ProgramFd, SockOps},
};
use rustix::time::{ClockId, clock_gettime};
use tcpmon_common::{
    napi::NapiDevice,
    pass::RECORDS,
    reader::ReaderSlot,
    settings::{EPHEMERAL_RANGES, FILTER_CGROUPS, Layout, NO_PORTS, Settings},
    socket::{SOCKET_INDEXES, SOCKET_MAPS, SocketCounters},
};
use zerocopy::FromBytes;

use super::{
    OBJECT, VMLINUX_BTF,
    btf::Btf,
    drops::Drops,
    iterator::Iterator,
    layout,
    mapped::Mapped,
    pass::Shared,
    plan::{self, CALLBACK, PROBES},
    support::{self, CannotRun},
};
use crate::{
    host::cgroup,
    model::snapshot::{Probe, Verdict},
};

/// The remedy for a kernel that differs from what the programs are built for.
const REPORT: &str = "tcpmon supports Linux 5.15 and newer; report this with the output of `uname -a`";

/// What to load, and the sizes of the maps.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Trace what matches this filter, instead of folding everything.
    pub trace: Option<TraceFilter>,
    /// Reader threads that are followed at once.
    pub max_readers: u32,
    /// Pairs of socket and drop reason that are held at once.
    pub max_drop_entries: u32,
    /// Size of the ring buffer, bytes: a power of two of whole pages.
    pub ring_bytes: u32,
    /// Ranges of ports whose listening sockets count as if the kernel had chosen the port; at most
    /// [`EPHEMERAL_RANGES`].
    pub ephemeral_ports: Vec<RangeInclusive<u16>>,
}

/// What a trace is limited to: every kind of filter that is given must match, by at least one of its entries. Empty:
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Thread groups (what `ps` calls pids).
    pub tgids: BTreeSet<u32>,
    /// Names of thread groups, as in `/proc/PID/comm`.
    pub comms: BTreeSet<String>,
    /// Ports, local or remote.
    pub ports: BTreeSet<u16>,
    /// Control groups: id, and depth below the root.
    pub cgroups: Vec<(u64, u32)>,
}

/// Loading failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// tcpmon cannot run on this kernel or as this user.
    #[error(transparent)]
    CannotRun(#[from] CannotRun),
    /// An operation on a map failed.
    #[error("map {name}: {source}")]
    Map {
        /// Its name.
        name: &'static str,
        /// The error.
        source: MapError,
    },
    /// The snapshot or seeding iterator failed.
    #[error("iterator {name}: {source}")]
    Iterator {
        /// Its name.
        name: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// The loaded programs and their maps. They are removed from the kernel when this value is dropped.
pub struct Kernel {
    pub(super) ebpf: Ebpf,
    pub(super) ring: RingBuf<MapData>,
    pub(super) slots: Mapped<ReaderSlot>,
    pub(super) readers: aya::maps::Array<MapData, ReaderSlot>,
    pub(super) free_slots: Stack<MapData, u32>,
    pub(super) lost: PerCpuArray<MapData, u64>,
    pub(super) fallen: PerCpuArray<MapData, SocketCounters>,
    pub(super) drops: Drops,
    pub(super) napi: PerCpuArray<MapData, NapiDevice>,
    pub(super) limits: PerCpuArray<MapData, u64>,
    pub(super) ignored: PerCpuArray<MapData, u64>,
    pub(super) lives: PerCpuArray<MapData, u64>,
    /// The snapshot's iterators, one over each of the maps of sockets.
    pub(super) snapshot: Vec<Iterator>,
    pub(super) shared: Shared,
    pub(super) held_up: &'static [&'static str],
    probes: Vec<Probe>,
    drop_reasons: Vec<(u32, String)>,
    began_ns: u64,
    options: Options,
}

impl Kernel {
    /// Loads, attaches and seeds.
    ///
    /// # Errors
    /// [`LoadError::CannotRun`], in one sentence, if this kernel or this user does not allow it.
    pub fn load(options: Options) -> Result<Self, LoadError> {
        let mut facts = support::facts();
        support::decide(&facts)?;
        let bytes = fs::read(VMLINUX_BTF).map_err(|error| CannotRun {
            missing: format!("{VMLINUX_BTF} cannot be read ({error})"),
            remedy: "mount /sys".into(),
        })?;
        let btf = Btf::parse(&bytes).map_err(|error| CannotRun {
            missing: format!("{VMLINUX_BTF} cannot be understood ({error})"),
            remedy: "report this with the output of `uname -a`".into(),
        })?;
        facts.missing_functions =
            support::FUNCTIONS.iter().map(|(name, _)| *name).filter(|name| !btf.has_function(name)).collect();
        support::decide(&facts)?;
        let layout = layout::resolve(&btf).map_err(|missing| CannotRun {
            missing: format!("kernel {} has no {missing}", facts.release),
            remedy: REPORT.into(),
        })?;

        if let Some(missing) = plan::iterators_moved(&btf) {
            return Err(CannotRun { missing, remedy: REPORT.into() }.into());
        }

        let tracing = options.trace.is_some();
        let filter = options.trace.clone().unwrap_or_default();
        let settings = settings(&btf, layout, &filter, &options);
        let refused: Vec<Option<String>> = PROBES.iter().map(|probe| plan::unsupported(probe, &btf)).collect();
        let drop_reasons = layout::drop_reasons(&btf);
        let preemptible = plan::preemptible(&btf, &rustix::system::uname().version().to_string_lossy());

        let types = AyaBtf::parse(&bytes, Endianness::default())
            .map_err(|error| support::refused("its type information", &error))?;
        drop(bytes);
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&types))
            .allow_unsupported_maps()
            .override_global("SETTINGS", &settings, true)
            .map_max_entries("READERS", options.max_readers)
            .map_max_entries("FREE_SLOTS", options.max_readers)
            .map_max_entries("TRACED", if tracing { options.max_readers } else { 1 })
            .map_max_entries("DROPS", options.max_drop_entries)
            .map_max_entries("EVENTS", options.ring_bytes)
            .load(OBJECT)
            .map_err(|error| support::refused("tcpmon's maps", &error))?;

        fill_filters(&mut ebpf, &filter)?;
        let mut free_slots: Stack<MapData, u32> = take(&mut ebpf, "FREE_SLOTS")?;
        // The slot that is pushed last is taken first: low numbers are taken first, so that scans stay short.
        for slot in (0..options.max_readers).rev() {
            free_slots.push(slot, 0).map_err(|source| LoadError::Map { name: "FREE_SLOTS", source })?;
        }

        let walk = load_iterator(&mut ebpf, "snapshot", "bpf_sk_storage_map", &types)?;
        let snapshot = socket_maps(&mut ebpf)?
            .iter()
            .map(|map| iterate("snapshot", &walk, Some(map.fd().as_fd())))
            .collect::<Result<_, _>>()?;
        let seed = iterate("seed", &load_iterator(&mut ebpf, "seed", "task_file", &types)?, None)?;
        // Loading takes a while, attaching almost none. So all programs are loaded before the first is attached: they
        // all start to see events at nearly the same moment.
        let wanted = PROBES.iter().zip(refused).filter(|(probe, _)| if tracing { probe.trace } else { probe.daemon });
        let loaded =
            wanted.map(|(probe, refused)| load(&mut ebpf, probe, refused, &types)).collect::<Result<Vec<_>, _>>()?;
        let callback = (preemptible && !tracing).then(|| load_callback(&mut ebpf)).transpose()?;
        let mut probes = Vec::new();
        if let Some(callback) = callback {
            probes.push(attach_callback(&mut ebpf, callback)?);
        }
        let called_back = probes.iter().any(|probe| probe.verdict == Verdict::Attached);
        for (probe, verdict) in loaded {
            // The programs that watch sockets come and go are attached by now; those that update the states of open
            // sockets are not.
            if probe.name == "tcp_rcv_space_adjust" {
                drain(&seed, "seed")?;
            }
            probes.push(attach(&mut ebpf, probe, verdict)?);
        }

        let slots = map(&ebpf, "READERS", options.max_readers)?;
        let shared = Shared::new(
            map(&ebpf, "PASS", 1)?,
            map(&ebpf, "RECORDS", RECORDS)?,
            map(&ebpf, "MET", SOCKET_INDEXES / 64)?,
            map(&ebpf, "FELL", SOCKET_INDEXES / 8)?,
        );
        Ok(Self {
            ring: take(&mut ebpf, "EVENTS")?,
            slots,
            readers: take(&mut ebpf, "READERS")?,
            free_slots,
            lost: take(&mut ebpf, "LOST")?,
            fallen: take(&mut ebpf, "FALLEN")?,
            drops: Drops::new(ebpf.take_map("DROPS").expect("the object of this build has all its maps")),
            napi: take(&mut ebpf, "NAPI")?,
            limits: take(&mut ebpf, "LIMITS")?,
            ignored: take(&mut ebpf, "IGNORED")?,
            lives: take(&mut ebpf, "LIVES")?,
            snapshot,
            shared,
            held_up: plan::held_up(preemptible, called_back),
            probes,
            drop_reasons,
            began_ns: settings.began_ns,
            options,
            ebpf,
        })
    }

    /// The result for each probe.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The kernel's drop reasons by number.
    pub fn drop_reasons(&self) -> &[(u32, String)] {
        &self.drop_reasons
    }

    /// When tcpmon started, as passed to the programs: `CLOCK_MONOTONIC`, ns.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// The options with which it was loaded.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

fn settings(btf: &Btf<'_>, layout: Layout, filter: &TraceFilter, options: &Options) -> Settings {
    let mut settings = Settings {
        layout,
        trace: options.trace.is_some().into(),
        grow_announced: btf.tracepoint("tcp_rcvbuf_grow").is_some().into(),
        filter_tgids: (!filter.tgids.is_empty()).into(),
        filter_comms: (!filter.comms.is_empty()).into(),
        filter_ports: (!filter.ports.is_empty()).into(),
        filter_cgroups: filter.cgroups.len().min(FILTER_CGROUPS) as u32,
        delete_ended: plan::deletes_ended(btf).into(),
        padding: 0,
        began_ns: monotonic_ns(),
        cgroups: [0; FILTER_CGROUPS],
        cgroup_levels: [0; FILTER_CGROUPS],
        ephemeral_ports: [NO_PORTS; EPHEMERAL_RANGES],
    };
    for (to, range) in settings.ephemeral_ports.iter_mut().zip(&options.ephemeral_ports) {
        *to = [*range.start(), *range.end()];
    }
    for (i, (id, level)) in filter.cgroups.iter().take(FILTER_CGROUPS).enumerate() {
        settings.cgroups[i] = *id;
        settings.cgroup_levels[i] = *level;
    }
    settings
}

/// `CLOCK_MONOTONIC`, as the programs read it.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn fill_filters(ebpf: &mut Ebpf, filter: &TraceFilter) -> Result<(), LoadError> {
    let mut tgids: HashMap<_, u32, u8> = filter_map(ebpf, "FILTER_TGIDS")?;
    for tgid in &filter.tgids {
        tgids.insert(tgid, 1, 0).map_err(|source| LoadError::Map { name: "FILTER_TGIDS", source })?;
    }
    let mut comms: HashMap<_, [u8; 16], u8> = filter_map(ebpf, "FILTER_COMMS")?;
    for comm in &filter.comms {
        // The kernel keeps 15 bytes and a terminating zero.
        let mut key = [0; 16];
        for (to, from) in key.iter_mut().zip(comm.bytes().take(15)) {
            *to = from;
        }
        comms.insert(key, 1, 0).map_err(|source| LoadError::Map { name: "FILTER_COMMS", source })?;
    }
    let mut ports: HashMap<_, u32, u8> = filter_map(ebpf, "FILTER_PORTS")?;
    for port in &filter.ports {
        ports.insert(u32::from(*port), 1, 0).map_err(|source| LoadError::Map { name: "FILTER_PORTS", source })?;
    }
    Ok(())
}

/// A filter map. It stays in the object, because the programs that use it are not loaded yet.
fn filter_map<'a, K: aya::Pod>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<HashMap<&'a mut MapData, K, u8>, LoadError> {
    let map = ebpf.map_mut(name).expect("the object of this build has all its maps");
    HashMap::try_from(map).map_err(|source| LoadError::Map { name, source })
}

/// Takes a map out of the object, as its type.
fn take<T: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, LoadError> {
    let map = ebpf.take_map(name).expect("the object of this build has all its maps");
    T::try_from(map).map_err(|source| LoadError::Map { name, source })
}

/// Maps an array of the object into this process.
fn map<T: FromBytes + Copy>(ebpf: &Ebpf, name: &'static str, count: u32) -> Result<Mapped<T>, LoadError> {
    let Some(Map::Array(array)) = ebpf.map(name) else {
        unreachable!("the object of this build has {name} as an array");
    };
    Mapped::map(array.fd().as_fd(), count as usize)
        .map_err(|error| support::refused(&format!("to map {name}"), &error).into())
}

/// Puts the maps of sockets into the array in which the programs find them.
fn socket_maps(ebpf: &mut Ebpf) -> Result<Vec<MapData>, LoadError> {
    let map = |number| match ebpf.take_map(&format!("SOCKETS_{number}")) {
        Some(Map::SkStorage(map)) => map,
        _ => unreachable!("the object of this build has {SOCKET_MAPS} maps of sockets"),
    };
    let maps: Vec<MapData> = (0..SOCKET_MAPS).map(map).collect();
    // The array stays in the object, because the programs are not loaded yet.
    let array = ebpf.map_mut("SOCKETS").expect("the object of this build has all its maps");
    ArrayOfMaps::<_, MapData>::try_from(array)
        .and_then(|mut array| (0..).zip(&maps).try_for_each(|(number, map)| array.set(number, map, 0)))
        .map_err(|source| LoadError::Map { name: "SOCKETS", source })?;
    Ok(maps)
}

fn load_iterator(
    ebpf: &mut Ebpf,
    program: &'static str,
    target: &'static str,
    types: &AyaBtf,
) -> Result<ProgramFd, LoadError> {
    let what = format!("the iterator {target}");
    let iter: &mut Iter = ebpf
        .program_mut(program)
        .expect("the object of this build has its iterators")
        .try_into()
        .map_err(|error: ProgramError| support::refused(&what, &error))?;
    iter.load(target, types).map_err(|error| support::refused(&what, &error))?;
    let fd = iter.fd().map_err(|error| support::refused(&what, &error))?.try_clone();
    Ok(fd.map_err(|error| support::refused(&what, &error))?)
}

fn iterate(name: &'static str, program: &ProgramFd, over: Option<BorrowedFd<'_>>) -> Result<Iterator, LoadError> {
    Iterator::attach(program.as_fd(), over).map_err(|source| LoadError::Iterator { name, source })
}

/// Runs an iterator that prints nothing to its end.
fn drain(iterator: &Iterator, name: &'static str) -> Result<(), LoadError> {
    iterator
        .open()
        .and_then(|mut file| io::copy(&mut file, &mut io::sink()))
        .map(drop)
        .map_err(|source| LoadError::Iterator { name, source })
}

/// Loads the programs of a probe. If this kernel refuses an optional probe, the verdict reports that.
fn load(
    ebpf: &mut Ebpf,
    probe: &'static plan::Probe,
    unsupported: Option<String>,
    types: &AyaBtf,
) -> Result<(&'static plan::Probe, Probe), LoadError> {
    if let Some(reason) = unsupported {
        if probe.required {
            return Err(CannotRun { missing: reason, remedy: REPORT.into() }.into());
        }
        return Ok((probe, verdict(probe, Verdict::Unsupported, reason)));
    }
    let loaded = probe.programs().try_for_each(|name| program(ebpf, name)?.load(probe.name, types));
    match loaded {
        Ok(()) => Ok((probe, verdict(probe, Verdict::Attached, String::new()))),
        Err(error) => Ok((probe, broken(probe, &error)?)),
    }
}

/// Attaches a probe that was loaded, and changes its verdict if that fails.
fn attach(ebpf: &mut Ebpf, probe: &plan::Probe, verdict: Probe) -> Result<Probe, LoadError> {
    if verdict.verdict != Verdict::Attached {
        return Ok(verdict);
    }
    let attached = probe.programs().try_for_each(|name| program(ebpf, name)?.attach().map(drop));
    match attached {
        Ok(()) => Ok(verdict),
        Err(error) => broken(probe, &error),
    }
}

fn load_callback(ebpf: &mut Ebpf) -> Result<Probe, LoadError> {
    match callback(ebpf).and_then(SockOps::load) {
        Ok(()) => Ok(verdict(&CALLBACK, Verdict::Attached, String::new())),
        Err(error) => broken(&CALLBACK, &error),
    }
}

/// Attaches the sock_ops program to the root of the visible control groups, for all sockets below it.
fn attach_callback(ebpf: &mut Ebpf, loaded: Probe) -> Result<Probe, LoadError> {
    if loaded.verdict != Verdict::Attached {
        return Ok(loaded);
    }
    let root = cgroup::root().map_err(|error| error.to_string());
    let root = match root.and_then(|root| File::open(&root).map_err(|error| format!("{}: {error}", root.display()))) {
        Ok(root) => root,
        Err(reason) => return Ok(verdict(&CALLBACK, Verdict::Unsupported, reason)),
    };
    // The sock_ops programs of others stay attached: a link never takes a control group exclusively.
    match callback(ebpf).and_then(|program| program.attach(root, CgroupAttachMode::Single)) {
        Ok(_) => Ok(loaded),
        Err(error) => broken(&CALLBACK, &error),
    }
}

fn callback(ebpf: &mut Ebpf) -> Result<&mut SockOps, ProgramError> {
    ebpf.program_mut(CALLBACK.name).expect("the object of this build has the callback").try_into()
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint, ProgramError> {
    ebpf.program_mut(name).expect("the object of this build has the programs of each probe").try_into()
}

/// The result for a probe that the kernel refused although it should offer it.
fn broken(probe: &plan::Probe, error: &ProgramError) -> Result<Probe, LoadError> {
    let refusal = support::refused(&format!("the program on {}", probe.name), error);
    if probe.required { Err(refusal.into()) } else { Ok(verdict(probe, Verdict::Broken, refusal.missing)) }
}

fn verdict(probe: &plan::Probe, verdict: Verdict, reason: String) -> Probe {
    let reason = if reason.is_empty() { reason } else { format!("{reason}: {}", probe.lost_without) };
    Probe { name: probe.name.into(), verdict, reason }
}
