//! `tcpmon trace`: every timeslice of chosen readers, as it happens.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
    time::{ClockId, clock_gettime},
};
use tcpmon_common::{loss::Loss, reader::READER_EXITED};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{TraceArgs, TraceFormat},
    decode::Event,
    kernel::{Kernel, Options, TraceFilter},
    record::{
        Clocks, Ending, Filter, Header, JsonLinesWriter, LOSSES, Reason, Slice, Stream, TableWriter, TraceWriter,
        Trailer,
    },
};

/// How often the ring is emptied: 8 MiB hold 40,000 records, so 4 million a second fit in between.
const DRAIN_EVERY: Duration = Duration::from_millis(10);

/// Records taken before signals and deadlines are looked at again.
const DRAIN_LIMIT: usize = 65_536;

/// Reader threads followed at a time.
const MAX_READERS: u32 = 1024;

/// Runs until one of the ends in [`Reason`].
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let processes = Processes::open(&args.pid)?;
    let cgroups = args.cgroup.iter().map(|path| cgroup(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let kernel = Kernel::load(Options {
        trace: Some(TraceFilter {
            tgids: args.pid.iter().copied().collect(),
            comms: args.comm.iter().cloned().collect(),
            ports: args.port.iter().copied().collect(),
            cgroups,
        }),
        max_readers: MAX_READERS,
        max_drop_entries: 1,
        ring_bytes: args.ring_bytes,
    })?;
    let uname = rustix::system::uname();
    let header = Header {
        tcpmon_version: env!("CARGO_PKG_VERSION").into(),
        kernel_release: uname.release().to_string_lossy().into_owned(),
        hostname: uname.nodename().to_string_lossy().into_owned(),
        start: clocks(),
        filter: Filter {
            pids: args.pid.clone(),
            comms: args.comm.clone(),
            ports: args.port.clone(),
            cgroups: args.cgroup.iter().map(|path| path.display().to_string()).collect(),
            all: args.all,
        },
    };
    let output = args.output.as_ref().map_or_else(|| "standard output".into(), |path| path.display().to_string());
    let file = args.output.as_deref().map(|path| create(path, args.force)).transpose()?;
    let writer = open(file, args.format(), &header);
    let mut writer = match writer {
        Err(error) if is_closed(args, &error) => return Ok(()),
        writer => writer.with_context(|| format!("cannot write to {output}"))?,
    };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let mut tracing = Tracing { kernel, writer: writer.as_mut(), started_ns: header.start.monotonic_ns, failure: None };
    let reason = runtime.block_on(tracing.run(args.duration, &processes))?;
    let failure = tracing.failure.take();
    let lost = tracing.lost()?;
    let trailer = writer.finish(&Ending { end: clocks(), reason, lost });
    report(args, &output, failure, trailer)
}

/// The running trace.
struct Tracing<'a> {
    kernel: Kernel,
    writer: &'a mut dyn TraceWriter,
    /// Timeslices that ended before are not part of the trace: they fall between attaching and the header.
    started_ns: u64,
    /// The first error of the output.
    failure: Option<io::Error>,
}

impl Tracing<'_> {
    async fn run(&mut self, duration: Option<Duration>, processes: &Processes) -> anyhow::Result<Reason> {
        let mut interrupt = signal(SignalKind::interrupt()).context("no signal handler")?;
        let mut terminate = signal(SignalKind::terminate()).context("no signal handler")?;
        let deadline = duration.map(|duration| Instant::now() + duration);
        let mut tick = tokio::time::interval(DRAIN_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let ended = tokio::select! {
                biased;
                _ = interrupt.recv() => Some(Reason::Interrupt),
                _ = terminate.recv() => Some(Reason::Interrupt),
                _ = tick.tick() => None,
            };
            // What ends the trace is looked at before the last records are taken, so that none is left behind.
            let ended = ended
                .or_else(|| processes.have_exited().then_some(Reason::ProcessExit))
                .or_else(|| deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| Reason::Duration));
            self.drain()?;
            if self.failure.is_some() {
                return Ok(Reason::WriteError);
            }
            if let Some(reason) = ended {
                return Ok(reason);
            }
        }
    }

    /// Takes what is in the ring, up to a limit.
    fn drain(&mut self) -> anyhow::Result<()> {
        let mut exited = Vec::new();
        let (writer, failure, started_ns) = (&mut self.writer, &mut self.failure, self.started_ns);
        self.kernel.drain(DRAIN_LIMIT, |event| match event {
            Event::Timeslice(record) if record.header.time_ns < started_ns => {}
            Event::Timeslice(record) => {
                if let Err(error) = writer.slice(&Slice::from_kernel(&record)) {
                    failure.get_or_insert(error);
                }
            }
            Event::ReaderExit { slot } => exited.push(slot),
            Event::Final(_) | Event::Listener(_) | Event::HandedOver(_) => {}
        })?;
        for slot in exited {
            if self.kernel.reader(slot).is_some_and(|reader| reader.flags & READER_EXITED != 0) {
                self.kernel.free_reader(slot)?;
            }
        }
        if let Err(error) = self.writer.flush() {
            self.failure.get_or_insert(error);
        }
        Ok(())
    }

    fn lost(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        let raw = self.kernel.raw()?;
        Ok(raw.losses().filter(|(what, _)| LOSSES.contains(&what.as_str())).collect())
    }
}

/// The file of `--output` exists, and `--force` was not given.
#[derive(Debug, thiserror::Error)]
#[error("--output {}: the file exists: choose another name, or overwrite it with --force", .0.display())]
pub(super) struct OutputExists(PathBuf);

/// Opens the file of `--output`, which is only emptied with `--force`.
fn create(path: &Path, force: bool) -> anyhow::Result<File> {
    let file = match File::create_new(path) {
        // Our own standard output, a pipe or a device has nothing that writing would destroy.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !force => {
            if path != Path::new("/dev/stdout") && path.is_file() {
                return Err(OutputExists(path.to_owned()).into());
            }
            File::options().append(true).create(true).open(path)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::create(path),
        file => file,
    };
    file.with_context(|| format!("cannot write to {}", path.display()))
}

/// The writer that was asked for, with the header written.
fn open(file: Option<File>, format: TraceFormat, header: &Header) -> io::Result<Box<dyn TraceWriter>> {
    Ok(match (file, format) {
        (Some(file), TraceFormat::Jsonl) => Box::new(JsonLinesWriter::new(file, header)?),
        (Some(file), TraceFormat::Table) => Box::new(TableWriter::new(BufWriter::new(file), header)?),
        (None, TraceFormat::Jsonl) => Box::new(JsonLinesWriter::new(Stream(io::stdout().lock()), header)?),
        (None, TraceFormat::Table) => Box::new(TableWriter::new(io::stdout().lock(), header)?),
    })
}

/// Says what a person should know that the trace does not say, or that its reader may not get to see.
fn report(
    args: &TraceArgs,
    output: &str,
    failure: Option<io::Error>,
    trailer: io::Result<Trailer>,
) -> anyhow::Result<()> {
    if let Some(error) = failure {
        if is_closed(args, &error) {
            return Ok(());
        }
        return Err(match trailer {
            Ok(trailer) => anyhow!(
                "writing to {output} failed ({error}): the trace ends early, with {} records and a trailer that says so",
                trailer.records
            ),
            Err(_) => anyhow!("writing to {output} failed ({error}): the trace ends early and has no trailer"),
        });
    }
    let trailer = match trailer {
        Err(error) if is_closed(args, &error) => return Ok(()),
        trailer => trailer.with_context(|| format!("writing to {output} failed: the trace has no trailer"))?,
    };
    if let Some(lost) = trailer.lost_in_words() {
        let full = trailer.lost.get(Loss::TimesliceRecord.name()).is_some_and(|count| *count > 0);
        eprintln!("tcpmon: lost: {lost}{}", if full { "; a larger --ring-bytes may help" } else { "" });
    } else if trailer.records == 0 {
        eprintln!("tcpmon: no timeslice matched: the chosen processes read from no TCP socket meanwhile");
    }
    if args.output.is_some() && io::stderr().is_terminal() {
        eprintln!("tcpmon: {} records in {output}", trailer.records);
    }
    Ok(())
}

/// Whoever read our standard output has seen enough (`tcpmon trace | head`): that is no failure.
fn is_closed(args: &TraceArgs, error: &io::Error) -> bool {
    args.output.is_none() && error.kind() == io::ErrorKind::BrokenPipe
}

/// The processes whose exit ends the trace.
struct Processes(Vec<OwnedFd>);

impl Processes {
    fn open(pids: &[u32]) -> anyhow::Result<Self> {
        let open = |pid: &u32| {
            let raw = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            let pid = raw.ok_or_else(|| anyhow!("--pid {pid}: no process can have that number"))?;
            pidfd_open(pid, PidfdFlags::empty())
                .map_err(|error| anyhow!("--pid {}: {error}: `ps -e` lists processes", pid.as_raw_nonzero()))
        };
        Ok(Self(pids.iter().map(open).collect::<anyhow::Result<_>>()?))
    }

    /// All of them; never, when none was named.
    fn have_exited(&self) -> bool {
        let exited = |process: &OwnedFd| {
            let mut poller = [PollFd::new(process, PollFlags::IN)];
            poll(&mut poller, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
        };
        !self.0.is_empty() && self.0.iter().all(exited)
    }
}

/// Id and depth of a control group (v2), given as a path below its mount point or as a whole path.
fn cgroup(path: &Path) -> anyhow::Result<(u64, u32)> {
    let root = crate::host::cgroup::root().context("--cgroup")?;
    let whole =
        if path.starts_with(&root) { path.to_owned() } else { root.join(path.strip_prefix("/").unwrap_or(path)) };
    let Ok(metadata) = fs::metadata(&whole) else {
        bail!("--cgroup {}: there is no {}", path.display(), whole.display());
    };
    let depth = whole.strip_prefix(&root).map_or(0, |below| below.components().count());
    // The kernel's id of a control group is the number of its inode.
    Ok((metadata.ino(), depth as u32))
}

/// Both clocks, now.
fn clocks() -> Clocks {
    let ns = |clock| {
        let time = clock_gettime(clock);
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
    };
    Clocks { monotonic_ns: ns(ClockId::Monotonic), realtime_ns: ns(ClockId::Realtime) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::kernel::PROBES;

    #[test]
    fn a_file_that_exists_is_kept_unless_forced() {
        let file = std::env::temp_dir().join(format!("tcpmon-output-{}", std::process::id()));
        let _ = fs::remove_file(&file);
        let write = |force| create(&file, force).map(|mut file| file.write_all(b"a trace"));
        write(false).expect("a new file").expect("written");
        let error = write(false).expect_err("it exists");
        let kept = fs::read(&file).expect("it is there");
        create(&file, true).expect("it may be overwritten");
        let emptied = fs::read(&file).expect("it is there");
        fs::remove_file(&file).expect("removed");
        assert_eq!(
            crate::commands::sentence(&error),
            format!("--output {}: the file exists: choose another name, or overwrite it with --force", file.display())
        );
        assert_eq!(crate::commands::exit_code(&error), 2);
        assert_eq!((kept.as_slice(), emptied.as_slice()), (b"a trace".as_slice(), b"".as_slice()));
    }

    #[test]
    fn what_is_no_file_is_written_to() {
        for path in ["/dev/null", "/dev/stdout"] {
            for force in [false, true] {
                create(Path::new(path), force).expect(path);
            }
        }
        let error = create(Path::new("/nowhere/t.jsonl"), false).expect_err("there is no such directory");
        assert_eq!(
            crate::commands::sentence(&error),
            "cannot write to /nowhere/t.jsonl: No such file or directory (os error 2)"
        );
        assert_eq!(crate::commands::exit_code(&error), 1);
    }

    #[test]
    fn every_program_of_a_trace_that_can_miss_an_event_counts_as_a_loss() {
        // What has a twin says more than was missed; a connection whose begin was missed is told whole by its first read.
        for probe in PROBES.iter().filter(|probe| probe.trace && probe.twin.is_none()) {
            assert!(LOSSES.contains(&format!("recursion_{}", probe.name).as_str()), "{}", probe.name);
        }
    }
}
