//! Writes tables into a document, between markers with their names.

use std::fs;

/// A document with places for tables: `<!-- bench:NAME -->` and below it `<!-- /bench:NAME -->`.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    /// The file.
    pub path: &'static str,
    /// What comes before the colon of a marker, such as `bench`.
    pub markers: &'static str,
}

impl Document {
    /// Replaces the table with this name.
    ///
    /// # Errors
    /// The file cannot be read or written, or has no place for it.
    pub fn write(&self, name: &str, markdown: &str) -> Result<(), String> {
        let path = self.path;
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let replaced = self.replaced(&text, name, markdown).map_err(|error| format!("{path}: {error}"))?;
        fs::write(path, replaced).map_err(|error| format!("{path}: {error}"))
    }

    /// A text with the table replaced.
    ///
    /// # Errors
    /// It has no place for it.
    pub fn replaced(&self, text: &str, name: &str, markdown: &str) -> Result<String, String> {
        let (open, close) = (format!("<!-- {}:{name} -->", self.markers), format!("<!-- /{}:{name} -->", self.markers));
        let missing = || format!("it needs the lines {open} and, below, {close}");
        let (before, rest) = text.split_once(&open).ok_or_else(missing)?;
        let (_, after) = rest.split_once(&close).ok_or_else(missing)?;
        Ok(format!("{before}{open}\n{}\n{close}{after}", markdown.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_between_the_markers_of_that_name_is_replaced() {
        let document = Document { path: "", markers: "bench" };
        let text = "a\n<!-- bench:R -->\nold\n<!-- /bench:R -->\nb\n<!-- bench:L -->\nkept\n<!-- /bench:L -->\n";
        let expected = "a\n<!-- bench:R -->\nnew\n<!-- /bench:R -->\nb\n<!-- bench:L -->\nkept\n<!-- /bench:L -->\n";
        assert_eq!(document.replaced(text, "R", "new\n").unwrap(), expected);
        assert_eq!(document.replaced(expected, "R", "new").unwrap(), expected);
        let error = document.replaced(text, "V", "new").unwrap_err();
        assert!(error.contains("<!-- bench:V -->"), "{error}");
    }
}
