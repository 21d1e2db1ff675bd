//! `cargo xtask bench`: measures what tcpmon costs on this machine. `docs/performance.md` describes the method.

mod arm;
mod bpf;
mod child;
mod cores;
mod endpoint;
mod estimate;
mod own;
mod peer;
mod programs;
mod scale;
mod top;
mod trace;
mod verified;
mod verifier;
mod walk;
mod workload;
mod workloads;

use std::any::Any;
use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Parser, ValueEnum};

use arm::Arm;
use tcpmon_tests::document::Document;
use tcpmon_tests::figures::{Provenance, Section};
use tcpmon_tests::interrupt::{self, Interrupted};
use workload::Workload;

/// Measure what tcpmon costs on this machine (needs root and an idle host)
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench")]
struct Args {
    /// Few repetitions, as a smoke test; the intervals are wide
    #[arg(long)]
    quick: bool,
    /// Only these parts, comma-separated [default: all but trace and verifier; redis and nginx with --peers]
    #[arg(long, value_name = "PART", value_delimiter = ',', ignore_case = true)]
    only: Vec<Part>,
    /// Only these arms of the workloads, comma-separated (off is always one) [default: the document's]
    #[arg(long, value_name = "ARM", value_delimiter = ',')]
    arms: Vec<Arm>,
    /// Also compare with Rezolus and bpftrace, and under redis and nginx; installs them, which takes 10 minutes once
    #[arg(long)]
    peers: bool,
    /// Number of mirrored blocks per workload, each with two runs of every arm [default: until ratios are known to
    /// 0.015, at most 15 minutes; quick 3], and of repetitions of the programs part [default: 6, quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: Option<u32>,
    /// Compare the programs with those of another build of tcpmon instead of with empty programs
    #[arg(long, value_name = "TCPMON", conflicts_with = "write")]
    against: Option<PathBuf>,
    /// Write the tables to docs/performance.md, and update the figures that README.md quotes (verifier: write the
    /// counts to tests/verifier-instructions.tsv)
    #[arg(long)]
    write: bool,
}

/// Where the tables go.
const PERFORMANCE: Document =
    Document { path: concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md"), markers: "bench" };

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Request and response on loopback
    #[value(name = "R")]
    R,
    /// R with a sleep before each request
    #[value(name = "R-single")]
    RSingle,
    /// Short connections on loopback
    #[value(name = "C")]
    C,
    /// Bulk transfer on loopback
    #[value(name = "L")]
    L,
    /// Bulk transfer on veth
    #[value(name = "V")]
    V,
    /// redis, one command at a time
    #[value(name = "redis")]
    Redis,
    /// redis with pipelines of 16
    #[value(name = "redis-16")]
    Redis16,
    /// Uploads to nginx
    #[value(name = "nginx")]
    Nginx,
    /// Nanoseconds per run of each program
    Programs,
    /// Scrapes with many sockets
    Scale,
    /// The daemon's own CPU, memory, start and stop
    Daemon,
    /// `top` with 10,000 sockets
    Top,
    /// Contention between the CPUs of a large host, simulated
    Cores,
    /// Records per second that a trace takes in, one minute per format; needs 20 GB of disk
    Trace,
    /// Instructions that the verifier walks, per program
    Verifier,
}

impl Part {
    /// The parts to run by default. A trace needs a lot of disk. The verifier's counts are a baseline for a test, so
    /// they are recorded only on request.
    const USUAL: [Self; 10] = [
        Self::R,
        Self::RSingle,
        Self::C,
        Self::L,
        Self::V,
        Self::Programs,
        Self::Scale,
        Self::Daemon,
        Self::Top,
        Self::Cores,
    ];
    /// The parts that also run with `--peers`.
    const REAL: [Self; 3] = [Self::Redis, Self::Redis16, Self::Nginx];
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [marker, role, rest @ ..] = arguments.as_slice()
        && marker == endpoint::MARKER
    {
        return endpoint::run(role, rest);
    }
    let args = Args::parse();
    interrupt::watch();
    match panic::catch_unwind(AssertUnwindSafe(|| run(&args))) {
        Ok(code) => code,
        Err(panic) if is_interrupt(&*panic) => ExitCode::from(130),
        Err(panic) => panic::resume_unwind(panic),
    }
}

fn is_interrupt(panic: &(dyn Any + Send)) -> bool {
    panic.is::<Interrupted>()
}

fn run(args: &Args) -> ExitCode {
    let (mut parts, mut arms) = (Part::USUAL.to_vec(), Arm::DEFAULT.to_vec());
    if args.peers {
        parts.extend(Part::REAL);
        arms.extend(Arm::PEERS);
    }
    let parts = if args.only.is_empty() { parts } else { args.only.clone() };
    let arms = if args.arms.is_empty() { arms } else { args.arms.clone() };
    let provenance = Provenance::read("cargo xtask bench");
    bpf::warn_of_others();
    let mut failed = false;
    for part in parts {
        interrupt::check();
        let workload = |workload| {
            let blocks = args.blocks.or(args.quick.then_some(3));
            Some(workloads::measure(workload, &arms, blocks))
        };
        let section: Option<Section> = match part {
            Part::R => workload(Workload::R),
            Part::RSingle => workload(Workload::RSingle),
            Part::C => workload(Workload::C),
            Part::L => workload(Workload::L),
            Part::V => workload(Workload::V),
            Part::Redis => workload(Workload::Redis),
            Part::Redis16 => workload(Workload::Redis16),
            Part::Nginx => workload(Workload::Nginx),
            Part::Programs => {
                let repetitions = args.blocks.unwrap_or(if args.quick { 2 } else { 6 });
                Some(match &args.against {
                    Some(other) => programs::compare(other, repetitions),
                    None => programs::measure(repetitions, if args.peers { &Arm::PEERS } else { &[] }),
                })
            }
            Part::Scale => Some(scale::measure(args.quick)),
            Part::Daemon => Some(own::measure(args.quick)),
            Part::Top => Some(top::measure(args.quick)),
            Part::Cores => Some(cores::measure()),
            Part::Trace => Some(trace::measure(args.quick)),
            Part::Verifier => {
                verified::show(args.write);
                None
            }
        };
        let Some(section) = section else { continue };
        println!("{}", section.text(&provenance));
        if args.write
            && let Err(error) = PERFORMANCE.write(section.name, &section.markdown(&provenance))
        {
            eprintln!("error: {error}");
            failed = true;
        }
    }
    if args.write
        && let Err(error) = quote()
    {
        eprintln!("error: {error}");
        failed = true;
    }
    ExitCode::from(u8::from(failed))
}

/// Updates the figures that documents quote from the tables, so that they do not stay outdated until the next check.
fn quote() -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let status = Command::new(cargo).current_dir(workspace).args(["xtask", "figures"]).status();
    let status = status.map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo xtask figures` failed: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_a_place_for_every_table() {
        let text = std::fs::read_to_string(PERFORMANCE.path).unwrap();
        for name in [
            "R", "R-single", "C", "L", "V", "redis", "redis-16", "nginx", "programs", "scale", "daemon", "cores",
            "trace",
        ] {
            PERFORMANCE.replaced(&text, name, "").unwrap();
        }
    }
}
