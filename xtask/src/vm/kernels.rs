//! The kernels on which tcpmon is tested. A new one is a line here; `docs/kernels.md` describes what else it takes.

use crate::arch::Arch;

/// What is required of a virtual machine with this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// tcpmon runs, and every test passes or reports what this kernel lacks.
    Supported,
    /// tcpmon refuses to run, with one sentence and exit code 3.
    Refused,
    /// Like supported, but failures are only reported: the kernel is newer than Debian's releases.
    MayFail,
}

/// A kernel as Debian builds it.
#[derive(Debug)]
pub struct Kernel {
    pub arch: Arch,
    /// Its name here: the series, with what distinguishes it from another kernel of that series.
    pub name: &'static str,
    /// The newest package of this series is used.
    pub series: &'static str,
    /// The end of the package's name, such as `amd64`.
    pub flavour: &'static str,
    /// The Debian suite that has it.
    pub suite: &'static str,
    pub expectation: Expectation,
    /// Numbers of CPUs of the virtual machines to run. Each one takes minutes, so most kernels have one.
    pub cpus: &'static [u32],
    /// What a brief run, which is a part of `cargo xtask test`, runs on it.
    pub brief: Brief,
}

impl Kernel {
    /// Its name among those of all architectures: for files.
    pub fn label(&self) -> String {
        match self.arch {
            Arch::X86_64 => self.name.to_owned(),
            Arch::Arm64 => format!("arm64-{}", self.name),
        }
    }
}

/// The tests of a brief run: each has those of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Brief {
    /// It has none.
    Nothing,
    /// Loading, exact bytes, and the verifier's counts.
    Least,
    /// Passes, the store of states, queues, losses and traces as well.
    Core,
    /// Whatever a kernel can change but what compares times: on an emulated CPU, that depends on what else the host
    /// does.
    Most,
}

/// A kernel for the host's architecture.
const fn amd64(
    series: &'static str,
    suite: &'static str,
    expectation: Expectation,
    cpus: &'static [u32],
    brief: Brief,
) -> Kernel {
    Kernel { arch: Arch::X86_64, name: series, series, flavour: "amd64", suite, expectation, cpus, brief }
}

/// A kernel for arm64.
const fn arm64(name: &'static str, series: &'static str, flavour: &'static str, suite: &'static str) -> Kernel {
    let (expectation, cpus, brief) = (Expectation::Supported, &[2], Brief::Core);
    Kernel { arch: Arch::Arm64, name, series, flavour, suite, expectation, cpus, brief }
}

/// Those of an architecture sorted by age, the oldest first. In a brief run, the oldest that is supported has most
/// tests, because it is the fastest in emulation.
pub const KERNELS: [Kernel; 9] = [
    amd64("5.10", "bullseye", Expectation::Refused, &[1], Brief::Core),
    amd64("6.1", "bookworm", Expectation::Supported, &[2], Brief::Most),
    amd64("6.12", "trixie", Expectation::Supported, &[1], Brief::Least),
    amd64("6.18", "trixie-backports", Expectation::Supported, &[2], Brief::Least),
    amd64("7.2", "trixie-backports", Expectation::Supported, &[1], Brief::Core),
    amd64("7.3", "trixie-backports", Expectation::MayFail, &[2], Brief::Nothing),
    arm64("6.12", "6.12", "arm64", "trixie"),
    // Debian has no kernel with pages of 64 KiB.
    arm64("6.12-16k", "6.12", "arm64-16k", "trixie"),
    arm64("7.2", "7.2", "arm64", "trixie-backports"),
];
