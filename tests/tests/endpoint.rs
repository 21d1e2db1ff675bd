//! The endpoint: addresses, TLS, certificates, passwords, compression. curl and promtool serve as independent judges.
//! That many clients do not lock a scraper out is tested by `load`.

mod common;
#[path = "endpoint/compression.rs"]
mod compression;
#[path = "common/curl.rs"]
mod curl;
#[path = "endpoint/listen.rs"]
mod listen;
#[path = "endpoint/web_config.rs"]
mod web_config;
