//! The daemon's HTTP endpoint: metrics, a landing page, health and status.

#[cfg(feature = "web-config")]
mod client_cert;
mod connections;
mod deadline_stream;
#[cfg(feature = "web-config")]
mod guard;
mod listen;
#[cfg(feature = "web-config")]
mod login;
#[cfg(not(feature = "web-config"))]
mod no_web_config;
mod page;
#[cfg(feature = "web-config")]
mod reload;
mod sample_cache;
mod serve;
mod status;
#[cfg(feature = "web-config")]
mod tls;
#[cfg(feature = "web-config")]
mod web_config;

#[cfg(test)]
mod tests;

use std::{fmt, future::Future, str::FromStr, sync::Arc};

use hyper::{
    HeaderMap, Method, Request, StatusCode,
    header::{self, HeaderName, HeaderValue},
};

#[cfg(not(feature = "web-config"))]
pub use self::no_web_config::{WebConfig, WebConfigError};
#[cfg(feature = "web-config")]
pub use self::reload::{WebConfig, WebConfigError};
use self::{
    connections::Client,
    page::{Response, StoredPage, text_response},
    sample_cache::{PageRequest, SampleCache},
};
pub use self::{
    listen::{AddressError, BindError, ListenAddress, SystemdSocketError, bind, systemd_sockets},
    serve::serve,
};
use crate::{
    metrics::{Coding, Format, Identity},
    model::snapshot::Observed,
    status::Unavailable,
};

/// Where the endpoint gets its data.
pub trait DataSource: Send + Sync + 'static {
    /// Whether the daemon makes progress; answers at once, from what is already known.
    ///
    /// # Errors
    /// If it does not: what is stalled, and since when.
    fn health(&self) -> Result<(), Unavailable>;

    /// Takes a sample of the programs' data and the host. Only one call at a time.
    ///
    /// # Errors
    /// If no sample can be taken.
    fn sample(&self) -> impl Future<Output = Result<Observed, Unavailable>> + Send;
}

/// Path of the metrics page: starts with a slash and is not the path of another page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryPath(String);

/// A path that cannot be used for the metrics page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path:?} cannot be the path of the metrics page: it must start with `/`, consist of letters, digits and `/._-`, \
         and not be `/`, `{HEALTH}` or `{STATUS}`"
)]
pub struct PathError {
    path: String,
}

impl FromStr for TelemetryPath {
    type Err = PathError;

    fn from_str(path: &str) -> Result<Self, PathError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let taken = ["/", HEALTH, STATUS].contains(&path);
        if path.starts_with('/') && path.chars().all(plain) && !taken {
            Ok(Self(path.to_owned()))
        } else {
            Err(PathError { path: path.to_owned() })
        }
    }
}

impl fmt::Display for TelemetryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a build without the feature `web-config` says of a web config file.
#[cfg(any(test, not(feature = "web-config")))]
const WITHOUT_WEB_CONFIG: &str = "this build of tcpmon has no TLS and no users: packages have them, and \
                                  `cargo build --release -p tcpmon-daemon --features full` builds them";

const HEALTH: &str = "/healthz";
const STATUS: &str = "/status";

/// Maximum number of characters of a header that are used to tell scrapers apart.
const MAX_HEADER_CHARS: usize = 100;

/// Response header with the time at which the response's sample was started: seconds of `CLOCK_MONOTONIC`.
const SAMPLE_START_HEADER: &str = "tcpmon-reading-began";

/// The pages of the daemon.
pub struct Endpoint<S> {
    samples: Arc<SampleCache<S>>,
    telemetry: TelemetryPath,
}

/// Answers the requests in any bytes, without a web config.
#[cfg(feature = "full")]
pub(crate) async fn answer_any<S: DataSource>(endpoint: Endpoint<S>, bytes: &[u8]) {
    serve::answer_any(endpoint, bytes).await;
}

/// Decodes any text as a web config file. The files that it names are not read.
#[cfg(feature = "full")]
pub(crate) fn decode_any_web_config(text: &str) {
    let folder = std::path::Path::new("/nonexistent");
    if let Ok(file) = web_config::WebConfigFile::parse(text)
        && file.files(folder).is_empty()
    {
        let _ = file.policy(folder);
    }
}

impl<S: DataSource> Endpoint<S> {
    /// Pages of the data from `source`. The web config, if there is one, decides who may read them; `/status` shows its
    /// state.
    pub fn new(source: S, identity: Arc<Identity>, telemetry: TelemetryPath, web: Option<Arc<WebConfig>>) -> Self {
        Self { samples: Arc::new(SampleCache::new(source, identity, web)), telemetry }
    }

    fn web(&self) -> Option<&WebConfig> {
        self.samples.web.as_deref()
    }

    async fn answer<B>(&self, client: Client, request: &Request<B>) -> Response {
        let path = request.uri().path();
        if !["/", HEALTH, STATUS, &self.telemetry.0].contains(&path) {
            return plain(StatusCode::NOT_FOUND, "no such page: `/` lists the pages\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "this page can only be read: use GET\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
            return response;
        }
        match path {
            "/" => text_response(StatusCode::OK, "text/html; charset=utf-8", &self.landing()),
            HEALTH => match self.samples.source.health() {
                Ok(()) => plain(StatusCode::OK, "ok"),
                Err(error) => plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}\n")),
            },
            STATUS => self.page(client, PageRequest::Status).await,
            // A HEAD request gets no values, so it does not count as a scraper that has seen them, and no sample is
            // taken for it.
            _ if request.method() == Method::HEAD => metrics_response(text_response(
                StatusCode::OK,
                Format::negotiate(list(request.headers(), header::ACCEPT).as_deref()).content_type(),
                "",
            )),
            _ => self.metrics(client, request.headers()).await,
        }
    }

    async fn metrics(&self, client: Client, headers: &HeaderMap) -> Response {
        let format = Format::negotiate(list(headers, header::ACCEPT).as_deref());
        let coding = Coding::negotiate(list(headers, header::ACCEPT_ENCODING).as_deref());
        let request = PageRequest::Metrics(format, coding, scraper_key(client, headers));
        metrics_response(self.page(client, request).await)
    }

    async fn page(&self, client: Client, request: PageRequest) -> Response {
        let answer = self.samples.page(client, &request).await;
        let mut response = answer.page.map_or_else(
            |error| {
                tracing::debug!(%error, "cannot answer a request");
                plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n"))
            },
            StoredPage::response,
        );
        if let Ok(start) = format!("{}.{:09}", answer.start.as_secs(), answer.start.subsec_nanos()).parse() {
            response.headers_mut().insert(SAMPLE_START_HEADER, start);
        }
        response
    }

    fn landing(&self) -> String {
        // Nothing here needs escaping: see `TelemetryPath`.
        format!(
            "<!DOCTYPE html>
<html lang=\"en\">
<head><meta charset=\"utf-8\"><title>tcpmon</title></head>
<body>
<h1>tcpmon</h1>
<p>Where received TCP bytes wait on this host, and why.</p>
<p>Version {} (revision {})</p>
<ul>
<li><a href=\"{}\">Metrics</a></li>
<li><a href=\"{STATUS}\">Status</a></li>
<li><a href=\"{HEALTH}\">Health</a></li>
</ul>
</body>
</html>
",
            self.samples.identity.version, self.samples.identity.revision, self.telemetry
        )
    }
}

/// Marks the response as dependent on the headers that choose the format and the coding.
fn metrics_response(mut response: Response) -> Response {
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    response
}

fn plain(status: StatusCode, text: &str) -> Response {
    text_response(status, "text/plain; charset=utf-8", text)
}

/// All lines of a header whose value is a list, as one list.
fn list(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

/// A key that tells scrapers apart: one host may run several kinds of scraper, and people may send requests from it,
/// too.
fn scraper_key(client: Client, headers: &HeaderMap) -> String {
    let [agent, accept] = [header::USER_AGENT, header::ACCEPT].map(|name| {
        let value = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.unwrap_or_default().chars().take(MAX_HEADER_CHARS).collect::<String>()
    });
    format!("{client}\n{agent}\n{accept}")
}
