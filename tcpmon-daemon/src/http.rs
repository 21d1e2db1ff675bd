//! The web side of the daemon: metrics, a landing page, health and status.

mod client_cert;
mod connections;
mod listen;
mod login;
mod reload;
mod serve;
mod status;
mod tls;
mod web_config;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::Future,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};

use self::connections::Client;
pub use self::{
    listen::{AddressError, BindError, InheritError, ListenAddress, bind, inherit},
    reload::{WebConfig, WebConfigError},
    serve::serve,
};
use crate::{
    metrics::{self, Format, Identity},
    model::{newborn::Newborns, snapshot::Seen},
};

/// Where answers come from.
pub trait Source: Send + Sync + 'static {
    /// Whether the programs run now.
    fn ready(&self) -> bool;

    /// What there is to see now. Requests come at the same time; it is for the source to let them share the work.
    ///
    /// # Errors
    /// When there is nothing to see.
    fn see(&self) -> impl Future<Output = Result<Seen, Unavailable>> + Send;
}

/// There is nothing to see: why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// Path of the metrics: begins with a slash and is none of the other pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryPath(String);

/// A path that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path:?} cannot be the path of the metrics: it must begin with `/`, consist of letters, digits and `/._-`, \
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

/// So many characters of a header tell scrapers apart.
const MOST_WORDS: usize = 100;

struct App<S> {
    source: S,
    identity: Arc<Identity>,
    telemetry: TelemetryPath,
    web: Option<Arc<WebConfig>>,
    newborns: Mutex<Newborns>,
}

/// All pages. `/status` says what became of the web config file, if there is one.
pub fn router<S: Source>(
    source: S,
    identity: Arc<Identity>,
    telemetry: &TelemetryPath,
    web: Option<Arc<WebConfig>>,
) -> Router {
    let newborns = Mutex::default();
    Router::new()
        .route("/", get(landing::<S>))
        .route(&telemetry.0, get(telemetry_page::<S>))
        .route(HEALTH, get(health::<S>))
        .route(STATUS, get(status_page::<S>))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page; `/` lists them\n") })
        .with_state(Arc::new(App { source, identity, telemetry: telemetry.clone(), web, newborns }))
}

async fn telemetry_page<S: Source>(
    State(app): State<Arc<App<S>>>,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
) -> Response {
    let accept: Vec<_> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let accept = (!accept.is_empty()).then(|| accept.join(","));
    let format = Format::negotiate(accept.as_deref());
    let mut seen = match app.source.see().await {
        Ok(seen) => seen,
        Err(error) => return failure(&error),
    };
    let mut newborns = app.newborns.lock().unwrap_or_else(PoisonError::into_inner);
    seen.snapshot = newborns.show(&scraper(client, &headers), seen.snapshot, Instant::now());
    drop(newborns);
    match metrics::encode(&app.identity, seen, format) {
        Ok(page) => ([(header::CONTENT_TYPE, format.content_type())], page).into_response(),
        Err(error) => failure(&error),
    }
}

/// What tells scrapers apart: several of different kinds may ask from one host, and people, too.
fn scraper(client: Client, headers: &HeaderMap) -> String {
    let [agent, accept] = [header::USER_AGENT, header::ACCEPT].map(|name| {
        let value = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.unwrap_or_default().chars().take(MOST_WORDS).collect::<String>()
    });
    format!("{client}\n{agent}\n{accept}")
}

async fn status_page<S: Source>(State(app): State<Arc<App<S>>>) -> Response {
    let body = match app.source.see().await {
        Ok(seen) => status::body(&app.identity, &seen, app.web.as_deref()),
        Err(error) => return failure(&error),
    };
    match body {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => failure(&error),
    }
}

async fn health<S: Source>(State(app): State<Arc<App<S>>>) -> Response {
    if app.source.ready() {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the programs do not run").into_response()
    }
}

async fn landing<S: Source>(State(app): State<Arc<App<S>>>) -> Html<String> {
    // Nothing here needs an escape: see `TelemetryPath`.
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
        app.identity.version, app.identity.revision, app.telemetry
    ))
}

fn failure(error: &impl fmt::Display) -> Response {
    tracing::debug!(%error, "a request was answered with an error");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}
