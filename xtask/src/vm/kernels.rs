//! The kernels that tcpmon is tried on. A new one is a line here; `docs/kernels.md` says what else it takes.

/// What a machine with this kernel must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// tcpmon runs, and every test passes or says what this kernel lacks.
    Supported,
    /// tcpmon refuses to run, in one sentence and with exit code 3.
    Refused,
    /// As supported, but what fails is only reported: the kernel is newer than Debian's releases.
    MayFail,
}

/// A kernel as Debian builds it.
#[derive(Debug)]
pub struct Kernel {
    /// The newest package of this series is taken.
    pub series: &'static str,
    /// The suite of Debian that has it.
    pub suite: &'static str,
    pub expectation: Expectation,
    /// Machines, by their number of CPUs: each one costs minutes, so most kernels have one.
    pub cpus: &'static [u32],
}

/// In the order of their age.
pub const KERNELS: [Kernel; 6] = [
    Kernel { series: "5.10", suite: "bullseye", expectation: Expectation::Refused, cpus: &[1] },
    Kernel { series: "6.1", suite: "bookworm", expectation: Expectation::Supported, cpus: &[2] },
    Kernel { series: "6.12", suite: "trixie", expectation: Expectation::Supported, cpus: &[1] },
    Kernel { series: "6.18", suite: "trixie-backports", expectation: Expectation::Supported, cpus: &[2] },
    Kernel { series: "7.2", suite: "trixie-backports", expectation: Expectation::Supported, cpus: &[1] },
    Kernel { series: "7.3", suite: "trixie-backports", expectation: Expectation::MayFail, cpus: &[2] },
];
