//! A real Prometheus, in the namespace of what it scrapes, and the queries that it can be asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::{env, fs};

use serde_json::{Value, json};

use crate::page::Sample;
use crate::server::Server;
use crate::{Alertmanager, Daemon, Namespace, must};

/// A Prometheus that scrapes one daemon every second. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Prometheus {
    server: Server,
}

/// Which version of Prometheus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The version of the machine's distribution.
    #[default]
    Installed,
    /// The newest version that Debian has.
    Newest,
}

/// Options for its start, apart from the daemon to scrape.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrometheusOptions<'a> {
    /// Contents of the rule files, evaluated every second (see [`crate::rules::rescaled`]).
    pub rules: &'a [String],
    /// Where to send alerts.
    pub alertmanager: Option<&'a Alertmanager>,
    /// Requests protobuf and takes native histograms where available.
    pub native_histograms: bool,
    /// Requests protobuf and treats a series as starting at zero at its created timestamp.
    pub created_timestamps: bool,
    /// Which version to run.
    pub version: Version,
}

/// An alert, as Prometheus or Alertmanager reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// `alertname`.
    pub name: String,
    /// `pending` or `firing` in Prometheus, `active` or `suppressed` in Alertmanager.
    pub state: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Prometheus {
    /// Starts Prometheus in the daemon's namespace and waits until it is ready; the daemon is `instance="tcpmon"`.
    #[track_caller]
    pub fn start(namespace: &Namespace, daemon: &Daemon, options: PrometheusOptions<'_>) -> Self {
        let server = Server::start(&options.version.program(), namespace, |directory, address| {
            let files: Vec<String> = (0..options.rules.len()).map(|number| format!("rules-{number}.yaml")).collect();
            for (file, text) in files.iter().zip(options.rules) {
                must(fs::write(directory.join(file), text), "writing a rule file");
            }
            let config = config(daemon.address(), &files, options.alertmanager.map(Alertmanager::address));
            must(fs::write(directory.join("prometheus.yaml"), config), "writing Prometheus's configuration");
            let mut flags = vec![
                "--config.file=prometheus.yaml".to_owned(),
                "--storage.tsdb.path=data".to_owned(),
                "--log.level=warn".to_owned(),
                // Alertmanager forgets an alert that is not sent again within four times this.
                "--rules.alert.resend-delay=1s".to_owned(),
                format!("--web.listen-address={address}"),
            ];
            for (wanted, feature) in [
                (options.native_histograms, "native-histograms"),
                (options.created_timestamps, "created-timestamp-zero-ingestion"),
            ] {
                if wanted {
                    flags.push(format!("--enable-feature={feature}"));
                }
            }
            flags
        });
        Self { server }
    }

    /// The address it listens on, in its namespace.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The samples that an expression yields now; a native histogram's value is its count. Errors are Prometheus's own.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>, String> {
        let answer = self.server.json("/api/v1/query", &[("query", expression)])?;
        let data = &answer["data"];
        match data["resultType"].as_str() {
            Some("scalar") => {
                Ok(vec![Sample { name: String::new(), labels: BTreeMap::new(), value: number(&data["result"][1])? }])
            }
            Some("vector") => data["result"].as_array().into_iter().flatten().map(sample).collect(),
            _ => Err(format!("{expression} yields no vector but {answer}")),
        }
    }

    /// The value of the only sample that an expression yields; an error lists what there was instead.
    pub fn value(&self, expression: &str) -> Result<f64, String> {
        match self.query(expression)?.as_slice() {
            [sample] => Ok(sample.value),
            samples => Err(format!("{expression} yields {} samples: {samples:?}", samples.len())),
        }
    }

    /// The values that each series has had, in order of time, for an expression such as `up[5m]`.
    pub fn values(&self, expression: &str) -> Result<Vec<Vec<f64>>, String> {
        let answer = self.server.json("/api/v1/query", &[("query", expression)])?;
        let series = answer["data"]["result"].as_array().ok_or_else(|| answer.to_string())?;
        let values = |series: &Value| {
            let points = series["values"].as_array().ok_or_else(|| format!("{expression} yields {series}"))?;
            points.iter().map(|point| number(&point[1])).collect()
        };
        series.iter().map(values).collect()
    }

    /// The alerts that are pending or firing now.
    pub fn alerts(&self) -> Result<Vec<Alert>, String> {
        let answer = self.server.json("/api/v1/alerts", &[])?;
        let alerts = answer["data"]["alerts"].as_array().ok_or_else(|| answer.to_string())?;
        alerts.iter().map(|alert| Alert::read(alert, &alert["state"])).collect()
    }

    /// Names of the loaded alerting rules, and whether each has a `for`.
    pub fn alerting_rules(&self) -> Result<BTreeMap<String, bool>, String> {
        let answer = self.server.json("/api/v1/rules", &[("type", "alert")])?;
        let groups = answer["data"]["groups"].as_array().ok_or_else(|| answer.to_string())?;
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten());
        let named = |rule: &Value| Some((rule["name"].as_str()?.to_owned(), rule["duration"].as_f64()? > 0.0));
        Ok(rules.filter_map(named).collect())
    }

    /// Names of all alerts that have been in a state within the last `seconds`; the selector is what goes in the braces
    /// of `ALERTS{alertstate="firing"}`.
    pub fn alerted(&self, selector: &str, seconds: u64) -> Result<Vec<String>, String> {
        let expression = format!("count by (alertname) (count_over_time(ALERTS{{{selector}}}[{seconds}s]))");
        Ok(self.query(&expression)?.into_iter().filter_map(|mut sample| sample.labels.remove("alertname")).collect())
    }
}

impl Version {
    /// The program to start.
    fn program(self) -> String {
        if self == Self::Installed {
            return "prometheus".to_owned();
        }
        let brought = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/prometheus/prometheus");
        let path = env::var_os("TCPMON_PROMETHEUS").map_or_else(brought, Into::into);
        let has = "`cargo xtask test` brings it, or set TCPMON_PROMETHEUS";
        assert!(path.is_file(), "no Prometheus of today at {}: {has}", path.display());
        path.canonicalize().unwrap_or(path).to_string_lossy().into_owned()
    }
}

impl Alert {
    /// Whether it has (at least) these labels.
    pub fn bears(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|found| found == value))
    }

    pub(crate) fn read(alert: &Value, state: &Value) -> Result<Self, String> {
        let (labels, annotations) = (texts(&alert["labels"]), texts(&alert["annotations"]));
        let name = labels.get("alertname").ok_or_else(|| format!("an alert without a name: {alert}"))?.clone();
        let state = state.as_str().ok_or_else(|| format!("an alert without a state: {alert}"))?.to_owned();
        Ok(Self { name, state, labels, annotations })
    }
}

/// The configuration as JSON, which is also valid YAML.
fn config(daemon: SocketAddr, rule_files: &[String], alertmanager: Option<SocketAddr>) -> String {
    let managers: Vec<Value> =
        alertmanager.iter().map(|address| json!({"static_configs": [{"targets": [address.to_string()]}]})).collect();
    json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": rule_files,
        "alerting": {"alertmanagers": managers},
        "scrape_configs": [{
            "job_name": "tcpmon",
            "static_configs": [{"targets": [daemon.to_string()], "labels": {"instance": "tcpmon"}}],
        }],
    })
    .to_string()
}

fn sample(element: &Value) -> Result<Sample, String> {
    let mut labels = texts(&element["metric"]);
    let name = labels.remove("__name__").unwrap_or_default();
    let value = match &element["histogram"][1]["count"] {
        Value::Null => &element["value"][1],
        count => count,
    };
    Ok(Sample { name, labels, value: number(value)? })
}

/// Prometheus writes numbers as text, because JSON has no infinity.
fn number(value: &Value) -> Result<f64, String> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or_else(|| format!("{value} is no number"))
}

fn texts(object: &Value) -> BTreeMap<String, String> {
    let pairs = object.as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}
