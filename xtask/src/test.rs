//! `cargo xtask test`: everything that must pass before a change is finished. Nothing is left out because the host's
//! kernel lacks or refuses something: what cannot run is a failure.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch, build, check, dashboards, dist, fuzz, kubernetes, process, process::step, setup, vm, workspace,
};

/// What the soak is told; `docs/performance.md` has the figures of two hours.
const SOAK: [&str; 2] = ["--for", "2m"];

/// How long each decoder is fuzzed: all of them take as long as the soak.
const FUZZ: Duration = Duration::from_secs(8);

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Do not build and try packages (`cargo xtask dist --test`), nor run the tests on other kernels (`cargo xtask vm`)
    #[arg(long)]
    no_vm: bool,
}

/// Installs the tools, runs the checks, then runs every test; the integration tests run the release binary.
pub fn run(args: &Args) -> Result<()> {
    step("setup", setup::run)?;
    step("test packages", setup::test_packages)?;
    step("today's Prometheus", setup::todays_prometheus)?;
    step("programs that read traces", setup::formats)?;
    check::run()?;
    // The release build and that of the fuzzers end with minutes for one CPU.
    let release = || {
        step("release build", || build::run(true))?;
        step("build of the integration tests", || process::run(integration_tests().arg("--no-run")))
    };
    let fuzzer = at_once(release, || {
        step("dashboards and alerts", || dashboards::run(&dashboards::Args::CHECK))?;
        step("unit tests", || {
            process::run(workspace::cargo().args(["test", "--workspace"]).args([
                "--exclude",
                "tcpmon-ebpf",
                "--exclude",
                "tcpmon-tests",
            ]))
        })?;
        step("fuzzers", fuzz::build)
    })?;
    step("manifests for Kubernetes", kubernetes::check)?;
    step("integration tests", run_integration_tests)?;
    step("soak and fuzzing", || soak_and_fuzz(&fuzzer))?;
    if args.no_vm {
        eprintln!("=== packages and other kernels: skipped");
        return Ok(());
    }
    step("packages", || dist::run(&dist::Args::TEST))?;
    step("other kernels", || vm::machines(&vm::Args::brief()))
}

/// The soak, and all decoders meanwhile: the fuzzers only take what CPU is left. The integration tests have built the
/// soak's programs, without optimization: to optimize them as well takes eight minutes.
fn soak_and_fuzz(fuzzer: &Path) -> Result<()> {
    let mut soak = workspace::cargo();
    soak.args(["run", "--package", "tcpmon-tests", "--bin", "soak", "--"]).args(SOAK);
    soak.env("TCPMON_BIN", Arch::default().release_binary());
    at_once(|| fuzz::fuzz_all(fuzzer, FUZZ), || step("soak", || process::run(&mut soak)))
}

/// Does both, and fails if one of them fails.
fn at_once<T>(beside: impl FnOnce() -> Result<()> + Send, main: impl FnOnce() -> Result<T>) -> Result<T> {
    thread::scope(|scope| {
        let beside = scope.spawn(beside);
        let main = main();
        match (beside.join().unwrap_or_else(|_| bail!("a thread of the tests has panicked")), main) {
            (Ok(()), main) => main,
            (Err(error), Ok(_)) => Err(error),
            (Err(beside), Err(main)) => bail!("{main:#}; and meanwhile: {beside:#}"),
        }
    })
}

fn integration_tests() -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--package", "tcpmon-tests"]);
    cargo
}

fn run_integration_tests() -> Result<()> {
    let report = workspace::target().join("test-report");
    fs::write(&report, "").with_context(|| format!("cannot write {}", report.display()))?;
    // One at a time: the tests measure, and there may be only two cores.
    process::run(
        integration_tests()
            // All of them, also after one has failed: a run takes long, and each should say all that it can.
            .args(["--no-fail-fast", "--", "--test-threads=1"])
            .env("TCPMON_BIN", Arch::default().release_binary())
            .env("TCPMON_REPORT", &report),
    )?;
    // If the kernel lacks what a test is about, the test reports that instead of failing.
    for line in fs::read_to_string(&report)?.lines() {
        if let Some(because) = line.strip_prefix("not-supported\t") {
            eprintln!("not supported on this kernel: {}", because.replace('\t', ", "));
        }
    }
    Ok(())
}
