//! Takes the place of the web config file in a build without the feature `web-config`: there is none.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper::{HeaderMap, header::HeaderValue};

use super::{WITHOUT_WEB_CONFIG, connections::Client, serve::Login};

/// A web config file: an empty type, because this build has none.
#[derive(Debug)]
pub enum WebConfig {}

/// There is a web config file, and this build cannot use it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("web config file {}: {WITHOUT_WEB_CONFIG}", .0.display())]
pub struct WebConfigError(PathBuf);

/// What is required of each connection and request: nothing.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// Headers added to every response.
    pub(super) headers: HeaderMap,
}

impl WebConfig {
    /// Refuses the file.
    ///
    /// # Errors
    /// Always.
    pub fn read(file: &Path) -> Result<Self, WebConfigError> {
        Err(WebConfigError(file.to_owned()))
    }

    /// The file.
    pub fn file(&self) -> &Path {
        match *self {}
    }

    /// The file, and those that it names.
    pub fn files(&self) -> Vec<PathBuf> {
        match *self {}
    }

    /// Why the current content of the file is not in force.
    pub fn problem(&self) -> Option<String> {
        match *self {}
    }

    /// Checks the files now.
    pub fn reload(&self) {
        match *self {}
    }

    pub(super) fn policy(&self) -> Arc<Policy> {
        match *self {}
    }

    pub(super) async fn login(&self, _authorization: Option<&HeaderValue>, _client: Client) -> Login {
        match *self {}
    }
}
