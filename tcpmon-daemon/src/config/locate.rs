//! Finds where in a TOML file a key is, and which key is at a position, so that an error can name both.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Number of the line that contains a byte, from 1.
pub(super) fn line_number(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1
}

/// Where a key (with dots) is set.
pub(super) fn span_of(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let (first, rest) = key.split_once('.').unwrap_or((key, ""));
    let (name, value) = table.get_key_value(first)?;
    match value.get_ref() {
        DeValue::Table(inner) if !rest.is_empty() => span_of(inner, rest),
        _ => Some(name.span()),
    }
}

/// The key (with dots) that the text at this span sets.
pub(super) fn key_at(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let inside = match value.get_ref() {
            DeValue::Table(inner) => key_at(inner, span).map(|inner| format!("{name}.{inner}")),
            _ => None,
        };
        let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
        inside.or_else(|| (holds(name.span()) || holds(value.span())).then(|| name.to_string()))
    })
}
