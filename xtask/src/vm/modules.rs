//! Kernel modules: which ones are needed, and in which order they can be inserted.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::process;

/// Modules that the tests use, and their dependencies. Each is a module on some of the kernels and built in on the
/// others.
pub const NAMES: [&str; 30] = [
    // The virtual links, and the kernel's own report on sockets.
    "tun",
    "veth",
    "inet_diag",
    "tcp_diag",
    // nft.
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_tables",
    "nf_tproxy_ipv4",
    "nf_tproxy_ipv6",
    "nft_counter",
    "nft_numgen",
    "nft_objref",
    "nft_tproxy",
    // Reads TCP in kernel threads.
    "nbd",
    // Emulated NICs.
    "mii",
    "8139cp",
    "pcnet32",
    "vmxnet3",
    "e1000",
    "failover",
    "net_failover",
    "virtio",
    "virtio_ring",
    "virtio_pci",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_net",
];

/// Collects the modules below `from` in one folder, uncompressed, because not every kernel can decompress them itself.
pub fn collect(from: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
    for path in files_below(from)? {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let Some((module, compression)) = name.split_once(".ko") else { continue };
        // The search patterns also match other modules whose names have the same ending.
        if !NAMES.contains(&module) {
            continue;
        }
        let target = into.join(format!("{module}.ko"));
        match compression {
            "" => fs::rename(&path, &target)?,
            ".xz" => decompress("xz", &path, &target)?,
            _ => decompress("zstd", &path, &target)?,
        }
    }
    Ok(())
}

/// The modules in the folder, each after those that it depends on.
pub fn in_order(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut depends = HashMap::new();
    for path in files_below(folder)? {
        let bytes = fs::read(&path)?;
        let name = path.file_stem().expect("a module has a name").to_string_lossy().into_owned();
        depends.insert(name.clone(), dependencies(&bytes).with_context(|| format!("module {name}"))?);
    }
    let order = sorted(&depends)?;
    Ok(order.into_iter().map(|name| folder.join(name + ".ko")).collect())
}

/// Writes the output of `tool -dc` for a file.
pub fn decompress(tool: &str, from: &Path, to: &Path) -> Result<()> {
    let file = fs::File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    process::run(Command::new(tool).args(["-dc", "--quiet"]).arg(from).stdout(file))
        .with_context(|| format!("cannot decompress {}", from.display()))
}

/// The value of `depends=` in a module's section `.modinfo`, which is a list of strings separated by NUL bytes.
fn dependencies(module: &[u8]) -> Result<Vec<String>> {
    const KEY: &[u8] = b"\0depends=";
    let at = module
        .windows(KEY.len())
        .position(|window| window == KEY)
        .context("its section .modinfo has no entry depends")?;
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let value = str::from_utf8(value).context("its dependencies are not UTF-8")?;
    Ok(value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn sorted(depends: &HashMap<String, Vec<String>>) -> Result<Vec<String>> {
    fn visit(name: &str, depends: &HashMap<String, Vec<String>>, order: &mut Vec<String>) -> Result<()> {
        if order.iter().any(|done| done == name) {
            return Ok(());
        }
        let (own_name, needed) =
            depends.iter().find(|(known, _)| known.replace('-', "_") == name.replace('-', "_")).with_context(|| {
                format!("module {name} is needed by another: add it to NAMES in xtask/src/vm/modules.rs")
            })?;
        for other in needed {
            visit(other, depends, order)?;
        }
        if !order.contains(own_name) {
            order.push(own_name.clone());
        }
        Ok(())
    }
    let mut names: Vec<&String> = depends.keys().collect();
    // A module that is loaded without being named as a dependency comes first: nf_tables requests a checksum by its
    // name.
    names.sort_by_key(|name| (!name.starts_with("crc32c"), *name));
    let mut order = Vec::new();
    for name in names {
        visit(name, depends, &mut order)?;
    }
    Ok(order)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            files.extend(files_below(&path)?);
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, &[&str])]) -> HashMap<String, Vec<String>> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        rows.iter().map(|(name, needed)| ((*name).to_owned(), names(needed))).collect()
    }

    #[test]
    fn a_module_comes_after_what_it_depends_on() {
        let rows = table(&[("8139cp", &["mii"]), ("mii", &[]), ("nf_tables", &["libcrc32c"]), ("libcrc32c", &[])]);
        let order = sorted(&rows).unwrap_or_default();
        let place = |name: &str| order.iter().position(|other| other == name);
        assert_eq!(order.len(), 4);
        assert!(place("mii") < place("8139cp") && place("libcrc32c") < place("nf_tables"), "{order:?}");
    }

    #[test]
    fn a_missing_dependency_is_named() {
        let error = sorted(&table(&[("tcp_diag", &["inet_diag"])])).map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.contains("inet_diag")));
    }

    #[test]
    fn dependencies_are_read_from_the_modules_own_words() {
        let read = |bytes: &[u8]| dependencies(bytes).ok();
        assert_eq!(read(b"x\0license=GPL\0depends=a,b-c\0name=x\0"), Some(vec!["a".into(), "b-c".into()]));
        assert_eq!(read(b"x\0depends=\0name=x\0"), Some(vec![]));
        assert_eq!(read(b"no module"), None);
    }
}
