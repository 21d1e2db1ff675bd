//! The architectures that tcpmon is built for: how it is compiled, packed and emulated.

use std::{path::PathBuf, process::Command};

use crate::workspace;

/// An architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// That of the host.
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// Everything is cross-compiled, with Debian's cross compiler ([`crate::setup::arm64`] installs it).
    #[value(name = "arm64")]
    Arm64,
}

impl Arch {
    /// Debian's name for it, which container images use, too.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The name that GNU and RPM have for it.
    pub fn gnu(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Rust's name for Linux with glibc on it.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.gnu())
    }

    /// A program of its binutils.
    pub fn binutils(self, program: &str) -> String {
        match self {
            Self::X86_64 => program.to_owned(),
            Self::Arm64 => format!("aarch64-linux-gnu-{program}"),
        }
    }

    /// A cargo command for the workspace that compiles for it.
    pub fn cargo(self, subcommand: &str) -> Command {
        const COMPILER: &str = "aarch64-linux-gnu-gcc";
        let mut cargo = workspace::cargo();
        cargo.arg(subcommand);
        if self == Self::Arm64 {
            cargo
                .args(["--target", &self.target()])
                .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
                .env("CC_aarch64_unknown_linux_gnu", COMPILER);
        }
        cargo
    }

    /// The tcpmon binary that is tested, measured and packed.
    pub fn dist_binary(self) -> PathBuf {
        let target = match self {
            Self::X86_64 => workspace::target(),
            Self::Arm64 => workspace::target().join(self.target()),
        };
        target.join("dist/tcpmon")
    }

    /// QEMU with a machine of this architecture that has no devices except the port for the results, named `results`.
    ///
    /// Software emulation everywhere, so that a run means the same on every host. One thread for all CPUs: with one
    /// thread per CPU, QEMU 7.2 lets a CPU hit a breakpoint that another CPU has just removed while it patched a static
    /// key, and the guest's kernel dies of `int3` (seen once in `__schedule`, at the tracepoint).
    pub fn qemu(self) -> Command {
        let (program, machine): (_, &[&str]) = match self {
            // In software, `rep movsb` copies byte by byte, and a fifth level of page tables is one more to walk.
            Self::X86_64 => (
                "qemu-system-x86_64",
                &[
                    "-machine",
                    "pc",
                    "-cpu",
                    "max,-erms,-fsrm,-la57",
                    "-device",
                    "isa-debug-exit,iobase=0xf4,iosize=0x04",
                    "-serial",
                    "stdio",
                    "-serial",
                    "chardev:results",
                ],
            ),
            // QARMA5, the usual algorithm of pointer authentication, is slow in software.
            Self::Arm64 => (
                "qemu-system-aarch64",
                &[
                    "-machine",
                    "virt",
                    "-cpu",
                    "max,pauth-impdef=on",
                    "-serial",
                    "stdio",
                    "-device",
                    "pci-serial,chardev=results",
                ],
            ),
        };
        // QEMU is killed when the thread that started it ends, for whatever reason.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", program]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]).args(machine);
        qemu.args(["-accel", "tcg,thread=single,tb-size=512"]);
        qemu
    }

    /// The port for human readers, as the kernel names it.
    pub fn console(self) -> &'static str {
        match self {
            Self::X86_64 => "ttyS0",
            Self::Arm64 => "ttyAMA0",
        }
    }
}
