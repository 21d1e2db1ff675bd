//! Compiles the eBPF programs for every build of the daemon, and passes it the object as `OUT_DIR/tcpmon.bpf.o`.
//!
//! If the tools for that are missing, the object is empty and a warning names the remedy. Everything that needs no
//! kernel (cargo check, clippy, doc, unit tests) then works on any machine with a stable toolchain.

use std::{
    env,
    error::Error,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use tcpmon_build::Toolkit;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?).join("tcpmon.bpf.o");
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace = package.parent().ok_or("the daemon is not in its workspace")?;

    watch_sources(workspace);
    set_revision(workspace);
    match Toolkit::find(workspace) {
        Ok(toolkit) => {
            println!("cargo:rerun-if-changed={}", toolkit.linker.display());
            build(&toolkit, &out)
        }
        Err(missing) => {
            println!("cargo:warning=no eBPF programs in this build: {missing}");
            // A path that does not exist makes cargo run this script again next time.
            println!("cargo:rerun-if-changed=the-missing-tools");
            Ok(fs::write(&out, [])?)
        }
    }
}

fn watch_sources(workspace: &Path) {
    for path in ["Cargo.lock", "Cargo.toml", "tcpmon-common", "tcpmon-ebpf"] {
        println!("cargo:rerun-if-changed={}", workspace.join(path).display());
    }
}

fn build(toolkit: &Toolkit, out: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(toolkit.target_dir())?;
    // Builds of the daemon in other target folders share this eBPF target folder: none may copy the object while
    // another one links it.
    let lock = File::create(toolkit.target_dir().join(".tcpmon-lock"))?;
    lock.lock()?;
    let status = toolkit.cargo("build", &env::var("CARGO_CFG_TARGET_ARCH")?).status()?;
    if !status.success() {
        return Err(format!("the eBPF programs do not compile ({status}): see above").into());
    }
    fs::write(out, without_debug_information(&fs::read(toolkit.object())?)?)?;
    Ok(())
}

/// The object without DWARF, which is four fifths of it and which nobody reads: the kernel takes lines from BTF.
fn without_debug_information(object: &[u8]) -> object::build::Result<Vec<u8>> {
    let mut builder = object::build::elf::Builder::read(object)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete = name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    builder.delete_orphans();
    // LLVM keeps the names of sections among those of symbols.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = object::build::elf::SectionData::SectionString;
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// Sets the revision for `tcpmon --version` and the build information metric.
fn set_revision(workspace: &Path) {
    let revision = git(workspace, &["rev-parse", "--short", "HEAD"]);
    println!("cargo:rustc-env=TCPMON_REVISION={}", revision.as_deref().unwrap_or("unknown"));
    // Every commit and checkout adds a line to the log of HEAD.
    let log = git(workspace, &["rev-parse", "--git-path", "logs/HEAD"])
        .map(|path| workspace.join(path))
        .filter(|path| path.is_file());
    if let Some(log) = log {
        println!("cargo:rerun-if-changed={}", log.display());
    }
}

fn git(workspace: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(workspace).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
