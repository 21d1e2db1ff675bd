//! `cargo xtask docs`: builds a searchable site of the repository's documents with mdBook. `cargo xtask check` follows
//! their links.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

use crate::{process, setup, workspace};

/// The parts of the site, each with its pages in their order. A folder stands for its pages.
const PARTS: [(&str, &[&str]); 4] = [
    (
        "Use",
        &[
            "README.md",
            "docs/operating.md",
            "docs/transfer-nodes.md",
            "docs/top.md",
            "docs/report.md",
            "docs/doctor.md",
            "docs/kubernetes.md",
            "dashboards/README.md",
            "python/README.md",
            "docs/faq.md",
        ],
    ),
    ("Alerts", &["docs/runbooks"]),
    (
        "Reference",
        &[
            "docs/metrics.md",
            "docs/causes.md",
            "docs/trace-format.md",
            "docs/kernels.md",
            "docs/performance.md",
            "docs/security.md",
            "docs/lab.md",
            "CHANGELOG.md",
        ],
    ),
    (
        "Development",
        &[
            "CONTRIBUTING.md",
            "SECURITY.md",
            "docs/architecture.md",
            "docs/invariants.md",
            "docs/dependencies.md",
            "tcpmon-trace/README.md",
            "docs/design",
        ],
    ),
];

/// Texts of which the daemon makes docs/metrics.md: their links are relative to that.
const FRAGMENTS: &str = "tcpmon-daemon/src/metrics/reference";

/// A Markdown document of the repository.
struct Document {
    /// Path from the root folder.
    path: PathBuf,
    text: String,
}

/// A link of a document to something in the repository.
struct Link {
    /// Where the document has its target.
    range: std::ops::Range<usize>,
    /// Path from the root folder.
    path: PathBuf,
    anchor: Option<String>,
}

impl Document {
    fn read(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), text: workspace::read(path)? })
    }

    fn events(&self) -> impl Iterator<Item = (Event<'_>, std::ops::Range<usize>)> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES).into_offset_iter()
    }

    /// The text of its first heading.
    fn title(&self) -> Result<String> {
        self.headings().into_iter().next().with_context(|| format!("{} has no heading", self.path.display()))
    }

    fn headings(&self) -> Vec<String> {
        let (mut headings, mut is_heading) = (Vec::new(), false);
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => {
                    is_heading = true;
                    headings.push(String::new());
                }
                Event::End(TagEnd::Heading(_)) => is_heading = false,
                Event::Text(text) | Event::Code(text) if is_heading => {
                    headings.last_mut().into_iter().for_each(|heading| heading.push_str(&text));
                }
                _ => {}
            }
        }
        headings
    }

    /// The anchors of its headings, as GitHub and mdBook make them.
    fn anchors(&self) -> BTreeSet<String> {
        let mut seen = BTreeMap::<String, u32>::new();
        let anchor = |heading: String| {
            let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || "-_ ".contains(*letter));
            let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
            let before = seen.entry(anchor.clone()).or_default();
            *before += 1;
            if *before == 1 { anchor } else { format!("{anchor}-{}", *before - 1) }
        };
        self.headings().into_iter().map(anchor).collect()
    }

    /// Its links and pictures, without those to other hosts.
    fn links(&self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        for (event, range) in self.events() {
            let Event::Start(Tag::Link { link_type, dest_url, .. } | Tag::Image { link_type, dest_url, .. }) = event
            else {
                continue;
            };
            if dest_url.contains("://") || dest_url.starts_with("mailto:") || link_type == LinkType::Email {
                continue;
            }
            // A link's text comes before its target.
            let offset = self.text[range.clone()].rfind(&*dest_url);
            let start = range.start + offset.with_context(|| format!("a link to {dest_url} is not written as such"))?;
            let (to, anchor) = dest_url.split_once('#').map_or((&*dest_url, None), |(to, anchor)| (to, Some(anchor)));
            let path = if to.is_empty() { self.path.clone() } else { resolve(&self.path, to)? };
            links.push(Link { range: start..start + dest_url.len(), path, anchor: anchor.map(str::to_owned) });
        }
        Ok(links)
    }
}

/// The path from the root folder of what a document names by a relative path.
fn resolve(document: &Path, to: &str) -> Result<PathBuf> {
    let mut path = document.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(to).components() {
        match part {
            Component::ParentDir => ensure!(path.pop(), "{to} is outside of the repository"),
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => bail!("{to} is not relative"),
        }
    }
    Ok(path)
}

/// All documents of the repository.
fn documents() -> Result<Vec<Document>> {
    let root = workspace::root();
    let mut paths = Vec::new();
    for file in workspace::files(&root)? {
        let path = file.strip_prefix(&root)?.to_owned();
        if path.extension().is_some_and(|extension| extension == "md") && !path.starts_with(FRAGMENTS) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| Document::read(path)).collect()
}

/// Checks that each link to something in the repository leads there, and that the site has all documents.
pub fn check() -> Result<()> {
    let documents = documents()?;
    let pages: BTreeSet<PathBuf> = contents()?.into_iter().flat_map(|(_, pages)| pages).collect();
    // A folder stands for its first page.
    let leads = |path: &Path| workspace::root().join(path).is_file() || pages.iter().any(|page| page.starts_with(path));
    let mut findings = faults(&documents, leads)?;
    let left_out = documents.iter().filter(|document| !pages.contains(&document.path));
    findings.extend(left_out.map(|document| {
        format!("{}: the site leaves it out: add it to PARTS in xtask/src/docs.rs", document.path.display())
    }));
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// The links that lead nowhere.
fn faults(documents: &[Document], exists: impl Fn(&Path) -> bool) -> Result<Vec<String>> {
    let anchors: BTreeMap<&Path, _> = documents.iter().map(|each| (each.path.as_path(), each.anchors())).collect();
    let mut faults = Vec::new();
    for document in documents {
        let place = |link: &Link| {
            let line = document.text[..link.range.start].matches('\n').count() + 1;
            format!("{}:{line}: {}", document.path.display(), &document.text[link.range.clone()])
        };
        for link in document.links().with_context(|| document.path.display().to_string())? {
            let known = |anchor| anchors.get(link.path.as_path()).is_some_and(|anchors| anchors.contains(anchor));
            if !exists(&link.path) {
                faults.push(format!("{} does not exist", place(&link)));
            } else if link.anchor.as_ref().is_some_and(|anchor| !known(anchor)) {
                faults.push(format!("{}: no heading of that document has this anchor", place(&link)));
            }
        }
    }
    Ok(faults)
}

/// The site's parts with the paths of their pages.
fn contents() -> Result<Vec<(&'static str, Vec<PathBuf>)>> {
    let mut parts = Vec::new();
    for (title, entries) in PARTS {
        let mut pages = Vec::new();
        for entry in entries {
            let path = workspace::root().join(entry);
            if path.is_dir() {
                let mut files = workspace::files(&path)?;
                files.sort_by_key(|file| (!file.ends_with("README.md"), file.clone()));
                let files = files.iter().map(|file| Ok(file.strip_prefix(workspace::root())?.to_owned()));
                pages.extend(files.collect::<Result<Vec<_>>>()?);
            } else {
                pages.push(PathBuf::from(entry));
            }
        }
        parts.push((title, pages));
    }
    Ok(parts)
}

/// Builds the site in `target/docs`.
pub fn run() -> Result<()> {
    let folder = workspace::target().join("docs");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let source = folder.join("src");
    let parts = contents()?;
    let pages: Vec<PathBuf> = parts.iter().flat_map(|(_, pages)| pages.clone()).collect();
    let mut summary = String::from("# Summary\n");
    for (title, paths) in &parts {
        summary += &format!("\n# {title}\n\n");
        for path in paths {
            let document = Document::read(path)?;
            let (page, files) = page(&document, &pages)?;
            write(&source.join(on_site(path, true)), page.as_bytes())?;
            for file in files {
                write(&source.join(on_site(&file, false)), &fs::read(workspace::root().join(&file))?)?;
            }
            summary += &format!("- [{}]({})\n", document.title()?, on_site(path, true).display());
        }
    }
    write(&source.join("SUMMARY.md"), summary.as_bytes())?;
    write(&folder.join("book.toml"), b"[book]\ntitle = \"tcpmon\"\nlanguage = \"en\"\n")?;
    process::run(Command::new(setup::MDBOOK.ensure()?).arg("build").arg(&folder))?;
    println!("the site is in {}", folder.join("book").display());
    Ok(())
}

/// A document with links that lead to the same on the site, and the files that it links besides pages.
fn page(document: &Document, pages: &[PathBuf]) -> Result<(String, Vec<PathBuf>)> {
    let (mut page, mut files) = (document.text.clone(), Vec::new());
    let up: PathBuf = document.path.iter().skip(1).map(|_| "..").collect();
    // From the last to the first, so that what comes before stays where it is.
    let mut links = document.links()?;
    links.sort_by_key(|link| std::cmp::Reverse(link.range.start));
    for link in links {
        let first = pages.iter().find(|page| page.starts_with(&link.path));
        let to = match first {
            Some(first) => on_site(first, true),
            None => {
                ensure!(workspace::root().join(&link.path).is_file(), "{} is not a file", link.path.display());
                files.push(link.path.clone());
                on_site(&link.path, false)
            }
        };
        let anchor = link.anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
        page.replace_range(link.range, &format!("{}{anchor}", up.join(to).display()));
    }
    Ok((page, files))
}

/// Where a file of the repository is in the source of the site. Browsers show text, and would store source files.
fn on_site(path: &Path, is_page: bool) -> PathBuf {
    let is_picture = path.extension().is_some_and(|extension| extension == "png" || extension == "svg");
    match (is_page, path.file_name().and_then(|name| name.to_str())) {
        (true, Some("README.md")) => path.with_file_name("index.md"),
        (false, Some(name)) if !is_picture => path.with_file_name(format!("{name}.txt")),
        _ => path.to_owned(),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().context("a file is in a folder")?).with_context(cannot)?;
    fs::write(path, bytes).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> Document {
        Document { path: path.into(), text: text.into() }
    }

    #[test]
    fn links_that_lead_nowhere_are_found_with_their_lines() {
        let documents = [
            document("README.md", "# A `b_c`, d\n[x](docs/a.md#two) ![y](docs/no.png)\n\n[z](docs/a.md#three)\n"),
            document(
                "docs/a.md",
                "# One\n## Two\n## Two\n[a](../README.md#a-b_c-d) [b](#two-1) [c](https://d/e)\n\
                     `[no](link.md)`\n",
            ),
        ];
        let exists = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
        let expected = [
            "README.md:2: docs/no.png does not exist",
            "README.md:4: docs/a.md#three: no heading of that document has this anchor",
        ];
        assert_eq!(faults(&documents, exists).unwrap(), expected);
    }

    #[test]
    fn a_page_links_pages_folders_and_files_where_they_are_on_the_site() {
        let text = "[a](b.md#c) [d](../README.md), [e](runbooks) [f](../Cargo.toml)\n";
        let pages = ["docs/b.md", "README.md", "docs/runbooks/g.md"].map(PathBuf::from);
        let (page, files) = page(&document("docs/h.md", text), &pages).unwrap();
        assert_eq!(page, "[a](../docs/b.md#c) [d](../index.md), [e](../docs/runbooks/g.md) [f](../Cargo.toml.txt)\n");
        assert_eq!(files, [Path::new("Cargo.toml")]);
    }
}
