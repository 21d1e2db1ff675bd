//! Checks what no other tool checks: the width of Rust lines that rustfmt leaves alone (long strings), and that
//! Markdown has one sentence a line.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::workspace;

/// `max_width` in `rustfmt.toml`.
const MAX_WIDTH: usize = 120;

/// Checks all Rust and Markdown files of the workspace, except those in `target` and in hidden folders.
pub fn check() -> Result<()> {
    let mut findings = Vec::new();
    for path in workspace::files(&workspace::root())? {
        let faults = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => too_wide,
            Some("md") => several_sentences,
            _ => continue,
        };
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        findings.extend(faults(&text).into_iter().map(|fault| format!("{}:{fault}", path.display())));
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// Lines of Rust that are wider than rustfmt's limit, as `LINE: FAULT`.
fn too_wide(text: &str) -> Vec<String> {
    let wide = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > MAX_WIDTH);
    wide.map(|(number, _)| format!("{number}: wider than {MAX_WIDTH} columns")).collect()
}

/// Lines of Markdown with several sentences, as `LINE: FAULT`. Tables and code may have them, and a sentence in bold
/// may stand at the start of a line.
fn several_sentences(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.starts_with('|') && has_several_sentences(line) {
            faults.push(format!("{number}: several sentences on one line"));
        }
    }
    faults
}

fn has_several_sentences(line: &str) -> bool {
    let mut words = line.split(' ').peekable();
    let mut is_code = false;
    let mut is_first = true;
    while let Some(word) = words.next() {
        is_code ^= word.matches('`').count() % 2 == 1;
        let ends = !is_code && word.trim_end_matches(')').ends_with(['.', '?', '!']);
        let numbered = is_first && word.trim_end_matches('.').parse::<u32>().is_ok();
        is_first = false;
        let starts = |next: &&str| next.starts_with(|first: char| first.is_uppercase() || "`[".contains(first));
        if ends && !numbered && words.peek().is_some_and(starts) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_rustfmt_leaves_too_wide_are_found() {
        let text = format!("{}\n{}\n", "x".repeat(120), "ü".repeat(121));
        assert_eq!(too_wide(&text), ["2: wider than 120 columns"]);
    }

    #[test]
    fn markdown_has_one_sentence_a_line() {
        let fine = "1. One sentence.\n**Bold.** Another one, with `a. B` in it.\n```\nCode. More.\n```\n\
                    | A cell. Has two. |\nVersion 6.12 is fine, e.g. here.\n";
        assert_eq!(several_sentences(fine), [""; 0]);
        for line in ["One. Two.", "Is it? `this` is.", "- One (or more.) Two.", "1. One. Two."] {
            assert_eq!(several_sentences(line), ["1: several sentences on one line"], "{line}");
        }
    }
}
