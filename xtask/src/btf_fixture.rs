//! `cargo xtask btf-fixture`: cuts a kernel's BTF down to what tcpmon looks up, as a fixture for its tests.
//!
//! A fixture is valid BTF of 27 to 40 KB instead of 5 MB. The structures in `wanted.rs` keep their members; what these
//! merely point to becomes a forward declaration, and larger structures within become empty ones of the same size.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

#[path = "../../tcpmon-daemon/src/kernel/btf.rs"]
mod btf;
mod subset;
mod wanted;

use btf::{Btf, kind};
use subset::{Subset, words};
use wanted::WANTED;

use crate::workspace;

/// A fixture must stay small enough to live in the repository, thirteen times.
const MAX_FIXTURE_BYTES: usize = 64 << 10;

/// Arguments of `cargo xtask btf-fixture`.
#[derive(clap::Args)]
pub struct Args {
    /// Take every kernel in ../shared/kernel-btf
    #[arg(long)]
    all: bool,
    /// BTF files, as in /sys/kernel/btf/vmlinux, or such files compressed by xz
    inputs: Vec<PathBuf>,
}

/// Writes `tcpmon-daemon/tests/fixtures/btf/LABEL.btf` for each input `LABEL.btf`, `LABEL.btf.xz` or `LABEL`.
pub fn run(args: &Args) -> Result<()> {
    let mut inputs = args.inputs.clone();
    if args.all {
        let folder = workspace::root().join("../shared/kernel-btf");
        let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        inputs.extend(entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?);
        inputs.sort();
    }
    ensure!(!inputs.is_empty(), "no kernel named: give BTF files or --all");

    let folder = workspace::root().join("tcpmon-daemon/tests/fixtures/btf");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    for input in inputs {
        let file = input.file_name().context("input is not a file")?.to_string_lossy();
        let label = file.trim_end_matches(".xz").trim_end_matches(".btf");
        let fixture = make(&input).with_context(|| format!("cut down {}", input.display()))?;
        let output = folder.join(format!("{label}.btf"));
        fs::write(&output, &fixture).with_context(|| format!("write {}", output.display()))?;
        println!("{}: {} bytes", output.display(), fixture.len());
    }
    Ok(())
}

fn make(input: &Path) -> Result<Vec<u8>> {
    let original = read(input)?;
    let original = Btf::parse(&original)?;
    let fixture = Subset::new(&original).cut()?;
    ensure!(fixture.len() <= MAX_FIXTURE_BYTES, "{} bytes are too large: want fewer types", fixture.len());
    check(&original, &Btf::parse(&fixture)?)?;
    Ok(fixture)
}

fn read(input: &Path) -> Result<Vec<u8>> {
    if input.extension().is_none_or(|extension| extension != "xz") {
        return Ok(fs::read(input)?);
    }
    let xz = Command::new("xz").arg("-dc").arg("--").arg(input).output().context("run xz: install xz-utils")?;
    ensure!(xz.status.success(), "xz: {}", String::from_utf8_lossy(&xz.stderr).trim());
    Ok(xz.stdout)
}

/// Asks the fixture and the original the same questions.
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

/// Names of a structure's members, and of those in its anonymous members.
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
