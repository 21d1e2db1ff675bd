//! Writes tables into `docs/performance.md`, between the markers with their names.

use std::fs;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");

/// Replaces the table with this name.
pub fn write(name: &str, markdown: &str) -> Result<(), String> {
    let text = fs::read_to_string(PATH).map_err(|error| format!("{PATH}: {error}"))?;
    let replaced = replace(&text, name, markdown).map_err(|error| format!("{PATH}: {error}"))?;
    fs::write(PATH, replaced).map_err(|error| format!("{PATH}: {error}"))
}

fn replace(text: &str, name: &str, markdown: &str) -> Result<String, String> {
    let (open, close) = (format!("<!-- bench:{name} -->"), format!("<!-- /bench:{name} -->"));
    let missing = || format!("it needs the lines {open} and, below, {close}");
    let (before, rest) = text.split_once(&open).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&close).ok_or_else(missing)?;
    Ok(format!("{before}{open}\n{}\n{close}{after}", markdown.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_between_the_markers_of_that_name_is_replaced() {
        let text = "a\n<!-- bench:R -->\nold\n<!-- /bench:R -->\nb\n<!-- bench:L -->\nkept\n<!-- /bench:L -->\n";
        let expected = "a\n<!-- bench:R -->\nnew\n<!-- /bench:R -->\nb\n<!-- bench:L -->\nkept\n<!-- /bench:L -->\n";
        assert_eq!(replace(text, "R", "new\n").unwrap(), expected);
        assert_eq!(replace(expected, "R", "new").unwrap(), expected);
        assert!(replace(text, "V", "new").unwrap_err().contains("<!-- bench:V -->"));
    }

    #[test]
    fn the_document_has_a_place_for_every_table() {
        let text = fs::read_to_string(PATH).unwrap();
        for name in ["R", "R-single", "L", "V", "programs", "scale", "daemon"] {
            replace(&text, name, "").unwrap();
        }
    }
}
