//! Compares the facts of now with a saved answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde::Serialize;
use serde_json::Value;

/// Facts that change by themselves.
const VOLATILE: [&str; 3] = ["host.softnet", "host.swapped_bytes", "run.others"];

/// A fact that has changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Name of the fact: its keys in the JSON, such as `host.tcp_rmem`; a device has its name as a key
    /// (`devices.eth0.gro`).
    pub fact: String,
    /// The saved value; null if there was none.
    pub before: Value,
    /// The value now; null if there is none.
    pub now: Value,
}

/// Compares the facts of two answers in JSON.
pub fn differences(before: &Value, now: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", &before["facts"], &now["facts"], &mut found);
    found
}

/// The differences as lines of text.
pub fn text(differences: &[Difference]) -> String {
    let mut text = String::new();
    for Difference { fact, before, now } in differences {
        let _ = writeln!(text, "{fact}: {} -> {}", word(before), word(now));
    }
    let _ = match differences.len() {
        0 => writeln!(text, "nothing has changed"),
        1 => writeln!(text, "\n1 fact has changed"),
        count => writeln!(text, "\n{count} facts have changed"),
    };
    text
}

fn word(value: &Value) -> String {
    if value.is_null() { "nothing".into() } else { value.to_string() }
}

fn compare(fact: &str, before: &Value, now: &Value, found: &mut Vec<Difference>) {
    if before == now || VOLATILE.contains(&fact) {
        return;
    }
    let (Some(old), Some(new)) = (by_key(before), by_key(now)) else {
        found.push(Difference { fact: fact.to_owned(), before: before.clone(), now: now.clone() });
        return;
    };
    for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let part = if fact.is_empty() { (*key).to_owned() } else { format!("{fact}.{key}") };
        let of = |parts: &BTreeMap<&str, &Value>| parts.get(key).copied().cloned().unwrap_or_default();
        compare(&part, &of(&old), &of(&new), found);
    }
}

/// The parts of an object by their keys, and of a list of objects with names by their names.
fn by_key(value: &Value) -> Option<BTreeMap<&str, &Value>> {
    match value {
        Value::Object(object) => Some(object.iter().map(|(key, value)| (key.as_str(), value)).collect()),
        Value::Array(list) => list.iter().map(|value| Some((value.get("name")?.as_str()?, value))).collect(),
        _ => None,
    }
}
