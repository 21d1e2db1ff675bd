//! The older text format, 0.0.4, made from OpenMetrics text, which is what prometheus-client writes.

/// Turns a page of OpenMetrics text without exemplars and timestamps into text 0.0.4.
///
/// Samples are written alike in both. Families are not: in 0.0.4 a counter's name includes `_total`, an info is a
/// gauge whose name includes `_info`, and there are neither units nor an end mark.
pub(super) fn from_openmetrics(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + 4096);
    let mut rest = page;
    while !rest.is_empty() {
        if rest.starts_with('#') {
            // A family begins: HELP, then TYPE, then perhaps UNIT.
            let (help, after) = line(rest);
            let (kind, after) = match help.strip_prefix("# HELP ") {
                Some(_) => line(after),
                None => (help, after),
            };
            if let Some(kind) = kind.strip_prefix("# TYPE ") {
                write_family(help, kind, &mut text);
            }
            rest = after;
        } else {
            let samples = rest.find("\n#").map_or(rest.len(), |end| end + 1);
            text.push_str(&rest[..samples]);
            rest = &rest[samples..];
        }
    }
    text
}

fn write_family(help: &str, kind: &str, text: &mut String) {
    let (name, kind) = kind.split_once(' ').unwrap_or((kind, "untyped"));
    let (suffix, kind) = match kind {
        "counter" => ("_total", "counter"),
        "info" => ("_info", "gauge"),
        "unknown" => ("", "untyped"),
        kind => ("", kind),
    };
    if let Some((_, help)) = help.strip_prefix("# HELP ").and_then(|help| help.split_once(' ')) {
        text.extend(["# HELP ", name, suffix, " ", help, "\n"]);
    }
    text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
}

/// The first line without its end, and what follows it.
fn line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_infos_get_their_suffix_and_units_and_the_end_mark_go() {
        let openmetrics = "\
# HELP a_bytes Bytes of a.
# TYPE a_bytes counter
# UNIT a_bytes bytes
a_bytes_total{x=\"#\\n# TYPE\"} 1
a_bytes_total{x=\"2\"} 2
# HELP b What b is.
# TYPE b info
b_info{v=\"1\"} 1
# HELP c_seconds Time.
# TYPE c_seconds histogram
# UNIT c_seconds seconds
c_seconds_sum 1.5
c_seconds_count 1
c_seconds_bucket{le=\"+Inf\"} 1
# TYPE d gauge
d 5
# EOF
";
        let text = "\
# HELP a_bytes_total Bytes of a.
# TYPE a_bytes_total counter
a_bytes_total{x=\"#\\n# TYPE\"} 1
a_bytes_total{x=\"2\"} 2
# HELP b_info What b is.
# TYPE b_info gauge
b_info{v=\"1\"} 1
# HELP c_seconds Time.
# TYPE c_seconds histogram
c_seconds_sum 1.5
c_seconds_count 1
c_seconds_bucket{le=\"+Inf\"} 1
# TYPE d gauge
d 5
";
        assert_eq!(from_openmetrics(openmetrics), text);
    }

    #[test]
    fn an_empty_page_stays_empty() {
        assert_eq!(from_openmetrics("# EOF\n"), "");
        assert_eq!(from_openmetrics(""), "");
    }
}
