//! The project's own commands: `cargo xtask --help`.

mod apt;
mod bench;
mod btf_fixture;
mod build;
mod check;
mod dashboards;
mod demo;
mod drift;
mod ebpf;
mod kernel;
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
#[command(bin_name = "cargo xtask", about = "tcpmon's own commands")]
enum Command {
    /// Bring rust-src and bpf-linker to this machine (quick when they are there)
    Setup,
    /// Make the subset of a kernel's BTF that the resolver's tests read
    BtfFixture(btf_fixture::Args),
    /// Name what changed, in kernels given by their BTF, of that which tcpmon relies on
    Drift(drift::Args),
    /// Set up, then build tcpmon and print the SHA-256 of its eBPF object
    Build {
        /// Build with optimisations
        #[arg(long)]
        release: bool,
    },
    /// Set up, then check format, lints and documentation
    Check,
    /// Set up, check, build the release and run all tests (needs root), also on other kernels
    Test(test::Args),
    /// Run the integration tests on other kernels, in virtual machines (quiet machine, minutes)
    Vm(vm::Args),
    /// Write the Grafana dashboards from dashboards/generate.py
    Dashboards {
        /// Write nothing: check the dashboards, the alert rules and their tests
        #[arg(long)]
        check: bool,
    },
    /// Measure what tcpmon costs on this machine (needs root and quiet); `cargo xtask bench --help` has the parts
    #[command(disable_help_flag = true)]
    Bench {
        /// What the benchmark gets
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Drive ten seconds of traffic in namespaces of its own and print what tcpmon saw
    Demo,
    /// Set up, build the release and run tcpmon with the given arguments
    #[command(disable_help_flag = true)]
    Run {
        /// What tcpmon gets
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
        Command::Dashboards { check } => dashboards::run(check),
        Command::Bench { arguments } => bench::run(&arguments),
        Command::Demo => demo::run(),
        Command::Test(args) => test::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Run { arguments } => run::run(&arguments),
    }
}
