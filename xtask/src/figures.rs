//! `cargo xtask figures`: the figures that documents quote. `docs/performance.md` has the tables of what was measured;
//! its section "In short" has one row for each figure that is quoted, and says in which table, row and column it is.
//! A document marks what it quotes: `<!-- figure:NAME -->20.1 MiB<!-- /figure -->`.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{markdown, workspace};

/// Where the figures are from.
const MEASURED: &str = "docs/performance.md";

/// The documents that quote them.
const QUOTING: [&str; 2] = ["README.md", "docs/faq.md"];

/// The section of [`MEASURED`] with a row for each figure.
const SUMMARY: &str = "In short";

const BEGIN: &str = "<!-- figure:";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- /figure -->";

/// The most significant digits that a figure is shown with: the noise is larger than the next digit.
const SIGNIFICANT_DIGITS: usize = 3;

/// The figures of the summary by their names.
type Figures = BTreeMap<String, String>;

/// A document with the figures that it should have.
#[derive(Debug)]
struct Document {
    path: &'static str,
    text: String,
    /// The places at which the document on disk differs.
    differences: Vec<String>,
}

/// Checks that each figure that a document quotes is the measured one.
pub fn check() -> Result<()> {
    let differences: Vec<String> = documents()?.into_iter().flat_map(|document| document.differences).collect();
    ensure!(differences.is_empty(), "{}\nif the tables are right, run `cargo xtask figures`", differences.join("\n"));
    Ok(())
}

/// Writes the measured figures into all documents, and prints those that differed.
pub fn write() -> Result<()> {
    // Nothing is written if one of the documents has an error.
    for document in documents()?.iter().filter(|document| !document.differences.is_empty()) {
        let path = document.path;
        fs::write(workspace::root().join(path), &document.text).with_context(|| format!("cannot write {path}"))?;
        println!("{}\nwrote {path}", document.differences.join("\n"));
    }
    Ok(())
}

/// All documents as they should be.
fn documents() -> Result<Vec<Document>> {
    let (measured, figures) = summarize(&workspace::read(MEASURED)?).context(MEASURED)?;
    let mut documents = vec![measured];
    for path in QUOTING {
        documents.push(quote(path, &workspace::read(path)?, &figures).context(path)?);
    }
    Ok(documents)
}

/// Fills the summary from the tables that its last column names. A row that names none was measured by hand: its figure
/// stays as it is.
fn summarize(text: &str) -> Result<(Document, Figures)> {
    let section = markdown::section(text, SUMMARY).with_context(|| format!("there is no section {SUMMARY}"))?;
    let (before, after) = text.split_once(section).context("a section is a part of its document")?;
    let (mut new, mut differences, mut figures) = (before.to_owned(), Vec::new(), Figures::new());
    let mut rows = 0;
    for line in section.split_inclusive('\n') {
        rows += usize::from(line.starts_with('|'));
        // The first two are the heading and the rule below it.
        if !line.starts_with('|') || rows <= 2 {
            new += line;
            continue;
        }
        let [name, old, source] = markdown::cells(line)[..] else {
            bail!("a row of {SUMMARY} needs three cells: {line}");
        };
        let named: Vec<&str> = source.split('`').skip(1).step_by(2).collect();
        let figure = match named[..] {
            [] => old.to_owned(),
            [table, ref row @ .., column] => {
                measured(text, table, row, column).with_context(|| format!("the figure {name}"))?
            }
            [_] => bail!("the figure {name} needs a table, a row and a column: {source}"),
        };
        if figure != old {
            let number = line_number(&new);
            differences.push(format!("{MEASURED}:{number}: {name} is {old} here, and {figure} by {source}"));
        }
        new += &format!("| {name} | {figure} | {source} |\n");
        ensure!(figures.insert(name.to_owned(), figure).is_none(), "{SUMMARY} has two rows {name}");
    }
    new += after;
    Ok((Document { path: MEASURED, text: new, differences }, figures))
}

/// A cell of a table that a command has written, found by the heading of its column and by the first cells of its row.
fn measured(text: &str, table: &str, row: &[&str], column: &str) -> Result<String> {
    let marked = text.split_once(&format!("<!-- bench:{table} -->"));
    let marked = marked.and_then(|(_, rest)| rest.split_once(&format!("<!-- /bench:{table} -->")));
    let (table_text, _) = marked.with_context(|| format!("there is no table `{table}`"))?;
    let rows: Vec<Vec<&str>> = table_text.lines().filter(|line| line.starts_with('|')).map(markdown::cells).collect();
    let position = rows.first().and_then(|headings| headings.iter().position(|heading| *heading == column));
    let position = position.with_context(|| format!("the table `{table}` has no column `{column}`"))?;
    let found: Vec<&Vec<&str>> = rows.iter().filter(|cells| cells.starts_with(row)).collect();
    let [cells] = found[..] else {
        bail!("the table `{table}` has {} rows that begin with {row:?}", found.len());
    };
    let cell = cells.get(position).with_context(|| format!("a row of the table `{table}` is too short"))?;
    shown(cell, column).with_context(|| format!("{row:?} of the table `{table}`"))
}

/// A cell with its unit, without an interval. A ratio to the baseline becomes the percentage that tcpmon adds, and a
/// time below a second becomes milliseconds.
fn shown(cell: &str, heading: &str) -> Result<String> {
    let (cell, heading) = (without_parentheses(cell), without_parentheses(heading));
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let value: f64 = number.parse().with_context(|| format!("`{cell}` is not a number"))?;
    let places = number.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let (value, places, unit) = match unit {
        "" if heading.ends_with("/ off") => (100.0 * (value - 1.0), places.saturating_sub(2), "%"),
        "" => {
            let (_, unit) = heading.rsplit_once(", ").with_context(|| format!("`{heading}` has no unit"))?;
            (value, places, unit)
        }
        "s" if value < 1.0 => (1000.0 * value, places.saturating_sub(3), "ms"),
        unit => (value, places, unit),
    };
    let digits = (value.abs() as u64).checked_ilog10().map_or(0, |log| log as usize + 1);
    let places = places.min(SIGNIFICANT_DIGITS.saturating_sub(digits));
    Ok(format!("{value:.places$} {unit}"))
}

/// The text before an interval or a remark in parentheses.
fn without_parentheses(text: &str) -> &str {
    text.split_once(" (").map_or(text, |(before, _)| before)
}

/// Replaces each figure that a document marks.
fn quote(path: &'static str, text: &str, figures: &Figures) -> Result<Document> {
    let mut parts = text.split(BEGIN);
    let (mut new, mut differences) = (parts.next().unwrap_or_default().to_owned(), Vec::new());
    // A document without marks would not be checked.
    ensure!(text.contains(BEGIN), "it quotes no figure between {BEGIN}NAME{BEGIN_END} and {END}");
    for part in parts {
        let number = line_number(&new);
        let (name, rest) = part.split_once(BEGIN_END).with_context(|| format!("line {number}: {BEGIN} has no end"))?;
        let (old, after) = rest.split_once(END).with_context(|| format!("line {number}: {name} needs {END}"))?;
        let figure = figures
            .get(name)
            .with_context(|| format!("line {number}: {MEASURED} has no row {name} in its section {SUMMARY}"))?;
        if figure != old {
            differences.push(format!("{path}:{number}: {name} is {old} here, and {figure} in {MEASURED}"));
        }
        new.extend([BEGIN, name, BEGIN_END, figure, END, after]);
    }
    Ok(Document { path, text: new, differences })
}

/// The number of the line that follows, or that is continued.
fn line_number(before: &str) -> usize {
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "# Costs\n\n## In short\n\nText.\n\n| figure | measured | from |\n|---|---|---|\n\
        | under R | 4 % | `R`: `daemon`, `CPU / off (95 %)` |\n\
        | memory | 20.1 MiB | `own`: `RSS`, `measured` |\n\
        | by hand | 5 ns | perf, 2026-11-27 |\n\n## Workloads\n\n\
        <!-- bench:R -->\n| arm | CPU / off (95 %) | own |\n|---|---|---|\n\
        | daemon | 1.118 (1.0..1.2) | 3 |\n| daemon, light | 1.01 | - |\n<!-- /bench:R -->\n\
        <!-- bench:own -->\n| what | measured |\n|---|---|\n| RSS | 20.1 MiB |\n\
        | RSS, peak | 39.2 MiB |\n<!-- /bench:own -->\n";

    #[test]
    fn a_cell_is_shown_with_its_unit_and_no_more_digits_than_are_known() -> Result<()> {
        for (cell, heading, expected) in [
            ("1.118 (1.046..1.156)", "CPU of both ends / off (95 %)", "11.8 %"),
            ("1.067 (1.026..1.214)", "CPU of both ends / off (95 %)", "6.7 %"),
            ("0.99", "/ off", "-1 %"),
            ("127 (115..135)", "net, ns (range)", "127 ns"),
            ("73.84", "pass, ms", "73.8 ms"),
            ("147.52", "pass, ms", "148 ms"),
            ("6.98", "pass, ms", "6.98 ms"),
            ("0.12", "monitor, % of a core", "0.12 % of a core"),
            ("0.152 % of a core", "measured", "0.152 % of a core"),
            ("20.1 MiB", "measured", "20.1 MiB"),
            ("0.315 s", "measured", "315 ms"),
            ("1.318 s", "measured", "1.32 s"),
        ] {
            assert_eq!(shown(cell, heading)?, expected, "{cell} under {heading}");
        }
        assert!(shown("-", "pass, ms").is_err());
        assert!(shown("10", "sockets").is_err());
        Ok(())
    }

    #[test]
    fn the_summary_is_filled_from_the_tables_that_it_names() -> Result<()> {
        let (document, figures) = summarize(TABLES)?;
        let expected = [("by hand", "5 ns"), ("memory", "20.1 MiB"), ("under R", "11.8 %")];
        assert_eq!(figures, expected.map(|(name, figure)| (name.to_owned(), figure.to_owned())).into());
        let from = "`R`: `daemon`, `CPU / off (95 %)`";
        assert_eq!(document.differences, [format!("docs/performance.md:9: under R is 4 % here, and 11.8 % by {from}")]);
        assert_eq!(document.text, TABLES.replace("| 4 % |", "| 11.8 % |"));
        assert_eq!(summarize(&document.text)?.0.differences, [""; 0]);
        Ok(())
    }

    #[test]
    fn a_source_that_does_not_name_exactly_one_cell_is_an_error_that_names_the_figure() {
        for (wrong, fault) in [
            ("`own`", "needs a table, a row and a column"),
            ("`none`: `RSS`, `measured`", "there is no table `none`"),
            ("`own`: `RSS, mean`, `measured`", "0 rows"),
            ("`own`: `measured`", "4 rows"),
            ("`own`: `RSS`, `peak`", "no column `peak`"),
            ("`R`: `daemon, light`, `own`", "`-` is not a number"),
        ] {
            let text = TABLES.replace("`own`: `RSS`, `measured`", wrong);
            let error = summarize(&text).map(|_| ()).map_err(|error| format!("{error:#}"));
            assert!(error.as_ref().is_err_and(|error| error.contains(fault)), "{wrong}: {error:?}");
            assert!(error.is_err_and(|error| error.contains("the figure memory")), "{wrong}");
        }
        assert!(summarize(&TABLES.replace("| by hand", "| memory")).is_err(), "two rows of one name");
        assert!(summarize("# Costs\n").is_err());
    }

    #[test]
    fn a_quoted_figure_that_differs_is_named_and_replaced() -> Result<()> {
        let figures = summarize(TABLES)?.1;
        let right = "A\n- <!-- figure:memory -->20.1 MiB<!-- /figure -->, and\n\
                     <!-- figure:under R -->11.8 %<!-- /figure --> more.\n";
        let same = quote("README.md", right, &figures)?;
        assert_eq!((same.text.as_str(), same.differences.len()), (right, 0));
        let other = quote("README.md", &right.replace("20.1 MiB", "14 MiB"), &figures)?;
        assert_eq!(other.text, right);
        assert_eq!(other.differences, ["README.md:2: memory is 14 MiB here, and 20.1 MiB in docs/performance.md"]);
        Ok(())
    }

    #[test]
    fn a_mark_that_is_wrong_or_absent_is_an_error() -> Result<()> {
        let figures = summarize(TABLES)?.1;
        let right = "<!-- figure:memory -->1<!-- /figure -->";
        for (wrong, fault) in [
            ("14 MiB", "quotes no figure"),
            ("<!-- figure:memory", "has no end"),
            (&format!("<!-- figure:memory -->1 {right}"), "memory needs <!-- /figure -->"),
            ("<!-- figure:disk -->1<!-- /figure -->", "no row disk"),
        ] {
            let error = quote("README.md", wrong, &figures).map(|_| ()).map_err(|error| format!("{error:#}"));
            assert!(error.as_ref().is_err_and(|error| error.contains(fault)), "{wrong}: {error:?}");
        }
        Ok(())
    }
}
