//! `cargo xtask fuzz`: runs libFuzzer on each of tcpmon's decoders of untrusted bytes. The stable compiler is enough:
//! an LLVM pass inserts the coverage that libFuzzer needs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    executables, setup,
    workspace::{self, HOST_PACKAGES},
};

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these decoders (folders of `fuzz/corpus`) [default: all]
    decoders: Vec<String>,
    /// Time per decoder; one decoder runs on each CPU
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    time: Duration,
}

/// Longer inputs find nothing that shorter ones do not, but take longer.
const MAX_BYTES: u32 = 16 << 10;

/// A decoder, and the result of fuzzing it.
struct Fuzzed {
    decoder: String,
    executions: u64,
    /// Number of files in the corpus, including new ones.
    corpus: usize,
    /// libFuzzer's last output, if the decoder failed.
    failure: Option<String>,
}

/// Builds the program and fuzzes the decoders.
pub fn run(args: &Args) -> Result<()> {
    let known = names(&corpus())?;
    if let Some(unknown) = args.decoders.iter().find(|name| !known.contains(name)) {
        bail!("no decoder is named {unknown}: choose from {}", known.join(", "));
    }
    setup::run()?;
    fuzz_each(&build()?, if args.decoders.is_empty() { known } else { args.decoders.clone() }, args.time)
}

/// Fuzzes every decoder for this time with a program that [`build`] has built.
pub fn fuzz_all(program: &Path, time: Duration) -> Result<()> {
    fuzz_each(program, names(&corpus())?, time)
}

/// The corpus in the repository: a folder for each decoder.
fn corpus() -> PathBuf {
    workspace::root().join("fuzz/corpus")
}

/// Fuzzes these decoders. New inputs that reach other code go to `target/fuzz/corpus`, and inputs on which a decoder
/// failed to `target/fuzz/found`.
fn fuzz_each(program: &Path, decoders: Vec<String>, time: Duration) -> Result<()> {
    let folder = workspace::root().join("target/fuzz");
    let found = folder.join("found");
    fs::create_dir_all(&found)?;
    let waiting = Mutex::new(decoders);
    let done = Mutex::new(Vec::new());
    let next = || waiting.lock().ok()?.pop();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(decoder) = next() {
                    let own = folder.join("corpus").join(&decoder);
                    let fuzzed = fuzz(program, &decoder, &own, &corpus().join(&decoder), &found, time);
                    if let Ok(mut done) = done.lock() {
                        done.push(fuzzed);
                    }
                }
            });
        }
    });
    let mut done: Vec<Fuzzed> = done.into_inner().unwrap_or_default().into_iter().collect::<Result<_>>()?;
    done.sort_by(|a, b| a.decoder.cmp(&b.decoder));
    println!("{:<12} {:>12} {:>10} {:>8}", "decoder", "executions", "a second", "corpus");
    for Fuzzed { decoder, executions, corpus, .. } in &done {
        let rate = *executions as f64 / time.as_secs_f64();
        println!("{decoder:<12} {executions:>12} {rate:>10.0} {corpus:>8}");
    }
    println!("{:<12} {:>12}", "all", done.iter().map(|fuzzed| fuzzed.executions).sum::<u64>());
    let failures: Vec<String> =
        done.iter().filter_map(|fuzzed| Some(format!("{}:\n{}", fuzzed.decoder, fuzzed.failure.as_ref()?))).collect();
    ensure!(failures.is_empty(), "{}\nthe bytes are in {}", failures.join("\n"), found.display());
    Ok(())
}

/// Builds the program as the tests are built, so that they share all libraries, and returns its path.
pub fn build() -> Result<PathBuf> {
    setup::fuzz_packages()?;
    let mut cargo = workspace::cargo();
    cargo
        .arg("build")
        .args(HOST_PACKAGES)
        .args(["--example", "engine", "--features", "tcpmon-fuzz/engine"])
        .env("RUSTC_WORKSPACE_WRAPPER", workspace::root().join("fuzz/rustc"));
    let built = executables::built(&mut cargo, "fuzz")?;
    let engine = built.into_iter().find(|executable| executable.name == "engine");
    Ok(engine.context("cargo built no engine")?.path)
}

fn fuzz(program: &Path, decoder: &str, own: &Path, seeds: &Path, found: &Path, time: Duration) -> Result<Fuzzed> {
    fs::create_dir_all(own)?;
    // Everything else that runs on this host comes first.
    let mut command = Command::new("nice");
    command
        .args(["-n", "19"])
        .arg(program)
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-max_len={MAX_BYTES}"))
        .arg(format!("-artifact_prefix={}/{decoder}-", found.display()))
        .args(["-timeout=60", "-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=0"])
        .args([own, seeds])
        .env("TCPMON_DECODER", decoder)
        .stdin(Stdio::null());
    let Output { status, stderr, .. } =
        command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let said = String::from_utf8_lossy(&stderr);
    let executions =
        said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok());
    let last: Vec<&str> = said.lines().rev().take(40).collect();
    let failure = (!status.success()).then(|| last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    let Some(executions) = executions.or(failure.is_some().then_some(0)) else {
        bail!("libFuzzer does not say how often it ran {decoder}:\n{said}");
    };
    Ok(Fuzzed { decoder: decoder.to_owned(), executions, corpus: names(own)?.len(), failure })
}

/// Names in a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<String> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}
