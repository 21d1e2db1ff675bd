//! Sections and tables of the documents that are compared with something.

/// The lines below a heading of the second level, up to the next one.
pub fn section<'a>(document: &'a str, heading: &str) -> Option<&'a str> {
    let mut sections = document.split("\n## ").filter_map(|section| section.split_once('\n'));
    sections.find(|(first, _)| *first == heading).map(|(_, rest)| rest)
}

/// The cells of a row of a table.
pub fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_matches('|').split('|').map(str::trim).collect()
}
