//! Holds the tables of `docs/architecture.md` against the code: which crate uses which, and which module of a crate
//! uses which of the others. Makes sure that no two types of tcpmon have one name, and that
//! modules which must not do something have no code for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::Path,
    str::FromStr as _,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use cargo_metadata::{DependencyKind, MetadataCommand};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use crate::workspace;

/// The crates whose modules have a table.
const CRATES: [&str; 2] = ["tcpmon-daemon", "tcpmon-ebpf"];

/// The crates in which each name of a type stands for one thing.
const PRODUCT: [&str; 5] = ["tcpmon-btf", "tcpmon-common", "tcpmon-daemon", "tcpmon-ebpf", "tcpmon-trace"];

/// What is allowed only in some modules of a crate: the code that does it as tokens, and the modules
/// or files.
const ONLY_IN: [(&str, &str, &[&str]); 7] = [
    // Only `kernel` uses aya.
    ("tcpmon-daemon", "aya ::", &["kernel"]),
    // Only `kernel` reads the kernel's structures.
    ("tcpmon-ebpf", "offset !", &["kernel"]),
    ("tcpmon-ebpf", "bpf_probe_read_kernel", &["kernel"]),
    // `model` and `decode` do no I/O and read no clock; of `metrics` only what reports on this process does.
    ("tcpmon-daemon", "fs ::", &["cli", "commands", "config", "host", "http", "kernel", "metrics/usage.rs"]),
    (
        "tcpmon-daemon",
        "rustix ::",
        &["cli", "commands", "config", "host", "http", "kernel", "metrics/identity.rs", "metrics/usage.rs"],
    ),
    ("tcpmon-daemon", ":: now (", &["commands", "host", "http", "kernel", "metrics/identity.rs"]),
    ("tcpmon-trace", ":: now (", &[]),
];

/// What each crate or module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Compares each table with the code, and the names of all types with each other.
pub fn check() -> Result<()> {
    let path = workspace::root().join("docs/architecture.md");
    let document = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut findings = differences("crates", &table(&document, "Crates")?, &crates()?);
    for name in CRATES {
        let heading = format!("Modules of {name}");
        findings.extend(differences(&heading, &table(&document, &heading)?, &modules(name)?));
    }
    ensure!(findings.is_empty(), "docs/architecture.md and the code differ:\n{}", findings.join("\n"));
    type_names()?;
    only_in()
}

/// Looks for code in modules that must not have it.
fn only_in() -> Result<()> {
    let mut findings = Vec::new();
    for (name, code, modules) in ONLY_IN {
        let source = workspace::root().join(name).join("src");
        for file in files(&source)? {
            let (module, path) = (module_of(&file, &source)?, file.strip_prefix(&source)?);
            let is_allowed = modules.iter().any(|allowed| *allowed == module || path == Path::new(allowed));
            if module != "main" && !is_allowed && text(parse(&file)?).contains(code) {
                findings.push(format!("{}: `{code}` is allowed only in {modules:?}", file.display()));
            }
        }
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// The code without comments, tests and line breaks; paths have a space before and after `::`.
fn text(tokens: TokenStream) -> String {
    let mut text = String::new();
    for token in without_tests(tokens) {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("( ", ") "),
                    Delimiter::Brace => ("{ ", "} "),
                    Delimiter::Bracket => ("[ ", "] "),
                    Delimiter::None => ("", ""),
                };
                text.extend([open, &self::text(group.stream()), close]);
            }
            TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint => text.push(punct.as_char()),
            token => text.extend([&token.to_string(), " "]),
        }
    }
    text
}

/// The top-level module of a file.
fn module_of(file: &Path, source: &Path) -> Result<String> {
    let top = file.strip_prefix(source)?.iter().next().unwrap_or_default();
    Ok(Path::new(top).file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

/// Compares the names of the types in all crates of the product.
fn type_names() -> Result<()> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for name in PRODUCT {
        for file in files(&workspace::root().join(name).join("src"))? {
            let mut declared = Vec::new();
            types(parse(&file)?, &mut declared);
            for name in declared {
                found.entry(name).or_default().insert(file.display().to_string());
            }
        }
    }
    let twice: Vec<_> = found.iter().filter(|(_, files)| files.len() > 1).collect();
    ensure!(twice.is_empty(), "types in several files have one name: {twice:?}");
    Ok(())
}

/// Adds the names of the structs, enums, unions and traits that are declared, those of tests left out.
fn types(tokens: TokenStream, names: &mut Vec<String>) {
    let tokens = without_tests(tokens);
    for pair in tokens.windows(2) {
        if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = pair
            && ["struct", "enum", "union", "trait"].iter().any(|word| keyword == word)
        {
            names.push(name.to_string());
        }
    }
    for token in tokens {
        if let TokenTree::Group(group) = token {
            types(group.stream(), names);
        }
    }
}

/// The first and last cell of each row of the table under a heading: names in backticks.
fn table(document: &str, heading: &str) -> Result<Uses> {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let section = document
        .split("\n## ")
        .find(|section| section.lines().next() == Some(heading))
        .with_context(|| format!("docs/architecture.md has no section {heading}"))?;
    let mut uses = Uses::new();
    for row in section.lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
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

/// Which crates of the workspace each crate needs when it is used, by its manifest.
fn crates() -> Result<Uses> {
    let metadata = MetadataCommand::new().current_dir(workspace::root()).no_deps().exec()?;
    let packages = metadata.workspace_packages();
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let used = |package: &cargo_metadata::Package| {
        let needed = package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
        needed.map(|dependency| dependency.name.clone()).filter(|name| names.contains(name.as_str())).collect()
    };
    Ok(packages.iter().map(|package| (package.name.to_string(), used(package))).collect())
}

/// Which top-level modules of a crate each of them names, its tests left out.
fn modules(name: &str) -> Result<Uses> {
    let source = workspace::root().join(name).join("src");
    let mut uses = Uses::new();
    for file in files(&source)? {
        let module = module_of(&file, &source)?;
        if module != "lib" && module != "main" {
            let used = uses.entry(module.clone()).or_default();
            named(parse(&file)?, used);
            used.remove(&module);
        }
    }
    Ok(uses)
}

/// The Rust files in a folder and below, without those that only tests use.
fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension() == Some(OsStr::new("rs")) && stem != "tests" && stem != "fixture" {
            found.push(path);
        }
    }
    Ok(found)
}

fn parse(file: &Path) -> Result<TokenStream> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    TokenStream::from_str(&text).map_err(|error| anyhow!("{}: {error}", file.display()))
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
fn named(tokens: TokenStream, names: &mut BTreeSet<String>) {
    let is = |token: Option<&TokenTree>, text: &str| token.is_some_and(|token| token.to_string() == text);
    let tokens = without_tests(tokens);
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
            TokenTree::Group(group) => named(group.stream(), names),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_uses_expressions_and_macros_but_not_in_tests() -> Result<()> {
        let source = "
            use crate::{alpha, beta::{self, x}, gamma as g};
            fn f() { print!(\"{}\", crate::delta::Y) } // crate::comment
            #[cfg(test)] use crate::hidden;
            #[cfg(test)] mod tests { use crate::hidden; }
            fn g() -> crate::epsilon::Z { \"crate::text\" }";
        let mut names = BTreeSet::new();
        named(TokenStream::from_str(source).map_err(|error| anyhow!("{error}"))?, &mut names);
        assert_eq!(Vec::from_iter(names), ["alpha", "beta", "delta", "epsilon", "gamma"]);
        Ok(())
    }

    #[test]
    fn code_is_found_however_it_is_laid_out_but_not_in_comments_and_tests() -> Result<()> {
        let source = "fn f() { let t = Instant\n::now(); g(offset!(x)); } // fs::read
            #[cfg(test)] mod tests { use aya::Ebpf; }";
        let text = text(TokenStream::from_str(source).map_err(|error| anyhow!("{error}"))?);
        assert!(text.contains(":: now (") && text.contains("offset !"), "{text}");
        assert!(!text.contains("fs ::") && !text.contains("aya ::"), "{text}");
        Ok(())
    }

    #[test]
    fn types_are_found_at_any_depth_but_not_in_tests() -> Result<()> {
        let source = "pub struct A<T>(T); mod m { pub(crate) enum B {} trait C {} fn f() { union D { x: u8 } } }
            #[cfg(test)] mod tests { struct E; } #[cfg(test)] struct F; struct G;";
        let mut names = Vec::new();
        types(TokenStream::from_str(source).map_err(|error| anyhow!("{error}"))?, &mut names);
        names.sort();
        assert_eq!(names, ["A", "B", "C", "D", "G"]);
        Ok(())
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
}
