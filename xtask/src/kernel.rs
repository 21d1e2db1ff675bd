//! The daemon's own modules for BTF and kernel support, for the BTF commands here.
//!
//! The files are the daemon's and are compiled a second time here: xtask cannot depend on a package that needs xtask to
//! be built first.

#[path = "../../tcpmon-daemon/src/kernel/btf.rs"]
pub mod btf;
#[path = "../../tcpmon-daemon/src/kernel/layout.rs"]
#[expect(dead_code, reason = "the names of drop reasons are the daemon's alone")]
pub mod layout;
#[path = "../../tcpmon-daemon/src/kernel/plan.rs"]
#[expect(dead_code, reason = "what each probe is for matters to the daemon alone")]
pub mod plan;

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// Reads BTF from a file: raw, compressed by xz, or in a `vmlinux`.
pub fn read_btf(path: &Path) -> Result<Vec<u8>> {
    let bytes = if path.extension().is_some_and(|extension| extension == "xz") {
        let xz = Command::new("xz").arg("-dc").arg("--").arg(path).output().context("run xz: install xz-utils")?;
        ensure!(xz.status.success(), "xz: {}", String::from_utf8_lossy(&xz.stderr).trim());
        xz.stdout
    } else {
        fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
    };
    if bytes.starts_with(b"\x7fELF") {
        let section =
            elf_section(&bytes, b".BTF").with_context(|| format!("{} has no section .BTF", path.display()))?;
        return Ok(section.to_vec());
    }
    Ok(bytes)
}

/// A section of a little-endian 64-bit ELF file (elf(5)).
fn elf_section<'a>(elf: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let number = |at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(elf.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    let (headers, size, count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
    let header = |index: usize| headers.checked_add(size.checked_mul(index)?);
    let body = |header: usize| {
        let start = number(header + 0x18, 8)?;
        elf.get(start..start.checked_add(number(header + 0x20, 8)?)?)
    };
    let names = body(header(number(0x3e, 2)?)?)?;
    (0..count).filter_map(header).find_map(|header| {
        let name = names.get(number(header, 4)?..)?.split(|byte| *byte == 0).next()?;
        (name == wanted).then(|| body(header))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_found_by_its_name() {
        // The header, then two section headers of 64 bytes at 64, their names at 192, the section at 208.
        let mut elf = vec![0; 216];
        elf[0x28] = 64;
        elf[0x3a] = 64;
        elf[0x3c] = 2;
        elf[64 + 0x18] = 192;
        elf[64 + 0x20] = 6;
        elf[192..198].copy_from_slice(b"\0.BTF\0");
        elf[128] = 1;
        elf[128 + 0x18] = 208;
        elf[128 + 0x20] = 3;
        elf[208..211].copy_from_slice(b"abc");
        assert_eq!(elf_section(&elf, b".BTF"), Some(&b"abc"[..]));
        assert_eq!(elf_section(&elf, b".bss"), None);
        assert_eq!(elf_section(&elf[..200], b".BTF"), None);
        assert_eq!(elf_section(b"\x7fELF", b".BTF"), None);
    }
}
