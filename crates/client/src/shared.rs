//! The state that the clones of a client share, also with their permits.

use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::breaker::Breaker;
use crate::error::Error;
use crate::release_lines::ReleaseLines;
use crate::service::{Bearer, Service, call};

/// The state that the clones of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub service: Service,
    pub bearer: Bearer,
    pub app: String,
    pub breaker: Mutex<Breaker>,
    pub lines: ReleaseLines,
}

impl Shared {
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        within: Duration,
    ) -> Result<T, Error> {
        call(self.service.request(Method::POST, path, Some(&self.bearer)).json(body), within).await
    }
}
