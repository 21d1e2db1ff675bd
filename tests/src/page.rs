//! A metrics page in the Prometheus text format or in OpenMetrics text, parsed into samples that a test can look up.

use std::collections::BTreeMap;
use std::str::Chars;

/// One line of a metrics page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name with its suffix: `..._total`, `..._bucket`.
    pub name: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Value; integers are exact up to 2^53.
    pub value: f64,
}

/// A parsed metrics page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Samples in the order of the page.
    pub samples: Vec<Sample>,
    /// Type of each family, by its name.
    pub types: BTreeMap<String, String>,
    /// Help text of each family, by its name, with escapes kept.
    pub help: BTreeMap<String, String>,
}

impl Page {
    /// Parses a metrics page; an error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        for (line, number) in text.lines().zip(1..) {
            page.add(line).map_err(|error| format!("line {number}, {error}: {line}"))?;
        }
        Ok(page)
    }

    /// The value of the only sample with this name and (at least) these labels; panics if there are several.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found: Vec<&Sample> = self.matching(name, labels).collect();
        assert!(found.len() <= 1, "{name}{labels:?} is not one sample but {}: {found:#?}", found.len());
        found.first().map(|sample| sample.value)
    }

    /// The sum of all samples with this name and (at least) these labels; 0 if there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|sample| sample.value).sum()
    }

    /// Whether it has the host's counters. It lacks them, and has a source `all` that is not available, if the thread
    /// that reads them takes longer than 2 s, which happens on an emulated CPU.
    pub fn has_host_counters(&self) -> bool {
        self.value("tcpmon_host_source_available", &[("source", "all")]).is_none()
    }

    /// The samples with this name and (at least) these labels, added up by the value of another label.
    pub fn each(&self, name: &str, by: &str, labels: &[(&str, &str)]) -> BTreeMap<&str, f64> {
        let mut each = BTreeMap::new();
        for sample in self.matching(name, labels) {
            *each.entry(sample.labels.get(by).map_or("", String::as_str)).or_default() += sample.value;
        }
        each
    }

    /// All samples with this name.
    pub fn samples(&self, name: &str) -> Vec<&Sample> {
        self.matching(name, &[]).collect()
    }

    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| {
            let bears = |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|found| found == value);
            sample.name == name && labels.iter().all(bears)
        })
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.trim_start().splitn(3, ' ');
            if let (Some(keyword), Some(family)) = (words.next(), words.next()) {
                let text = words.next().unwrap_or_default().to_owned();
                match keyword {
                    "TYPE" => drop(self.types.insert(family.to_owned(), text)),
                    "HELP" => drop(self.help.insert(family.to_owned(), text)),
                    _ => {}
                }
            }
        } else if !line.trim().is_empty() {
            self.samples.push(sample(line)?);
        }
        Ok(())
    }
}

fn sample(line: &str) -> Result<Sample, String> {
    let name_end = line.find(|c: char| c == '{' || c.is_ascii_whitespace()).ok_or("a name without a value")?;
    let (name, rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    let mut rest = rest.chars();
    if rest.as_str().starts_with('{') {
        rest.next();
        parse_labels(&mut rest, &mut labels)?;
    }
    // After the value there may be a timestamp or, after a '#', an exemplar: both are ignored.
    let value = rest.as_str().split_ascii_whitespace().next().ok_or("no value")?;
    let value = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    Ok(Sample { name: name.to_owned(), labels, value })
}

/// Parses `label="value",...}` and leaves what follows the brace.
fn parse_labels(rest: &mut Chars<'_>, labels: &mut BTreeMap<String, String>) -> Result<(), String> {
    loop {
        let start = rest.as_str().trim_start_matches([',', ' ']);
        if let Some(after) = start.strip_prefix('}') {
            *rest = after.chars();
            return Ok(());
        }
        let (label, after) = start.split_once("=\"").ok_or("a label without a quoted value")?;
        *rest = after.chars();
        if labels.insert(label.to_owned(), quoted(rest)?).is_some() {
            return Err(format!("label {label} given twice"));
        }
    }
}

/// Reads up to the closing quote and resolves escapes.
fn quoted(rest: &mut Chars<'_>) -> Result<String, String> {
    let mut value = String::new();
    loop {
        match rest.next().ok_or("a label value without an end")? {
            '"' => return Ok(value),
            '\\' => match rest.next() {
                Some('n') => value.push('\n'),
                Some(c @ ('\\' | '"')) => value.push(c),
                other => return Err(format!("the unknown escape \\{}", other.unwrap_or(' '))),
            },
            c => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::parse(text).expect("a valid page")
    }

    #[test]
    fn values_labels_types_and_help_are_read() {
        let page = page(
            "# HELP a_total Bytes of a.\n# TYPE a_total counter\n\
             a_total{process=\"x\",service=\"local:1\"} 9007199254740991\na_total{process=\"y\"} 2\nb 1.5e3 \
             1700000000\n",
        );
        assert_eq!(page.value("a_total", &[("process", "x")]), Some(9_007_199_254_740_991.0));
        assert_eq!(page.value("a_total", &[("process", "z")]), None);
        assert_eq!(page.sum("a_total", &[("process", "y")]), 2.0);
        assert_eq!(page.value("b", &[]), Some(1500.0));
        assert_eq!(page.samples("a_total").len(), 2);
        assert_eq!(page.types["a_total"], "counter");
        assert_eq!(page.help["a_total"], "Bytes of a.");
    }

    #[test]
    fn escapes_braces_infinities_and_exemplars_are_understood() {
        let page = page(
            "h_bucket{le=\"+Inf\",p=\"a,b} \\\"c\\\" \\\\ \\n=\"} 3 # {trace=\"1\"} 0.5\nn NaN\nempty{} -Inf\n# EOF\n",
        );
        let bucket = &page.samples("h_bucket")[0];
        assert_eq!(bucket.labels["p"], "a,b} \"c\" \\ \n=");
        assert_eq!(bucket.labels["le"], "+Inf");
        assert_eq!(bucket.value, 3.0);
        let nan = page.value("n", &[]);
        assert!(nan.is_some_and(f64::is_nan), "{nan:?}");
        assert_eq!(page.value("empty", &[]), Some(f64::NEG_INFINITY));
    }

    #[test]
    fn a_broken_line_is_named() {
        for broken in ["a", "a{", "a{b=\"c} 1", "a{b} 1", "a{b=\"c\",b=\"d\"} 1", "a x", "a{} ", "a{b=\"\\x\"} 1"] {
            let error = Page::parse(&format!("ok 1\n{broken}\n")).expect_err(broken);
            assert!(error.starts_with("line 2, "), "{error}");
        }
    }

    #[test]
    #[should_panic(expected = "is not one sample but 2")]
    fn an_ambiguous_question_is_refused() {
        page("a{b=\"1\"} 1\na{b=\"2\"} 2\n").value("a", &[]);
    }
}
