//! `cargo xtask test`: everything that must pass before a change is finished. Nothing is left out because the host's
//! kernel lacks or refuses something: what cannot run is a failure.

use std::{
    cmp::Reverse,
    fs, iter,
    num::NonZero,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Error, Result, bail, ensure};
use cargo_metadata::{MetadataCommand, Target};

use crate::{
    arch::Arch,
    build, check, dashboards, dist, docs,
    executables::{self, Executable},
    fuzz, kubernetes, process,
    process::step,
    python, setup, vm,
    workspace::{self, HOST_PACKAGES},
};

/// What the soak is told; `docs/performance.md` has the figures of two hours.
const SOAK: [&str; 2] = ["--for", "2m"];

/// How long each decoder is fuzzed: all of them take as long as the soak.
const FUZZ: Duration = Duration::from_secs(10);

/// Integration tests that wait for most of their time, each in namespaces and with a daemon of its own. They compare
/// neither times of this host's CPUs nor what counts the whole host, such as the group `other`: they run side by side,
/// and beside the virtual machines, which take both CPUs.
/// The longest first, so that none is left to run alone.
const SIDE_BY_SIDE: [&str; 9] =
    ["formats", "alerts", "service", "output", "endpoint", "prometheus", "privileges", "command", "doctor"];

/// Tests that measure and use all CPUs for many seconds. They come first: the virtual machines that take what CPU is
/// left start after them, because their kernels would report that they stall.
const WITH_ALL_CPUS: [&str; 6] = ["causes", "host", "queue", "store", "stress", "timeslice"];

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Do not build and try packages (`cargo xtask dist --test`), nor run the tests on other kernels (`cargo xtask vm`)
    #[arg(long)]
    no_vm: bool,
    /// Run only the integration tests, on this kernel, this many times in a row
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "no_vm")]
    host: Option<u32>,
}

/// Installs the tools, runs the checks, then runs every test with the binary that is packed. At the end, a table says
/// how long each step took.
pub fn run(args: &Args) -> Result<()> {
    let result = steps(args);
    eprint!("{}", process::steps());
    result
}

fn steps(args: &Args) -> Result<()> {
    step("setup", setup::run)?;
    step("test packages", setup::test_packages)?;
    check::text_only()?;
    build::download(&["--workspace"])?;
    let downloads = || {
        step("packages for packaging and fuzzing", || setup::dist_packages().and_then(|()| setup::fuzz_packages()))?;
        step("today's Prometheus", setup::todays_prometheus)?;
        step("programs that read traces", setup::formats)?;
        let no_machine = args.no_vm || args.host.is_some();
        if no_machine { Ok(()) } else { step("kernels are fetched", || vm::fetch(&vm::Args::brief())) }
    };
    let build_of_the_tests = || {
        process::run(cargo_test().arg("--no-run"))?;
        executables::tests_and_programs(Arch::default())
    };
    let ((_, tcpmon), tests) = at_once(
        || at_once(downloads, || step("build of tcpmon", || build::dist(Arch::default()))),
        || step("build of the tests", build_of_the_tests),
    )?;
    let tests = IntegrationTests::of(tests, &tcpmon)?;
    if let Some(times) = args.host {
        return failures((0..times).filter_map(|_| tests.all().err()));
    }
    let on_other_kernels = || {
        if args.no_vm {
            eprintln!("=== packages and other kernels: skipped");
            return Ok(());
        }
        // Both boot virtual machines, each of which takes one CPU.
        let jobs = vm::Jobs::new(None);
        let machines = || step("other kernels", || vm::machines(&vm::Args::brief_most(), &jobs));
        at_once(|| jobs.beside(dist::try_out), machines).map(drop)
    };
    // The tests that measure need few CPU seconds: what only needs a CPU gets what they leave, in two lanes that take
    // about as long. Cargo compiles for one of them at a time.
    let compiled = || all(&[&|| step("build of the fuzzers", fuzz::build).map(drop), &check::compiled]);
    let crowd_has_left = OnceLock::new();
    let others = || {
        all(&[
            &check::dependencies,
            &|| step("dashboards and alerts", || dashboards::run(&dashboards::Args::CHECK)),
            &|| step("manifests for Kubernetes", || kubernetes::check(&tcpmon)),
            &|| step("site of the documents", docs::run),
            &|| if args.no_vm { Ok(()) } else { dist::make() },
            &|| step("unit tests", unit_tests),
            &|| {
                crowd_has_left.wait();
                let machines = || vm::machines(&vm::Args::brief_least(), &vm::Jobs::new(Some(1)));
                if args.no_vm { Ok(()) } else { step("other kernels, short", machines) }
            },
        ])
    };
    let crowd_leaves = || {
        crowd_has_left.get_or_init(|| ());
    };
    let meanwhile = || {
        process::take_idle_time()?;
        at_once(others, compiled).map(drop)
    };
    let waiting = || {
        all(&[
            &|| tests.side_by_side(),
            // It traces a transfer, so it cannot run beside the tests that measure.
            &|| step("Python package", || python::test(&tcpmon)),
        ])
    };
    all(&[
        &|| at_once(meanwhile, || tests.one_by_one(crowd_leaves)).map(drop),
        &|| at_once(on_other_kernels, waiting).map(drop),
        &|| tests.not_supported(),
        &|| step("soak and fuzzing", || soak_and_fuzz(&Arch::default().dist_binary())),
    ])
}

/// Does all of it, also after a part has failed: a run takes long, and each should say all that it can.
fn all(parts: &[&dyn Fn() -> Result<()>]) -> Result<()> {
    failures(parts.iter().filter_map(|part| part().err()))
}

/// All of them as one, if there are any.
fn failures(errors: impl Iterator<Item = Error>) -> Result<()> {
    let lines: Vec<String> = errors.map(|error| format!("{error:#}")).collect();
    ensure!(lines.is_empty(), "{}", lines.join("\n"));
    Ok(())
}

/// The soak, and all decoders meanwhile: the fuzzers only take what CPU is left. The soak's programs were built with
/// the tests, without optimization: to optimize them as well takes eight minutes.
fn soak_and_fuzz(tcpmon: &Path) -> Result<()> {
    let fuzzer = fuzz::build()?;
    let mut soak = Command::new(workspace::target().join("debug/soak"));
    soak.args(SOAK).env("TCPMON_BIN", tcpmon);
    at_once(|| fuzz::fuzz_all(&fuzzer, FUZZ), || step("soak", || process::run(&mut soak))).map(drop)
}

/// Does both, and fails if one of them fails.
fn at_once<A: Send, B>(beside: impl FnOnce() -> Result<A> + Send, main: impl FnOnce() -> Result<B>) -> Result<(A, B)> {
    thread::scope(|scope| {
        let beside = scope.spawn(beside);
        let main = main();
        match (beside.join().unwrap_or_else(|_| bail!("a thread of the tests has panicked")), main) {
            (Ok(beside), Ok(main)) => Ok((beside, main)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(beside), Err(main)) => bail!("{main:#}; and meanwhile: {beside:#}"),
        }
    })
}

fn cargo_test() -> Command {
    let mut cargo = workspace::cargo();
    cargo.arg("test").args(HOST_PACKAGES);
    cargo
}

/// The tests that need neither root nor a daemon.
fn unit_tests() -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(workspace::root()).no_deps().exec()?;
    let packages = metadata.packages.into_iter().filter(|package| package.name.as_str() != "tcpmon-tests");
    let tests = packages.flat_map(|package| package.targets).filter(Target::is_test);
    let mut cargo = cargo_test();
    cargo.args(["--lib", "--bins"]).args(tests.flat_map(|test| ["--test".to_owned(), test.name]));
    process::run_tests(&mut cargo)?;
    process::run_tests(cargo_test().arg("--doc"))
}

/// The executables of the integration tests.
struct IntegrationTests<'a> {
    /// Those of [`SIDE_BY_SIDE`], the longest last.
    waiting: Vec<Executable>,
    measuring: Vec<Executable>,
    tcpmon: &'a Path,
    /// Where they say what this kernel lacks.
    report: PathBuf,
}

impl<'a> IntegrationTests<'a> {
    fn of(built: Vec<Executable>, tcpmon: &'a Path) -> Result<Self> {
        let report = workspace::target().join("test-report");
        fs::write(&report, "").with_context(|| format!("cannot write {}", report.display()))?;
        let place = |test: &Executable| SIDE_BY_SIDE.iter().position(|name| *name == test.name);
        let tests = built.into_iter().filter(|executable| executable.is_test);
        let (mut waiting, mut measuring): (Vec<_>, Vec<_>) = tests.partition(|test| place(test).is_some());
        ensure!(waiting.len() == SIDE_BY_SIDE.len(), "SIDE_BY_SIDE names tests that there are not: {waiting:?}");
        waiting.sort_by_key(|test| Reverse(place(test)));
        let is_known = |name: &&str| measuring.iter().any(|test| test.name == **name);
        ensure!(WITH_ALL_CPUS.iter().all(is_known), "WITH_ALL_CPUS names tests that there are not: {measuring:?}");
        measuring.sort_by_key(|test| !WITH_ALL_CPUS.contains(&test.name.as_str()));
        Ok(Self { waiting, measuring, tcpmon, report })
    }

    fn command(&self, test: &Executable, threads: usize) -> Command {
        let mut command = Command::new(&test.path);
        command.arg(format!("--test-threads={threads}")).current_dir(workspace::root().join("tests"));
        command.env("TCPMON_BIN", self.tcpmon).env("TCPMON_REPORT", &self.report);
        command
    }

    /// All of them.
    fn all(&self) -> Result<()> {
        all(&[&|| self.one_by_one(|| ()), &|| self.side_by_side(), &|| self.not_supported()])
    }

    /// Those that wait: as many at once as there are CPUs. All of them, also after one has failed.
    fn side_by_side(&self) -> Result<()> {
        let left = Mutex::new(self.waiting.iter().collect::<Vec<_>>());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lane = || {
            let tests = iter::from_fn(next);
            let run = |test: &Executable| process::run_tests(&mut self.command(test, 2));
            failures(tests.filter_map(|test| step(&test.name, || run(test)).err()))
        };
        let lanes = thread::available_parallelism().map_or(1, NonZero::get);
        step("tests that wait", || {
            thread::scope(|scope| {
                let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
                let ended = lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| bail!("a lane has panicked")));
                failures(ended.filter_map(Result::err))
            })
        })
    }

    /// The others, one at a time: they measure, and there may be only two CPUs. Calls `crowd_leaves` after those of
    /// [`WITH_ALL_CPUS`].
    fn one_by_one(&self, crowd_leaves: impl FnOnce()) -> Result<()> {
        let run = |test: &Executable| step(&test.name, || process::run_tests(&mut self.command(test, 1)));
        let run_all = |tests: &[Executable]| failures(tests.iter().filter_map(|test| run(test).err()));
        let (crowd, others) = self.measuring.split_at(WITH_ALL_CPUS.len());
        step("tests that measure", || {
            let of_crowd = run_all(crowd);
            crowd_leaves();
            failures([of_crowd, run_all(others)].into_iter().filter_map(Result::err))
        })
    }

    /// If the kernel lacks what a test is about, the test reports that instead of failing. On a host, only what the
    /// document lists may be left out.
    fn not_supported(&self) -> Result<()> {
        let document = workspace::read(vm::DOCUMENT)?;
        let left_out = unlisted(&fs::read_to_string(&self.report)?, &document);
        ensure!(left_out.is_empty(), "{} does not list what tests left out:\n{}", vm::DOCUMENT, left_out.join("\n"));
        Ok(())
    }
}

/// What tests have left out by their report, in the form of the document's list and without what it lists.
fn unlisted(report: &str, document: &str) -> Vec<String> {
    let item = |line: &str| {
        let (because, test) = line.strip_prefix("not-supported\t")?.split_once('\t')?;
        Some(format!("- `{test}`: {because}."))
    };
    report.lines().filter_map(item).filter(|item| !document.lines().any(|line| line == item)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_left_out_and_not_listed_are_named() {
        let report = "not-supported\tno NIC\trings::a\nverifier\tx\nnot-supported\tno NIC\trings::b\n";
        assert_eq!(unlisted(report, "On a host:\n\n- `rings::a`: no NIC.\n"), ["- `rings::b`: no NIC."]);
    }
}
