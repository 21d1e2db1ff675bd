//! The verifier's instruction counts from all kernels, recorded in `tests/verifier-instructions.tsv`.
//!
//! The comparison is a separate test (`tests/tests/verifier.rs`), on every kernel; this module only records the counts.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};

use super::Run;
use crate::workspace;

const FILE: &str = "tests/verifier-instructions.tsv";

/// Kernel, mode and program.
type Key = [String; 3];

/// With `write`, copies the counts into the file.
pub fn record(runs: &[Run], write: bool) -> Result<()> {
    if !write {
        return Ok(());
    }
    let path = workspace::root().join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    let measured = runs.iter().flat_map(|run| run.results.reported("verifier"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read this kernel's release")?;
    let host = release.split('.').take(2).collect::<Vec<_>>().join(".");
    fs::write(&path, merged(&text, measured, &host)?).with_context(|| format!("cannot write {FILE}"))?;
    println!("wrote {FILE}");
    Ok(())
}

/// The file's text with its own lines replaced by the measured ones. For the series that the host runs, too, the larger
/// count is kept: the host has another build of that kernel, and for longer programs the counts of the two builds
/// differ by a quarter.
fn merged<'a>(text: &'a str, measured: impl Iterator<Item = &'a str>, host: &str) -> Result<String> {
    let (heading, lines) = text.split_once('\n').context("the file is empty")?;
    let mut counts: BTreeMap<Key, u64> = BTreeMap::new();
    for line in lines.lines().chain(measured) {
        let words: Vec<&str> = line.split('\t').collect();
        let [kernel, mode, program, count] = words[..] else { anyhow::bail!("{FILE}: malformed line: {line}") };
        let count = count.parse().context("invalid count")?;
        let recorded = counts.entry([kernel, mode, program].map(str::to_owned)).or_insert(count);
        *recorded = if kernel == host { count.max(*recorded) } else { count };
    }
    let lines = counts.iter().map(|([kernel, mode, program], count)| format!("{kernel}\t{mode}\t{program}\t{count}\n"));
    Ok(std::iter::once(format!("{heading}\n")).chain(lines).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_counts_replace_those_of_the_file_and_the_rest_stays() -> Result<()> {
        let text = "kernel\tmode\tprogram\tinstructions\n6.12\tdaemon\tb\t9\n6.18\tdaemon\ta\t5\n6.18\tdaemon\tb\t9\n";
        let measured = ["6.1\tdaemon\ta\t7", "6.12\tdaemon\tb\t8", "6.18\tdaemon\ta\t6", "6.18\tdaemon\tb\t8"];
        assert_eq!(
            merged(text, measured.into_iter(), "6.18")?,
            "kernel\tmode\tprogram\tinstructions\n6.1\tdaemon\ta\t7\n6.12\tdaemon\tb\t8\n\
             6.18\tdaemon\ta\t6\n6.18\tdaemon\tb\t9\n"
        );
        Ok(())
    }
}
