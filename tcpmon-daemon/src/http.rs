//! The daemon's HTTP endpoint: metrics, a landing page, health and status.

mod client_cert;
mod connections;
mod deadline_stream;
mod listen;
mod login;
mod page;
mod reload;
mod sample_cache;
mod serve;
mod status;
mod tls;
mod web_config;

#[cfg(test)]
mod tests;

use std::{fmt, future::Future, str::FromStr, sync::Arc};

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};

use self::{
    connections::Client,
    page::StoredPage,
    sample_cache::{PageRequest, SampleCache},
};
pub use self::{
    listen::{AddressError, BindError, ListenAddress, SystemdSocketError, bind, systemd_sockets},
    reload::{WebConfig, WebConfigError},
    serve::serve,
};
use crate::{
    metrics::{Coding, Format, Identity},
    model::snapshot::Observed,
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

/// No data is available: why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

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

const HEALTH: &str = "/healthz";
const STATUS: &str = "/status";

/// Maximum number of characters of a header that are used to tell scrapers apart.
const MAX_HEADER_CHARS: usize = 100;

/// Response header with the time at which the response's sample was started: seconds of `CLOCK_MONOTONIC`.
const SAMPLE_START_HEADER: &str = "tcpmon-reading-began";

struct App<S> {
    samples: Arc<SampleCache<S>>,
    telemetry: TelemetryPath,
}

/// Routes of all pages. `/status` reports the state of the web config file, if there is one.
pub fn router<S: DataSource>(
    source: S,
    identity: Arc<Identity>,
    telemetry: &TelemetryPath,
    web: Option<Arc<WebConfig>>,
) -> Router {
    let samples = Arc::new(SampleCache::new(source, identity, web));
    Router::new()
        .route("/", get(landing::<S>))
        .route(&telemetry.0, get(telemetry_page::<S>))
        .route(HEALTH, get(health::<S>))
        .route(STATUS, get(status_page::<S>))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page: `/` lists the pages\n") })
        .with_state(Arc::new(App { samples, telemetry: telemetry.clone() }))
}

/// Answers the requests in any bytes, without a web config.
pub(crate) async fn answer_any(router: Router, bytes: &[u8]) {
    serve::answer_any(router, bytes).await;
}

/// Decodes any text as a web config file. The files that it names are not read.
pub(crate) fn decode_any_web_config(text: &str) {
    let folder = std::path::Path::new("/nonexistent");
    if let Ok(file) = web_config::WebConfigFile::parse(text)
        && file.files(folder).is_empty()
    {
        let _ = file.policy(folder);
    }
}

async fn telemetry_page<S: DataSource>(
    State(app): State<Arc<App<S>>>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let format = Format::negotiate(list(&headers, header::ACCEPT).as_deref());
    let coding = Coding::negotiate(list(&headers, header::ACCEPT_ENCODING).as_deref());
    let mut response = page(&app, client, PageRequest::Metrics(format, coding, scraper_key(client, &headers))).await;
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    response
}

/// All lines of a header whose value is a list, as one list.
fn list(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

async fn status_page<S: DataSource>(State(app): State<Arc<App<S>>>, Extension(client): Extension<Client>) -> Response {
    page(&app, client, PageRequest::Status).await
}

async fn page<S: DataSource>(app: &App<S>, client: Client, request: PageRequest) -> Response {
    let answer = app.samples.page(client, &request).await;
    let mut response = answer.page.map_or_else(|error| error_response(&error), StoredPage::response);
    if let Ok(start) = format!("{}.{:09}", answer.start.as_secs(), answer.start.subsec_nanos()).parse() {
        response.headers_mut().insert(SAMPLE_START_HEADER, start);
    }
    response
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

async fn health<S: DataSource>(State(app): State<Arc<App<S>>>) -> Response {
    match app.samples.source.health() {
        Ok(()) => "ok".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn landing<S: DataSource>(State(app): State<Arc<App<S>>>) -> Html<String> {
    // Nothing here needs escaping: sample `TelemetryPath`.
    Html(format!(
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
        app.samples.identity.version, app.samples.identity.revision, app.telemetry
    ))
}

fn error_response(error: &impl fmt::Display) -> Response {
    tracing::debug!(%error, "cannot answer a request");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}
