//! Metrics pages as text: the classic format 0.0.4, and OpenMetrics. Both write samples in the same way, but not
//! families: in OpenMetrics, the suffix for a type is not a part of a family's name, and there are units and an end
//! mark.

use std::io::{self, Write};

use super::{
    Family, FamilyType, families,
    family::{Sample, Value},
    format::Format,
    histogram::Histogram,
    page::Page,
};

/// Writes the page in one of the two formats.
pub(super) fn write(page: &Page, format: Format, sink: &mut impl Write) -> io::Result<()> {
    for family in families() {
        let samples = page.samples(family);
        if !samples.is_empty() {
            write_head(family, format, sink)?;
            samples.iter().try_for_each(|sample| write_sample(family, sample, sink))?;
        }
    }
    match format {
        Format::OpenMetrics => sink.write_all(b"# EOF\n"),
        _ => Ok(()),
    }
}

fn write_head(family: &Family, format: Format, sink: &mut impl Write) -> io::Result<()> {
    let openmetrics = format == Format::OpenMetrics;
    let name = if openmetrics { family.name_without_type() } else { family.name };
    let kind = match family.kind {
        FamilyType::Counter => "counter",
        FamilyType::Histogram => "histogram",
        FamilyType::Info if openmetrics => "info",
        FamilyType::Info | FamilyType::Gauge => "gauge",
    };
    write!(sink, "# HELP {name} {}\n# TYPE {name} {kind}\n", family.help)?;
    if openmetrics && !family.unit.is_empty() {
        writeln!(sink, "# UNIT {name} {}", family.unit)?;
    }
    Ok(())
}

fn write_sample(family: &'static Family, sample: &Sample<'_>, sink: &mut impl Write) -> io::Result<()> {
    let mut line = |suffix: &str, bound: Option<&str>, value: &str| {
        sink.write_all(family.name.as_bytes())?;
        sink.write_all(suffix.as_bytes())?;
        let labels = bound.map(|bound| ("le", bound)).into_iter().chain(sample.labels(family));
        let mut separator = "{";
        for (name, value) in labels {
            for part in [separator, name, "=\""] {
                sink.write_all(part.as_bytes())?;
            }
            write_escaped(value, sink)?;
            sink.write_all(b"\"")?;
            separator = ",";
        }
        if separator == "," {
            sink.write_all(b"}")?;
        }
        writeln!(sink, " {value}")
    };
    match sample.value {
        Value::Integer(value) => line("", None, &value.to_string()),
        Value::Real(value) => line("", None, dtoa::Buffer::new().format(value)),
        Value::Distribution(distribution) => {
            let histogram = Histogram::from(distribution);
            line("_sum", None, dtoa::Buffer::new().format(histogram.sum))?;
            line("_count", None, &histogram.count.to_string())?;
            histogram.cumulative().try_for_each(|(bound, count)| {
                let mut buffer = dtoa::Buffer::new();
                let bound = if bound.is_finite() { buffer.format(bound) } else { "+Inf" };
                line("_bucket", Some(bound), &count.to_string())
            })
        }
    }
}

/// Writes the value of a label.
fn write_escaped(value: &str, sink: &mut impl Write) -> io::Result<()> {
    const SPECIAL: [char; 3] = ['\\', '"', '\n'];
    for part in value.split_inclusive(SPECIAL) {
        let plain = part.trim_end_matches(SPECIAL);
        sink.write_all(plain.as_bytes())?;
        sink.write_all(match &part[plain.len()..] {
            "\\" => b"\\\\",
            "\"" => b"\\\"",
            "\n" => b"\\n",
            _ => b"",
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_in_a_label_are_escaped_wherever_they_are() {
        for (value, written) in [
            ("", ""),
            ("plain", "plain"),
            ("\"", "\\\""),
            ("\\\\n\n\n", "\\\\\\\\n\\n\\n"),
            ("a\"b\\c\nd", "a\\\"b\\\\c\\nd"),
            ("ünï\n", "ünï\\n"),
        ] {
            let mut bytes = Vec::new();
            write_escaped(value, &mut bytes).expect("a vector takes all");
            assert_eq!(String::from_utf8(bytes).as_deref(), Ok(written), "{value:?}");
        }
    }
}
