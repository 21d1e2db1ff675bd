//! Keeps the tables of `docs/trace-format.md` and of the Python package's schema as the declarations say.

use std::{env, fmt::Write as _, fs};

use super::{
    SocketLine, ThreadLine, TimesliceLine,
    field::{Field, FieldValue},
    lines::OF_TRACE,
};
use crate::{
    TimesliceRecord, sample,
    total::{SocketTotal, ThreadTotal},
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/trace-format.md");
const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/src/tcpmon_trace/schema.py");

/// The lines before and after the generated part of the schema.
const BEGIN: &str = "# Generated from tcpmon-trace/src/fields/lines.rs by \
                     `TCPMON_BLESS=1 cargo test -p tcpmon-trace fields`; do not edit.\n";
const END: &str = "# End of the generated part.\n";

/// What the documents show of a key.
struct Shown {
    key: &'static str,
    value: FieldValue<'static>,
    unit: &'static str,
    meaning: &'static str,
    source: &'static str,
    is_later: bool,
}

/// What the documents show of these keys, the type of whose values is that in an empty record.
fn shown<R>(fields: &[Field<R>], empty: &'static R) -> Vec<Shown> {
    // The longest unit first, because `_us` also ends `_byte_us`.
    let unit = |key: &str| ["byte_us", "bytes", "ns", "us"].into_iter().find(|unit| key.ends_with(&format!("_{unit}")));
    let header = Box::leak(Box::new(sample::header()));
    let each = fields.iter().map(|field| Shown {
        key: field.key,
        value: (field.get)(header, empty),
        unit: unit(field.key).unwrap_or_default(),
        meaning: field.meaning.trim(),
        source: field.source,
        is_later: field.is_later,
    });
    each.collect()
}

fn timeslice() -> Vec<Shown> {
    shown(TimesliceLine::FIELDS, &TimesliceRecord::EMPTY)
}

fn socket() -> Vec<Shown> {
    shown(SocketLine::FIELDS, &SocketTotal::EMPTY)
}

fn thread() -> Vec<Shown> {
    shown(ThreadLine::FIELDS, &ThreadTotal::EMPTY)
}

/// A table of the document.
fn table(kind: &str, keys: &[Shown]) -> String {
    let mut table = String::from("| key | type | unit | meaning | source |\n|---|---|---|---|---|\n");
    let _ = writeln!(table, "| `type` | string | | always `{kind}` | |");
    for Shown { key, value, unit, meaning, source, .. } in keys {
        let kind = match value {
            FieldValue::Small(_) | FieldValue::Integer(_) | FieldValue::Time(_) => "integer",
            FieldValue::Flag(_) => "boolean",
            FieldValue::Text(_) | FieldValue::Comm(_) | FieldValue::Cookie(_) | FieldValue::Address(_) => "string",
        };
        let [unit, source] = [unit, source].map(|cell| if cell.is_empty() { "".into() } else { format!(" {cell}") });
        let _ = writeln!(table, "| `{key}` | {kind} |{unit} | {meaning} |{source} |");
    }
    table
}

/// The columns of the document that only rows have.
fn columns_of_trace() -> String {
    let rows = shown(OF_TRACE, &TimesliceRecord::EMPTY);
    let rows: String = rows.iter().map(|row| format!("| `{}` | {} |\n", row.key, row.meaning)).collect();
    format!("| column | meaning |\n|---|---|\n{rows}")
}

/// A schema of the Python package.
fn schema(about: &str, name: &str, first: &str, keys: &[Shown]) -> String {
    let mut schema = format!("#: {about}\n{name} = pa.schema(\n    [\n");
    for Shown { key, value, unit, .. } in keys {
        let kind = match value {
            FieldValue::Small(_) => "pa.int32()",
            FieldValue::Integer(_) => "pa.int64()",
            FieldValue::Time(_) => "pa.timestamp(\"us\", \"UTC\")",
            FieldValue::Flag(_) => "pa.bool_()",
            FieldValue::Text(_) | FieldValue::Comm(_) | FieldValue::Cookie(_) | FieldValue::Address(_) => "pa.string()",
        };
        let unit = if unit.is_empty() { String::new() } else { format!(", \"{unit}\"") };
        let _ = writeln!(schema, "        _field(\"{key}\", {kind}{unit}),");
    }
    schema + first + "    ]\n)\n\n"
}

/// All that the Python package says of the keys.
fn schemas() -> String {
    let mut text = schema("The keys of a timeslice in JSON Lines, without `type`.", "KEYS", "", &timeslice());
    text += &schema(
        "A row for each timeslice of a thread and socket: host and wall time, then `KEYS`.",
        "TIMESLICES",
        "        *KEYS,\n",
        &shown(OF_TRACE, &TimesliceRecord::EMPTY),
    );
    text += &schema("A row for each socket: its totals over the trace.", "SOCKETS", "", &socket());
    text += &schema("A row for each thread: its totals over the trace.", "THREADS", "", &thread());
    text += "#: Columns that the first files of format version 1 lack, and what tcpmon reads in their place.\n";
    text += "DEFAULTS: dict[str, Any] = {\n";
    for Shown { key, value, .. } in timeslice().iter().filter(|shown| shown.is_later) {
        let default = if let FieldValue::Integer(zero) = value { zero.to_string() } else { format!("\"{value}\"") };
        let _ = writeln!(text, "    \"{key}\": {default},");
    }
    text + "}\n"
}

/// Compares a file with what it would be with this text between the end of `begin` and the next `end`.
fn assert_has(file: &str, begin: &str, text: &str, end: &str) {
    let is = fs::read_to_string(file).expect(file);
    let (before, rest) = is.split_once(begin).unwrap_or_else(|| panic!("{file} has no {begin:?}"));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{file} has no {end:?} after {begin:?}"));
    let wanted = [before, begin, text, end, after].concat();
    if env::var_os("TCPMON_BLESS").is_some() {
        fs::write(file, &wanted).expect(file);
    } else {
        assert_eq!(is, wanted, "{file}: if this is meant, run the test again with TCPMON_BLESS=1");
    }
}

#[test]
fn the_document_has_the_tables_of_the_declarations() {
    assert_has(DOCUMENT, "\n## Timeslice\n", &table("timeslice", &timeslice()), "\n## Socket\n");
    const BEFORE_SOCKET: &str = "what was read in timeslices that ended before the trace began.\n\n";
    assert_has(DOCUMENT, BEFORE_SOCKET, &table("socket", &socket()), "\n## Thread\n");
    const BEFORE_THREAD: &str = "the two sums may then differ by what was read in between.\n\n";
    assert_has(DOCUMENT, BEFORE_THREAD, &table("thread", &thread()), "\n## Trailer\n");
    assert_has(DOCUMENT, "without `type`, after these:\n\n", &columns_of_trace(), "\nIn Parquet, integers are signed");
}

#[test]
fn the_schema_of_the_python_package_has_the_keys_of_the_declarations() {
    assert_has(SCHEMA, BEGIN, &schemas(), END);
}
