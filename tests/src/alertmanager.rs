//! A real Alertmanager that sends no notifications.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::prometheus::Alert;
use crate::server::Server;
use crate::{Namespace, must};

/// A running Alertmanager. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Alertmanager {
    server: Server,
}

impl Alertmanager {
    /// Starts Alertmanager in this namespace and waits until it is ready.
    #[track_caller]
    pub fn start(namespace: &Namespace) -> Self {
        let server = Server::start("prometheus-alertmanager", namespace, |directory, address| {
            must(fs::write(directory.join("alertmanager.yaml"), config()), "writing Alertmanager's configuration");
            vec![
                "--config.file=alertmanager.yaml".to_owned(),
                "--storage.path=data".to_owned(),
                "--cluster.listen-address=".to_owned(),
                "--log.level=warn".to_owned(),
                format!("--web.listen-address={address}"),
            ]
        });
        Self { server }
    }

    /// The address it listens on, in its namespace.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The alerts that are active now.
    pub fn alerts(&self) -> Result<Vec<Alert>, String> {
        let answer = self.server.json("/api/v2/alerts", &[("active", "true")])?;
        let alerts = answer.as_array().ok_or_else(|| answer.to_string())?;
        alerts.iter().map(|alert| Alert::read(alert, &alert["status"]["state"])).collect()
    }
}

/// The configuration as JSON, which is also valid YAML.
fn config() -> String {
    let nobody: Value = json!("nobody");
    json!({
        "global": {"resolve_timeout": "5s"},
        "route": {
            "receiver": nobody,
            "group_by": ["alertname"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        "receivers": [{"name": nobody}],
    })
    .to_string()
}
