//! Applies changes of the web config file, and of the files that it names, while tcpmon runs.

#[cfg(test)]
mod tests;

use std::{
    fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper::header::HeaderValue;
use tracing::{error, info};

use super::{
    connections::Client,
    guard::{self, Guard},
    login::Passwords,
    serve::Login,
    web_config::{Policy, WebConfigFile},
};

/// The files are checked at most this often, and only when a request arrives.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A web config file and its settings.
#[derive(Debug)]
pub struct WebConfig {
    file: PathBuf,
    check_interval: Duration,
    passwords: Arc<Passwords>,
    state: Mutex<WebConfigState>,
}

#[derive(Debug)]
struct WebConfigState {
    policy: Arc<Policy>,
    /// Content of the web config file from which the policy was read.
    text: Text,
    /// The guards that were in force before it.
    before: Vec<Guard>,
    checked: Instant,
    files: Vec<FileStamp>,
    problem: Option<String>,
}

/// The text of a web config file. It may have a private key in it, which must not appear in logs.
struct Text(String);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").finish_non_exhaustive()
    }
}

/// A file and the metadata by which a change is detected; `None` if the file does not exist.
#[derive(Debug, PartialEq)]
struct FileStamp {
    file: PathBuf,
    inode: Option<Inode>,
}

#[derive(Debug, PartialEq)]
struct Inode {
    device: u64,
    number: u64,
    bytes: u64,
    modified_ns: i128,
    changed_ns: i128,
}

/// A web config file that cannot be used: which file, the key, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("web config file {}: {problem}", file.display())]
pub struct WebConfigError {
    file: PathBuf,
    problem: String,
}

impl WebConfig {
    /// Reads the file and those that it names.
    ///
    /// # Errors
    /// If one cannot be read, or a key cannot be used.
    pub fn read(file: &Path) -> Result<Self, WebConfigError> {
        Self::read_with_interval(file, CHECK_INTERVAL)
    }

    pub(super) fn read_with_interval(file: &Path, check_interval: Duration) -> Result<Self, WebConfigError> {
        let error = |problem| WebConfigError { file: file.to_owned(), problem };
        let (files, loaded) = load(file);
        let (text, policy) = loaded.map_err(error)?;
        let before = policy.guards.clone();
        let passwords =
            Passwords::new().map_err(|_| error("the system supplies no random numbers: try again".into()))?;
        let policy = Arc::new(policy);
        let state = WebConfigState { policy, text, before, checked: Instant::now(), files, problem: None };
        Ok(Self { file: file.to_owned(), check_interval, passwords: Arc::new(passwords), state: Mutex::new(state) })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The file, and those that it names.
    pub fn files(&self) -> Vec<PathBuf> {
        self.check_files().files.iter().map(|stamp| stamp.file.clone()).collect()
    }

    /// Why the current content of the file is not in force, but earlier content is; `None` if it is in force.
    pub fn problem(&self) -> Option<String> {
        self.check_files().problem.clone()
    }

    /// The policy in force. Checks the files at most once in [`CHECK_INTERVAL`], which takes the caller a few
    /// microseconds.
    pub(super) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.check_files().policy)
    }

    /// Whether the policy in force admits a request with this header `Authorization`.
    pub(super) async fn login(&self, authorization: Option<&HeaderValue>, client: Client) -> Login {
        self.passwords.check(&self.policy().users, authorization, client).await
    }

    /// Checks the files now, even if they were checked a moment ago.
    pub fn reload(&self) {
        drop(self.check_if_older_than(Duration::ZERO));
    }

    fn check_files(&self) -> MutexGuard<'_, WebConfigState> {
        self.check_if_older_than(self.check_interval)
    }

    fn check_if_older_than(&self, age: Duration) -> MutexGuard<'_, WebConfigState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.checked.elapsed() < age {
            return state;
        }
        state.checked = Instant::now();
        if state.files.iter().all(|stamp| FileStamp::of(&stamp.file) == *stamp) {
            return state;
        }
        let (files, loaded) = load(&self.file);
        state.files = files;
        match loaded.and_then(|(text, policy)| state.adopt(text, policy)) {
            Ok(()) => {
                info!(file = %self.file.display(), "reloaded the web config file");
                state.problem = None;
            }
            Err(problem) => {
                error!(file = %self.file.display(), problem, "cannot reload the web config file; the previous \
                     settings stay in force");
                state.problem = Some(problem);
            }
        }
        state
    }
}

impl WebConfigState {
    /// Puts a new policy in force if it keeps all guards of the old one. The old one is normally the one in force. But
    /// if the new text starts with the text in force, that text may have been cut in the middle of a value or a list,
    /// so the guards that were in force before it count instead.
    fn adopt(&mut self, text: Text, new: Policy) -> Result<(), String> {
        let goes_on = text.0.starts_with(&*self.text.0);
        let old = if goes_on { self.before.clone() } else { self.policy.guards.clone() };
        self.policy = Arc::new(Policy { guards: guard::keep(&old, new.guards)?, ..new });
        (self.text, self.before) = (text, old);
        Ok(())
    }
}

/// The state of every file is recorded before it is read, so that the next check notices a change during the read.
fn load(file: &Path) -> (Vec<FileStamp>, Result<(Text, Policy), String>) {
    let mut files = vec![FileStamp::of(file)];
    let folder = file.parent().unwrap_or(Path::new(""));
    let loaded = WebConfigFile::text(file).and_then(|text| {
        let written = WebConfigFile::parse(&text)?;
        files.extend(written.files(folder).iter().map(|file| FileStamp::of(file)));
        Ok((Text(text), written.policy(folder)?))
    });
    (files, loaded)
}

impl FileStamp {
    fn of(file: &Path) -> Self {
        let ns = |seconds, ns| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let inode = fs::metadata(file).ok().map(|data| Inode {
            device: data.dev(),
            number: data.ino(),
            bytes: data.size(),
            modified_ns: ns(data.mtime(), data.mtime_nsec()),
            changed_ns: ns(data.ctime(), data.ctime_nsec()),
        });
        Self { file: file.to_owned(), inode }
    }
}
