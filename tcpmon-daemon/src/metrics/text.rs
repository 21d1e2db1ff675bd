//! Metrics pages as text: the classic format, 0.0.4, is made from OpenMetrics text, which is what prometheus-client
//! writes.

use std::{fmt, io, mem};

/// Writes text to a byte sink, and keeps the I/O error, which [`fmt::Error`] cannot carry.
pub(super) struct Utf8<'a, W> {
    sink: &'a mut W,
    result: io::Result<()>,
}

impl<'a, W: io::Write> Utf8<'a, W> {
    pub(super) fn new(sink: &'a mut W) -> Self {
        Self { sink, result: Ok(()) }
    }

    /// The result of writing the bytes.
    pub(super) fn finish(self) -> io::Result<()> {
        self.result
    }
}

impl<W: io::Write> fmt::Write for Utf8<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.result = self.sink.write_all(text.as_bytes());
        self.result.as_ref().map_err(|_| fmt::Error).copied()
    }
}

/// Converts OpenMetrics text without exemplars and timestamps to text 0.0.4, line by line.
///
/// Both formats write samples in the same way, but not families: in 0.0.4, a counter's name includes `_total`, an info
/// is a gauge whose name includes `_info`, and there are neither units nor an end mark.
pub(super) struct ClassicText<W> {
    text: W,
    /// The current line up to here, if it is a comment: HELP, then TYPE, then optionally UNIT.
    comment: Option<String>,
    /// The next text starts a new line.
    fresh: bool,
    help: String,
}

impl<W: fmt::Write> ClassicText<W> {
    pub(super) fn new(text: W) -> Self {
        Self { text, comment: None, fresh: true, help: String::new() }
    }

    fn comment(&mut self, line: String) -> fmt::Result {
        if line.starts_with("# HELP ") {
            self.help = line;
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let help = mem::take(&mut self.help);
            write_family(help.trim_end(), kind.trim_end(), &mut self.text)?;
        }
        Ok(())
    }
}

impl<W: fmt::Write> fmt::Write for ClassicText<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive('\n') {
            if mem::replace(&mut self.fresh, part.ends_with('\n')) && part.starts_with('#') {
                self.comment = Some(String::new());
            }
            match &mut self.comment {
                Some(line) => line.push_str(part),
                None => self.text.write_str(part)?,
            }
            if let Some(line) = self.comment.take_if(|_| part.ends_with('\n')) {
                self.comment(line)?;
            }
        }
        Ok(())
    }
}

fn write_family(help: &str, kind: &str, text: &mut impl fmt::Write) -> fmt::Result {
    let (name, kind) = kind.split_once(' ').unwrap_or((kind, "untyped"));
    let (suffix, kind) = match kind {
        "counter" => ("_total", "counter"),
        "info" => ("_info", "gauge"),
        "unknown" => ("", "untyped"),
        kind => ("", kind),
    };
    if let Some((_, help)) = help.strip_prefix("# HELP ").and_then(|help| help.split_once(' ')) {
        writeln!(text, "# HELP {name}{suffix} {help}")?;
    }
    writeln!(text, "# TYPE {name}{suffix} {kind}")
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn from_openmetrics(page: &str) -> String {
        let mut text = String::new();
        ClassicText::new(&mut text).write_str(page).expect("a string takes all");
        text
    }

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
    fn it_does_not_matter_how_the_text_comes_in_pieces() {
        let page = "# HELP a A.\n# TYPE a info\na_info{b=\"#\"} 1\n# TYPE c counter\nc_total 2\n# EOF\n";
        let mut text = String::new();
        let mut classic = ClassicText::new(&mut text);
        for byte in page.chars() {
            classic.write_char(byte).expect("a string takes all");
        }
        assert_eq!(text, from_openmetrics(page));
    }

    #[test]
    fn what_the_sink_says_is_kept() {
        let mut full = [0; 4];
        let mut sink = full.as_mut_slice();
        let mut text = Utf8::new(&mut sink);
        assert!(text.write_str("1234").is_ok() && text.write_str("5").is_err());
        assert_eq!(text.finish().expect_err("no room").kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn an_empty_page_stays_empty() {
        assert_eq!(from_openmetrics("# EOF\n"), "");
        assert_eq!(from_openmetrics(""), "");
    }
}
