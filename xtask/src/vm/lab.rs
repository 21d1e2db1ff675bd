//! Figures of the lab that need other kernels or NICs: the tests report them, and `docs/lab.md` shows them.

use std::fs;

use anyhow::{Context as _, Result};

use super::Run;
use crate::workspace;

const FILE: &str = "docs/lab.md";

/// The tables by their names in the document, with the headings of what the tests report.
const TABLES: [(&str, &[&str]); 2] = [
    (
        "autotuning",
        &[
            "case",
            "Mbit/s by the reader",
            "buffer at the end, MiB, by ss",
            "buffer at the end, MiB, by tcpmon",
            "growths by tcpmon",
            "most of it in use, MiB, by tcpmon",
        ],
    ),
    (
        "rings",
        &[
            "driver",
            "frames that the NIC took",
            "frames lost by the kernel's counter",
            "frames lost by tcpmon",
            "polls that used up their budget, by tcpmon and by the kernel's trace",
        ],
    ),
];

/// With `write`, puts the figures that the tests have reported into the document. A table that no test has reported
/// stays as it is.
pub fn record(runs: &[Run], write: bool) -> Result<()> {
    if !write {
        return Ok(());
    }
    let path = workspace::root().join(FILE);
    let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    for (name, headings) in TABLES {
        let mut rows = Vec::new();
        for run in runs {
            let reported = run.results.reported("lab").filter_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            rows.extend(reported.map(|cells| (cells, run.release.as_str())));
        }
        if !rows.is_empty() {
            text = replaced(&text, name, &table(headings, &mut rows))?;
            let file = path.with_file_name("lab").join(format!("{name}.csv"));
            fs::write(&file, csv(headings, &rows)).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    fs::write(&path, text).with_context(|| format!("cannot write {FILE}"))?;
    println!("wrote {FILE}");
    Ok(())
}

/// A table, with the kernels of one case below each other.
fn table(headings: &[&str], rows: &mut [(&str, &str)]) -> String {
    rows.sort_by_key(|(cells, _)| cells.split('\t').next().map(str::to_owned));
    let [case, figures @ ..] = headings else { return String::new() };
    let mut text = format!("| {case} | Linux | {} |\n|{}\n", figures.join(" | "), "---|".repeat(headings.len() + 1));
    for (cells, release) in rows {
        let (case, figures) = cells.split_once('\t').unwrap_or((cells, ""));
        text += &format!("| {case} | {release} | {} |\n", figures.replace('\t', " | "));
    }
    text
}

/// The same as CSV.
fn csv(headings: &[&str], rows: &[(&str, &str)]) -> String {
    let [case, figures @ ..] = headings else { return String::new() };
    let columns = figures.iter().map(|heading| heading.replace(',', "").replace(' ', "_"));
    let mut text = format!("{case},Linux,{}\n", columns.collect::<Vec<_>>().join(","));
    for (cells, release) in rows {
        let (case, figures) = cells.split_once('\t').unwrap_or((cells, ""));
        text += &format!("\"{case}\",{release},{}\n", figures.replace('\t', ","));
    }
    text
}

/// The document with a table between its markers.
fn replaced(text: &str, name: &str, table: &str) -> Result<String> {
    let (open, close) = (format!("<!-- lab:{name} -->\n"), format!("<!-- /lab:{name} -->"));
    let (before, rest) = text.split_once(&open).with_context(|| format!("{FILE} needs the line {open}"))?;
    let (_, after) = rest.split_once(&close).with_context(|| format!("{FILE} needs the line {close}"))?;
    Ok(format!("{before}{open}{table}{close}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_kernels_of_a_case_together() -> Result<()> {
        let mut rows = [("b\t1\t2", "6.1"), ("a\t3\t4", "6.1"), ("b\t5\t6", "6.18")];
        let table = table(&["case", "x", "y"], &mut rows);
        let expected = "| case | Linux | x | y |\n|---|---|---|---|\n| a | 6.1 | 3 | 4 |\n| b | 6.1 | 1 | 2 |\n\
                        | b | 6.18 | 5 | 6 |\n";
        assert_eq!(table, expected);
        assert_eq!(csv(&["case", "x, y", "z"], &rows[1..2]), "case,Linux,x_y,z\n\"b\",6.1,1,2\n");
        let text = "x\n<!-- lab:rings -->\nold\n<!-- /lab:rings -->\ny\n";
        assert_eq!(replaced(text, "rings", "new\n")?, "x\n<!-- lab:rings -->\nnew\n<!-- /lab:rings -->\ny\n");
        Ok(())
    }
}
