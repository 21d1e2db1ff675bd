//! The figures of an experiment: all runs as CSV, and their means as a table.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use tcpmon_tests::figures::Table;
use tcpmon_tests::mean::Mean;

/// Runs with the same settings.
pub struct Row {
    /// The settings, as they are shown.
    pub labels: Vec<String>,
    /// The figures of each run, in the order of the headings.
    pub runs: Vec<Vec<f64>>,
}

impl Row {
    /// The mean of a figure over the runs in which it is a finite number.
    pub fn mean(&self, at: usize) -> Mean {
        Mean::of(&self.runs.iter().map(|run| run[at]).filter(|figure| figure.is_finite()).collect::<Vec<_>>())
    }
}

/// Writes all runs into `NAME.csv`, and returns a table of the means of the first `shown` figures.
pub fn write(
    folder: &Path,
    name: &str,
    (settings, headings, shown): (&[&str], &[&str], usize),
    rows: &[Row],
) -> std::io::Result<Table> {
    let column = |heading: &&str| heading.replace(", %", " percent").replace(", ", " ").replace(' ', "_");
    let mut csv =
        [settings.join(","), "run".into(), headings.iter().map(column).collect::<Vec<_>>().join(",")].join(",");
    csv.push('\n');
    let mut table = Table::new(&[settings, &headings[..shown]].concat());
    for row in rows {
        for (number, run) in row.runs.iter().enumerate() {
            let _ = write!(csv, "{},{number}", row.labels.join(","));
            for figure in run {
                let _ = write!(csv, ",{figure:.3}");
            }
            csv.push('\n');
        }
        let means = (0..shown).map(|at| row.mean(at).to_string());
        table.row(row.labels.iter().cloned().chain(means).collect());
    }
    fs::write(folder.join(format!("{name}.csv")), csv)?;
    Ok(table)
}
