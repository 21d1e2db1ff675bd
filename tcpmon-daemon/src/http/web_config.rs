//! The web config file: the YAML that exporters share (prometheus/exporter-toolkit, `docs/web-configuration.md`).
//!
//! A setting that would leave the endpoint more open than its author believes is refused, even where the toolkit
//! accepts it.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};
use serde::{Deserialize, de::IgnoredAny};
use tokio_rustls::rustls::ServerConfig;

use super::{guard::Guard, login::Users, tls::TlsSection};

/// What the file requires of each connection and request; the default requires nothing.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// If set, connections are encrypted.
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Users who may send requests; without any, everybody may.
    pub(super) users: Users,
    /// Headers added to every response.
    pub(super) headers: HeaderMap,
    /// What protects the endpoint: a reload that lacks one of these, or weakens it, is refused.
    pub(super) guards: Vec<Guard>,
}

/// The file as written. A missing key, an empty value and `null` mean the same, as in the toolkit.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WebConfigFile {
    tls_server_config: Option<TlsSection>,
    http_server_config: Option<HttpSection>,
    basic_auth_users: Option<BTreeMap<String, String>>,
    rate_limit: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HttpSection {
    /// Whether HTTP/2 may be negotiated. HTTP/1.1 always may be, so the endpoint complies with either value.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: Option<BTreeMap<String, Option<String>>>,
}

/// The headers that may be set. If a list of values follows, only these are allowed.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
    ("Content-Security-Policy", &[]),
];

impl WebConfigFile {
    /// The text of the file. An error says what is wrong, and what would be right.
    pub(super) fn text(file: &Path) -> Result<String, String> {
        fs::read_to_string(file)
            .map_err(|error| format!("{error}: choose another file with --web.config.file, or omit it for plain HTTP"))
    }

    /// Parses the text; none of the files that it names is read. An error says where it is, what is wrong, and what
    /// would be right.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|error| {
            let problem = error.without_snippet().to_string().replace('\n', ", ");
            format!("{problem} (docs/operating.md lists all keys)")
        })
    }

    /// The files that it names; relative paths start at `folder`.
    pub(super) fn files(&self, folder: &Path) -> Vec<PathBuf> {
        self.tls_server_config.as_ref().map(|tls| tls.files(folder)).unwrap_or_default()
    }

    /// Reads the files that it names and checks everything. An error says the key, what is wrong, and what would be
    /// right.
    pub(super) fn policy(self, folder: &Path) -> Result<Policy, String> {
        if self.rate_limit.is_some() {
            return Err(
                "rate_limit: not supported, because it would also reject the requests of the scraper: omit it; \
                        tcpmon limits each client separately"
                    .into(),
            );
        }
        let mut guards = self.tls_server_config.as_ref().map(TlsSection::guards).unwrap_or_default();
        let tls = self.tls_server_config.map(|tls| tls.server_config(folder)).transpose()?.flatten();
        let users = Users::new(self.basic_auth_users.unwrap_or_default())?;
        guards.extend((!users.is_empty()).then(|| Guard::present("basic_auth_users".into())));
        let mut headers = HeaderMap::new();
        for (name, value) in self.http_server_config.and_then(|http| http.headers).unwrap_or_default() {
            let value = value.unwrap_or_default();
            if let Some(header) = header(&name, &value)? {
                headers.extend([header]);
                guards.extend(Guard::of_header(&name, &value));
            }
        }
        Ok(Policy { tls: tls.map(Arc::new), users, headers, guards })
    }
}

/// `None` for an empty value, which sets nothing.
fn header(name: &str, value: &str) -> Result<Option<(HeaderName, HeaderValue)>, String> {
    let key = format!("http_server_config.headers.{name}");
    let Some((_, values)) = HEADERS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = HEADERS.iter().map(|(name, _)| *name).collect();
        return Err(format!("{key}: this header cannot be set: choose from {}", known.join(", ")));
    };
    if !values.is_empty() && !values.contains(&value) {
        return Err(format!("{key}: invalid value {value:?}: use {}", values.join(" or ")));
    }
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = name.parse().ok().zip(value.parse().ok());
    parsed
        .map(Some)
        .ok_or_else(|| format!("{key}: invalid header value {value:?}: use one line of visible ASCII characters"))
}
