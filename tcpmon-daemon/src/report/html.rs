//! A report as one self-contained page: `page/` has its text, its style and its script.

use serde::Serialize;
use tcpmon_trace::summary::SocketSummary;

use super::{
    compare::Change,
    read::Trace,
    render::{Comparison, TraceReport},
    timeline::{SHOWN_CELLS, Timeline, Timelines},
};

/// The page, with the names of its parts in their places.
const PAGE: &str = include_str!("page/page.html");

/// The parts by name, in the order of their places in the page.
const PARTS: [(&str, &[&str]); 4] = [
    ("/*CSS*/", &[include_str!("page/uPlot.min.css"), include_str!("page/page.css")]),
    ("/*DATA*/", &[]),
    ("/*UPLOT*/", &[include_str!("page/uPlot.iife.min.js")]),
    ("/*JS*/", &[include_str!("page/page.js")]),
];

/// Width of a bin of the buffer's fill, thousandths.
const FILL_WIDTH: u64 = 20;

/// Bounds of the run-queue waits: a bin for each half of a power of two from 1 us on, and one for none at all.
fn wait_bounds_ns() -> Vec<u64> {
    let powers = (0..24).flat_map(|power| [1000 << power, 1500 << power]);
    [0].into_iter().chain(powers).collect()
}

#[derive(Serialize)]
struct PageData<'a> {
    title: String,
    comparison: Option<PageComparison<'a>>,
    reports: Vec<serde_json::Value>,
}

#[derive(Serialize)]
struct PageComparison<'a> {
    sentence: &'a str,
    changes: &'a [Change],
}

#[derive(Serialize)]
struct Chart {
    start_seconds: f64,
    records: u64,
    records_per_cell: u64,
    cells: usize,
    columns: String,
    pieces: ChartPieces,
    fills: ChartFills,
    waits: ChartWaits,
}

#[derive(Serialize)]
struct ChartPieces {
    start_seconds: f64,
    seconds: f64,
    limited_seconds: Vec<[f64; 5]>,
}

#[derive(Serialize)]
struct ChartFills {
    bounds: Vec<f64>,
    activation: Vec<u64>,
    deactivation: Vec<u64>,
}

#[derive(Serialize)]
struct ChartWaits {
    bounds_seconds: Vec<f64>,
    counts: Vec<u64>,
}

/// A trace with the timelines of its sockets.
pub struct Drawn<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Its timelines.
    pub timelines: &'a Timelines,
}

impl Drawn<'_> {
    /// A page on this trace, with at most `limit` sockets.
    ///
    /// # Errors
    /// None in practice: all keys are strings.
    pub fn page(&self, limit: usize) -> serde_json::Result<String> {
        let report = self.report(TraceReport::of(self.trace, limit), limit, SHOWN_CELLS)?;
        page(&PageData { title: self.names(), comparison: None, reports: vec![report] })
    }

    /// A page that compares this trace with another.
    ///
    /// # Errors
    /// As for [`Drawn::page`].
    pub fn page_beside(&self, other: &Self, limit: usize) -> serde_json::Result<String> {
        let Comparison { sentence, first, second, changes } = Comparison::of(self.trace, other.trace, limit);
        let reports = vec![self.report(first, limit, SHOWN_CELLS / 2)?, other.report(second, limit, SHOWN_CELLS / 2)?];
        let comparison = Some(PageComparison { sentence: &sentence, changes: &changes });
        page(&PageData { title: format!("{} and {}", self.names(), other.names()), comparison, reports })
    }

    fn names(&self) -> String {
        self.trace.files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The report with what its charts are drawn from.
    fn report(&self, report: TraceReport, limit: usize, cells: usize) -> serde_json::Result<serde_json::Value> {
        let start_ns = self.trace.files.iter().map(|file| file.header.start.monotonic_ns).min().unwrap_or(0);
        let sockets: Vec<_> = self.trace.summary.by_bytes().into_iter().take(limit).collect();
        let cookies: Vec<u64> = sockets.iter().map(|socket| socket.cookie).collect();
        let timelines = self.timelines.of(&cookies, cells);
        let mut report = serde_json::to_value(report)?;
        let Some(shown) = report["sockets"].as_array_mut() else { return Ok(report) };
        for (shown, socket) in shown.iter_mut().zip(sockets) {
            let chart = timelines.get(&socket.cookie).map(|timeline| Chart::of(timeline, socket, start_ns));
            shown["chart"] = serde_json::to_value(chart)?;
        }
        Ok(report)
    }
}

impl Chart {
    fn of(timeline: &Timeline, socket: &SocketSummary, start_ns: u64) -> Self {
        let since_start = |ns: u64| ns as f64 / 1e9 - start_ns as f64 / 1e9;
        let pieces = &timeline.pieces;
        let limited = |piece: &tcpmon_trace::summary::Piece| piece.limited_ns.map(|ns| ns as f64 / 1e9);
        let activation = socket.fills_at_activation.histogram(FILL_WIDTH);
        let bounds = (0..activation.len() as u64).map(|bin| (bin * FILL_WIDTH) as f64 / 1000.0).collect();
        Self {
            start_seconds: since_start(timeline.start_ns()),
            records: timeline.records(),
            records_per_cell: timeline.records_per_cell(),
            cells: timeline.cells(),
            columns: timeline.columns(),
            pieces: ChartPieces {
                start_seconds: since_start(pieces.first_ns),
                seconds: pieces.length_ns as f64 / 1e9,
                limited_seconds: pieces.pieces.iter().map(limited).collect(),
            },
            fills: ChartFills { bounds, activation, deactivation: socket.fills_at_deactivation.histogram(FILL_WIDTH) },
            waits: ChartWaits {
                bounds_seconds: wait_bounds_ns().into_iter().map(|ns| ns as f64 / 1e9).collect(),
                counts: socket.run_queue_waits.histogram(wait_bounds_ns()),
            },
        }
    }
}

/// Puts the parts in their places. The data are not searched for the names of parts.
fn page(data: &PageData<'_>) -> serde_json::Result<String> {
    // The data are inside a script element, which a `</script` in a name would end.
    let data = serde_json::to_string(data)?.replace('<', "\\u003c");
    let mut page = String::with_capacity(data.len() + (1 << 17));
    let mut rest = PAGE;
    for (name, texts) in PARTS {
        let (before, after) = rest.split_once(name).expect("the page has all its parts, in this order");
        page.push_str(before);
        if texts.is_empty() {
            page.push_str(&data)
        } else {
            texts.iter().for_each(|text| page.push_str(text))
        }
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use tcpmon_trace::{JsonLinesReader, JsonLinesWriter, TraceWriter as _, sample, summary::Summary};

    use super::*;
    use crate::report::read::TraceFile;

    fn drawn(name: &str) -> (Trace, Timelines) {
        let mut file = Vec::new();
        let mut writer = JsonLinesWriter::new(&mut file, &sample::header()).expect("written");
        for number in 0..500 {
            let mut record = sample::record();
            record.activated_ns = sample::header().start.monotonic_ns + number * 1_000_000;
            record.deactivated_ns = record.activated_ns + 300_000;
            writer.record(&record).expect("written");
        }
        let _ = writer.finish(&sample::ending());
        let (mut summary, mut timelines) = <(Summary, Timelines)>::default();
        let mut reader = JsonLinesReader::new(&file[..]).expect("a trace");
        let read = TraceFile::read(name, &mut reader, &mut summary, Some(&mut timelines)).expect("a trace");
        (Trace::of(vec![read], summary).expect("one trace"), timelines)
    }

    fn data(page: &str) -> serde_json::Value {
        let (_, rest) = page.split_once("id=\"data\">").expect("the data");
        let (data, _) = rest.split_once("</script>").expect("their end");
        serde_json::from_str(data).expect("JSON")
    }

    #[test]
    fn a_page_has_the_report_and_the_charts_and_asks_nobody() {
        let (trace, timelines) = drawn("</script>/*JS*/.jsonl");
        let page = Drawn { trace: &trace, timelines: &timelines }.page(20).expect("a page");
        let data = data(&page);
        assert_eq!(data["title"], "</script>/*JS*/.jsonl");
        let chart = &data["reports"][0]["sockets"][0]["chart"];
        assert_eq!((&chart["records"], &chart["cells"]), (&500.into(), &500.into()));
        let sum = |counts: &serde_json::Value| -> u64 {
            counts.as_array().expect("a list").iter().filter_map(serde_json::Value::as_u64).sum()
        };
        assert_eq!((sum(&chart["fills"]["activation"]), sum(&chart["waits"]["counts"])), (500, 500));
        assert_eq!(chart["fills"]["bounds"].as_array().map(Vec::len), Some(101));
        assert!(page.len() < 200_000, "{}", page.len());
        // uPlot names its home in a comment.
        for text in ["src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("] {
            assert!(!page.contains(text), "{text}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn advice_stands_in_the_verdicts_only() {
        // What helps against a cause depends on the numbers: fixed advice for each cause would contradict some of the
        // verdicts.
        for text in ["threads", "larger", "tcp_rmem", "SO_RCVBUF", "tcp_mem", "quota", "ss -ti"] {
            assert!(!PAGE.contains(text), "{text}");
        }
        assert!(PAGE.contains("The sentences above, one for the trace and one for each socket, say what would help."));
    }

    #[test]
    fn two_traces_share_the_room() {
        let (first, of_first) = drawn("a");
        let (second, of_second) = drawn("b");
        let first = Drawn { trace: &first, timelines: &of_first };
        let page = first.page_beside(&Drawn { trace: &second, timelines: &of_second }, 20).expect("a page");
        let data = data(&page);
        assert_eq!(data["reports"].as_array().map(Vec::len), Some(2));
        assert!(data["comparison"]["sentence"].is_string());
    }
}
