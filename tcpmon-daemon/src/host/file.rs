//! Reads files of the kernel, with errors for those that cannot be read or parsed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A file of the kernel that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {file}: {source}: {remedy}")]
    Unreadable {
        /// Its path.
        file: String,
        /// The system's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// Its content is not in the format of any known kernel.
    #[error("cannot parse {file}: {what}: report this, with the content of the file")]
    Malformed {
        /// Its path.
        file: &'static str,
        /// What was found, or is missing.
        what: String,
    },
}

/// The text of a file of the kernel. A process, a device or a directory may have a name that is not UTF-8, which must
/// not hide the rest: such bytes are replaced.
///
/// # Errors
/// The system's.
pub(crate) fn read_text(file: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned())
}

/// Reads a whole file; bytes that are not UTF-8 are replaced. `absent` is what to do if there is no such file.
///
/// # Errors
/// [`FileError::Unreadable`].
pub(super) fn read(file: impl AsRef<Path>, absent: &'static str) -> Result<String, FileError> {
    read_text(&file).map_err(|source| unreadable(file.as_ref(), source, absent))
}

/// A path as `mountinfo` has it. The kernel writes these four bytes as octal numbers, the backslash because of the
/// other three.
pub(super) fn unescaped(path: &str) -> PathBuf {
    let spelled = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    spelled.iter().fold(path.to_owned(), |path, (octal, byte)| path.replace(octal, byte)).into()
}

/// An error of the system about a file; `absent` is as in [`read`].
pub(super) fn unreadable(file: &Path, source: io::Error, absent: &'static str) -> FileError {
    let remedy = match source.kind() {
        io::ErrorKind::NotFound => absent,
        io::ErrorKind::PermissionDenied => "run tcpmon as root",
        _ => "check the kernel log",
    };
    FileError::Unreadable { file: file.display().to_string(), source, remedy }
}

/// The error for a file that cannot be parsed.
pub(super) fn malformed(file: &'static str, what: impl Into<String>) -> FileError {
    FileError::Malformed { file, what: what.into() }
}

/// A decimal number in a file; `name` is what the number is called in errors.
pub(super) fn number<T: std::str::FromStr>(file: &'static str, name: &str, word: Option<&str>) -> Result<T, FileError> {
    let word = word.ok_or_else(|| malformed(file, format!("{name} is missing")))?;
    word.parse().map_err(|_| malformed(file, format!("{name} is {word:?}, which is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_file_and_ends_with_the_remedy() {
        let error = read("/proc/nonexistent", "mount /proc").expect_err("no such file").to_string();
        assert_eq!(error, "cannot read /proc/nonexistent: No such file or directory (os error 2): mount /proc");
        let error = number::<u64>("/proc/stat", "ctxt", Some("x")).expect_err("no number").to_string();
        assert_eq!(
            error,
            "cannot parse /proc/stat: ctxt is \"x\", which is not a number: report this, with the content of the file"
        );
        let error = number::<u64>("/proc/stat", "ctxt", None).expect_err("nothing").to_string();
        assert!(error.contains("/proc/stat: ctxt is missing: "), "{error}");
        assert_eq!(number("/proc/stat", "ctxt", Some("7")).ok(), Some(7_u8));
    }
}
