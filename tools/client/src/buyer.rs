//! The client of a buyer. Its methods are in the files on sales, challenges, purchases and orders.

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Error;
use crate::retry::RetryTerms;
use crate::service::{Bearer, Service, call};

/// Makes calls for one buyer. Cheap to make and to clone, even one for each buyer of a server: the [`Service`] owns the connections.
#[derive(Debug, Clone)]
pub struct BuyerClient {
    pub(crate) service: Service,
    pub(crate) bearer: Option<Bearer>,
    pub(crate) retry: RetryTerms,
}

#[derive(Deserialize)]
struct DevToken {
    token: String,
}

impl BuyerClient {
    /// A client for the buyer that `token` names (a JWT with `sub`, `level` and `exp`).
    ///
    /// # Errors
    /// [`Error::Invalid`]: the token is not one word of visible ASCII characters.
    pub fn new(service: &Service, token: &str) -> Result<Self, Error> {
        Ok(Self { bearer: Some(Bearer::new(token)?), ..Self::without_token(service) })
    }

    /// A client without a token, which may read sales. All other calls are answered 401.
    pub fn without_token(service: &Service) -> Self {
        Self { service: service.clone(), bearer: None, retry: RetryTerms::default() }
    }

    /// Signs a buyer in for a day at a service in development mode. `user` is 1 to 128 bytes without control characters;
    /// `level` is 0 for an ordinary buyer.
    ///
    /// # Errors
    /// [`Error::Problem`] with 404 outside development mode, with 400 for an invalid name; or no answer.
    pub async fn sign_in(service: &Service, user: &str, level: i64) -> Result<Self, Error> {
        let request = service.request(Method::POST, "/api/v1/dev/token", None);
        let issued: DevToken = call(request.json(&json!({ "user": user, "level": level })), service.timeout()).await?;
        Self::new(service, &issued.token)
    }

    /// How long and how often [`BuyerClient::purchase`] tries.
    #[must_use]
    pub fn with_retry(mut self, terms: RetryTerms) -> Self {
        self.retry = terms;
        self
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        call(self.service.request(Method::GET, path, self.bearer.as_ref()), self.service.timeout()).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        let request = self.service.request(Method::POST, path, self.bearer.as_ref());
        call(request.json(body), self.service.timeout()).await
    }
}
