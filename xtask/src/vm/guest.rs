//! What a virtual machine contains: the same executables that run on the host, with the libraries and tools that they
//! need, at the same paths as on the host. So no test knows where it runs, and nothing is built twice. For another
//! architecture, they are cross-compiled.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Args, folder,
    initramfs::Initramfs,
    kernels::{Brief, Expectation, Kernel},
    packages::Unpacked,
    results::Test,
    root::Root,
};
use crate::{
    arch::Arch,
    executables::{self, Executable},
    process, workspace,
};

/// Programs that the tests run.
const TOOLS: [&str; 21] = [
    "nft", "iperf3", "ss", "ip", "tc", "ethtool", "promtool", "setpriv", "unshare", "mount", "sh", "tail", "sysctl",
    "free", "getconf", "uname", "date", "dd", "timeout", "true", "strace",
];

/// Files of the checkout that the tests read.
const FILES: [&str; 2] = ["dashboards/alerts.yaml", "tests/verifier-instructions.tsv"];

/// Test files that virtual machines run only if they are named, and the reasons.
pub const NOT_RUN: [(&str, &str); 13] = [
    ("alerts", "it tests how Prometheus and Alertmanager process a page, which does not depend on the kernel"),
    ("command", "it tests processes and signals; that children are followed is tested by `verifier`, too"),
    ("endpoint", "it tests HTTP, TLS and passwords, which do not depend on the kernel"),
    (
        "failures",
        "it tests system calls that strace makes fail, and the end of processes, which do not depend on the kernel",
    ),
    ("formats", "it tests how DuckDB, pandas, Spark and Perfetto read traces, which does not depend on the kernel"),
    ("groups", "it tests which groups are shown, which does not depend on the kernel"),
    ("harness", "it tests the traffic generator, whose counts every other test compares with those of tcpmon"),
    ("load", "it tests HTTP with many clients at a time, which does not depend on the kernel"),
    ("output", "it tests where a trace is written and how it ends, which does not depend on the kernel"),
    ("prometheus", "it tests how Prometheus processes a page, which does not depend on the kernel"),
    ("report", "it tests what a report says of a trace; that traces are right is tested by `causes` and `trace`"),
    ("service", "it tests signals, health and the notifications to systemd, which do not depend on the kernel"),
    ("top", "it tests a screen, whose numbers come from the same passes as the metrics"),
];

/// The tests for a kernel that tcpmon must refuse: all other tests need a running tcpmon.
const OF_REFUSED_KERNELS: &str = "kernels";

/// The tests of [`Brief::Least`].
const LEAST: [&str; 3] = ["bytes", "kernels", "verifier"];

/// What [`Brief::Core`] adds to [`LEAST`].
const CORE_ADDS: [&str; 5] = ["losses", "queue", "snapshot", "store", "trace"];

/// What [`Brief::Most`] adds to both: what else a kernel can change, without the tests that compare times.
const MOST_ADDS: [&str; 4] = ["cpus", "drops", "mptcp", "rps"];

/// What every virtual machine contains.
pub struct Guest {
    arch: Arch,
    root: Root,
    /// See [`super::Args::brief`].
    brief: bool,
    /// See [`super::Args::soak`].
    soak: Vec<String>,
    tests: Vec<(Test, PathBuf)>,
    /// The init program, without debug information.
    init: Vec<u8>,
    /// All other programs, also without debug information, with their paths on the host and in the virtual machine.
    programs: Vec<(PathBuf, Vec<u8>)>,
    libraries: BTreeSet<PathBuf>,
}

impl Guest {
    /// Builds the tests and finds what they need.
    pub fn build(args: &Args) -> Result<Self> {
        let (arch, filters) = (args.arch, &args.tests);
        let executables = executables::tests_and_programs(arch)?;
        let find = |name: &str| {
            let program = executables.iter().find(|executable| !executable.is_test && executable.name == name);
            program.map(|program| program.path.clone()).with_context(|| format!("cargo built no {name}"))
        };
        // The host can ask only its own executables for the names of their tests.
        let here = if arch == Arch::default() { None } else { Some(executables::tests_and_programs(Arch::default())?) };
        let mut tests = Vec::new();
        let is_named = |name: &str| filters.iter().any(|filter| filter.starts_with(name));
        let is_run = |name: &str| is_named(name) || NOT_RUN.iter().all(|(other, _)| *other != name);
        for executable in executables.iter().filter(|executable| executable.is_test && is_run(&executable.name)) {
            let same = |other: &&Executable| other.is_test && other.name == executable.name;
            let asked = here.as_ref().map_or(Some(executable), |here| here.iter().find(same));
            for name in names_of_tests(&asked.context("each architecture has the same tests")?.path)? {
                let test = Test { binary: executable.name.clone(), name };
                let full = format!("{}::{}", test.binary, test.name);
                if filters.is_empty() || filters.iter().any(|filter| full.contains(filter)) {
                    tests.push((test, executable.path.clone()));
                }
            }
        }
        tests.sort();
        if !args.soak.is_empty() {
            tests = vec![(Test { binary: "soak".into(), name: "soak".into() }, find("soak")?)];
        }
        ensure!(!tests.is_empty(), "no test matches {}", filters.join(" or "));

        let root = Root::of(arch)?;
        let init = find("init")?;
        let mut programs = vec![arch.dist_binary(), find("traffic")?, find("lab")?];
        programs.extend(tests.iter().map(|(_, path)| path.clone()));
        programs.dedup();
        let mut libraries = root.libraries(&init)?;
        for program in &programs {
            libraries.extend(root.libraries(program)?);
        }
        for tool in TOOLS {
            libraries.extend(root.libraries(&root.tool(tool)?)?);
        }
        let programs = programs.into_iter().map(|path| Ok((path.clone(), stripped(arch, &path)?)));
        let (init, programs) = (stripped(arch, &init)?, programs.collect::<Result<_>>()?);
        Ok(Self { arch, root, brief: args.brief, soak: args.soak.clone(), init, programs, tests, libraries })
    }

    /// The tests that a virtual machine with this kernel runs.
    pub fn tests(&self, kernel: &Kernel) -> Vec<Test> {
        self.chosen(kernel).map(|(test, _)| test.clone()).collect()
    }

    /// Writes the initial file system of a virtual machine; `recording` is the value of [`super::Args::write`].
    pub fn write(&self, path: &Path, kernel: &Kernel, unpacked: &Unpacked, recording: bool) -> Result<()> {
        let mut plan = String::new();
        let mut archive = Initramfs::create(path)?;
        archive.console()?;
        archive.file(Path::new("/init"), &self.init)?;
        archive.file(Path::new("/etc/hosts"), b"127.0.0.1 localhost\n::1 localhost\n")?;
        for (path, bytes) in &self.programs {
            archive.file(path, bytes)?;
        }
        for library in &self.libraries {
            archive.copy(library, &self.root.inside(library))?;
        }
        for tool in TOOLS {
            archive.copy(&self.root.tool(tool)?, &Path::new("/bin").join(tool))?;
        }
        for file in FILES {
            let file = workspace::root().join(file);
            archive.copy(&file, &file)?;
        }
        for module in unpacked.modules()? {
            let inside = Path::new("/modules").join(module.file_name().context("the module has no file name")?);
            archive.copy(&module, &inside)?;
            plan += &format!("module\t{}\n", inside.display());
        }
        let refused = if kernel.expectation == Expectation::Refused { "refused" } else { "supported" };
        plan += &format!("env\tTCPMON_BIN\t{}\n", self.arch.dist_binary().display());
        plan += &format!("env\tPATH\t/bin\nenv\tTCPMON_EMULATED\t1\nenv\tTCPMON_KERNEL\t{refused}\n");
        if recording {
            plan += "env\tTCPMON_RECORDING\t1\n";
        }
        for (test, file) in self.chosen(kernel) {
            plan += &if self.soak.is_empty() {
                format!("test\t{}\t{}\t{}\n", test.binary, file.display(), test.name)
            } else {
                format!("soak\t{}\t{}\n", file.display(), self.soak.join("\t"))
            };
        }
        archive.file(Path::new("/plan"), plan.as_bytes())?;
        archive.finish()
    }

    fn chosen(&self, kernel: &Kernel) -> impl Iterator<Item = &(Test, PathBuf)> {
        self.tests.iter().filter(move |(test, _)| match kernel.brief {
            _ if !self.soak.is_empty() => true,
            _ if kernel.expectation == Expectation::Refused => test.binary == OF_REFUSED_KERNELS,
            _ if !self.brief => true,
            Brief::Nothing => false,
            Brief::Least => LEAST.contains(&test.binary.as_str()),
            Brief::Core => [&LEAST[..], &CORE_ADDS].concat().contains(&test.binary.as_str()),
            Brief::Most => [&LEAST[..], &CORE_ADDS, &MOST_ADDS].concat().contains(&test.binary.as_str()),
        })
    }
}

/// Tests that run without flags: tests with `#[ignore]` are not among them.
fn names_of_tests(executable: &Path) -> Result<Vec<String>> {
    let list = |flags: &[&str]| -> Result<Vec<String>> {
        let text = process::output(Command::new(executable).args(["--list", "--format", "terse"]).args(flags))?;
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored = list(&["--ignored"])?;
    Ok(list(&[])?.into_iter().filter(|name| !ignored.contains(name)).collect())
}

/// The bytes of an executable without its debug information, which is most of its size.
fn stripped(arch: Arch, program: &Path) -> Result<Vec<u8>> {
    let copy = folder().join("stripped");
    process::run(Command::new(arch.binutils("strip")).arg("-o").arg(&copy).arg(program))?;
    std::fs::read(&copy).with_context(|| format!("cannot read {}", copy.display()))
}
