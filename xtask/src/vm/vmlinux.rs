//! Extracts the actual kernel from its self-extracting image. QEMU starts it directly, which saves the emulated CPU the
//! decompression (2.6 s of the 5 s that 6.1 takes to boot).

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::modules::decompress;

/// Writes the kernel that is inside `image`, an x86 `vmlinuz`. That of arm64 is not compressed in Debian's packages.
pub fn extract(image: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    if is_arm64(&bytes) {
        return Ok(fs::write(to, bytes)?);
    }
    let (payload, size) = payload(&bytes).with_context(|| format!("{} is not a kernel image", image.display()))?;
    let tool = match payload {
        [0xfd, b'7', b'z', ..] => "xz",
        _ => "zstd",
    };
    let compressed = to.with_extension("compressed");
    fs::write(&compressed, payload)?;
    decompress(tool, &compressed, to)?;
    fs::remove_file(compressed)?;
    let written = fs::metadata(to)?.len();
    ensure!(written == u64::from(size), "{} unpacks to {written} bytes instead of {size}", image.display());
    Ok(())
}

/// The magic number of an uncompressed image (`Documentation/arch/arm64/booting.rst`).
fn is_arm64(image: &[u8]) -> bool {
    image.get(0x38..0x3c) == Some(b"ARM\x64")
}

/// The compressed kernel and its uncompressed size, which follows it (`Documentation/arch/x86/boot.rst`: `setup_sects`,
/// `payload_offset`, `payload_length`).
fn payload(image: &[u8]) -> Option<(&[u8], u32)> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
    let sectors = match image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = (sectors + 1) * 512 + usize::try_from(word(0x248)?).ok()?;
    let end = start.checked_add(usize::try_from(word(0x24c)?).ok()?)?.checked_sub(4)?;
    Some((image.get(start..end)?, word(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_lies_behind_the_setup_sectors_and_its_size_behind_it() {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&7_u32.to_le_bytes());
        image[1024 + 16..1024 + 19].copy_from_slice(b"abc");
        image[1024 + 19..1024 + 23].copy_from_slice(&99_u32.to_le_bytes());
        assert_eq!(payload(&image), Some((&b"abc"[..], 99)));
        assert_eq!(payload(&image[..1040]), None);
        assert_eq!(payload(b""), None);
    }
}
