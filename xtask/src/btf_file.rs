//! Reads a kernel's BTF from a file in any of the usual forms.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use object::{File, Object as _, ObjectSection as _};

/// Reads BTF from a file: raw, compressed by xz, or in a `vmlinux`.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = if path.extension().is_some_and(|extension| extension == "xz") {
        let xz = Command::new("xz").arg("-dc").arg("--").arg(path).output().context("run xz: install xz-utils")?;
        ensure!(xz.status.success(), "xz: {}", String::from_utf8_lossy(&xz.stderr).trim());
        xz.stdout
    } else {
        fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
    };
    if !bytes.starts_with(&object::elf::ELFMAG) {
        return Ok(bytes);
    }
    let elf = File::parse(&*bytes).with_context(|| format!("{} is not a valid ELF file", path.display()))?;
    let section = elf.section_by_name(".BTF").with_context(|| format!("{} has no section .BTF", path.display()))?;
    Ok(section.data()?.to_vec())
}

#[cfg(test)]
mod tests {
    use object::{
        Architecture, BinaryFormat, Endianness, SectionKind,
        write::{Object, StandardSegment},
    };

    use super::*;

    fn vmlinux(section: &str) -> Result<Vec<u8>> {
        let mut elf = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let section =
            elf.add_section(elf.segment_name(StandardSegment::Debug).to_vec(), section.into(), SectionKind::Other);
        elf.append_section_data(section, b"types", 1);
        Ok(elf.write()?)
    }

    fn read_file(bytes: &[u8]) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), bytes)?;
        read(file.path())
    }

    #[test]
    fn types_are_read_raw_or_from_the_section_of_an_elf_file() -> Result<()> {
        assert_eq!(read_file(b"raw types")?, b"raw types");
        assert_eq!(read_file(&vmlinux(".BTF")?)?, b"types");
        let error = read_file(&vmlinux(".bss")?).expect_err("a vmlinux without BTF");
        assert!(error.to_string().contains("no section .BTF"), "{error}");
        assert!(read_file(b"\x7fELF").is_err());
        Ok(())
    }
}
