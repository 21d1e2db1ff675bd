//! The endpoint in a hostile network: TLS, certificates, passwords, clients that hoard connections. curl and promtool
//! serve as independent judges.

mod common;
#[path = "endpoint/compression.rs"]
mod compression;
#[path = "endpoint/curl.rs"]
mod curl;
#[path = "endpoint/listen.rs"]
mod listen;
#[path = "endpoint/load.rs"]
mod load;
#[path = "endpoint/web_config.rs"]
mod web_config;
