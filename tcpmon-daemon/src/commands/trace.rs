//! `tcpmon trace`: every timeslice of the selected readers, as it happens.

mod descendants;
mod destination;
mod flight;
mod namespace;
mod rotate;
mod signals;
mod totals;
mod traced_command;
mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, IsTerminal as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
    sync::{Arc, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, anyhow, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
    time::{ClockId, clock_gettime},
};
use tcpmon_common::{
    header::Header,
    loss::Loss,
    reader::{READER_EXITED, ReaderSlot},
    store::DEFAULT_MAX_SOCKETS,
};
use tcpmon_trace::{Clocks, EndReason, Ending, Filter, LOSSES, LOST_OUTPUT, TraceHeader};
use tokio::signal::unix::SignalKind;

use self::{
    descendants::descendants,
    destination::Destination,
    flight::{Alarm, PassAlarms},
    rotate::Losses,
    signals::Signals,
    totals::TraceTotals,
    traced_command::{RunningCommand, WaitingCommand, exit_code},
    writer::{WriteOutcome, WriterThread},
};
pub(super) use self::{namespace::InContainer, traced_command::NotStarted};
use crate::{
    cli::{StartTime, TraceArgs},
    clock::monotonic_ns,
    decode::{self, Event},
    host::softnet::online_cpus,
    kernel::{Kernel, Options, TraceFilter},
    sandbox::{self, Sandbox, raise_priority},
    trigger::TriggerWatch,
};

/// How often the ring is emptied: 8 MiB hold 40,000 records, so 4 million a second fit.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of records that are taken before signals and deadlines are checked again.
const MAX_RECORDS_PER_DRAIN: usize = 65_536;

/// Maximum number of pairs of socket and drop reason that are counted at a time, if the trace looks for drops.
const MAX_DROP_ENTRIES: u32 = 4096;

/// Maximum number of reader threads that are followed at a time.
const MAX_READERS: u32 = 4096;

/// The same for a trace of totals, where each reader takes less memory.
const MAX_READERS_OF_TOTALS: u32 = 16_384;

/// The id that the kernel makes up at each boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How often losses are counted for a file that ends, and ended processes are forgotten.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until one of the reasons in [`EndReason`] applies. Returns the exit code: 0, or that of the command.
pub fn run(args: &TraceArgs) -> anyhow::Result<u8> {
    if let Some(StartTime::At(time)) = args.start_at
        && time <= SystemTime::now()
    {
        return Err(StartIsOver.into());
    }
    let command = if args.command.is_empty() { None } else { Some(WaitingCommand::new(&args.command)?) };
    let pids = command.as_ref().map_or_else(|| args.pid.clone(), |command| vec![command.pid()]);
    namespace::check_pids(&pids, command.is_some())?;
    // No other thread, traced or not, may keep the CPU from a trace that is starting or has records to take. If that is
    // not permitted, the trace counts what it loses.
    raise_priority();
    let processes = Processes::open(&pids)?;
    let follow = args.follow || command.is_some();
    let watch = TriggerWatch::new(args.trigger.clone());
    let cgroups = args.cgroup.iter().map(|path| cgroup_id(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut kernel = Kernel::load(Options {
        trace: Some(TraceFilter {
            tgids: pids.iter().copied().chain(followed(follow, &pids)).collect(),
            follow,
            comms: args.comm.iter().cloned().collect(),
            ports: args.port.iter().copied().collect(),
            cgroups,
            totals_only: args.summary_only,
        }),
        max_sockets: DEFAULT_MAX_SOCKETS,
        max_readers: if args.summary_only { MAX_READERS_OF_TOTALS } else { MAX_READERS },
        max_drop_entries: if watch.drops() { MAX_DROP_ENTRIES } else { 1 },
        drops: watch.drops(),
        ring_bytes: args.ring_bytes,
        ephemeral_ports: Vec::new(),
        switched_off: Vec::new(),
    })?;
    // Also follow processes that have started since, before the program that sees them start was attached.
    kernel.follow(&followed(follow, &pids))?;
    sandbox::start_grower(&Sandbox::new(true, Vec::new()), &mut kernel)?;
    let output = args.output.as_ref().map_or_else(|| args.stream().name().into(), |path| path.display().to_string());
    let destination = Destination::create(args)?;
    // The output may be in a directory of another user, which root can write to.
    let several_files = args.rotate.is_some() || args.ring.is_some();
    sandbox::give_up_all(several_files).context("cannot give up capabilities")?;
    super::runtime()?.block_on(async {
        let mut signals = Signals::listen(args.ring.is_some()).context("cannot install a signal handler")?;
        let mut totals = TraceTotals::new(&args.port, args.summary_only);
        if let Some(time) = args.start_at {
            wait_until(time, &mut kernel, &mut totals, &mut signals).await?;
        }
        let header = header(args, pids, follow);
        let started_ns = header.start.monotonic_ns;
        let (losses, alarm) = <(Losses, Alarm)>::default();
        let alarms = args.ring.map(|_| PassAlarms::new(&watch, Arc::clone(&alarm)));
        totals.begin(&mut kernel)?;
        let counted = several_files.then(|| Arc::clone(&losses));
        let writer = WriterThread::start(args.ring_bytes, move || destination.writer(header, watch, alarm, losses));
        let writer = writer.context("cannot start the thread that writes the trace")?;
        let command = command.map(WaitingCommand::release).transpose()?;
        let ring_records = args.ring_bytes as usize / size_of::<Header>();
        let mut tracing = RunningTrace {
            kernel,
            writer,
            signals,
            totals,
            counted,
            alarms,
            command,
            follow,
            started_ns,
            ring_records,
        };
        let reason = tracing.run(args.duration, &processes).await?;
        let (outcome, command) = tracing.finish(reason).await?;
        report(args, &output, outcome)?;
        // A trace that ends before its command waits for the command.
        Ok(match command {
            Some((command, signals)) => exit_code(command.wait(signals).await?),
            None => 0,
        })
    })
}

/// Waits for the start of the trace. The programs run already, because loading them takes a while.
async fn wait_until(
    start: StartTime,
    kernel: &mut Kernel,
    totals: &mut TraceTotals,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let start = match start {
        StartTime::At(time) => time,
        StartTime::After(time) => SystemTime::now() + time,
    };
    // The wall clock may be set meanwhile.
    while let Ok(left @ 1..) = start.duration_since(SystemTime::now()).map(|left| left.as_nanos()) {
        let nap = Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX)).min(DRAIN_INTERVAL);
        tokio::select! {
            _ = signals.next() => bail!("interrupted before the time of --start-at: there is no trace"),
            () = tokio::time::sleep(nap) => {}
        }
        let mut exited = Vec::new();
        kernel.drain(MAX_RECORDS_PER_DRAIN, |event| match event {
            Event::Timeslice(record) => totals.skipped(&decode::trace_record(&record)),
            Event::ReaderExit { slot } => exited.push(slot),
            Event::Listener { .. } | Event::FewStates => {}
        })?;
        let ended = kernel.take_ended();
        kernel.conclude(ended, |record| totals.forget_socket(record.state.cookie));
        exited.into_iter().try_for_each(|slot| free_exited(kernel, slot, |slot| totals.forget_thread(slot.tid)))?;
    }
    Ok(())
}

/// Frees the slot of a reader that has exited, after passing the reader to `look`.
fn free_exited(kernel: &mut Kernel, slot: u32, look: impl FnOnce(&ReaderSlot)) -> anyhow::Result<()> {
    if let Some(reader) = kernel.reader(slot).filter(|reader| reader.flags & READER_EXITED != 0) {
        look(&reader);
        kernel.free_reader(slot)?;
    }
    Ok(())
}

/// The header of a trace that starts now.
fn header(args: &TraceArgs, pids: Vec<u32>, follow: bool) -> TraceHeader {
    let uname = rustix::system::uname();
    TraceHeader {
        tcpmon_version: env!("CARGO_PKG_VERSION").into(),
        kernel_release: uname.release().to_string_lossy().into_owned(),
        hostname: uname.nodename().to_string_lossy().into_owned(),
        boot_id: fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned(),
        cpus: online_cpus(),
        start: read_clocks(),
        filter: Filter {
            pids,
            comms: args.comm.clone(),
            ports: args.port.clone(),
            cgroups: args.cgroup.iter().map(|path| path.display().to_string()).collect(),
            all: args.all,
            command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            follow,
            summary_only: args.summary_only,
        },
        trigger: String::new(),
    }
}

/// The processes to follow from the start.
fn followed(follow: bool, pids: &[u32]) -> Vec<u32> {
    if follow { descendants(pids) } else { Vec::new() }
}

/// The running trace.
struct RunningTrace {
    kernel: Kernel,
    writer: WriterThread,
    signals: Signals,
    totals: TraceTotals,
    /// Losses so far, shared with a writer of several files.
    counted: Option<Losses>,
    /// What a flight recorder watches besides timeslices.
    alarms: Option<PassAlarms>,
    /// The command that the trace has started.
    command: Option<RunningCommand>,
    follow: bool,
    /// Timeslices that ended before this time are not part of the trace: they fall between attaching the programs and
    /// writing the header.
    started_ns: u64,
    /// Maximum number of records in the ring.
    ring_records: usize,
}

impl RunningTrace {
    async fn run(&mut self, duration: Option<Duration>, processes: &Processes) -> anyhow::Result<EndReason> {
        let deadline = duration.map(|duration| Instant::now() + duration);
        let mut tick = tokio::time::interval(DRAIN_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut checked = Instant::now();
        loop {
            let signal = tokio::select! {
                biased;
                signal = self.signals.next() => Some(signal),
                _ = tick.tick() => None,
            };
            let ended = match (signal, &self.command) {
                (Some(signal), _) if signal == SignalKind::user_defined1() => {
                    self.alarms.iter().for_each(|alarms| alarms.raise("SIGUSR1".into()));
                    None
                }
                (Some(signal), Some(command)) => {
                    command.signal(signal);
                    None
                }
                (signal, _) => signal.map(|_| EndReason::Interrupt),
            };
            if checked.elapsed() >= CHECK_INTERVAL {
                if self.follow {
                    self.kernel.forget_ended(has_ended)?;
                }
                if let Some(counted) = self.counted.clone() {
                    *counted.lock().unwrap_or_else(PoisonError::into_inner) = self.lost()?;
                }
                if let Some(alarms) = &mut self.alarms {
                    alarms.look(&mut self.kernel, &mut self.totals)?;
                    self.writer.tick();
                }
                checked = Instant::now();
            }
            // Check for the end before taking the last records, so that none is left behind.
            let ended = ended
                .or_else(|| processes.have_exited().then_some(EndReason::ProcessExit))
                .or_else(|| deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| EndReason::Duration));
            self.drain()?;
            if self.writer.has_failed() {
                return Ok(EndReason::WriteError);
            }
            if let Some(reason) = ended {
                return Ok(reason);
            }
        }
    }

    /// Takes what is in the ring, up to a limit, and passes it to the writer; returns the number of records.
    fn drain(&mut self) -> anyhow::Result<usize> {
        let (room, started_ns) = (self.writer.room(), self.started_ns);
        let (mut records, mut dropped) = (Vec::new(), 0);
        let mut exited = Vec::new();
        // The last timeslices of ended sockets may come later; their totals are kept until the end of the trace.
        let ended = self.kernel.take_ended();
        let totals = &mut self.totals;
        let taken = self.kernel.drain(MAX_RECORDS_PER_DRAIN, |event| match event {
            Event::Timeslice(record) if totals.is_before(record.header.time_ns, record.tid, started_ns) => {
                totals.skipped(&decode::trace_record(&record));
            }
            Event::Timeslice(_) if records.len() == room => dropped += 1,
            Event::Timeslice(record) => {
                let record = decode::trace_record(&record);
                totals.timeslice(&record);
                records.push(record);
            }
            Event::ReaderExit { slot } => exited.push(slot),
            Event::Listener { .. } | Event::FewStates => {}
        })?;
        self.kernel.conclude(ended, |record| {
            if record.time_ns >= started_ns {
                totals.socket(record, &record.state.counters, true);
            }
        });
        self.writer.send(records, dropped);
        self.writer.send_totals(totals.surplus());
        exited.into_iter().try_for_each(|slot| free_exited(&mut self.kernel, slot, |slot| self.totals.thread(slot)))?;
        Ok(taken)
    }

    /// Takes the totals of sockets that were closed after the last records were taken but before the open sockets were
    /// looked at, and the timeslices that ended before `end_ns` or are in the totals of their sockets. Other timeslices
    /// ended after the trace did.
    fn drain_ended(&mut self, end_ns: u64) -> anyhow::Result<()> {
        let mut records = Vec::new();
        let mut closed = BTreeSet::new();
        let ended = self.kernel.take_ended();
        self.kernel.drain(self.ring_records, |event| match event {
            Event::Timeslice(record) => records.push(decode::trace_record(&record)),
            Event::Listener { .. } | Event::FewStates | Event::ReaderExit { .. } => {}
        })?;
        let totals = &mut self.totals;
        self.kernel.conclude(ended, |record| {
            if !totals.has_total(record) {
                totals.socket(record, &record.state.counters, true);
                closed.insert(record.state.cookie);
            }
        });
        let is_in_totals = |cookie, ended_ns| totals.is_in_totals(cookie, ended_ns);
        records.retain(|record| {
            let ended_ns = record.deactivated_ns;
            ended_ns <= end_ns || closed.contains(&record.cookie) || is_in_totals(record.cookie, ended_ns)
        });
        let dropped = records.len().saturating_sub(self.writer.room());
        records.truncate(records.len() - dropped);
        records.iter().for_each(|record| totals.timeslice(record));
        self.writer.send(records, dropped as u64);
        Ok(())
    }

    /// What the programs have lost so far, by cause.
    fn lost(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        let raw = self.kernel.raw()?;
        // Losses of programs that this trace has not loaded are zero.
        let mut lost: BTreeMap<_, _> = LOSSES.map(|what| (what.to_owned(), 0)).into();
        lost.extend(raw.losses().filter(|(what, _)| LOSSES.contains(&what.as_str())));
        Ok(lost)
    }

    /// Ends the trace; its command may go on.
    async fn finish(mut self, reason: EndReason) -> anyhow::Result<(WriteOutcome, Option<(RunningCommand, Signals)>)> {
        // Take the records that were beyond the limit of one call.
        for _ in 0..self.ring_records / MAX_RECORDS_PER_DRAIN {
            if self.drain()? < MAX_RECORDS_PER_DRAIN {
                break;
            }
        }
        // A timeslice that ends between here and the look at its socket is in the socket's totals, and therefore in the
        // trace, too.
        let end = read_clocks();
        self.totals.open_sockets(&mut self.kernel)?;
        self.totals.open_threads(&self.kernel);
        // Give a program that has marked a socket as ended, and was preempted before it sent the record, time to
        // finish.
        tokio::time::sleep(DRAIN_INTERVAL).await;
        self.drain_ended(end.monotonic_ns)?;
        // Last, because even the last records can be lost.
        let lost = self.lost()?;
        self.writer.send_totals(self.totals.finish());
        let ending = Ending { end, reason, lost };
        let outcome = self.writer.finish(ending, &mut self.signals).await?;
        Ok((outcome, self.command.map(|command| (command, self.signals))))
    }
}

/// The time given to `--start-at` is not in the future.
#[derive(Debug, thiserror::Error)]
#[error("--start-at: this time is in the past: give a later one, in UTC, or a time from now such as `+30s`")]
pub(super) struct StartIsOver;

/// Reports to the user what the trace lacks.
fn report(args: &TraceArgs, output: &str, outcome: WriteOutcome) -> anyhow::Result<()> {
    let (failure, trailer) = match outcome {
        WriteOutcome::HeaderFailed(error) if is_closed(args, &error) => return Ok(()),
        WriteOutcome::HeaderFailed(error) => return Err(error).with_context(|| format!("cannot write to {output}")),
        WriteOutcome::Ended { failure, trailer } => (failure, trailer),
        WriteOutcome::TimedOut { unwritten, lost } => {
            let lost = lost.map(|lost| format!("; also lost: {lost}")).unwrap_or_default();
            let faster = if args.output.is_some() { "a faster disk" } else { "a file (--output)" };
            bail!(
                "timed out writing to {output}: the trace has no trailer and lacks up to {unwritten} records{lost}: \
                 write to {faster}"
            )
        }
    };
    if let Some(error) = failure {
        if is_closed(args, &error) {
            return Ok(());
        }
        return Err(match trailer {
            Ok(trailer) => {
                anyhow!("writing to {output} failed: {error}: the trace ends early, after {} records", trailer.records)
            }
            Err(_) => anyhow!("writing to {output} failed: {error}: the trace ends early and has no trailer"),
        });
    }
    let trailer = match trailer {
        Err(error) if is_closed(args, &error) => return Ok(()),
        trailer => trailer.with_context(|| format!("writing to {output} failed: the trace has no trailer"))?,
    };
    if let Some(lost) = trailer.lost_in_words() {
        let is_lost = |what: &str| trailer.lost.get(what).is_some_and(|count| *count > 0);
        let ring = if is_lost(Loss::TimesliceRecord.name()) { ": try a larger --ring-bytes" } else { "" };
        let slow = if is_lost(LOST_OUTPUT) { format!(": writing to {output} is too slow") } else { String::new() };
        super::print_message(&format!("the trace is incomplete; lost: {lost}{ring}{slow}"));
    } else if args.ring.is_some() && trailer.records == 0 {
        super::print_message("no trigger fired: nothing was written");
    } else if trailer.records == 0 && !args.summary_only {
        super::print_message("no timeslice matched the filters: no selected process read from a matching TCP socket");
    }
    if args.output.is_some() && io::stderr().is_terminal() {
        super::print_message(&format!("wrote {} records to {output}", trailer.records));
    }
    Ok(())
}

/// Whether the reader of our standard output has closed it (`tcpmon trace | head`): that is not a failure.
fn is_closed(args: &TraceArgs, error: &io::Error) -> bool {
    args.output.is_none() && error.kind() == io::ErrorKind::BrokenPipe
}

/// The processes whose exit ends the trace.
struct Processes(Vec<OwnedFd>);

impl Processes {
    fn open(pids: &[u32]) -> anyhow::Result<Self> {
        let open = |pid: &u32| {
            let raw = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            let pid = raw.ok_or_else(|| anyhow!("--pid {pid}: not a valid process id"))?;
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
                anyhow!("--pid {}: {error}: `ps -e` lists the running processes", pid.as_raw_nonzero())
            })
        };
        Ok(Self(pids.iter().map(open).collect::<anyhow::Result<_>>()?))
    }

    /// Whether all of them have exited; false if none was given.
    fn have_exited(&self) -> bool {
        let exited = |process: &OwnedFd| {
            let mut poller = [PollFd::new(process, PollFlags::IN)];
            poll(&mut poller, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
        };
        !self.0.is_empty() && self.0.iter().all(exited)
    }
}

/// Whether there is no such process any more.
fn has_ended(tgid: u32) -> bool {
    let pid = i32::try_from(tgid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Id and depth of a control group (v2), given as a path below its mount point or as a full path.
fn cgroup_id(path: &Path) -> anyhow::Result<(u64, u32)> {
    let root = crate::host::cgroup::root().context("--cgroup")?;
    namespace::check_cgroup(path, &root)?;
    let whole =
        if path.starts_with(&root) { path.to_owned() } else { root.join(path.strip_prefix("/").unwrap_or(path)) };
    let Ok(metadata) = fs::metadata(&whole) else {
        bail!(
            "--cgroup {}: no such directory: {}: `systemd-cgls` lists control groups",
            path.display(),
            whole.display()
        );
    };
    let depth = whole.strip_prefix(&root).map_or(0, |below| below.components().count());
    // The kernel's id of a control group is its inode number.
    Ok((metadata.ino(), depth as u32))
}

/// The current time of both clocks.
fn read_clocks() -> Clocks {
    let time = clock_gettime(ClockId::Realtime);
    let realtime_ns =
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0);
    Clocks { monotonic_ns: monotonic_ns(), realtime_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tcpmon_btf::plan::PROBES;

    #[test]
    fn a_trace_counts_only_losses_that_exist() {
        let programs = PROBES.iter().flat_map(|probe| probe.programs()).map(|program| format!("recursion_{program}"));
        let counted = Loss::ALL.iter().map(|loss| loss.name().to_owned()).chain(["socket_copy".to_owned()]);
        let known: Vec<_> = counted.chain(programs).collect();
        for loss in LOSSES {
            assert!(known.iter().any(|known| known == loss), "{loss}");
        }
    }

    #[test]
    fn every_program_of_a_trace_that_can_miss_an_event_counts_as_a_loss() {
        // Not probes with a second program: they count more than what was missed. A connection whose start was missed
        // is reported in full by its first read.
        for probe in PROBES.iter().filter(|probe| probe.trace && probe.second_program.is_none()) {
            assert!(LOSSES.contains(&format!("recursion_{}", probe.name).as_str()), "{}", probe.name);
        }
    }
}
