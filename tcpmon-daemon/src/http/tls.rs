//! Translates the TLS settings of the web config file into a rustls configuration.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use tokio_rustls::rustls::{
    NamedGroup, ProtocolVersion, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};

use super::{client_cert::ClientCertRules, guard::Guard};

/// Section `tls_server_config`, as written.
#[derive(Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TlsSection {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_ca_file: Option<PathBuf>,
    client_auth_type: Option<String>,
    client_allowed_sans: Option<Vec<String>>,
    min_version: Option<String>,
    max_version: Option<String>,
    cipher_suites: Option<Vec<String>>,
    prefer_server_cipher_suites: Option<bool>,
    curve_preferences: Option<Vec<String>>,
}

/// Which certificate a client must show.
#[derive(Clone, Copy, PartialEq)]
enum ClientAuth {
    None,
    /// A certificate is requested, but its issuer is not checked.
    Request,
    /// Any certificate will do, even one from an unknown issuer.
    RequireAny,
    VerifyIfGiven,
    RequireAndVerify,
}

impl TlsSection {
    /// All files that the section names.
    pub(super) fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let files = [&self.cert_file, &self.key_file, &self.client_ca_file];
        files.into_iter().filter_map(|file| non_empty(file)).map(|file| folder.join(file)).collect()
    }

    /// The keys by which the section protects the endpoint. Certificates are no guards, not even those of authorities:
    /// they are replaced before they expire, and a file that is cut has fewer of them, but no others.
    pub(super) fn guards(&self) -> Vec<Guard> {
        let is_set = *self != Self::default();
        let auth = self.client_auth_type.as_deref().unwrap_or_default();
        let present = [
            (is_set, ""),
            (!matches!(auth, "" | "NoClientCert"), ".client_auth_type"),
            (auth.starts_with("Require"), ".client_auth_type (a certificate is required)"),
            (auth.contains("Verify"), ".client_auth_type (a certificate is verified)"),
            (self.min_version.as_deref() == Some("TLS13"), ".min_version (TLS13)"),
            (is_set && self.max_version.as_deref() != Some("TLS12"), ".max_version (TLS13)"),
        ];
        let lists = [
            (&self.client_allowed_sans, ".client_allowed_sans"),
            (&self.cipher_suites, ".cipher_suites"),
            (&self.curve_preferences, ".curve_preferences"),
        ];
        let key = |key: &str| format!("tls_server_config{key}");
        let present = present.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| Guard::present(key(name)));
        let list = |(names, name): (&Option<Vec<String>>, _)| {
            let names = names.as_ref().filter(|names| !names.is_empty())?;
            Some(Guard::within(key(name), names))
        };
        present.chain(lists.into_iter().filter_map(list)).collect()
    }

    /// `None` for an empty section. An error names the key and the remedy.
    pub(super) fn server_config(&self, folder: &Path) -> Result<Option<ServerConfig>, String> {
        if *self == Self::default() {
            return Ok(None);
        }
        let provider = Arc::new(self.provider()?);
        let certificate = pem(folder, "cert", &self.cert, &self.cert_file)?
            .ok_or("tls_server_config: cert_file is missing: add it, or omit the section for plain HTTP")?;
        let chain =
            certificates(&certificate).ok_or_else(|| key_error("cert_file", "the file contains no PEM certificate"))?;
        let key =
            pem(folder, "key", &self.key, &self.key_file)?.ok_or("tls_server_config: key_file is missing: add it")?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
            key_error("key_file", "the file contains no PEM private key, or an encrypted one: decrypt it")
        })?;
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.versions()?)
            .map_err(|error| key_error("cipher_suites", &format!("{error}: omit the key")))?
            .with_client_cert_verifier(Arc::new(self.client_cert(folder, &provider)?))
            .with_single_cert(chain, key)
            .map_err(|error| {
                format!("tls_server_config: cert_file and key_file: {error}: use a certificate and its private key")
            })?;
        config.ignore_client_order = self.prefer_server_cipher_suites.unwrap_or(true);
        config.alpn_protocols = vec![b"http/1.1".into()];
        // A scraper connects once every few seconds. Without resumption, every connection is checked against the client
        // rules in force.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Some(config))
    }

    fn provider(&self) -> Result<CryptoProvider, String> {
        let mut provider = ring::default_provider();
        if let Some(names) = self.cipher_suites.as_ref().filter(|names| !names.is_empty()) {
            // As in Go, the list applies to TLS 1.2: all TLS 1.3 suites are secure, and cannot be chosen.
            let (mut suites, old): (Vec<_>, Vec<_>) =
                provider.cipher_suites.iter().partition(|suite| suite.version().version == ProtocolVersion::TLSv1_3);
            let name = |suite: SupportedCipherSuite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
            for wanted in names {
                if let Some(suite) = old.iter().find(|suite| name(**suite) == *wanted) {
                    suites.push(*suite);
                } else if !suites.iter().any(|suite| name(*suite) == *wanted) {
                    let known: Vec<_> = old.iter().map(|suite| name(*suite)).collect();
                    return Err(key_error(
                        "cipher_suites",
                        &format!("{wanted:?} is not supported: choose from {}", known.join(", ")),
                    ));
                }
            }
            provider.cipher_suites = suites;
        }
        if let Some(names) = self.curve_preferences.as_ref().filter(|names| !names.is_empty()) {
            let mut groups = Vec::new();
            for wanted in names {
                let group = match wanted.as_str() {
                    "X25519" => Some(NamedGroup::X25519),
                    "CurveP256" => Some(NamedGroup::secp256r1),
                    "CurveP384" => Some(NamedGroup::secp384r1),
                    _ => None,
                };
                let found = provider.kx_groups.iter().find(|known| Some(known.name()) == group);
                groups.push(*found.ok_or_else(|| {
                    key_error(
                        "curve_preferences",
                        &format!("{wanted:?} is not supported: choose from X25519, CurveP256, CurveP384"),
                    )
                })?);
            }
            provider.kx_groups = groups;
        }
        Ok(provider)
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
        let version = |key, value: &Option<String>, default| match value.as_deref().unwrap_or(default) {
            "TLS12" => Ok(12),
            "TLS13" => Ok(13),
            other => Err(key_error(key, &format!("{other:?} is not supported: use TLS12 or TLS13"))),
        };
        let range =
            version("min_version", &self.min_version, "TLS12")?..=version("max_version", &self.max_version, "TLS13")?;
        if range.is_empty() {
            return Err(key_error("max_version", "lower than min_version: use TLS13"));
        }
        Ok([(12, &TLS12), (13, &TLS13)]
            .into_iter()
            .filter(|(n, _)| range.contains(n))
            .map(|(_, version)| version)
            .collect())
    }

    fn client_cert(&self, folder: &Path, provider: &Arc<CryptoProvider>) -> Result<ClientCertRules, String> {
        let auth = match self.client_auth_type.as_deref().unwrap_or_default() {
            "" | "NoClientCert" => ClientAuth::None,
            "RequestClientCert" => ClientAuth::Request,
            // `RequireClientCert` is a former name of the toolkit.
            "RequireAnyClientCert" | "RequireClientCert" => ClientAuth::RequireAny,
            "VerifyClientCertIfGiven" => ClientAuth::VerifyIfGiven,
            "RequireAndVerifyClientCert" => ClientAuth::RequireAndVerify,
            other => {
                return Err(key_error(
                    "client_auth_type",
                    &format!(
                        "{other:?} is not supported: use NoClientCert, RequestClientCert, RequireAnyClientCert, \
                         VerifyClientCertIfGiven or RequireAndVerifyClientCert"
                    ),
                ));
            }
        };
        let authorities = pem(folder, "client_ca", &self.client_ca, &self.client_ca_file)?;
        if auth == ClientAuth::None && (authorities.is_some() || self.client_allowed_sans.is_some()) {
            let remedy = "it has no effect, because clients are not asked for a certificate: add `client_auth_type: \
                          RequireAndVerifyClientCert`";
            return Err(key_error(
                if authorities.is_some() { "client_ca_file" } else { "client_allowed_sans" },
                remedy,
            ));
        }
        if self.client_allowed_sans.as_ref().is_some_and(Vec::is_empty) {
            return Err(key_error(
                "client_allowed_sans",
                "an empty list rejects every client: add a name, or omit the key",
            ));
        }
        let chain = match auth {
            ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify => {
                // Go would use the host's certificate authorities, which issue certificates to anybody.
                let remedy = "missing: add the certificates of the authorities that sign client certificates";
                Some(chain(&authorities.ok_or_else(|| key_error("client_ca_file", remedy))?, provider)?)
            }
            _ => None,
        };
        if chain.is_none() && self.client_allowed_sans.is_some() {
            let remedy = "without an authority, a client can make a certificate with any name itself: add \
                          `client_auth_type: RequireAndVerifyClientCert` and client_ca_file";
            return Err(key_error("client_allowed_sans", remedy));
        }
        Ok(ClientCertRules {
            requested: auth != ClientAuth::None,
            // If names are listed, every client must show a certificate with one of them.
            mandatory: matches!(auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify)
                || self.client_allowed_sans.is_some(),
            chain,
            allowed_sans: self.client_allowed_sans.clone(),
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

fn chain(authorities: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in
        certificates(authorities).ok_or_else(|| key_error("client_ca_file", "the file contains no PEM certificate"))?
    {
        roots.add(certificate).map_err(|error| {
            key_error("client_ca_file", &format!("{error}: use certificates of certificate authorities"))
        })?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| key_error("client_ca_file", &format!("{error}: use certificates of certificate authorities")))
}

/// The text of key `NAME`, or the content of the file in key `NAME_file`; `None` if neither is set.
fn pem(folder: &Path, name: &str, text: &Option<String>, file: &Option<PathBuf>) -> Result<Option<Vec<u8>>, String> {
    let text = text.as_deref().filter(|text| !text.is_empty());
    match (text, non_empty(file)) {
        (Some(_), Some(_)) => Err(key_error(name, &format!("{name}_file is also set: omit one of them"))),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(file)) => {
            let file = folder.join(file);
            let failed = |error| format!("cannot read {}: {error}: choose a file that tcpmon can read", file.display());
            fs::read(&file).map(Some).map_err(|error| key_error(&format!("{name}_file"), &failed(error)))
        }
        (None, None) => Ok(None),
    }
}

/// All certificates in the text; `None` if there are none, or one cannot be parsed.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!all.is_empty()).then_some(all)
}

fn non_empty(file: &Option<PathBuf>) -> Option<&Path> {
    file.as_deref().filter(|file| !file.as_os_str().is_empty())
}

fn key_error(key: &str, problem: &str) -> String {
    format!("tls_server_config.{key}: {problem}")
}
