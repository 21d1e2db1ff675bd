//! Reads files of the kernel, with errors for those that cannot be read or parsed.

use std::{
    ffi::OsString,
    fmt, fs, io,
    os::unix::ffi::OsStringExt,
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

/// Maximum number of characters of a reason: a line of a file can be long.
const MAX_REASON: usize = 200;

/// What was parsed, without what was skipped.
#[derive(Debug)]
pub struct Parsed<T> {
    /// Everything that can be used.
    pub value: T,
    /// The rest.
    pub skipped: Skipped,
}

/// Lines and values that cannot be parsed, or files of several that cannot be read. Only these are left out; the rest
/// is used. As text this is one sentence, or empty if nothing was skipped.
#[derive(Debug, Default)]
pub struct Skipped {
    count: u64,
    first: Option<FileError>,
}

impl Skipped {
    /// Returns the value; an error is counted.
    pub(super) fn keep<T>(&mut self, entry: Result<T, FileError>) -> Option<T> {
        entry.map_err(|error| self.add(error)).ok()
    }

    /// Counts an error.
    pub(super) fn add(&mut self, error: FileError) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    /// Like [`Skipped::keep`], and also adds what was skipped within the entry.
    pub(super) fn keep_parsed<T>(&mut self, entry: Result<Parsed<T>, FileError>) -> Option<T> {
        let Parsed { value, skipped } = self.keep(entry)?;
        self.count += skipped.count;
        self.first = self.first.take().or(skipped.first);
        Some(value)
    }

    /// Nothing was skipped.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The value, with what was skipped. Without a value, the first error, or `nothing` if there was none.
    pub(super) fn parsed<T>(
        self,
        value: Option<T>,
        nothing: impl FnOnce() -> FileError,
    ) -> Result<Parsed<T>, FileError> {
        match value {
            Some(value) => Ok(Parsed { value, skipped: self }),
            None => Err(self.first.unwrap_or_else(nothing)),
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first {
            None => Ok(()),
            Some(only) if self.count == 1 => write!(f, "skipped 1 entry: {only}"),
            Some(first) => write!(f, "skipped {} entries, the first: {first}", self.count),
        }
    }
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

/// Converts a path from its form in `mountinfo`, where the kernel writes these four bytes as octal numbers (the
/// backslash because it marks the other three).
pub(super) fn unescaped(path: &[u8]) -> PathBuf {
    let spelled = [(b"\\040", b' '), (b"\\011", b'\t'), (b"\\012", b'\n'), (b"\\134", b'\\')];
    let (mut bytes, mut rest) = (Vec::with_capacity(path.len()), path);
    while let Some((first, after)) = rest.split_first() {
        let (byte, left) = spelled
            .iter()
            .find_map(|(octal, byte)| Some((*byte, rest.strip_prefix(*octal)?)))
            .unwrap_or((*first, after));
        bytes.push(byte);
        rest = left;
    }
    OsString::from_vec(bytes).into()
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

/// The error for a file, or a part of it, that cannot be parsed. A long reason is cut.
pub(super) fn malformed(file: &'static str, what: impl Into<String>) -> FileError {
    let mut what = what.into();
    if let Some((end, _)) = what.char_indices().nth(MAX_REASON) {
        what.truncate(end);
        what.push('…');
    }
    FileError::Malformed { file, what }
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

    #[test]
    fn skipped_entries_are_counted_and_the_first_is_named() {
        let mut skipped = Skipped::default();
        assert_eq!((skipped.keep(Ok(5)), skipped.to_string()), (Some(5), String::new()));
        assert_eq!(skipped.keep(number::<u8>("/proc/stat", "ctxt", Some("x"))), None);
        let first = "cannot parse /proc/stat: ctxt is \"x\", which is not a number: report this, with the content of \
                     the file";
        assert_eq!(skipped.to_string(), format!("skipped 1 entry: {first}"));
        let mut within = Skipped::default();
        within.add(malformed("/proc/stat", "second"));
        assert_eq!(skipped.keep_parsed(within.parsed(Some(7), || unreachable!("there is a value"))), Some(7));
        assert_eq!(skipped.to_string(), format!("skipped 2 entries, the first: {first}"));
        let refused = skipped.parsed(None::<()>, || unreachable!("something was skipped")).map(|parsed| parsed.value);
        assert_eq!(refused.expect_err("nothing is left").to_string(), first);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let error = malformed("/proc/stat", "ü".repeat(100_000)).to_string();
        assert!(error.len() < 1000 && error.contains("ü…: report this"), "{error}");
    }
}
