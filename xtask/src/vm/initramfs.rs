//! An archive that the kernel unpacks as its first file system: newc, as described in
//! `Documentation/driver-api/early-userspace`. It is not compressed, because the emulated CPU is slower than the disk.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// An archive that is being written. Paths inside it are absolute.
pub struct Initramfs {
    output: BufWriter<File>,
    position: u64,
    entries: u32,
    folders: HashSet<PathBuf>,
}

impl Initramfs {
    /// Starts an archive at `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { output: BufWriter::new(file), position: 0, entries: 0, folders: HashSet::new() })
    }

    /// Adds a folder and all folders above it.
    pub fn folder(&mut self, path: &Path) -> Result<()> {
        let above: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
        for folder in above.into_iter().rev().filter(|folder| folder.parent().is_some()) {
            if self.folders.insert(folder.clone()) {
                self.entry(&folder, FOLDER, &[])?;
            }
        }
        Ok(())
    }

    /// Adds an executable file with these bytes.
    pub fn file(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.folder(path.parent().context("the path has no parent folder")?)?;
        self.entry(path, FILE, bytes)
    }

    /// Adds `/dev/console`, which the kernel opens for the init program before init can mount anything.
    pub fn console(&mut self) -> Result<()> {
        self.folder(Path::new("/dev"))?;
        self.entry(Path::new("/dev/console"), CONSOLE, &[])
    }

    /// Adds a copy of a file of the host.
    pub fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.file(to, &bytes)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Result<()> {
        self.entry(Path::new("/TRAILER!!!"), 0, &[])?;
        Ok(self.output.flush()?)
    }

    fn entry(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
        let name = path.to_str().context("the path is not UTF-8")?.trim_start_matches('/');
        self.entries += 1;
        let links = if mode == FOLDER { 2 } else { 1 };
        let size = u32::try_from(bytes.len()).context("the file is larger than 4 GiB")?;
        let name_size = u32::try_from(name.len() + 1)?;
        // The node's major and minor number: character device 5:1.
        let node = if mode == CONSOLE { (5, 1) } else { (0, 0) };
        // Inode, mode, uid, gid, links, mtime, size, device (two), node (two), length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, node.0, node.1, name_size, 0];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        self.write(format!("070701{header}{name}\0").as_bytes())?;
        self.align()?;
        self.write(bytes)?;
        self.align()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.position += bytes.len() as u64;
        Ok(self.output.write_all(bytes)?)
    }

    fn align(&mut self) -> Result<()> {
        let padding = (4 - self.position % 4) % 4;
        self.write(&[0; 3][..padding as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_header_name_and_bytes_each_filled_up_to_four() -> Result<()> {
        let path = std::env::temp_dir().join(format!("tcpmon-initramfs-{}", std::process::id()));
        let mut archive = Initramfs::create(&path)?;
        archive.file(Path::new("/a/b"), b"hello")?;
        archive.file(Path::new("/a/c"), b"")?;
        archive.finish()?;
        let bytes = fs::read(&path)?;
        fs::remove_file(&path)?;
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let count = |part: &str| text.matches(part).count();
        assert_eq!((count("070701"), count("a\0"), count("a/b\0"), count("hello\0\0\0")), (4, 1, 1, 1), "{text:?}");
        assert!(text.starts_with("07070100000001000041ed"), "{text:?}");
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"), "{text:?}");
        Ok(())
    }
}
