//! Makes sure that `docs/trace-format.md` matches the writer: compares the document's tables with lines that the writer
//! wrote.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use super::JsonLinesWriter;
use crate::{
    FORMAT_VERSION, LOSSES, LOST_OUTPUT, LOST_TOTAL, LOST_WRITE, Total, TraceWriter,
    record::TimesliceEnd,
    sample,
    trailer::{EndReason, Trailer},
};

const DOCUMENT: &str = include_str!("../../../docs/trace-format.md");

/// The keys and values of a line, in their order.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> de::Visitor<'de> for Keys {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: de::MapAccess<'de>>(self, mut map: M) -> Result<Object, M::Error> {
                let mut keys = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    keys.push(entry);
                }
                Ok(Object(keys))
            }
        }
        from.deserialize_map(Keys)
    }
}

/// The lines of a trace: header, timeslice, totals of a socket and of a thread, trailer.
fn lines() -> Vec<String> {
    let mut bytes = Vec::new();
    let mut writer = JsonLinesWriter::new(&mut bytes, &sample::header()).expect("memory takes all");
    writer.record(&sample::record()).expect("memory takes all");
    writer.total(&Total::Socket(sample::socket_total())).expect("memory takes all");
    writer.total(&Total::Thread(sample::thread_total())).expect("memory takes all");
    writer.finish(&sample::ending()).expect("memory takes all");
    String::from_utf8(bytes).expect("JSON is UTF-8").lines().map(str::to_owned).collect()
}

/// The rows of the first table under a heading, as cells without backticks.
fn table(heading: &str) -> Vec<Vec<String>> {
    let section = DOCUMENT
        .split("\n## ")
        .find(|section| section.lines().next() == Some(heading))
        .unwrap_or_else(|| panic!("the document has no section {heading}"));
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()).collect()
}

/// Name and documented type of each key that is written, in order; for the header's filter also those of its keys.
fn written(line: &str) -> Vec<(String, String)> {
    let object: Object = serde_json::from_str(line).expect("a line is an object");
    let mut keys = Vec::new();
    for (key, value) in object.0 {
        keys.push((key.clone(), type_of(&key, &value).to_owned()));
        if key == "filter" {
            let within = line.split_once("\"filter\":").expect("it is there").1;
            let within = within.split_inclusive('}').next().expect("it ends");
            let within: Object = serde_json::from_str(within).expect("it is an object");
            keys.extend(
                within.0.iter().map(|(name, value)| (format!("{key}.{name}"), type_of(name, value).to_owned())),
            );
        }
    }
    keys
}

fn type_of(key: &str, value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Bool(_) => "boolean",
        Value::Object(_) => "object",
        Value::Array(_) if key == "pids" || key == "ports" => "array of integers",
        Value::Array(_) => "array of strings",
        _ => "something that the format does not have",
    }
}

fn assert_documented(heading: &str, line: &str) {
    let rows = table(heading);
    let documented: Vec<_> = rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!(documented, written(line), "docs/trace-format.md, section {heading}");
    for row in &rows {
        let unit = ["ns", "byte_us", "us", "bytes"].into_iter().find(|unit| row[0].ends_with(&format!("_{unit}")));
        assert_eq!(row[2], unit.unwrap_or_default(), "unit of {}", row[0]);
        assert!(!row[3].is_empty(), "{} has no meaning", row[0]);
    }
}

#[test]
fn the_document_has_every_key_in_the_order_and_with_the_type_in_which_it_is_written() {
    let lines = lines();
    assert_documented("Header", &lines[0]);
    assert_documented("Timeslice", &lines[1]);
    assert_documented("Socket", &lines[2]);
    assert_documented("Thread", &lines[3]);
    assert_documented("Trailer", &lines[4]);
}

#[test]
fn the_document_has_every_cause_of_loss() {
    let documented: Vec<String> = table("Lost").into_iter().map(|row| row[0].clone()).collect();
    let mut named: Vec<_> = LOSSES.into_iter().chain([LOST_OUTPUT, LOST_TOTAL, LOST_WRITE]).collect();
    named.sort_unstable();
    assert_eq!(documented, named);
    named.retain(|name| *name != LOST_TOTAL);
    let written = Trailer::new(&sample::ending(), 0, 0).lost;
    assert_eq!(named, written.into_keys().collect::<Vec<_>>());
}

#[test]
fn the_document_has_every_word_that_is_a_value() {
    let meaning = |section: &str, key: &str| {
        let rows = table(section);
        let row = rows.iter().find(|row| row[0] == key).expect("the key is documented");
        row[3].clone()
    };
    let written = |value: Value| value.as_str().map(str::to_owned);
    for end in TimesliceEnd::ALL {
        assert_eq!(written(json!(end)).as_deref(), Some(end.name()));
        assert!(meaning("Timeslice", "end").contains(end.name()), "{}", end.name());
    }
    for reason in EndReason::ALL {
        assert_eq!(written(json!(reason)).as_deref(), Some(reason.name()));
        assert!(meaning("Trailer", "reason").contains(reason.name()), "{}", reason.name());
    }
    assert!(DOCUMENT.starts_with(&format!("# The trace format, version {FORMAT_VERSION}\n")));
}
