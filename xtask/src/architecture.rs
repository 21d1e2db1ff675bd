//! Compares the tables of two documents with the code: which crate and which module uses which other
//! (`docs/architecture.md`), and which crates of others each needs (`docs/dependencies.md`). Makes sure that modules
//! which must not do something have no code for it, and that what the developers' documents name is in the code.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use cargo_metadata::{Dependency, DependencyKind, MetadataCommand, Package};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use crate::{markdown, workspace};

/// The document with the tables of crates and modules.
const ARCHITECTURE: &str = "docs/architecture.md";

/// The document with the tables of dependencies.
const DEPENDENCY_TABLES: &str = "docs/dependencies.md";

/// The documents whose names of code must be in the code.
const NAMING: [&str; 2] = [ARCHITECTURE, "docs/invariants.md"];

/// The crates whose modules have a table.
const CRATES: [&str; 2] = ["tcpmon-daemon", "tcpmon-ebpf"];

/// The crates of the program that the packages contain.
const PRODUCT: [&str; 5] = ["tcpmon-btf", "tcpmon-common", "tcpmon-daemon", "tcpmon-ebpf", "tcpmon-trace"];

/// The headings of the tables with crates of others: that program needs the first, everything else the second.
const DEPENDENCIES: [&str; 2] = ["Dependencies", "Dependencies of tests and tools"];

/// What is allowed only in some modules of a crate: the code that does it as tokens, and the modules or
/// files.
const ONLY_IN: [(&str, &str, &[&str]); 10] = [
    // Only `kernel` uses aya.
    ("tcpmon-daemon", "aya ::", &["kernel"]),
    // Only one room of each side knows how the store keeps states.
    ("tcpmon-daemon", "SOCKET_UNLISTED", &["kernel/store/mod.rs"]),
    ("tcpmon-daemon", "StoreControl", &["kernel/store/mod.rs", "kernel/store/grow.rs"]),
    ("tcpmon-ebpf", "StoreControl", &["store"]),
    // Only `kernel` reads the kernel's structures.
    ("tcpmon-ebpf", "offset !", &["kernel"]),
    ("tcpmon-ebpf", "bpf_probe_read_kernel", &["kernel"]),
    // `model` and `decode` do no I/O and read no clock; of `metrics` only what reports on this process does.
    (
        "tcpmon-daemon",
        "fs ::",
        &["cli", "clock", "commands", "config", "doctor", "fuzz", "host", "http", "kernel", "live", "metrics/usage.rs"],
    ),
    (
        "tcpmon-daemon",
        "rustix ::",
        &[
            "cli",
            "clock",
            "commands",
            "config",
            "doctor",
            "fuzz",
            "host",
            "http",
            "kernel",
            "metrics/identity.rs",
            "metrics/usage.rs",
            "sandbox",
        ],
    ),
    ("tcpmon-daemon", ":: now (", &["commands", "fuzz", "host", "http", "kernel", "live", "metrics/identity.rs"]),
    ("tcpmon-trace", ":: now (", &[]),
];

/// What each crate or module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// A file of a crate of the product, without the code that is only for tests.
struct Source {
    name: &'static str,
    /// Below the folder `src` of the crate.
    path: PathBuf,
    /// The top-level module.
    module: String,
    tokens: Vec<TokenTree>,
}

/// Compares each table with the code, and code with where it is allowed.
pub fn check() -> Result<()> {
    let document = read(ARCHITECTURE)?;
    let sources = sources()?;
    let metadata = MetadataCommand::new().current_dir(workspace::root()).no_deps().exec()?;
    let packages = metadata.workspace_packages();
    let mut findings = differences("crates", &table(&document, "Crates")?, &crates(&packages));
    findings.extend(dependency_findings(&read(DEPENDENCY_TABLES)?, &packages)?);
    for name in CRATES {
        let heading = format!("Modules of {name}");
        findings.extend(differences(&heading, &table(&document, &heading)?, &modules(&sources, name)));
    }
    findings.extend(ONLY_IN.iter().flat_map(|rule| outside_of(&sources, rule)));
    let known = words_of_code()?;
    for name in NAMING {
        findings.extend(unknown_names(name, &read(name)?, &known));
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// The text of a document.
fn read(name: &str) -> Result<String> {
    let path = workspace::root().join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// All words of the code, those of comments included.
fn words_of_code() -> Result<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    for file in workspace::files(&workspace::root())? {
        if file.extension() == Some(OsStr::new("rs")) {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            known.extend(words(&text).map(str::to_owned));
        }
    }
    Ok(known)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// The words in a document's backticks that can only be names of code, and are not in the code.
fn unknown_names(document: &str, text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let is_constant = |word: &&str| word.len() > 1 && word.chars().all(|letter| letter.is_ascii_uppercase());
    let is_name = |word: &&str| word.contains('_') || is_constant(word);
    let names: BTreeSet<&str> = text.split('`').skip(1).step_by(2).flat_map(words).filter(is_name).collect();
    let unknown = names.into_iter().filter(|name| !known.contains(*name));
    unknown.map(|name| format!("{document}: no code has the name {name}")).collect()
}

/// Files with code that is allowed only in others.
fn outside_of(sources: &[Source], (name, code, modules): &(&str, &str, &[&str])) -> Vec<String> {
    let allowed = |source: &Source| {
        source.module == "main" || modules.iter().any(|it| source.module == **it || source.path == Path::new(it))
    };
    let others = sources.iter().filter(|source| source.name == *name && !allowed(source));
    let found = others.filter(|source| text(&source.tokens).contains(code));
    found
        .map(|source| format!("{name}/src/{}: `{code}` is allowed only in {modules:?}", source.path.display()))
        .collect()
}

/// The code without comments, tests and line breaks; paths have a space before and after `::`.
fn text(tokens: &[TokenTree]) -> String {
    let mut text = String::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("( ", ") "),
                    Delimiter::Brace => ("{ ", "} "),
                    Delimiter::Bracket => ("[ ", "] "),
                    Delimiter::None => ("", ""),
                };
                text.extend([open, &self::text(&without_tests(group.stream())), close]);
            }
            TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint => text.push(punct.as_char()),
            token => text.extend([&token.to_string(), " "]),
        }
    }
    text
}

/// The first and last cell of each row of the table under a heading: names in backticks.
fn table(document: &str, heading: &str) -> Result<Uses> {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let section = markdown::section(document, heading)
        .with_context(|| format!("neither {ARCHITECTURE} nor {DEPENDENCY_TABLES} has the section {heading}"))?;
    let mut uses = Uses::new();
    for row in section.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells = markdown::cells(row);
        let used = BTreeSet::from_iter(cells.last().map_or_else(Vec::new, |cell| names(cell)));
        uses.extend(names(cells[0]).into_iter().map(|name| (name, used.clone())));
    }
    Ok(uses)
}

fn differences(what: &str, documented: &Uses, found: &Uses) -> Vec<String> {
    let names: BTreeSet<_> = documented.keys().chain(found.keys()).collect();
    let differs = names.into_iter().filter(|name| documented.get(*name) != found.get(*name));
    let shown = |uses: Option<&BTreeSet<String>>| uses.map_or("is absent".into(), |uses| format!("uses {uses:?}"));
    differs
        .map(|name| {
            let (documented, found) = (shown(documented.get(name)), shown(found.get(name)));
            format!("{what}: {name} {documented} in the document and {found} in the code")
        })
        .collect()
}

/// What a crate needs when it is used, by its manifest.
fn needed(package: &Package) -> impl Iterator<Item = &Dependency> {
    package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development)
}

/// Which crates of the workspace each crate needs.
fn crates(packages: &[&Package]) -> Uses {
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let used = |package: &Package| {
        needed(package).map(|dependency| dependency.name.clone()).filter(|name| names.contains(name.as_str())).collect()
    };
    packages.iter().map(|package| (package.name.to_string(), used(package))).collect()
}

/// Where the tables of dependencies differ from the manifests.
fn dependency_findings(document: &str, packages: &[&Package]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (heading, found) in DEPENDENCIES.into_iter().zip(dependencies(packages)) {
        findings.extend(differences(heading, &table(document, heading)?, &found));
    }
    Ok(findings)
}

/// Which crates need each crate of others, for each of [`DEPENDENCIES`]. The product's tests count as everything else.
fn dependencies(packages: &[&Package]) -> [Uses; 2] {
    let mut uses = [Uses::new(), Uses::new()];
    for package in packages {
        let is_product = PRODUCT.contains(&package.name.as_str());
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_none()) {
            let is_packed = is_product && dependency.kind != DependencyKind::Development;
            let users = uses[usize::from(!is_packed)].entry(dependency.name.clone()).or_default();
            users.insert(package.name.to_string());
        }
    }
    uses
}

/// Which top-level modules of a crate each of them names.
fn modules(sources: &[Source], name: &str) -> Uses {
    let mut uses = Uses::new();
    for source in sources.iter().filter(|source| source.name == name) {
        if source.module != "lib" && source.module != "main" {
            let used = uses.entry(source.module.clone()).or_default();
            named(&source.tokens, used);
            used.remove(&source.module);
        }
    }
    uses
}

/// All files of the product, without those that only tests use.
fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in PRODUCT {
        let folder = workspace::root().join(name).join("src");
        for file in workspace::files(&folder)? {
            let stem = file.file_stem().unwrap_or_default();
            if file.extension() != Some(OsStr::new("rs")) || stem == "tests" || stem == "fixture" {
                continue;
            }
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let tokens = TokenStream::from_str(&text).map_err(|error| anyhow!("{}: {error}", file.display()))?;
            let path = file.strip_prefix(&folder)?.to_owned();
            let top = Path::new(path.iter().next().unwrap_or_default()).file_stem().unwrap_or_default();
            let module = top.to_string_lossy().into_owned();
            sources.push(Source { name, path, module, tokens: without_tests(tokens) });
        }
    }
    Ok(sources)
}

/// The tokens without the items that are only for tests.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        if token.to_string() == "[cfg (test)]" {
            let ends = |token: &TokenTree| match token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                token => token.to_string() == ";",
            };
            tokens.find(ends);
        } else {
            kept.push(token);
        }
    }
    kept
}

/// Adds the name that follows each `crate::`, or each name of a group that follows it, those of tests left out.
fn named(tokens: &[TokenTree], names: &mut BTreeSet<String>) {
    let is = |token: Option<&TokenTree>, text: &str| token.is_some_and(|token| token.to_string() == text);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(ident) if ident == "crate" && is(tokens.get(at + 1), ":") => match tokens.get(at + 3) {
                Some(TokenTree::Group(group)) => {
                    let group: Vec<TokenTree> = group.stream().into_iter().collect();
                    let paths = group.split(|token| is(Some(token), ","));
                    names.extend(paths.filter_map(|path| Some(path.first()?.to_string())));
                }
                name => names.extend(name.map(TokenTree::to_string)),
            },
            TokenTree::Group(group) => named(&without_tests(group.stream()), names),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A package as cargo describes it, with the name and kind of each dependency.
    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Result<Package> {
        let dependency = |(name, kind): &(&str, Option<&str>)| {
            let path = name.starts_with("tcpmon-").then_some("/");
            json!({
                "name": name, "kind": kind, "path": path, "req": "1", "optional": false,
                "uses_default_features": true, "features": [],
            })
        };
        let dependencies: Vec<_> = dependencies.iter().map(dependency).collect();
        Ok(serde_json::from_value(json!({
            "name": name, "version": "0.1.0", "id": name, "manifest_path": "/Cargo.toml",
            "dependencies": dependencies, "targets": [], "features": {},
        }))?)
    }

    fn code(source: &str) -> Result<Vec<TokenTree>> {
        Ok(without_tests(TokenStream::from_str(source).map_err(|error| anyhow!("{error}"))?))
    }

    #[test]
    fn names_are_found_in_uses_expressions_and_macros_but_not_in_tests() -> Result<()> {
        let source = "
            use crate::{alpha, beta::{self, x}, gamma as g};
            fn f() { print!(\"{}\", crate::delta::Y) } // crate::comment
            #[cfg(test)] use crate::hidden;
            #[cfg(test)] mod tests { use crate::hidden; }
            fn g() -> crate::epsilon::Z { \"crate::text\" }";
        let mut names = BTreeSet::new();
        named(&code(source)?, &mut names);
        assert_eq!(Vec::from_iter(names), ["alpha", "beta", "delta", "epsilon", "gamma"]);
        Ok(())
    }

    #[test]
    fn code_is_found_however_it_is_laid_out_but_not_in_comments_and_tests() -> Result<()> {
        let source = "fn f() { let t = Instant\n::now(); g(offset!(x)); } // fs::read
            #[cfg(test)] mod tests { use aya::Ebpf; }";
        let text = text(&code(source)?);
        assert!(text.contains(":: now (") && text.contains("offset !"), "{text}");
        assert!(!text.contains("fs ::") && !text.contains("aya ::"), "{text}");
        Ok(())
    }

    #[test]
    fn names_that_no_code_has_are_found_in_backticks_only() {
        let known = BTreeSet::from(["rcv_nxt", "PROBES"].map(str::to_owned));
        let text = "a_b `rcv_nxt` `rcv_next` `fold` `PROBES` `x::PROBE`\n```\n c_d |\n```\n";
        let expected = ["PROBE", "c_d", "rcv_next"].map(|name| format!("d.md: no code has the name {name}"));
        assert_eq!(unknown_names("d.md", text, &known), expected);
    }

    #[test]
    fn each_difference_between_table_and_code_is_named() -> Result<()> {
        let document =
            "# x\n## Crates\n| a | b | uses |\n|---|---|---|\n| `one`, `two` | `x` | `three` |\n| `three` | | |\n";
        let documented = table(document, "Crates")?;
        assert_eq!(differences("crates", &documented, &documented), [""; 0]);
        let mut found = documented.clone();
        found.remove("one");
        found.insert("three".into(), ["two".to_owned()].into());
        assert_eq!(
            differences("crates", &documented, &found),
            [
                "crates: one uses {\"three\"} in the document and is absent in the code",
                "crates: three uses {} in the document and uses {\"two\"} in the code"
            ]
        );
        Ok(())
    }

    #[test]
    fn each_dependency_of_any_kind_needs_a_line_where_it_belongs() -> Result<()> {
        let document = "# x\n## Dependencies\n| crate | used by |\n|---|---|\n| `aya`, `object` | `tcpmon-daemon` |\n\
            ## Dependencies of tests and tools\n| crate | used by |\n|---|---|\n| `aya` | `tcpmon-tests` |\n\
            | `loom` | `tcpmon-daemon`, `tcpmon-tests` |\n";
        let product = [("aya", None), ("object", Some("build")), ("loom", Some("dev")), ("tcpmon-btf", None)];
        let daemon = package("tcpmon-daemon", &product)?;
        let tests = package("tcpmon-tests", &[("aya", None), ("loom", Some("dev")), ("tcpmon-daemon", Some("dev"))])?;
        assert_eq!(dependency_findings(document, &[&daemon, &tests])?, [""; 0]);

        let daemon = package("tcpmon-daemon", &[("aya", None), ("object", Some("dev")), ("loom", Some("dev"))])?;
        let tests = package("tcpmon-tests", &[("aya", None), ("loom", None), ("cc", Some("build"))])?;
        assert_eq!(
            dependency_findings(document, &[&daemon, &tests])?,
            [
                "Dependencies: object uses {\"tcpmon-daemon\"} in the document and is absent in the code",
                "Dependencies of tests and tools: cc is absent in the document and uses {\"tcpmon-tests\"} in the code",
                "Dependencies of tests and tools: object is absent in the document and uses {\"tcpmon-daemon\"} in the \
                 code",
            ]
        );
        Ok(())
    }
}
