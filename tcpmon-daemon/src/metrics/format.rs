//! The formats and codings of a metrics page, and how a request's headers `Accept` and `Accept-Encoding` select them.

/// Format of a metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4: for people, and for clients that do not ask for a format.
    Text,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Prometheus protobuf, delimited: the only one with native histograms.
    Protobuf,
}

impl Format {
    /// All formats, in order of preference.
    pub const ALL: [Self; 3] = [Self::Text, Self::OpenMetrics, Self::Protobuf];

    /// Value of the header `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// The format that an `Accept` header prefers; text if the header is absent or names no supported format.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let ranges: Vec<_> = accept.into_iter().flat_map(|accept| accept.split(',')).filter_map(Range::parse).collect();
        let mut best = (Rank::default(), Self::Text);
        for format in Self::ALL {
            let rank = format.rank(&ranges);
            if rank > best.0 {
                best = (rank, format);
            }
        }
        best.1
    }

    /// How strongly the header prefers this format, taken from the most specific range that matches it.
    fn rank(self, ranges: &[Range<'_>]) -> Rank {
        let matching = ranges.iter().filter_map(|range| Some((self.specificity(range)?, range.quality)));
        match matching.max() {
            Some((specificity, quality)) if quality > 0 => Rank { quality, specificity },
            _ => Rank::default(),
        }
    }

    /// How specifically a range names this format; `None` if it does not match.
    fn specificity(self, range: &Range<'_>) -> Option<u8> {
        let (essence, parameters) = self.content_type().split_once(';')?;
        let (kind, _) = essence.split_once('/')?;
        if range.essence == "*/*" {
            return Some(1);
        }
        if range.essence.strip_suffix("/*").is_some_and(|range| range.eq_ignore_ascii_case(kind)) {
            return Some(2);
        }
        // A parameter that our content type also has must have the same value. Other parameters, such as `escaping`, do
        // not restrict anything that we write.
        let agrees = |(name, value): (&str, &str)| {
            let ours = parameters.split(';').filter_map(parameter).find(|ours| ours.0.eq_ignore_ascii_case(name));
            ours.is_none_or(|ours| ours.1.eq_ignore_ascii_case(value))
        };
        (range.essence.eq_ignore_ascii_case(essence) && range.parameters.split(';').filter_map(parameter).all(agrees))
            .then_some(3)
    }
}

/// How the bytes of a metrics page are sent (`Content-Encoding`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// As they are.
    Identity,
    /// Compressed, for whoever asks for it: all Prometheus servers do.
    Gzip,
}

impl Coding {
    /// The coding that an `Accept-Encoding` header prefers. Without the header, or if it names nothing that tcpmon
    /// supports, the page is sent uncompressed: a page that some client may fail to read is better than none.
    pub fn negotiate(accept_encoding: Option<&str>) -> Self {
        let ranges = accept_encoding.into_iter().flat_map(|accept| accept.split(',')).filter_map(Range::parse);
        let ranges: Vec<_> = ranges.collect();
        let quality = |names: &[&str]| {
            let named = |range: &&Range<'_>| names.iter().any(|name| range.essence.eq_ignore_ascii_case(name));
            ranges.iter().find(named).map(|range| range.quality)
        };
        let any = quality(&["*"]);
        let gzip = quality(&["gzip", "x-gzip"]).or(any).unwrap_or_default();
        // A client that names gzip but not `identity` prefers gzip, whatever the quality.
        let identity = quality(&["identity"]).or(any).unwrap_or_default();
        if gzip > 0 && gzip >= identity { Self::Gzip } else { Self::Identity }
    }
}

/// Orders formats; the default is the rank of a format that is not wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    quality: u16,
    specificity: u8,
}

/// One element of an `Accept` or `Accept-Encoding` header.
struct Range<'a> {
    essence: &'a str,
    /// Everything after the essence, including `q`.
    parameters: &'a str,
    /// In thousandths.
    quality: u16,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
        let quality = parameters.split(';').filter_map(parameter).find(|(name, _)| name.eq_ignore_ascii_case("q"));
        let quality: f32 = match quality {
            Some((_, value)) => value.parse().ok().filter(|q| (0.0..=1.0).contains(q))?,
            None => 1.0,
        };
        Some(Self { essence: essence.trim(), parameters, quality: (quality * 1000.0) as u16 })
    }
}

/// `name=value`; the value may be quoted.
fn parameter(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    Some((name.trim(), value.trim().trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::Format::{OpenMetrics, Protobuf, Text};
    use super::*;

    #[track_caller]
    fn asked(accept: &str, answer: Format) {
        assert_eq!(Format::negotiate(Some(accept)), answer, "{accept}");
    }

    #[test]
    fn prometheus_2_42_gets_openmetrics() {
        asked(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OpenMetrics,
        );
    }

    #[test]
    fn prometheus_2_42_with_native_histograms_gets_protobuf() {
        asked(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
             application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Protobuf,
        );
    }

    #[test]
    fn prometheus_3_gets_openmetrics_or_with_native_histograms_protobuf() {
        asked(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OpenMetrics,
        );
        asked(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
             application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            Protobuf,
        );
        // scrape_protocols: [PrometheusText1.0.0, PrometheusText0.0.4]
        asked("text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", Text);
    }

    #[test]
    fn curl_browsers_and_silence_get_text() {
        asked("*/*", Text);
        asked("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Text);
        asked("", Text);
        asked("image/png", Text);
        asked("nonsense;;=,/;q=x", Text);
        assert_eq!(Format::negotiate(None), Text);
    }

    #[test]
    fn quality_decides_before_specificity_and_zero_refuses() {
        asked("text/plain;q=0.2, application/openmetrics-text;q=0.3", OpenMetrics);
        asked("text/plain;version=0.0.4;q=0.5, */*;q=0.9", OpenMetrics);
        asked("text/plain;q=0, application/*", OpenMetrics);
        asked("application/openmetrics-text;q=0, application/*", Protobuf);
        asked("application/openmetrics-text, */*", OpenMetrics);
        asked("*/*;q=0", Text);
    }

    #[test]
    fn another_version_encoding_or_message_is_not_ours() {
        asked("application/openmetrics-text;version=0.0.1", Text);
        asked("application/openmetrics-text; version=\"1.0.0\"; charset=UTF-8", OpenMetrics);
        asked("APPLICATION/OpenMetrics-Text", OpenMetrics);
        asked("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", Text);
        asked("application/vnd.google.protobuf;proto=other.Message;encoding=delimited", Text);
        asked("application/vnd.google.protobuf", Protobuf);
    }

    #[test]
    fn gzip_is_for_those_who_ask_for_it_and_do_not_prefer_the_page_as_it_is() {
        for (accept, coding) in [
            ("gzip", Coding::Gzip),
            ("X-GZip", Coding::Gzip),
            ("gzip, deflate, br, zstd", Coding::Gzip),
            ("deflate, gzip;q=0.1", Coding::Gzip),
            ("gzip;q=0.5, identity;q=0.5", Coding::Gzip),
            ("*", Coding::Gzip),
            ("identity;q=0, *", Coding::Gzip),
            ("gzip;q=0.3, identity;q=0.7", Coding::Identity),
            ("gzip;q=0.3, *;q=0.7", Coding::Identity),
            ("gzip;q=0, *", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("*;q=0", Coding::Identity),
            ("identity", Coding::Identity),
            ("br, zstd", Coding::Identity),
            ("gzipped", Coding::Identity),
            ("gzip;q=2", Coding::Identity),
            ("", Coding::Identity),
        ] {
            assert_eq!(Coding::negotiate(Some(accept)), coding, "{accept}");
        }
        assert_eq!(Coding::negotiate(None), Coding::Identity);
    }
}
