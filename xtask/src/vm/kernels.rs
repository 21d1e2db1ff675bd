//! The kernels on which tcpmon is tested. A new one is a line here; `docs/kernels.md` describes what else it takes.

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
    /// The newest package of this series is used.
    pub series: &'static str,
    /// The Debian suite that has it.
    pub suite: &'static str,
    pub expectation: Expectation,
    /// Numbers of CPUs of the virtual machines to run. Each one takes minutes, so most kernels have one.
    pub cpus: &'static [u32],
    /// What a brief run, which is a part of `cargo xtask test`, runs on it.
    pub brief: Brief,
}

/// The tests of a brief run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brief {
    /// Loading, exact bytes, traces and the verifier's counts.
    Core,
    /// All but those that compare times: on an emulated CPU, these depend on what else the host does.
    Most,
}

/// Sorted by age, the oldest first. In a brief run, the oldest and the newest that are supported have most tests: what
/// changed in between shows at one of them.
pub const KERNELS: [Kernel; 6] = [
    Kernel { series: "5.10", suite: "bullseye", expectation: Expectation::Refused, cpus: &[1], brief: Brief::Core },
    Kernel { series: "6.1", suite: "bookworm", expectation: Expectation::Supported, cpus: &[2], brief: Brief::Most },
    Kernel { series: "6.12", suite: "trixie", expectation: Expectation::Supported, cpus: &[1], brief: Brief::Core },
    Kernel {
        series: "6.18",
        suite: "trixie-backports",
        expectation: Expectation::Supported,
        cpus: &[2],
        brief: Brief::Core,
    },
    Kernel {
        series: "7.2",
        suite: "trixie-backports",
        expectation: Expectation::Supported,
        cpus: &[1],
        brief: Brief::Most,
    },
    Kernel {
        series: "7.3",
        suite: "trixie-backports",
        expectation: Expectation::MayFail,
        cpus: &[2],
        brief: Brief::Core,
    },
];
