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
mod docs;
mod drift;
mod executables;
mod figures;
mod fuzz;
mod kubernetes;
mod markdown;
mod process;
mod python;
mod release;
mod run;
mod setup;
mod test;
mod text;
mod vm;
mod workspace;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use process::step;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Development commands of tcpmon")]
enum Command {
    /// Install rust-src and bpf-linker for this checkout (quick if they are installed)
    Setup,
    /// Reduce a kernel's BTF to a fixture for the tests that resolve offsets
    BtfFixture(btf_fixture::Args),
    /// Report what changed in other kernels, given by their BTF, that affects tcpmon
    Drift(drift::Args),
    /// Run setup, build tcpmon and print the SHA-256 of its eBPF object
    Build {
        /// Build in release mode
        #[arg(long)]
        release: bool,
    },
    /// Run setup, then check format, lints and documentation
    Check,
    /// Run setup and check, build tcpmon and its packages, and run all tests, also on other kernels (needs root)
    Test(test::Args),
    /// Run the integration tests on other kernels in virtual machines (needs an otherwise idle host; takes minutes)
    Vm(vm::Args),
    /// Update the figures that documents quote from docs/performance.md (`check` fails if one differs)
    Figures,
    /// Generate the Grafana dashboards with dashboards/generate.py
    Dashboards(dashboards::Args),
    /// Fuzz each decoder of untrusted bytes
    Fuzz(fuzz::Args),
    /// Measure the cost of tcpmon (needs root and an idle host); `cargo xtask bench --help` lists the parts
    #[command(disable_help_flag = true)]
    Bench {
        /// Arguments of the benchmark
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Repeat the papers' experiments (needs root and an idle host); `cargo xtask lab --help` lists them
    #[command(disable_help_flag = true)]
    Lab {
        /// Arguments of the experiments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Stress test: run tcpmon under churn, faults and hostile clients, and check its numbers throughout (needs root)
    #[command(disable_help_flag = true)]
    Soak {
        /// Arguments of the run: `cargo xtask soak --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Build the release packages: .deb, .rpm, tarball, container image, debug information, SBOM and checksums
    Dist(dist::Args),
    /// Check that version, changelog, documents, tag, advisories and packages of a release agree, and build and sign it
    Release(release::Args),
    /// Build a searchable site of the documents, in target/docs/book
    Docs,
    /// Check the manifests in deploy/kubernetes: schemas, flags, capabilities, rules
    Kubernetes,
    /// Send ten seconds of traffic between two network namespaces and print what tcpmon reports
    Demo,
    /// Run setup, build in release mode and run tcpmon with the given arguments
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
            step("setup", setup::run)?;
            build::run(release)
        }
        Command::Check => {
            step("setup", setup::run)?;
            check::run()
        }
        Command::Figures => figures::write(),
        Command::Dashboards(args) => dashboards::run(&args),
        Command::Bench { arguments } => bench::exec("bench", &arguments),
        Command::Lab { arguments } => bench::exec("experiments", &arguments),
        Command::Soak { arguments } => bench::exec("soak", &arguments),
        Command::Dist(args) => dist::run(&args),
        Command::Docs => docs::run(),
        Command::Release(args) => release::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Kubernetes => kubernetes::run(),
        Command::Demo => demo::run(),
        Command::Test(args) => test::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Run { arguments } => run::run(&arguments),
    }
}
