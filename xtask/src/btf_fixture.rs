//! `cargo xtask btf-fixture`: reduces a kernel's BTF to what tcpmon looks up, as a fixture for its tests.
//!
//! A fixture is valid BTF of 27 to 40 KB instead of 5 MB. The structures in `wanted.rs` keep their members. Structures
//! that they only point to become forward declarations, and larger structures inside them become empty ones of the same
//! size.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use tcpmon_btf::{Btf, Field, kind};

mod subset;
mod wanted;

use subset::{Subset, words};
use wanted::WANTED;

use crate::{btf_file, workspace};

/// Limit on a fixture's size, because the repository has fourteen of them.
const MAX_FIXTURE_BYTES: usize = 64 << 10;

/// Arguments of `cargo xtask btf-fixture`.
#[derive(clap::Args)]
pub struct Args {
    /// Use all kernels in ../shared/kernel-btf
    #[arg(long)]
    all: bool,
    /// BTF files, as in /sys/kernel/btf/vmlinux, such files compressed by xz, or an uncompressed vmlinux
    inputs: Vec<PathBuf>,
}

/// The table of offsets, in the folder of the fixtures.
pub const EXPECTED: &str = "expected.tsv";

/// The folder of the fixtures.
pub fn folder() -> PathBuf {
    workspace::root().join("tcpmon-btf/tests/fixtures/btf")
}

/// Fields below the first level that fixtures contain.
pub fn nested_fields<'a>() -> impl Iterator<Item = (&'a str, &'a str)> {
    WANTED.nested.iter().flat_map(|(structure, paths)| paths.iter().map(|path| (*structure, *path)))
}

/// Kernel functions that fixtures contain.
pub fn functions() -> &'static [&'static str] {
    WANTED.functions
}

/// Writes `tcpmon-btf/tests/fixtures/btf/LABEL.btf` for each input `LABEL.btf`, `LABEL.btf.xz` or `LABEL`, and adds
/// a column for LABEL to the table of offsets if it has none. (Columns already in the table were read by other means.)
pub fn run(args: &Args) -> Result<()> {
    let mut inputs = args.inputs.clone();
    if args.all {
        let folder = workspace::root().join("../shared/kernel-btf");
        let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        inputs.extend(entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?);
        inputs.sort();
    }
    ensure!(!inputs.is_empty(), "no input: give BTF files or --all");

    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    for input in inputs {
        let file = input.file_name().context("the input is not a file")?.to_string_lossy();
        let label = file.trim_end_matches(".xz").trim_end_matches(".btf");
        let fixture = make(&input).with_context(|| format!("cut down {}", input.display()))?;
        let output = folder.join(format!("{label}.btf"));
        fs::write(&output, &fixture).with_context(|| format!("write {}", output.display()))?;
        println!("{}: {} bytes", output.display(), fixture.len());
        let table = folder.join(EXPECTED);
        let text = fs::read_to_string(&table)?;
        if let Some(wider) = with_column(&text, label, &Btf::parse(&fixture)?) {
            fs::write(&table, wider)?;
            println!("{}: added column {label}: compare it with another tool, such as pahole", table.display());
        }
    }
    Ok(())
}

fn make(input: &Path) -> Result<Vec<u8>> {
    let original = btf_file::read(input)?;
    let original = Btf::parse(&original)?;
    let fixture = Subset::new(&original).cut()?;
    ensure!(
        fixture.len() <= MAX_FIXTURE_BYTES,
        "{} bytes are more than {MAX_FIXTURE_BYTES}: include fewer types",
        fixture.len()
    );
    check(&original, &Btf::parse(&fixture)?)?;
    Ok(fixture)
}

/// The table with a column for one more kernel; `None` if it already has one.
fn with_column(table: &str, label: &str, btf: &Btf<'_>) -> Option<String> {
    let mut heading = true;
    let mut text = String::new();
    for line in table.lines() {
        text += line;
        let mut cells = line.split('\t');
        if !line.starts_with('#') {
            if heading && cells.clone().any(|cell| cell == label) {
                return None;
            }
            let (structure, path) = (cells.next()?, cells.next()?);
            let cell = if heading { label.to_owned() } else { cell(btf.field(structure, path)) };
            text += &format!("\t{cell}");
            heading = false;
        }
        text += "\n";
    }
    Some(text)
}

/// Offset and size, and for a bit field also its first bit, in the format of the table.
fn cell(field: Option<Field>) -> String {
    match field {
        None => "-".to_owned(),
        Some(Field { offset, bits: Some((first, count)), .. }) => format!("{offset}.b{first}:{count}b"),
        Some(Field { offset, size, bits: None }) => format!("{offset}:{size}"),
    }
}

/// Makes sure that the fixture and the original give the same answers to the same queries.
fn check(original: &Btf<'_>, fixture: &Btf<'_>) -> Result<()> {
    for (name, kept) in WANTED.structures {
        ensure!(fixture.size_of(name) == original.size_of(name), "size of {name} differs");
        let mut members = Vec::new();
        if let Some(id) = original.blob().structure(name) {
            member_names(original, id, &mut members);
        }
        for member in members.iter().filter(|member| kept.is_empty() || kept.contains(member)) {
            ensure!(fixture.field(name, member) == original.field(name, member), "{name}.{member} differs");
        }
    }
    for (name, paths) in WANTED.nested {
        for path in *paths {
            ensure!(fixture.field(name, path) == original.field(name, path), "{name}.{path} differs");
        }
    }
    for name in WANTED.enums {
        ensure!(fixture.enumerators(name) == original.enumerators(name), "enum {name} differs");
    }
    for name in WANTED.enumerators {
        ensure!(fixture.enumerator(None, name) == original.enumerator(None, name), "{name} differs");
    }
    for name in WANTED.tracepoints {
        ensure!(fixture.tracepoint(name) == original.tracepoint(name), "tracepoint {name} differs");
    }
    for name in WANTED.functions {
        ensure!(fixture.has_function(name) == original.has_function(name), "function {name} differs");
    }
    Ok(())
}

/// Names of a structure's members, including those of its anonymous members.
fn member_names<'a>(btf: &Btf<'a>, structure: u32, names: &mut Vec<&'a str>) {
    let record = btf.blob().record(structure);
    let Some(record) = record.filter(|record| matches!(record.kind, kind::STRUCT | kind::UNION)) else {
        return;
    };
    for member in words(record.tail).chunks_exact(3) {
        match btf.blob().string(member[0]) {
            "" => member_names(btf, member[1], names),
            name => names.push(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_column_is_what_the_table_has_of_it() -> Result<()> {
        let table = fs::read_to_string(folder().join(EXPECTED))?;
        for label in ["6.1", "7.3"] {
            let bytes = fs::read(folder().join(format!("{label}.btf")))?;
            let btf = Btf::parse(&bytes)?;
            assert_eq!(with_column(&table, label, &btf), None, "{label} is there");
            let wider = with_column(&table, "new", &btf).context("new is not there")?;
            let mut rows = wider.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t'));
            let column =
                rows.next().and_then(|mut heading| heading.position(|cell| cell == label)).context("a column")?;
            for row in rows {
                let cells: Vec<&str> = row.collect();
                assert_eq!(cells.last(), cells.get(column), "{label} {cells:?}");
            }
        }
        Ok(())
    }
}
