//! Files: directories below which a thread may read; it may read and write nothing else, nor open a connection
//! (Landlock).

use std::{
    io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
};

use super::ThreadRole;

/// The newest version of Landlock whose rules are used; an older kernel gets those that it knows.
const NEWEST: ABI = ABI::V5;

/// Directories below which a thread may read; `None`: anywhere.
pub(super) struct ReadableFiles(Option<Vec<PathBuf>>);

impl ReadableFiles {
    /// What a thread with this role needs.
    pub(super) fn of(role: ThreadRole, config_files: &[PathBuf]) -> Self {
        match role {
            // Not /proc/PID: the rule would be for its inode, which the kernel may replace.
            ThreadRole::Endpoint => Self(Some(
                ["/proc".into()].into_iter().chain(config_files.iter().flat_map(|file| parents(file))).collect(),
            )),
            // aya reads the number of possible CPUs for each look-up in a map of values per CPU; control groups are
            // found by id.
            ThreadRole::Collector => {
                Self(Some(["/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup"].map(PathBuf::from).into()))
            }
            ThreadRole::Grower => Self(Some(Vec::new())),
            // Landlock refuses /proc/PID/ns of other processes, whatever the rules allow.
            ThreadRole::Host => Self(None),
        }
    }

    /// Confines the calling thread. The inner error says why the kernel cannot do that.
    ///
    /// # Errors
    /// If the kernel refuses, or a directory cannot be opened now that the thread will have to read later.
    pub(super) fn confine(self) -> anyhow::Result<Result<(), String>> {
        let Some(directories) = self.0 else { return Ok(Ok(())) };
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?;
        let mut ruleset = ruleset.create()?;
        let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
        for directory in directories {
            match PathFd::new(directory) {
                Ok(directory) => ruleset = ruleset.add_rule(PathBeneath::new(directory, read))?,
                // A file that does not exist, or that this thread may not open, cannot be read later either.
                Err(PathFdError::OpenCall { source, .. })
                    if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match ruleset.restrict_self()?.ruleset {
            RulesetStatus::NotEnforced => Ok(Err("files are not restricted: the kernel has no Landlock".into())),
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(Ok(())),
        }
    }
}

/// The directories of a file: that of its name, and that of the link's target if it is a link (as certificates often
/// are). A file that replaces it later is in one of them.
fn parents(file: &Path) -> Vec<PathBuf> {
    let parent =
        |path: &Path| path.parent().map(|parent| if parent == Path::new("") { ".".into() } else { parent.into() });
    [parent(file), file.canonicalize().ok().as_deref().and_then(parent)].into_iter().flatten().collect()
}
