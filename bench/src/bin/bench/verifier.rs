//! Instructions that the verifier walks for each program, and the file with the recorded counts. This file is also
//! compiled into the test that compares the two (`tests/tests/verifier.rs`), so it uses nothing else of the benchmark.

use std::fs;

use tcpmon::kernel::{Kernel, Options, TraceFilter};

/// The file with the recorded counts.
pub const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/verifier-instructions.tsv");
/// The command that records the counts of the running kernel.
pub const COMMAND: &str = "cargo xtask bench --only verifier --write";

const HEADING: &str = "kernel\tmode\tprogram\tinstructions";

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Kernel series such as `6.18`: builds and patch releases of a series differ by less than the test allows.
    pub kernel: String,
    /// `daemon`, `light` (the daemon with that profile), `trace` (of one process) or `trace-filtered` (filters of every
    /// kind, children followed). The mode is a constant for the programs, so the verifier walks less in one mode than
    /// in another.
    pub mode: String,
    /// The program's name.
    pub program: String,
    /// Value of `verified_insns` in the program's fdinfo.
    pub instructions: u64,
}

/// Loads the programs in every mode on the running kernel.
pub fn measure() -> Vec<Row> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    let mut series = release.split('.').take(2).collect::<Vec<_>>().join(".");
    // The programs have more barriers there.
    series += if cfg!(target_arch = "aarch64") { "-arm64" } else { "" };
    let pid = std::process::id();
    let one_process = TraceFilter { tgids: [pid].into(), ..TraceFilter::default() };
    let filtered = TraceFilter {
        comms: ["bench".to_owned()].into(),
        ports: [1].into(),
        cgroups: vec![(1, 0); 2],
        follow: true,
        ..one_process.clone()
    };
    let light = vec!["sched_switch", "napi_poll", "kfree_skb"];
    let modes = [
        ("daemon", None, Vec::new()),
        ("light", None, light),
        ("trace", Some(one_process), Vec::new()),
        ("trace-filtered", Some(filtered), Vec::new()),
    ];
    let mut rows = Vec::new();
    for (mode, trace, switched_off) in modes {
        let options = Options {
            trace,
            switched_off,
            max_sockets: 1024,
            max_readers: 1024,
            max_drop_entries: 1024,
            ring_bytes: 1 << 20,
            ..Options::default()
        };
        let mut kernel = Kernel::load(options).unwrap_or_else(|error| panic!("loading in mode {mode}: {error}"));
        let raw = kernel.raw().unwrap_or_else(|error| panic!("reading in mode {mode}: {error}"));
        rows.extend(raw.programs.into_iter().map(|(program, stats)| Row {
            kernel: series.clone(),
            mode: mode.to_owned(),
            program,
            instructions: stats.verified_instructions,
        }));
    }
    rows
}

/// The recorded counts of all kernels.
pub fn recorded() -> Vec<Row> {
    let text = fs::read_to_string(PATH).unwrap_or_else(|error| panic!("{PATH}: {error}; record it by `{COMMAND}`"));
    parse(&text).unwrap_or_else(|error| panic!("{PATH}: {error}"))
}

/// Parses the file's text; an error names the line.
pub fn parse(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().zip(1..).filter(|(line, number)| !line.is_empty() && (*number > 1 || *line != HEADING));
    let row = |(line, number): (&str, u32)| {
        let [kernel, mode, program, instructions] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("line {number} does not have four columns: {line}"));
        };
        let instructions = instructions.parse().map_err(|_| format!("line {number} has no count: {line}"))?;
        Ok(Row { kernel: kernel.to_owned(), mode: mode.to_owned(), program: program.to_owned(), instructions })
    };
    lines.map(row).collect()
}

/// The file's text, sorted.
pub fn format(mut rows: Vec<Row>) -> String {
    rows.sort();
    std::iter::once(format!("{HEADING}\n")).chain(rows.iter().map(|row| line(row) + "\n")).collect()
}

/// A line of the file, without the line break.
pub fn line(row: &Row) -> String {
    format!("{}\t{}\t{}\t{}", row.kernel, row.mode, row.program, row.instructions)
}
