//! `cargo xtask lab`: repeats the experiments of the papers that tcpmon builds on. `docs/lab.md` has the results.

mod chart;
mod host;
mod load;
mod measure;
mod papers;
mod sheet;

use std::any::Any;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tcpmon_tests::document::Document;
use tcpmon_tests::figures::{Provenance, Section};
use tcpmon_tests::interrupt::{self, Interrupted};

use papers::Experiment;

/// The document with the results.
const LAB: Document = Document { path: concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lab.md"), markers: "lab" };

/// Repeat the papers' experiments (needs root and an idle host)
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask lab")]
struct Args {
    /// More and longer runs: about an hour instead of ten minutes
    #[arg(long)]
    full: bool,
    /// Only these experiments, comma-separated [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Experiment>,
    /// Write tables and graphs to docs/lab.md and docs/lab instead of target/lab
    #[arg(long)]
    write: bool,
}

/// How often and how long each point is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of connections.
    pub runs: usize,
    /// How long each is measured.
    pub time: Duration,
    /// How long it runs before that, once tcpmon's programs are loaded.
    pub warm_up: Duration,
}

fn main() -> ExitCode {
    let args = Args::parse();
    interrupt::watch();
    match panic::catch_unwind(AssertUnwindSafe(|| run(&args))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Err(panic) if is_interrupt(&*panic) => ExitCode::from(130),
        Err(panic) => panic::resume_unwind(panic),
    }
}

fn is_interrupt(panic: &(dyn Any + Send)) -> bool {
    panic.is::<Interrupted>()
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let effort = match args.full {
        true => Effort { runs: 10, time: Duration::from_secs(3), warm_up: Duration::ZERO },
        false => Effort { runs: 3, time: Duration::from_millis(700), warm_up: Duration::ZERO },
    };
    let folder = folder(args.write);
    fs::create_dir_all(&folder)?;
    let provenance = Provenance::read("cargo xtask lab");
    let experiments = if args.only.is_empty() { Experiment::ALL.to_vec() } else { args.only.clone() };
    for experiment in experiments {
        interrupt::check();
        eprintln!("lab: {}", experiment.name());
        let table = experiment.run(effort, &folder)?;
        let what = format!(
            "{} runs of at least {} ms for each point; ± is the 95 % interval.",
            effort.runs,
            effort.time.as_millis()
        );
        let section = Section { name: experiment.name(), what, table, notes: Vec::new() };
        println!("{}", section.text(&provenance));
        if args.write {
            LAB.write(section.name, &section.markdown(&provenance))?;
        }
    }
    Ok(())
}

fn folder(write: bool) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(if write { "docs/lab" } else { "target/lab" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_a_place_for_every_experiment() {
        let text = fs::read_to_string(LAB.path).unwrap();
        for experiment in Experiment::ALL {
            LAB.replaced(&text, experiment.name(), "").unwrap();
        }
    }
}
