//! `cargo xtask drift`: reports what tcpmon relies on that is different in another kernel.
//!
//! A field at another offset is not drift, because offsets are looked up at the start. A field that is gone, has
//! another size or is now a bit field is drift, and so is every change of a tracepoint's arguments.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use tcpmon_btf::{
    Btf, Field, layout,
    plan::{PROBES, iterator_moved, unsupported},
};
use tcpmon_common::settings::ABSENT;

use crate::{btf_file, btf_fixture};

/// Arguments of `cargo xtask drift`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kernels: their BTF as in /sys/kernel/btf/vmlinux, the same compressed by xz, or an uncompressed vmlinux
    #[arg(required = true)]
    kernels: Vec<PathBuf>,
}

/// Compares each kernel with the newest fixture and prints what changed; returns an error if anything did.
pub fn run(args: &Args) -> Result<()> {
    let expected = fs::read_to_string(btf_fixture::folder().join(btf_fixture::EXPECTED))?;
    let newest = labels(&expected).into_iter().next_back().context("expected.tsv lists no kernel")?;
    let known = fs::read(btf_fixture::folder().join(format!("{newest}.btf")))?;
    let known = Btf::parse(&known)?;
    let mut findings = 0;
    for path in &args.kernels {
        let changes = of_file(path, &known, &expected)?;
        println!("{}: {} changes since {newest}", path.display(), changes.len());
        for change in &changes {
            println!("  {change}");
        }
        findings += changes.len();
    }
    ensure!(
        findings == 0,
        "{findings} changes: see what each means for the programs, then add the kernel as a fixture"
    );
    Ok(())
}

fn of_file(path: &Path, known: &Btf<'_>, expected: &str) -> Result<Vec<String>> {
    let bytes = btf_file::read(path)?;
    let other = Btf::parse(&bytes).with_context(|| format!("{} is not BTF", path.display()))?;
    Ok(changes(known, &other, expected))
}

/// The kernels of the table, oldest first.
fn labels(expected: &str) -> Vec<&str> {
    let heading = expected.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    heading.split('\t').skip(2).collect()
}

/// One sentence for each difference in `other`.
fn changes(known: &Btf<'_>, other: &Btf<'_>, expected: &str) -> Vec<String> {
    let mut changes = Vec::new();
    for probe in &PROBES {
        let (before, after) = (arguments(known, probe.name), arguments(other, probe.name));
        if before != after {
            changes.push(format!("tracepoint {}: {before}, now {after}", probe.name));
        }
        if unsupported(probe, known).is_none() {
            changes.extend(unsupported(probe, other));
        }
    }
    let rows = expected.lines().filter(|line| !line.starts_with('#')).skip(1);
    let of_table = rows.filter_map(|row| row.split_once('\t')).map(first_of_rest);
    let fields: BTreeSet<(&str, &str)> = of_table.chain(btf_fixture::nested_fields()).collect();
    for (structure, path) in fields {
        let (before, after) = (shape(known.field(structure, path)), shape(other.field(structure, path)));
        if before != after {
            changes.push(format!("{structure}.{path}: {before}, now {after}"));
        }
    }
    for function in btf_fixture::functions() {
        if known.has_function(function) && !other.has_function(function) {
            changes.push(format!("function {function} no longer exists"));
        }
    }
    changes.extend(iterator_moved(other));
    changes.extend(resolved(known, other));
    changes
}

/// Fields of the layout that can no longer be resolved, optional or not.
fn resolved(known: &Btf<'_>, other: &Btf<'_>) -> Vec<String> {
    let absent = |btf| -> Result<BTreeSet<String>, String> {
        let layout = layout::resolve(btf).map_err(|missing| format!("{missing} is missing: tcpmon would not run"))?;
        let text = format!("{layout:#?}");
        let names =
            text.lines().filter_map(|line| line.trim().strip_suffix(&format!(": {ABSENT},")).map(str::to_owned));
        Ok(names.collect())
    };
    match (absent(known), absent(other)) {
        (Ok(before), Ok(after)) => {
            after.difference(&before).map(|name| format!("{name} of Layout can no longer be resolved")).collect()
        }
        (_, Err(error)) => vec![error],
        (Err(_), Ok(_)) => Vec::new(),
    }
}

fn arguments(btf: &Btf<'_>, tracepoint: &str) -> String {
    match btf.tracepoint(tracepoint) {
        None => "absent".to_owned(),
        Some(arguments) => {
            let kinds: Vec<String> = arguments.iter().map(|argument| format!("{:?}", argument.kind)).collect();
            format!("({})", kinds.join(", "))
        }
    }
}

/// Size and kind of a field, without its offset.
fn shape(field: Option<Field>) -> String {
    match field {
        None => "absent".to_owned(),
        Some(Field { bits: Some((_, bits)), .. }) => format!("{bits} bits"),
        Some(Field { size, .. }) => format!("{size} bytes"),
    }
}

fn first_of_rest<'a>((structure, rest): (&'a str, &'a str)) -> (&'a str, &'a str) {
    (structure, rest.split('\t').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(old: &str, new: &str) -> Result<Vec<String>> {
        let read = |label: &str| fs::read(btf_fixture::folder().join(format!("{label}.btf")));
        let expected = fs::read_to_string(btf_fixture::folder().join(btf_fixture::EXPECTED))?;
        let (old, new) = (read(old)?, read(new)?);
        Ok(changes(&Btf::parse(&old)?, &Btf::parse(&new)?, &expected))
    }

    #[test]
    fn a_kernel_does_not_differ_from_itself() -> Result<()> {
        assert_eq!(between("7.3", "7.3")?, Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn arguments_fields_and_functions_that_changed_are_named() -> Result<()> {
        let text = between("6.12", "6.1")?.join("\n");
        for part in [
            "tracepoint kfree_skb: ",
            "sock.sk_userlocks: 1 bytes, now 4 bits",
            "argument 3 of this kernel's kfree_skb",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(between("6.1", "5.10")?.iter().any(|change| change.contains("bpf_task_storage_get no longer exists")));
        let text = between("6.12", "6.16")?.join("\n");
        assert!(text.contains("tracepoint tcp_rcvbuf_grow: absent, now (Pointer(\"sock\"), "), "{text}");
        Ok(())
    }
}
