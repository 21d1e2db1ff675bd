//! Tables for the terminal and for documents.

use std::env;
use std::fmt::Write as _;
use std::process::Command;
use std::thread;

/// Where and how the figures were measured.
#[derive(Debug)]
pub struct Provenance(String);

/// The result of one part of the benchmark.
#[derive(Debug)]
pub struct Section {
    /// The part's name, as in the document's markers.
    pub name: &'static str,
    /// What was measured, as a sentence.
    pub what: String,
    /// The figures.
    pub table: Table,
    /// Notes below the table.
    pub notes: Vec<String>,
}

/// Rows under a heading.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Provenance {
    /// The provenance of this run of a command, such as `cargo xtask bench`.
    pub fn read(command: &str) -> Self {
        let kernel = kernel_release();
        let date = Command::new("date").arg("+%F").output().ok();
        let date = date.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
        let arguments: Vec<String> = env::args().skip(1).collect();
        let command = format!("{command} {}", arguments.join(" "));
        let cpus = thread::available_parallelism().map_or(0, usize::from);
        Self(format!("Linux {kernel}, {cpus} CPUs, {}, `{}`", date.trim(), command.trim()))
    }
}

impl Section {
    /// Formats the section for the terminal.
    pub fn text(&self, provenance: &Provenance) -> String {
        let mut text = format!("\n{}: {}\n{}\n\n{}", self.name, self.what, provenance.0, self.table.text());
        for note in &self.notes {
            let _ = write!(text, "\n{note}");
        }
        text
    }

    /// Formats the section for the document.
    pub fn markdown(&self, provenance: &Provenance) -> String {
        let notes: Vec<String> = self.notes.iter().map(|note| format!("- {note}")).collect();
        let what = self.what.replace(". ", ".\n");
        format!("{what}\n{}.\n\n{}\n{}\n", provenance.0, self.table.markdown(), notes.join("\n"))
    }
}

impl Table {
    /// An empty table.
    pub fn new(heading: &[&str]) -> Self {
        Self { heading: heading.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Appends a column.
    pub fn column(&mut self, heading: &str, cells: impl Iterator<Item = String>) {
        self.heading.push(heading.to_owned());
        self.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }

    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.heading]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        [&self.heading].into_iter().chain(&self.rows).map(line).collect()
    }

    fn markdown(&self) -> String {
        let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
        let rule = format!("|{}\n", "---|".repeat(self.heading.len()));
        [line(&self.heading), rule].into_iter().chain(self.rows.iter().map(line)).collect()
    }
}

/// A target from issue 2 next to the measured value; lower is better.
pub fn target(what: &str, measured: f64, limit: f64, unit: &str) -> String {
    let verdict = if measured <= limit { "met" } else { "MISSED" };
    let places = if limit.abs() < 10.0 { 3 } else { 1 };
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    format!("Target {what} <= {limit}{unit}: {measured:.places$}{unit}, {verdict}.")
}

/// Release of the running kernel.
pub fn kernel_release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_on_a_terminal_and_piped_in_markdown() {
        let mut table = Table::new(&["arm", "R"]);
        table.row(vec!["floor".into(), "1.02".into()]);
        table.row(vec!["off".into(), "1".into()]);
        assert_eq!(table.text(), "arm    R\nfloor  1.02\noff    1\n");
        assert_eq!(table.markdown(), "| arm | R |\n|---|---|\n| floor | 1.02 |\n| off | 1 |\n");
    }

    #[test]
    fn a_target_says_whether_it_was_met() {
        assert_eq!(target("R", 1.05, 1.07, ""), "Target R <= 1.07: 1.050, met.");
        assert_eq!(target("read", 120.0, 110.0, "ns"), "Target read <= 110 ns: 120.0 ns, MISSED.");
    }
}
