//! Loads the programs, attaches them, and seeds the sockets that are already open.

use std::{
    error::Error,
    fs, io,
    ops::{Range, RangeInclusive},
    os::fd::AsFd,
};

use aya::{
    Btf as KernelTypes, Ebpf, EbpfLoader, Endianness,
    maps::{Array, Map, MapData, MapError, PerCpuArray, RingBuf, Stack},
};
use tcpmon_btf::{
    Btf, layout,
    plan::{self, EXIT, FORK, PROBES, Probe, SOCK_OPS, SWITCH},
};
use tcpmon_common::{
    look::LOOKS,
    napi::NapiDevice,
    reader::{ReaderSlot, UNUSED_PLACES, UNUSED_SLOTS},
    settings::{
        EPHEMERAL_RANGES, FILTER_CGROUPS, Layout, NO_PORTS, Settings, TRACE_NONE, TRACE_TIMESLICES, TRACE_TOTALS,
    },
    timeslice::KEPT_SOCKETS,
};
use zerocopy::{FromBytes, IntoBytes as _};

use super::{
    OBJECT, TraceFilter, VMLINUX_BTF,
    attach::{Loaded, PlannedProbe, seed},
    drops::Drops,
    filter::FOLLOWED,
    look::Looker,
    mapped::Mapped,
    owners::Owners,
    patch,
    store::{self, Grower, Placer, Store},
    support::{self, CannotRun, Prerequisites},
};
use crate::{
    clock::monotonic_ns,
    host::tcp_memory,
    status::{ProbeStatus, Verdict},
};

/// The remedy for a kernel that differs from what the programs are built for.
pub const REPORT: &str = "tcpmon supports Linux 5.15 and newer; report this with the output of `uname -a`";

/// Number of places for sockets that the traced readers do not keep from timeslice to timeslice: enough for 16 event
/// loops that each read as many as a timeslice can have.
const FURTHER_PLACES: u32 = 16 * 1024;

/// Maximum number of processes that a trace can be limited to.
const MAX_TGIDS: u32 = 1024;

/// What to load, and the sizes of the maps.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Trace what matches this filter, instead of folding everything.
    pub trace: Option<TraceFilter>,
    /// Sockets that are watched at once.
    pub max_sockets: u32,
    /// Reader threads that are followed at once.
    pub max_readers: u32,
    /// Pairs of socket and drop reason that are held at once.
    pub max_drop_entries: u32,
    /// Whether a trace counts drops; the daemon always does.
    pub drops: bool,
    /// Size of the ring buffer, bytes: a power of two of whole pages.
    pub ring_bytes: u32,
    /// Ranges of ports whose listening sockets count as if the kernel had chosen the port; at most
    /// [`EPHEMERAL_RANGES`].
    pub ephemeral_ports: Vec<RangeInclusive<u16>>,
    /// Probes that are not attached although the kernel has them, by their names.
    pub switched_off: Vec<&'static str>,
}

/// The probe that counts drops.
const DROP: &str = "kfree_skb";

/// The loaded programs and their maps. They are removed from the kernel when this value is dropped.
pub struct Kernel {
    pub(super) ebpf: Ebpf,
    pub(super) ring: RingBuf<MapData>,
    pub(super) slots: Mapped<ReaderSlot>,
    pub(super) readers: aya::maps::Array<MapData, ReaderSlot>,
    pub(super) free_slots: Stack<MapData, u32>,
    pub(super) lost: PerCpuArray<MapData, u64>,
    pub(super) drops: Drops,
    pub(super) napi: PerCpuArray<MapData, NapiDevice>,
    pub(super) memory_limits: PerCpuArray<MapData, u64>,
    pub(super) ignored: PerCpuArray<MapData, u64>,
    pub(super) connections: PerCpuArray<MapData, u64>,
    pub(super) store: Store,
    /// `None` if the kernel does not let a program look at sockets.
    pub(super) looker: Option<Looker>,
    /// `None` in a trace, and if the kernel does not let a program see which processes have sockets open.
    pub(super) owners: Option<Owners>,
    /// Copies of states that were given up because an event did not end.
    pub(super) copies_given_up: u64,
    grower: Option<Grower>,
    /// See [`plan::both_preemptible`].
    pub(super) both_preemptible: &'static [&'static str],
    probes: Vec<ProbeStatus>,
    drop_reasons: Vec<(u32, String)>,
    began_ns: u64,
    options: Options,
}

/// What was found out from the running kernel's types.
struct Plan {
    settings: Settings,
    /// The probes of this mode.
    probes: Vec<PlannedProbe>,
    drop_reasons: Vec<(u32, String)>,
    preemptible: bool,
    /// BTF id of the kernel function that casts, if there is one.
    cast: Option<u32>,
    /// The kernel's types in aya's form.
    types: KernelTypes,
}

impl Kernel {
    /// Loads, attaches and seeds.
    ///
    /// # Errors
    /// In one sentence, if this kernel or this user does not allow it.
    pub fn load(options: Options) -> Result<Self, CannotRun> {
        let plan = Plan::of_running_kernel(&options)?;
        patch::first_that_loads(plan.cast, |cast| Self::load_with(&plan, cast, options.clone()))
    }

    fn load_with(plan: &Plan, cast: Option<u32>, options: Options) -> Result<Self, CannotRun> {
        let mut ebpf = create_maps(plan, cast, &options, true)?;
        let looks = map(&ebpf, "LOOKS", LOOKS)?;
        let (looker, look) = match Looker::load(&mut ebpf, looks, cast.is_some()) {
            Ok(looker) => (Some(looker), ProbeStatus::attached(LOOK)),
            Err(error) => {
                ebpf = create_maps(plan, cast, &options, false)?;
                (None, without_look(&*error))
            }
        };
        let states = ebpf.take_map("STATES").expect("the object of this build has all its maps");
        let (store, grower) =
            Store::new(states, array(&ebpf, "STORE").fd().as_fd(), options.max_sockets, sockets_now())
                .map_err(|error| support::refused("memory for the states of sockets", &error))?;
        options.trace.iter().try_for_each(|filter| filter.write(&mut ebpf))?;
        let first_place = options.max_readers * KEPT_SOCKETS as u32;
        set_unused(&mut ebpf, UNUSED_SLOTS, 0..options.max_readers)?;
        set_unused(&mut ebpf, UNUSED_PLACES, first_place..first_place + FURTHER_PLACES)?;

        let mut probes = attach_all(&mut ebpf, plan)?;
        probes.push(look);
        let mut owners = None;
        if options.trace.is_none() {
            let loaded = Owners::load(&mut ebpf, &plan.types);
            probes
                .push(loaded.as_ref().map_or_else(|error| without_owners(&**error), |_| ProbeStatus::attached(OWNERS)));
            owners = loaded.ok();
        }
        let sock_ops = is_attached(&probes, &SOCK_OPS);

        Ok(Self {
            ring: take_map(&mut ebpf, "EVENTS")?,
            slots: map(&ebpf, "READERS", options.max_readers)?,
            readers: take_map(&mut ebpf, "READERS")?,
            free_slots: take_map(&mut ebpf, "FREE_SLOTS")?,
            lost: take_map(&mut ebpf, "LOST")?,
            drops: Drops::new(ebpf.take_map("DROPS").expect("the object of this build has all its maps")),
            napi: take_map(&mut ebpf, "NAPI")?,
            memory_limits: take_map(&mut ebpf, "MEMORY_LIMITS")?,
            ignored: take_map(&mut ebpf, "IGNORED")?,
            connections: take_map(&mut ebpf, "CONNECTIONS")?,
            store,
            looker,
            owners,
            copies_given_up: 0,
            grower: Some(grower),
            both_preemptible: plan::both_preemptible(plan.preemptible, sock_ops),
            probes,
            drop_reasons: plan.drop_reasons.clone(),
            began_ns: plan.settings.began_ns,
            options,
            ebpf,
        })
    }

    /// The grower and the placer, which make room for more sockets even while the owner of this value does nothing:
    /// each needs a thread that keeps `CAP_BPF`. They end when this value is dropped. `None` after the first call.
    ///
    /// # Errors
    /// If no file descriptors are left.
    pub fn grower(&mut self) -> io::Result<Option<(Grower, Placer)>> {
        let Some(grower) = self.grower.take() else { return Ok(None) };
        let ring = self.ring()?;
        grower.prepare(ring).map(Some)
    }

    /// The status of each probe.
    pub fn probes(&self) -> &[ProbeStatus] {
        &self.probes
    }

    /// Whether a probe is attached.
    pub fn is_attached(&self, probe: &Probe) -> bool {
        is_attached(&self.probes, probe)
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

/// What is checked before the programs are loaded, with the kernel functions that are missing.
pub fn prerequisites() -> Prerequisites {
    let mut facts = support::prerequisites();
    let types = fs::read(VMLINUX_BTF).unwrap_or_default();
    if let Ok(btf) = Btf::parse(&types) {
        facts.missing_functions = plan::missing_functions(&btf);
    }
    facts
}

impl Plan {
    fn of_running_kernel(options: &Options) -> Result<Self, CannotRun> {
        let mut facts = support::prerequisites();
        support::decide(&facts)?;
        let bytes = fs::read(VMLINUX_BTF).map_err(|error| CannotRun {
            missing: format!("{VMLINUX_BTF} cannot be read ({error})"),
            remedy: "mount /sys".into(),
        })?;
        let btf = Btf::parse(&bytes).map_err(|error| CannotRun {
            missing: format!("{VMLINUX_BTF} is not valid ({error})"),
            remedy: "report this with the output of `uname -a`".into(),
        })?;
        facts.missing_functions = plan::missing_functions(&btf);
        support::decide(&facts)?;
        let layout = resolve(&btf, &facts)?;

        let preemptible = plan::preemptible(&btf, &rustix::system::uname().version().to_string_lossy());
        let sock_ops = [&SOCK_OPS].into_iter().filter(|_| preemptible);
        let wanted = sock_ops.chain(&PROBES).filter(|probe| match options.trace {
            Some(_) => probe.trace || options.drops && probe.name == DROP,
            None => probe.daemon,
        });
        let wanted = wanted.filter(|probe| match **probe {
            FORK => follows(options),
            EXIT => is_switched_off(&SWITCH, options),
            _ => true,
        });
        Ok(Self {
            settings: settings(&btf, layout, options),
            probes: wanted.map(|probe| (probe, why_not(probe, options, &btf))).collect(),
            drop_reasons: layout::drop_reasons(&btf),
            preemptible,
            cast: plan::cast_function(&btf),
            types: KernelTypes::parse(&bytes, Endianness::default())
                .map_err(|error| support::refused("its type information", &error))?,
        })
    }
}

/// Why a probe must not be attached; `None` if it may be.
fn why_not(probe: &Probe, options: &Options, btf: &Btf<'_>) -> Option<(Verdict, String)> {
    if is_switched_off(probe, options) {
        return Some((Verdict::SwitchedOff, format!("switched off by probes.{}", probe.name)));
    }
    plan::unsupported(probe, btf).map(|reason| (Verdict::Unsupported, reason))
}

fn is_switched_off(probe: &Probe, options: &Options) -> bool {
    options.switched_off.contains(&probe.name)
}

fn is_attached(probes: &[ProbeStatus], probe: &Probe) -> bool {
    probes.iter().any(|status| status.name == probe.name && status.verdict == Verdict::Attached)
}

/// The offsets that the programs need. An error if the kernel lacks one, or if the fields that it passes to the
/// iterator are not where the iterator's program expects them.
fn resolve(btf: &Btf<'_>, facts: &Prerequisites) -> Result<Layout, CannotRun> {
    let layout = layout::resolve(btf).map_err(|missing| CannotRun {
        missing: format!("kernel {} has no {missing}", facts.release),
        remedy: REPORT.into(),
    })?;
    match plan::iterator_moved(btf) {
        Some(missing) => Err(CannotRun { missing, remedy: REPORT.into() }),
        None => Ok(layout),
    }
}

fn settings(btf: &Btf<'_>, layout: Layout, options: &Options) -> Settings {
    let filter = options.trace.clone().unwrap_or_default();
    let mut settings = Settings {
        layout,
        trace: match &options.trace {
            None => TRACE_NONE,
            Some(filter) if filter.totals_only => TRACE_TOTALS,
            Some(_) => TRACE_TIMESLICES,
        },
        grow_announced: btf.tracepoint("tcp_rcvbuf_grow").is_some().into(),
        timeslices: (!is_switched_off(&SWITCH, options)).into(),
        filter_tgids: (!filter.tgids.is_empty()).into(),
        filter_comms: (!filter.comms.is_empty()).into(),
        filter_ports: (!filter.ports.is_empty()).into(),
        filter_cgroups: filter.cgroups.len().min(FILTER_CGROUPS) as u32,
        tcp_sock_type: btf.blob().structure("tcp_sock").unwrap_or(0),
        table_shift: store::table_shift(options.max_sockets),
        can_look: 1,
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

/// Creates the maps in their sizes, and passes the settings.
fn create_maps(plan: &Plan, cast: Option<u32>, options: &Options, can_look: bool) -> Result<Ebpf, CannotRun> {
    let settings = Settings { can_look: can_look.into(), ..plan.settings };
    EbpfLoader::new()
        .btf(Some(&plan.types))
        .allow_unsupported_maps()
        .override_global("SETTINGS", &settings, true)
        .map_max_entries("STATES", store::max_arrays(options.max_sockets))
        .map_max_entries("TABLE", store::buckets(options.max_sockets))
        .map_max_entries("READERS", options.max_readers)
        .map_max_entries("FREE_SLOTS", options.max_readers)
        .map_max_entries("TRACED", if has_timeslices(options) { options.max_readers } else { 1 })
        .map_max_entries("TRACED_SOCKETS", traced_blocks(options))
        .map_max_entries("FREE_PLACES", if has_timeslices(options) { FURTHER_PLACES } else { 1 })
        .map_max_entries("FILTER_TGIDS", traced_processes(options))
        .map_max_entries("DROPS", options.max_drop_entries)
        .map_max_entries("EVENTS", options.ring_bytes)
        .load(patch::with_casts(OBJECT, cast).as_bytes())
        .map_err(|error| support::refused("tcpmon's maps", &error))
}

/// Loads and attaches the wanted probes, and seeds the open sockets in between.
///
/// Loading takes a while, attaching almost none. So all programs are loaded before the first is attached: they all
/// start to see events at nearly the same moment.
fn attach_all(ebpf: &mut Ebpf, plan: &Plan) -> Result<Vec<ProbeStatus>, CannotRun> {
    let seed = seed(ebpf, &plan.types)?;
    let loaded = Loaded::load_all(ebpf, &plan.probes, &plan.types)?;
    let (first, later): (Vec<_>, Vec<_>) = loaded.into_iter().partition(Loaded::sees_lifecycle);
    let mut attach = |probe: Loaded| probe.attach(ebpf);
    let mut probes = first.into_iter().map(&mut attach).collect::<Result<Vec<_>, _>>()?;
    seed()?;
    for probe in later {
        probes.push(attach(probe)?);
    }
    Ok(probes)
}

fn follows(options: &Options) -> bool {
    options.trace.as_ref().is_some_and(|filter| filter.follow)
}

/// Maximum number of processes in the filter.
fn traced_processes(options: &Options) -> u32 {
    match &options.trace {
        Some(filter) if filter.follow => FOLLOWED,
        Some(_) => MAX_TGIDS,
        None => 1,
    }
}

fn has_timeslices(options: &Options) -> bool {
    options.trace.as_ref().is_some_and(|filter| !filter.totals_only)
}

/// Number of blocks of traced sockets: one for each slot, and those for the further places.
fn traced_blocks(options: &Options) -> u32 {
    if has_timeslices(options) { options.max_readers + FURTHER_PLACES / KEPT_SOCKETS as u32 } else { 1 }
}

/// Sets the range of numbers that the programs may take, the lowest first, so that scans stay short; `which` is an
/// `UNUSED_` constant.
fn set_unused(ebpf: &mut Ebpf, which: u32, numbers: Range<u32>) -> Result<(), CannotRun> {
    let map = ebpf.map_mut("UNUSED").expect("the object of this build has all its maps");
    let set = || Array::<_, [u64; 2]>::try_from(map)?.set(which, [numbers.start.into(), numbers.end.into()], 0);
    set().map_err(|source| support::refused_map("UNUSED", &source))
}

/// Takes a map out of the object, converted to its type.
fn take_map<T: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, CannotRun> {
    let map = ebpf.take_map(name).expect("the object of this build has all its maps");
    T::try_from(map).map_err(|source| support::refused_map(name, &source))
}

/// An array of the object.
fn array<'a>(ebpf: &'a Ebpf, name: &str) -> &'a MapData {
    match ebpf.map(name) {
        Some(Map::Array(array)) => array,
        _ => unreachable!("the object of this build has {name} as an array"),
    }
}

/// Maps an array of the object into this process.
fn map<T: FromBytes + Copy>(ebpf: &Ebpf, name: &'static str, count: u32) -> Result<Mapped<T>, CannotRun> {
    Mapped::map(array(ebpf, name).fd().as_fd(), count as usize)
        .map_err(|error| support::refused(&format!("to map {name}"), &error))
}

/// Number of sockets on the host now, in all network namespaces.
fn sockets_now() -> u32 {
    tcp_memory::allocated_sockets().map_or(0, |sockets| u32::try_from(sockets).unwrap_or(u32::MAX))
}

/// Name of the program that looks at sockets, in the status.
const LOOK: &str = "look";

/// The status if the kernel refuses that program.
fn without_look(error: &(dyn Error + 'static)) -> ProbeStatus {
    without(
        LOOK,
        "the program that looks at sockets",
        error,
        "changes of a socket between two events (its window and memory, for example) are not seen",
    )
}

/// Name of the iterator over open files that finds the owners of sockets, in the status.
const OWNERS: &str = "owners";

/// The status if the kernel refuses that iterator.
fn without_owners(error: &(dyn Error + 'static)) -> ProbeStatus {
    without(
        OWNERS,
        "the iterator that finds the owners of sockets",
        error,
        "unread data counts for the process that started to listen, even if another process has the socket open",
    )
}

fn without(name: &str, what: &str, error: &(dyn Error + 'static), consequence: &str) -> ProbeStatus {
    let refusal = support::refused(what, error).missing;
    ProbeStatus { name: name.into(), verdict: Verdict::Unsupported, reason: format!("{refusal}: {consequence}") }
}
