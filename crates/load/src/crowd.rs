//! The callers of a rush, and the requests they send.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use uuid::Uuid;

use super::LoadError;
use super::client::Target;
use super::plan::{Arrival, Buyer, Plan, Role, address, forger_address};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Number of different sales that do not exist.
const UNKNOWN_SALES: i64 = 64;
/// Number of different forged tokens, each sent from an address of its own.
const FORGED_TOKENS: usize = 64;

/// All callers, with the parts of their requests prepared; cloning a part copies a pointer.
pub struct Crowd {
    target: Arc<Target>,
    callers: Vec<Caller>,
    sale: Uri,
    unknown_sales: Vec<Uri>,
    forgers: Vec<Caller>,
}

struct Caller {
    authorization: HeaderValue,
    address: HeaderValue,
    idempotency_key: HeaderValue,
}

impl Crowd {
    pub fn prepare(plan: &Plan, buyers: &[Buyer], target: &Arc<Target>) -> Result<Self, LoadError> {
        let needed = plan.identities();
        if buyers.len() < needed {
            return Err(LoadError::TooFewBuyers { needed, given: buyers.len() });
        }
        let caller = |buyer: &Buyer, token: &str, address: Ipv4Addr| -> Result<Caller, LoadError> {
            let value = |text: String| HeaderValue::try_from(text).map_err(|_| LoadError::Token(buyer.user.clone()));
            Ok(Caller {
                authorization: value(format!("Bearer {token}"))?,
                address: value(address.to_string())?,
                idempotency_key: value(Uuid::now_v7().to_string())?,
            })
        };
        let genuine = |(n, buyer): (usize, &Buyer)| caller(buyer, &buyer.token, address(plan, n));
        let forger = |(n, buyer): (usize, &Buyer)| caller(buyer, &forged(&buyer.token), forger_address(n));
        let purchases = |sale_id: i64| target.uri(&format!("/api/v1/sales/{sale_id}/purchases"));
        // Ids far above those in use.
        let unknown = |n: i64| purchases(plan.sale_id.saturating_add(1_000_000_000 + n * 7_919));
        Ok(Self {
            target: Arc::clone(target),
            callers: buyers.iter().take(needed).enumerate().map(genuine).collect::<Result<_, _>>()?,
            forgers: buyers.iter().take(FORGED_TOKENS).enumerate().map(forger).collect::<Result<_, _>>()?,
            sale: purchases(plan.sale_id)?,
            unknown_sales: (0..UNKNOWN_SALES).map(unknown).collect::<Result<_, _>>()?,
        })
    }

    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub fn request(&self, arrival: &Arrival, body: &Bytes) -> Request<Full<Bytes>> {
        let caller = match arrival.role {
            Role::ForgedToken => &self.forgers[arrival.caller % self.forgers.len()],
            Role::Buyer | Role::SecondClick | Role::UnknownSale | Role::Bot | Role::EarlyClick => {
                &self.callers[arrival.caller]
            }
        };
        let uri = match arrival.role {
            Role::UnknownSale => &self.unknown_sales[arrival.caller % self.unknown_sales.len()],
            Role::Buyer | Role::SecondClick | Role::ForgedToken | Role::Bot | Role::EarlyClick => &self.sale,
        };
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(HOST, self.target.host.clone());
        headers.insert(AUTHORIZATION, caller.authorization.clone());
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(X_FORWARDED_FOR, caller.address.clone());
        if matches!(arrival.role, Role::Buyer | Role::SecondClick) {
            headers.insert(IDEMPOTENCY_KEY, caller.idempotency_key.clone());
        }
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers;
        request
    }
}

/// The token with an invalid signature. The first character of the signature is changed, because all its bits count.
fn forged(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap_or(("", token));
    let mut rest = signature.chars();
    let changed = if rest.next() == Some('A') { 'B' } else { 'A' };
    format!("{signed}.{changed}{}", rest.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_signature_of_a_forged_token_differs() {
        assert_eq!(forged("head.claims.XYZ"), "head.claims.AYZ");
        assert_eq!(forged("head.claims.AYZ"), "head.claims.BYZ");
        assert_eq!(forged(""), ".A");
    }

    #[tokio::test]
    async fn a_forged_token_comes_from_another_address_than_its_buyer() -> Result<(), LoadError> {
        let plan = Plan { buyers: 1, bots: 0, forged: 1, ..Plan::default() };
        let buyers = [Buyer { user: "u".to_owned(), token: "a.b.c".to_owned() }];
        let crowd = Crowd::prepare(&plan, &buyers, &Arc::new(Target::resolve("http://127.0.0.1:1").await?))?;
        let headers = |role| {
            let request = crowd.request(&Arrival { due: std::time::Duration::ZERO, role, caller: 0 }, &Bytes::new());
            [AUTHORIZATION, X_FORWARDED_FOR].map(|name| request.headers()[name].to_str().unwrap_or_default().to_owned())
        };
        assert_eq!(headers(Role::Buyer), ["Bearer a.b.c", "10.0.0.1"]);
        assert_eq!(headers(Role::ForgedToken), ["Bearer a.b.A", "192.168.0.1"]);
        Ok(())
    }
}
