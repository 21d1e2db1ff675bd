//! `cargo xtask release`: checks that all parts of a release agree, builds its packages and signs them.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{arch::Arch, dist, markdown, process, process::step, setup, workspace};

/// The version of the workspace: that of every crate, and of the release.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files that name the version, for example in the names of packages.
const DOCUMENTS: [&str; 5] =
    ["README.md", "docs/kubernetes.md", INSTALL, "deploy/kubernetes/kustomization.yaml", "python/pyproject.toml"];

/// Lists the packages.
const INSTALL: &str = "docs/operating.md";

/// What stands before a version of tcpmon in [`DOCUMENTS`].
const BEFORE: [&str; 7] = ["tcpmon_", "tcpmon-", "tcpmon:", "image:", "FOLDER:", "newTag: ", "\nversion = \""];

/// Arguments of `cargo xtask release`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build and sign nothing: check what is there
    #[arg(long)]
    check: bool,
    /// Sign the checksums of the packages with this key of GnuPG
    #[arg(long, value_name = "KEY", conflicts_with = "check")]
    sign: Option<String>,
}

/// Checks documents, tag and advisories, builds the packages unless they are only to be checked, and compares them with
/// the commit.
pub fn run(args: &Args) -> Result<()> {
    let parts: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("versions", &versions),
        ("changelog", &|| nothing_unreleased(&workspace::read("CHANGELOG.md")?)),
        ("tag", &tag),
        ("advisories", &advisories),
    ];
    let mut findings: Vec<String> =
        parts.iter().filter_map(|(name, check)| step(name, check).err()).map(|error| format!("{error:#}")).collect();
    // A build takes minutes, so a release with findings is not built.
    if args.check || findings.is_empty() {
        if !args.check {
            dist::run(&dist::Args::default())?;
        }
        findings.extend(step("packages", packages).err().map(|error| format!("{error:#}")));
    }
    ensure!(findings.is_empty(), "this is not a complete release of tcpmon {VERSION}:\n{}", findings.join("\n"));
    args.sign.as_deref().map_or(Ok(()), |key| step("signature", || sign(key)))
}

/// Checks that the changelog has this version, and that no document names another one.
pub fn versions() -> Result<()> {
    let mut findings: Vec<String> = changelog(&workspace::read("CHANGELOG.md")?)
        .err()
        .map(|error| format!("CHANGELOG.md: {error}"))
        .into_iter()
        .collect();
    for document in DOCUMENTS {
        let named = named(&workspace::read(document)?);
        if named.is_empty() {
            findings.push(format!("{document} names no version: take it from DOCUMENTS in xtask/src/release.rs"));
        }
        let others = named.into_iter().filter(|version| version != VERSION);
        findings.extend(others.map(|other| format!("{document} names {other}, and this is {VERSION} (Cargo.toml)")));
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// Checks that nothing is left below the heading `Unreleased`.
fn nothing_unreleased(changelog: &str) -> Result<()> {
    let rest = markdown::section(changelog, "Unreleased").context("there is no section `Unreleased`")?;
    ensure!(
        ["", "Nothing yet."].contains(&rest.trim()),
        "CHANGELOG.md has entries below `Unreleased`: move them to the section of {VERSION}"
    );
    Ok(())
}

/// Checks that the first release of a changelog is this version, with a date, below what is not released.
fn changelog(text: &str) -> Result<()> {
    let mut headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    ensure!(headings.next() == Some("Unreleased"), "the first section is not `## Unreleased`");
    let newest = headings.next().context("there is no release below `## Unreleased`")?;
    let date = newest.strip_prefix(VERSION).and_then(|rest| rest.strip_prefix(" - "));
    let date = date.with_context(|| format!("the newest release is `{newest}` instead of `{VERSION} - DATE`"))?;
    humantime::parse_rfc3339(&format!("{date}T00:00:00Z")).with_context(|| format!("{date} is not a date"))?;
    Ok(())
}

/// The versions of tcpmon that a document names.
fn named(text: &str) -> BTreeSet<String> {
    let after = BEFORE.iter().flat_map(|before| text.split(before).skip(1));
    let versions = after.map(|rest| {
        let end = rest.find(|next: char| !next.is_ascii_digit() && next != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.')
    });
    versions.filter(|version| version.split('.').count() == 3).map(str::to_owned).collect()
}

/// Checks that everything is committed, and that the commit has the tag of this version.
fn tag() -> Result<()> {
    let changed = workspace::git(&["status", "--porcelain"])?;
    ensure!(changed.is_empty(), "there are uncommitted changes:\n{changed}");
    let tags = workspace::git(&["tag", "--points-at", "HEAD"])?;
    let expected = format!("v{VERSION}");
    ensure!(
        tags.lines().any(|tag| tag == expected),
        "the commit does not have the tag {expected}: run `git tag --sign {expected}`"
    );
    Ok(())
}

/// Checks the crates in the lock file against RustSec's database. Without a network, it says that it did not.
fn advisories() -> Result<()> {
    let deny = setup::CARGO_DENY.ensure()?;
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&deny);
        command.current_dir(workspace::root()).args(arguments);
        command
    };
    if let Err(error) = process::output(&mut deny(&["fetch", "db"])) {
        eprintln!("advisories are NOT checked, because RustSec's database cannot be fetched: {error:#}");
        return Ok(());
    }
    process::run(&mut deny(&["--workspace", "--locked", "check", "advisories"]))
}

/// Checks that the packages are whole, that there is one of each kind, and that they were built from this commit.
fn packages() -> Result<()> {
    let folder = dist::folder();
    let sums = folder.join("SHA256SUMS");
    let text = fs::read_to_string(&sums)
        .with_context(|| format!("cannot read {}: `cargo xtask dist` builds the packages", sums.display()))?;
    process::output(
        Command::new("sha256sum").args(["--check", "--strict", "--quiet"]).arg(&sums).current_dir(&folder),
    )?;
    let packed: BTreeSet<&str> = text.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name).collect();
    let document = workspace::read(INSTALL)?;
    let documented = documented(&document)?;
    ensure!(packed == documented, "the packages are {packed:?}, and {INSTALL} has {documented:?}");
    of_this_commit(&folder)
}

/// The packages in the table of the section `Install`.
fn documented(document: &str) -> Result<BTreeSet<&str>> {
    let section = markdown::section(document, "Install").context("there is no section `Install`")?;
    let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name);
    Ok(names.filter(|name| name.starts_with("tcpmon")).collect())
}

/// Checks that the packed binary says that it was built from this commit.
fn of_this_commit(folder: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let archive = folder.join(format!("tcpmon-{VERSION}-{}.tar.gz", Arch::default().gnu()));
    process::run(
        Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(scratch.path()),
    )?;
    let binary = workspace::files(scratch.path())?.into_iter().find(|path| path.ends_with("usr/bin/tcpmon"));
    let binary = binary.with_context(|| format!("{} has no usr/bin/tcpmon", archive.display()))?;
    let said = process::output(Command::new(binary).arg("--version"))?;
    let revision = workspace::git(&["rev-parse", "--short", "HEAD"])?;
    let expected = format!("tcpmon {VERSION} (revision {revision})");
    ensure!(said == expected, "the packed binary is `{said}`, and the commit is `{expected}`");
    Ok(())
}

/// Signs the checksums, beside them.
fn sign(key: &str) -> Result<()> {
    let sums = dist::folder().join("SHA256SUMS");
    process::run(
        Command::new("gpg").args(["--batch", "--yes", "--armor", "--detach-sign", "--local-user", key]).arg(&sums),
    )?;
    println!("signed: {}.asc", sums.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_each_version_of_tcpmon_once() {
        let text = "tcpmon_1.2.3_amd64.deb, tcpmon-1.2.4-1.x86_64.rpm and tcpmon:1.2.5.\nnewTag: 1.2.3\n\
                    version = \"1.2.6\"\ntcpmon-trace needs pyarrow 14.0.1, Linux 5.15 and tcpmon_lost_total\n";
        assert_eq!(Vec::from_iter(named(text)), ["1.2.3", "1.2.4", "1.2.5", "1.2.6"]);
    }

    #[test]
    fn a_changelog_has_the_version_and_its_date_below_what_is_not_released() {
        let unreleased = "# Changelog\n\n## Unreleased\n\n";
        let fault = |text: &str| changelog(&format!("{unreleased}{text}")).err().map(|error| error.to_string());
        assert_eq!(fault(&format!("## {VERSION} - 2026-11-30\n\n## 0.0.1 - 2020-01-01\n")), None);
        assert_eq!(fault(&format!("## {VERSION} - yesterday\n")).as_deref(), Some("yesterday is not a date"));
        let other = fault("## 0.0.1 - 2020-01-01\n");
        assert!(other.is_some_and(|fault| fault.starts_with("the newest release is `0.0.1 - 2020-01-01`")));
        assert_eq!(fault("").as_deref(), Some("there is no release below `## Unreleased`"));
        assert!(nothing_unreleased(&format!("{unreleased}Nothing yet.\n\n## 0.0.1 - 2020-01-01\n- new\n")).is_ok());
        assert!(nothing_unreleased(&format!("{unreleased}- new\n\n## 0.0.1 - 2020-01-01\n")).is_err());
        assert!(changelog(&format!("## {VERSION} - 2026-11-30\n")).is_err());
    }

    #[test]
    fn the_packages_are_those_in_the_table_of_the_document() {
        let document = "# O\n\n## Install\n\n| file | for |\n|---|---|\n| `tcpmon_1_amd64.deb` | Debian |\n\
                        | `SHA256SUMS` | all |\n\n## Run\n\n| `tcpmon.service` | x |\n";
        assert_eq!(Vec::from_iter(documented(document).expect("it has the section")), ["tcpmon_1_amd64.deb"]);
    }
}
