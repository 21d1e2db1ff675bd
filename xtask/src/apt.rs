//! Debian packages that are fetched from the host's own mirror but not installed.
//!
//! apt does the work, with the host's own mirror, proxy and keys, but with a source list and an index of our own: the
//! system's package lists stay as they are, and root is not needed.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

/// apt with its lists, cache and sources below one folder.
#[derive(Debug)]
pub struct PrivateApt {
    folder: PathBuf,
    /// Debian's name of an architecture that is not the host's.
    architecture: Option<String>,
}

impl PrivateApt {
    /// Creates the folder for one Debian suite, on the host's own mirror.
    pub fn new(folder: &Path, suite: &str) -> Result<Self> {
        let source = machine_source()?;
        for part in ["sources", "lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("cannot create {}", part.display()))?;
        }
        let (extension, text) = source.for_suite(suite);
        fs::write(folder.join("sources").join("private").with_extension(extension), text)?;
        Ok(Self { folder: folder.to_owned(), architecture: None })
    }

    /// The same for another architecture than the host's, with nothing installed.
    pub fn for_architecture(folder: &Path, suite: &str, architecture: &str) -> Result<Self> {
        Ok(Self { architecture: Some(architecture.to_owned()), ..Self::new(folder, suite)? })
    }

    /// The file with the sources.
    pub fn sources(&self) -> Result<PathBuf> {
        let mut entries = fs::read_dir(self.folder.join("sources"))?;
        Ok(entries.next().context("the folder has sources")??.path())
    }

    /// The folder, into which `apt-get download` also writes its packages.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An apt program that uses only this folder.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        let folder = self.folder.display();
        for option in [
            "Dir::Etc::sourcelist=/dev/null".to_owned(),
            format!("Dir::Etc::sourceparts={folder}/sources"),
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::Cache={folder}/cache"),
            // The host's pins concern what it installs; nothing is installed here.
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
            // The user `_apt` cannot write below a home folder, and apt would warn about that.
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        if let Some(architecture) = &self.architecture {
            for option in ["APT::Architecture", "APT::Architectures"] {
                command.args(["-o", &format!("{option}={architecture}")]);
            }
            command.args(["-o", "Dir::State::status=/dev/null"]);
        }
        command
    }
}

/// The codename of the host's release.
pub fn release() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|value| value.trim_matches('"').to_owned())
        .context("/etc/os-release names no VERSION_CODENAME: not a Debian machine?")
}

/// Extracts files from a package into a folder with `tar`, which gets these arguments. Returns tar's error messages if
/// it failed.
pub fn unpack<S: AsRef<OsStr>>(
    package: &Path,
    into: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Result<Option<String>> {
    let mut archive = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run dpkg-deb: this is not a Debian machine")?;
    let members = archive.stdout.take().expect("stdout is piped");
    let tar = Command::new("tar").arg("-C").arg(into).args(["-xf", "-"]).args(arguments).stdin(members).output();
    let tar = tar.context("cannot run tar")?;
    ensure!(archive.wait()?.success(), "dpkg-deb cannot read {}", package.display());
    Ok((!tar.status.success()).then(|| String::from_utf8_lossy(&tar.stderr).trim().to_owned()))
}

/// One entry of the host's own apt sources, in the form in which it was written.
#[derive(Debug, PartialEq)]
enum AptSource {
    /// A deb822 stanza without its `Types`, `Suites`, `Components` and `Architectures`: the mirror and the keys remain.
    Stanza(String),
    /// The one-line format.
    Line {
        /// `[signed-by=...]` and similar options without the architecture, or nothing.
        options: String,
        /// The mirror.
        uri: String,
    },
}

impl AptSource {
    /// The entry with another suite: the file's extension and its text.
    fn for_suite(&self, suite: &str) -> (&'static str, String) {
        match self {
            Self::Stanza(rest) => ("sources", format!("Types: deb\nSuites: {suite}\nComponents: main\n{rest}")),
            Self::Line { options, uri } => ("list", format!("deb {options} {uri} {suite} main\n")),
        }
    }
}

/// The source of the distribution's main suite: its mirror has Debian's other suites, too.
fn machine_source() -> Result<AptSource> {
    let codename = release()?;
    for file in source_files() {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let found = if file.extension().is_some_and(|e| e == "sources") {
            find_stanza(&text, &codename)
        } else {
            find_line(&text, &codename)
        };
        if let Some(source) = found {
            return Ok(source);
        }
    }
    bail!("no apt source for the suite {codename} below /etc/apt");
}

fn source_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sources" || extension == "list"))
        .collect();
    files.sort();
    let list = PathBuf::from("/etc/apt/sources.list");
    if list.is_file() {
        files.insert(0, list);
    }
    files
}

/// A suite may also be named by its role (`stable`), and then the host's own codename does not appear.
fn is_main_suite(suite: &str, codename: &str) -> bool {
    [codename, "oldoldstable", "oldstable", "stable", "testing", "unstable"].contains(&suite)
}

fn find_stanza(text: &str, codename: &str) -> Option<AptSource> {
    let without_comments: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line.trim_end(), "\n"]).collect();
    without_comments
        .split("\n\n")
        .map(fields)
        .find(|fields| {
            let has = |name: &str, wanted: &dyn Fn(&str) -> bool| {
                fields
                    .iter()
                    .filter(|(field, _)| field.eq_ignore_ascii_case(name))
                    .any(|(_, value)| value.split_whitespace().any(wanted))
            };
            has("Types", &|word| word == "deb")
                && has("Suites", &|word| is_main_suite(word, codename))
                && !has("Enabled", &|word| word.eq_ignore_ascii_case("no"))
        })
        .map(|fields| {
            let rest = fields
                .iter()
                .filter(|(name, _)| {
                    !["Types", "Suites", "Components", "Architectures"]
                        .iter()
                        .any(|ours| name.eq_ignore_ascii_case(ours))
                })
                .map(|(name, value)| format!("{name}:{value}"))
                .collect();
            AptSource::Stanza(rest)
        })
}

/// Name and value of each field of a deb822 stanza; the value keeps its line breaks, because an embedded key has many.
fn fields(stanza: &str) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in stanza.lines() {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push_str(line);
                value.push('\n');
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.to_owned(), format!("{value}\n")));
        }
    }
    fields
}

fn find_line(text: &str, codename: &str) -> Option<AptSource> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let (options, rest) = if rest.starts_with('[') {
            let end = rest.find(']')? + 1;
            rest.split_at(end)
        } else {
            ("", rest)
        };
        let mut words = rest.split_whitespace();
        let uri = words.next()?;
        let suite = words.next()?;
        let options = options.split_inclusive([' ', '[', ']']).filter(|option| !option.starts_with("arch=")).collect();
        is_main_suite(suite, codename).then(|| AptSource::Line { options, uri: uri.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stanza_of_the_main_suite_keeps_mirror_and_keys() {
        let text = "Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n\n\
                    # a comment\nTypes: deb deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm \
                    bookworm-updates\n\
                    Components: main contrib\nSigned-By: /keys/debian.gpg\n";
        let written = "Types: deb\nSuites: stable-backports\nComponents: main\n\
                       URIs: http://mirror.example/debian\nSigned-By: /keys/debian.gpg\n";
        assert_eq!(
            find_stanza(text, "bookworm").map(|source| source.for_suite("stable-backports")),
            Some(("sources", written.to_owned()))
        );
    }

    #[test]
    fn an_embedded_key_survives() {
        let text =
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nSigned-By:\n -----BEGIN\n .\n abc\n";
        assert!(
            find_stanza(text, "trixie")
                .map(|source| source.for_suite("stable").1)
                .is_some_and(|text| text.ends_with("Signed-By:\n -----BEGIN\n .\n abc\n"))
        );
    }

    #[test]
    fn a_disabled_stanza_does_not_count() {
        let text = "Enabled: no\nTypes: deb\nURIs: http://mirror.example/debian\nSuites: trixie\n";
        assert_eq!(find_stanza(text, "trixie"), None);
    }

    #[test]
    fn the_line_of_the_main_suite_keeps_mirror_and_keys() {
        let text = "# deb http://old.example/ bookworm main\n\
                    deb http://mirror.example/security bookworm-security main\n\
                    deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror.example/debian bookworm main\n";
        let written = "deb [signed-by=/keys/debian.gpg] http://mirror.example/debian testing main\n";
        assert_eq!(
            find_line(text, "bookworm").map(|source| source.for_suite("testing")),
            Some(("list", written.to_owned()))
        );
    }
}
