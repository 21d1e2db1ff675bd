//! `cargo xtask test`: everything that must pass before a change is finished. Nothing is left out because the host's
//! kernel lacks or refuses something: what cannot run is a failure.

use std::{fs, num::NonZero, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use cargo_metadata::{MetadataCommand, Target};

use crate::{
    arch::Arch,
    build, check, dashboards, dist, fuzz, kubernetes, process,
    process::step,
    setup, vm,
    workspace::{self, HOST_PACKAGES},
};

/// What the soak is told; `docs/performance.md` has the figures of two hours.
const SOAK: [&str; 2] = ["--for", "2m"];

/// How long each decoder is fuzzed: all of them take as long as the soak.
const FUZZ: Duration = Duration::from_secs(8);

/// Integration tests that wait for most of their time, each in namespaces and with a daemon of its own. They compare
/// neither times of this host's CPUs nor what counts the whole host, such as the group `other`.
const SIDE_BY_SIDE: [&str; 6] = ["alerts", "formats", "output", "privileges", "prometheus", "service"];

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Do not build and try packages (`cargo xtask dist --test`), nor run the tests on other kernels (`cargo xtask vm`)
    #[arg(long)]
    no_vm: bool,
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
    let downloads = || {
        step("today's Prometheus", setup::todays_prometheus)?;
        step("programs that read traces", setup::formats)?;
        step("dashboards and alerts", || dashboards::run(&dashboards::Args::CHECK))
    };
    at_once(downloads, check::run)?;
    // The build of what is packed ends with minutes for one CPU.
    let build = || step("build", || build::dist(Arch::default()));
    let (tcpmon, fuzzer) = at_once(build, || {
        step("build of the tests", || process::run(cargo_test().arg("--no-run")))?;
        step("unit tests", || {
            process::run(cargo_test().args(["--lib", "--bins"]))?;
            process::run(cargo_test().arg("--doc"))
        })?;
        step("build of the fuzzers", fuzz::build)
    })?;
    // All of them, also after one has failed: a run takes long, and each should say all that it can.
    let mut failures = Vec::new();
    let mut attempt = |name, work: &dyn Fn() -> Result<()>| {
        failures.extend(step(name, work).err().map(|error| format!("{error:#}")));
    };
    attempt("manifests for Kubernetes", &|| kubernetes::check(&tcpmon));
    attempt("integration tests", &|| run_integration_tests(&tcpmon));
    attempt("soak and fuzzing", &|| soak_and_fuzz(&tcpmon, &fuzzer));
    if args.no_vm {
        eprintln!("=== packages and other kernels: skipped");
    } else {
        // Both boot virtual machines, each of which takes one CPU.
        attempt("packages and other kernels", &|| {
            let jobs = vm::Jobs::new(None);
            let packages = || jobs.beside(|| step("packages", || dist::run(&dist::Args::TEST)));
            at_once(packages, || step("other kernels", || vm::machines(&vm::Args::brief(), &jobs))).map(drop)
        });
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// The soak, and all decoders meanwhile: the fuzzers only take what CPU is left. The soak's programs were built with
/// the tests, without optimization: to optimize them as well takes eight minutes.
fn soak_and_fuzz(tcpmon: &Path, fuzzer: &Path) -> Result<()> {
    let mut soak = Command::new(workspace::target().join("debug/soak"));
    soak.args(SOAK).env("TCPMON_BIN", tcpmon);
    at_once(|| fuzz::fuzz_all(fuzzer, FUZZ), || step("soak", || process::run(&mut soak))).map(drop)
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

/// The names of all packages' integration tests.
fn integration_tests() -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().current_dir(workspace::root()).no_deps().exec()?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    Ok(targets.filter(Target::is_test).map(|target| target.name).collect())
}

fn run_integration_tests(tcpmon: &Path) -> Result<()> {
    let report = workspace::target().join("test-report");
    fs::write(&report, "").with_context(|| format!("cannot write {}", report.display()))?;
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let (beside, alone) = integration_tests()?.into_iter().partition(|name| SIDE_BY_SIDE.contains(&name.as_str()));
    // The others one at a time: they measure, and there may be only two CPUs.
    let results = [(beside, 2 * cpus), (alone, 1)].map(|(names, threads): (Vec<String>, usize)| {
        let mut cargo = cargo_test();
        cargo.args(names.iter().flat_map(|name| ["--test", name]));
        // All of them, also after one has failed: a run takes long, and each should say all that it can.
        cargo.args(["--no-fail-fast", "--", &format!("--test-threads={threads}")]);
        process::run(cargo.env("TCPMON_BIN", tcpmon).env("TCPMON_REPORT", &report))
    });
    results.into_iter().collect::<Result<()>>()?;
    // If the kernel lacks what a test is about, the test reports that instead of failing.
    for line in fs::read_to_string(&report)?.lines() {
        if let Some(because) = line.strip_prefix("not-supported\t") {
            eprintln!("not supported on this kernel: {}", because.replace('\t', ", "));
        }
    }
    Ok(())
}
