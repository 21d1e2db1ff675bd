//! `cargo xtask vm`: runs the integration tests on real Debian kernels, each in a virtual machine without hardware
//! acceleration.
//!
//! `docs/kernels.md` has the results.

mod document;
mod flood;
mod guest;
mod initramfs;
mod instructions;
mod kernels;
mod lab;
mod machine;
mod modules;
mod packages;
mod results;
mod root;
mod vmlinux;

use std::{
    cmp::Reverse,
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

pub use document::FILE as DOCUMENT;
use guest::Guest;
use kernels::{Brief, Expectation, KERNELS, Kernel};
use machine::{End, Machine};
use results::{Outcome, Results, Test};
pub use root::Root;

use crate::{arch::Arch, build, process, setup, workspace};

/// Arguments of `cargo xtask vm`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Kernel series, such as 6.12 [default: all]
    kernels: Vec<String>,
    /// Architecture of the virtual machines
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// CPUs of each virtual machine [default: as in the table KERNELS]
    #[arg(long)]
    smp: Option<u32>,
    /// Virtual machines that run at the same time [default: the number of CPUs of the host]
    #[arg(long)]
    jobs: Option<usize>,
    /// Run only the tests whose `FILE::NAME` contains one of these texts [default: all]
    #[arg(long, num_args = 1..)]
    tests: Vec<String>,
    /// Run what `cargo xtask test` runs: most tests on the oldest kernel, a core of them on the newest
    #[arg(long, conflicts_with = "write")]
    brief: bool,
    /// Instead of the tests, run `cargo xtask soak` with these arguments, which end the command line
    #[arg(long, value_name = "ARGUMENT", conflicts_with_all = ["tests", "brief", "write"], num_args = 1..,
          allow_hyphen_values = true)]
    soak: Vec<String>,
    /// Write the results to docs/kernels.md, tests/verifier-instructions.tsv and docs/lab.md
    #[arg(long)]
    write: bool,
}

impl Args {
    /// What `cargo xtask test` runs.
    pub fn brief() -> Self {
        Self { brief: true, ..Self::default() }
    }

    /// The part of [`Self::brief`] that takes a minute or less for each kernel.
    pub fn brief_least() -> Self {
        Self::brief_of(|brief| brief == Brief::Least)
    }

    /// The part of [`Self::brief`] that takes longer, and the kernel that is refused.
    pub fn brief_most() -> Self {
        Self::brief_of(|brief| brief > Brief::Least)
    }

    fn brief_of(wanted: impl Fn(Brief) -> bool) -> Self {
        let kernels = KERNELS.iter().filter(|kernel| kernel.arch == Arch::default() && wanted(kernel.brief));
        Self { kernels: kernels.map(|kernel| kernel.name.to_owned()).collect(), ..Self::brief() }
    }
}

/// A virtual machine that has run.
#[derive(Debug)]
pub struct Run {
    pub kernel: &'static Kernel,
    pub cpus: u32,
    /// As `uname -r` reports it.
    pub release: String,
    pub end: End,
    pub results: Results,
    /// The output of its first port.
    console: String,
    pub took: Duration,
}

impl Run {
    fn name(&self) -> String {
        name(self.kernel, self.cpus)
    }

    /// Each test that failed, with what it has said.
    fn failures(&self) -> impl Iterator<Item = String> {
        self.results.failed().map(|(test, outcome, _)| {
            let words = machine::words_of(&self.console, &test.binary, &test.name).unwrap_or_default();
            format!("{}: {}::{}: {outcome:?}\n{words}\n", self.name(), test.binary, test.name)
        })
    }

    /// What is wrong with it, one after another.
    fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self.failures().collect();
        complaints
            .extend(self.results.alarms.iter().map(|alarm| format!("{}: the kernel logged: {alarm}", self.name())));
        match &self.end {
            End::Broken(how) => complaints.push(format!(
                "{}: {how}; the last lines of its console:\n{}",
                self.name(),
                process::last_lines(&self.console)
            )),
            End::Failed if complaints.is_empty() => {
                complaints.push(format!("{}: init reported a failure", self.name()))
            }
            _ if !self.results.complete => complaints.push(format!("{}: the results are incomplete", self.name())),
            _ => {}
        }
        complaints
    }
}

/// The name of a virtual machine.
fn name(kernel: &Kernel, cpus: u32) -> String {
    format!("{}-smp{cpus}", kernel.label())
}

/// A kernel of the matrix for the host's architecture, and its modules in the order in which they can be inserted.
pub fn kernel(name: &str) -> Result<(PathBuf, Vec<PathBuf>)> {
    let mut kernels = KERNELS.iter().filter(|kernel| kernel.arch == Arch::default());
    let kernel = kernels.find(|kernel| kernel.name == name).context("the kernel is in the matrix")?;
    let unpacked = packages::unpacked(kernel)?;
    Ok((unpacked.vmlinux(), unpacked.modules()?))
}

/// Boots a kernel with this initial file system, and waits until it ends. Returns whether it reports that all went
/// well, and what it wrote to its two serial ports.
pub fn boot(kernel: PathBuf, initramfs: PathBuf) -> Result<(bool, String, String)> {
    machine::check()?;
    fs::create_dir_all(folder().join("run"))?;
    let file = |what: &str| folder().join("run").join(format!("boot.{what}"));
    let (console, results) = (file("console"), file("results"));
    let machine =
        Machine { arch: Arch::default(), kernel, initramfs, cpus: 1, limit: machine::LIMIT, console, results };
    let end = machine.run()?;
    let text = |path: &Path| Ok::<_, std::io::Error>(String::from_utf8_lossy(&fs::read(path)?).replace('\r', ""));
    Ok((end == End::Well, text(&machine.console)?, text(&machine.results)?))
}

/// Where kernels are cached and the output of virtual machines is stored.
pub fn folder() -> PathBuf {
    workspace::target().join("vm")
}

/// Installs what is needed and runs the virtual machines.
pub fn run(args: &Args) -> Result<()> {
    setup::run()?;
    setup::test_packages()?;
    if args.arch == Arch::Arm64 {
        setup::arm64()?;
    }
    build::dist(args.arch)?;
    machines(args, &Jobs::new(args.jobs))
}

/// Gets the kernels that [`machines`] will need.
pub fn fetch(args: &Args) -> Result<()> {
    chosen(args)?.into_iter().filter(|kernel| kernel.expectation != Expectation::MayFail).try_for_each(|kernel| {
        packages::unpacked(kernel)?;
        Ok(())
    })
}

/// Runs the virtual machines, then reports the results. Each is one of the jobs.
pub fn machines(args: &Args, jobs: &Jobs) -> Result<()> {
    machine::check()?;
    let chosen = chosen(args)?;
    // docs/kernels.md has the kernels of the host's architecture.
    let documented =
        args.arch == Arch::default() && args.tests.is_empty() && args.smp.is_none() && args.soak.is_empty();
    fs::create_dir_all(folder().join("run"))?;
    let guest = Guest::build(args)?;
    let mut machines = Vec::new();
    for kernel in chosen {
        match packages::unpacked(kernel) {
            Ok(unpacked) => {
                let cpus = args.smp.map_or(kernel.cpus.to_vec(), |cpus| vec![cpus]);
                machines.extend(cpus.into_iter().map(|cpus| (kernel, unpacked.clone(), cpus)));
            }
            Err(error) if kernel.expectation == Expectation::MayFail => {
                eprintln!("vm: {error:#}; this kernel may fail")
            }
            Err(error) => return Err(error),
        }
    }
    // Those with the most tests first, so that none of them is left to run alone at the end.
    machines.sort_by_key(|(kernel, ..)| Reverse(kernel.brief));
    let mut runs = thread::scope(|scope| {
        let mut running = Vec::new();
        for (kernel, unpacked, cpus) in machines {
            let machine = prepare(kernel, &unpacked, cpus, &guest, args)?;
            jobs.acquire();
            let guest = &guest;
            running.push(scope.spawn(move || {
                let run = run_one(kernel, unpacked.release, &machine, &guest.tests(kernel));
                jobs.release();
                run
            }));
        }
        let ended = running.into_iter().map(|run| run.join().expect("a machine's thread does not panic"));
        ended.collect::<Result<Vec<Run>>>()
    })?;
    runs.sort_by_key(|run| KERNELS.iter().position(|kernel| kernel.label() == run.kernel.label()));
    println!("\n{}", document::table(&runs));
    instructions::record(&runs, args.write)?;
    // docs/lab.md has what x86-64 measured.
    lab::record(&runs, args.write && args.arch == Arch::default())?;
    if documented && args.brief {
        document::check(&runs)?;
    } else if documented && args.kernels.is_empty() {
        document::compare(&runs, args.write)?;
    } else if args.write {
        eprintln!("vm: docs/kernels.md is written only by a run of all kernels and all tests");
    }
    let complaints = |may_fail: bool| -> Vec<String> {
        let runs = runs.iter().filter(|run| (run.kernel.expectation == Expectation::MayFail) == may_fail);
        runs.flat_map(Run::complaints).collect()
    };
    for complaint in complaints(true) {
        println!("may fail: {complaint}");
    }
    let complaints = complaints(false);
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<&'static Kernel>> {
    let names = &args.kernels;
    let mut kernels: Vec<&Kernel> = KERNELS.iter().filter(|kernel| kernel.arch == args.arch).collect();
    for name in names {
        let known: Vec<&str> = kernels.iter().map(|kernel| kernel.name).collect();
        ensure!(known.contains(&name.as_str()), "unknown kernel {name}: choose from {}", known.join(", "));
    }
    kernels.retain(|kernel| !args.brief || kernel.brief != Brief::Nothing);
    kernels.retain(|kernel| names.is_empty() || names.iter().any(|name| name == kernel.name));
    ensure!(!kernels.is_empty(), "a brief run has no tests for {}", names.join(", "));
    Ok(kernels)
}

fn prepare(kernel: &Kernel, unpacked: &packages::Unpacked, cpus: u32, guest: &Guest, args: &Args) -> Result<Machine> {
    let file = |what: &str| folder().join("run").join(format!("{}.{what}", name(kernel, cpus)));
    let machine = Machine {
        arch: kernel.arch,
        kernel: unpacked.vmlinux(),
        initramfs: file("initramfs"),
        cpus,
        limit: if args.soak.is_empty() { machine::LIMIT } else { Duration::MAX },
        console: file("console"),
        results: file("results"),
    };
    guest.write(&machine.initramfs, kernel, unpacked, args.write)?;
    Ok(machine)
}

fn run_one(kernel: &'static Kernel, release: String, machine: &Machine, planned: &[Test]) -> Result<Run> {
    let start = Instant::now();
    let end = machine.run()?;
    let took = start.elapsed();
    fs::remove_file(&machine.initramfs)?;
    let text = String::from_utf8_lossy(&fs::read(&machine.results)?).into_owned();
    let results =
        Results::parse(&text, planned).with_context(|| format!("cannot parse {}", machine.results.display()))?;
    let console = String::from_utf8_lossy(&fs::read(&machine.console)?).into_owned();
    let run = Run { kernel, cpus: machine.cpus, release, end, results, console, took };
    eprintln!("{}", described(&run));
    Ok(run)
}

/// How many more virtual machines may be started.
pub struct Jobs {
    free: Mutex<usize>,
    released: Condvar,
}

impl Jobs {
    /// For so many at once. However many CPUs a virtual machine has, it uses one of the host's: without a number, there
    /// are as many.
    pub fn new(all: Option<usize>) -> Self {
        let here = || thread::available_parallelism().map_or(1, NonZero::get);
        Self { free: Mutex::new(all.unwrap_or_else(here).max(1)), released: Condvar::new() }
    }

    /// Does something else that takes one CPU.
    pub fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.acquire();
        let done = work();
        self.release();
        done
    }

    /// Waits until one is free, and takes it.
    fn acquire(&self) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = self.released.wait_while(free, |free| *free == 0);
        *enough.unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    fn release(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.released.notify_one();
    }
}

/// A line about the virtual machine, and what is wrong with it.
fn described(run: &Run) -> String {
    let count = |wanted: fn(&Outcome) -> bool| run.results.tests.iter().filter(|(_, found, _)| wanted(found)).count();
    let line = format!(
        "vm: {} ({}): {} passed, {} not supported there, {} failed, {:.0} s",
        run.name(),
        run.release,
        count(|outcome| *outcome == Outcome::Pass),
        count(|outcome| matches!(outcome, Outcome::NotSupported(_))),
        run.results.failed().count(),
        run.took.as_secs_f64()
    );
    [vec![line], run.complaints()].concat().join("\n")
}
