//! The development commands: `cargo xtask --help`.

mod apt;
mod arch;
mod architecture;
mod bench;
mod btf_file;
mod btf_fixture;
mod build;
mod check;
mod dashboards;
mod demo;
mod dist;
mod drift;
mod executables;
mod figures;
mod fuzz;
mod kubernetes;
mod markdown;
mod process;
mod run;
mod setup;
mod test;
mod text;
mod vm;
mod workspace;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::Parser;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Development commands of tcpmon")]
enum Command {
    /// Install rust-src and bpf-linker for this checkout (quick if they are installed)
    Setup,
    /// Reduce a kernel's BTF to a fixture for the tests that resolve offsets
    BtfFixture(btf_fixture::Args),
    /// List what changed in other kernels, given by their BTF, that tcpmon depends on
    Drift(drift::Args),
    /// Set up, build tcpmon and print the SHA-256 of its eBPF object
    Build {
        /// Build in release mode
        #[arg(long)]
        release: bool,
    },
    /// Set up, then check the format, lints and documentation
    Check,
    /// Set up, check, build what is packed, and run all tests, also on other kernels (needs root)
    Test(test::Args),
    /// Run the integration tests on other kernels in virtual machines (needs an otherwise idle host; takes minutes)
    Vm(vm::Args),
    /// Put the figures of docs/performance.md where documents quote them (`check` fails if one differs)
    Figures,
    /// Generate the Grafana dashboards with dashboards/generate.py
    Dashboards(dashboards::Args),
    /// Look for bytes from outside that a decoder does not survive
    Fuzz(fuzz::Args),
    /// Measure the cost of tcpmon (needs root and an idle host); `cargo xtask bench --help` lists the parts
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run the papers' experiments again (needs root and an idle host); `cargo xtask lab --help` lists them
    #[command(disable_help_flag = true)]
    Lab {
        /// Arguments of the experiments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run tcpmon under churn, faults and hostile clients, and check all the time that its numbers hold (needs root)
    #[command(disable_help_flag = true)]
    Soak {
        /// Arguments of the run: `cargo xtask soak --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Build the packages: .deb, .rpm, tarball, container image, debug information, SBOM and checksums
    Dist(dist::Args),
    /// Check the manifests in deploy/kubernetes: schemas, flags, capabilities, rules
    Kubernetes,
    /// Send ten seconds of traffic between two network namespaces and print what tcpmon reports
    Demo,
    /// Set up, build in release mode and run tcpmon with the given arguments
    #[command(disable_help_flag = true)]
    Run {
        /// Arguments of tcpmon
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Setup => setup::run(),
        Command::BtfFixture(args) => btf_fixture::run(&args),
        Command::Drift(args) => drift::run(&args),
        Command::Build { release } => {
            setup::run()?;
            build::run(release)
        }
        Command::Check => {
            setup::run()?;
            check::run()
        }
        Command::Figures => figures::write(),
        Command::Dashboards(args) => dashboards::run(&args),
        Command::Bench { arguments } => bench::exec("bench", &arguments),
        Command::Lab { arguments } => bench::exec("experiments", &arguments),
        Command::Soak { arguments } => bench::exec("soak", &arguments),
        Command::Dist(args) => dist::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Kubernetes => kubernetes::run(),
        Command::Demo => demo::run(),
        Command::Test(args) => test::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Run { arguments } => run::run(&arguments),
    }
}
