//! The people of the rush, and the requests they make.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use uuid::Uuid;

use super::LoadError;
use super::client::Target;
use super::plan::{Arrival, Buyer, Plan, Role, address};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Different sales that do not exist.
const UNKNOWN_SALES: i64 = 64;

/// Who comes, with every part of their requests made beforehand; cloning a part copies a pointer.
pub struct Crowd {
    target: Arc<Target>,
    callers: Vec<Caller>,
    sale: Uri,
    unknown_sales: Vec<Uri>,
}

struct Caller {
    authorization: HeaderValue,
    address: HeaderValue,
    ticket: HeaderValue,
}

impl Crowd {
    pub fn gather(plan: &Plan, buyers: &[Buyer], target: &Arc<Target>) -> Result<Self, LoadError> {
        let needed = plan.identities();
        if buyers.len() < needed {
            return Err(LoadError::TooFewBuyers { needed, given: buyers.len() });
        }
        let caller = |(who, buyer): (usize, &Buyer)| -> Result<Caller, LoadError> {
            let value = |text: String| HeaderValue::try_from(text).map_err(|_| LoadError::Token(buyer.user.clone()));
            Ok(Caller {
                authorization: value(format!("Bearer {}", buyer.token))?,
                address: value(address(plan, who).to_string())?,
                ticket: value(Uuid::now_v7().to_string())?,
            })
        };
        let purchases = |sale_id: i64| target.uri(&format!("/api/v1/sales/{sale_id}/purchases"));
        // Far above the ids in use, and apart from each other.
        let unknown = |n: i64| purchases(plan.sale_id.saturating_add(1_000_000_000 + n * 7_919));
        Ok(Self {
            target: Arc::clone(target),
            callers: buyers.iter().take(needed).enumerate().map(caller).collect::<Result<_, _>>()?,
            sale: purchases(plan.sale_id)?,
            unknown_sales: (0..UNKNOWN_SALES).map(unknown).collect::<Result<_, _>>()?,
        })
    }

    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub fn request(&self, arrival: &Arrival, body: &Bytes) -> Request<Full<Bytes>> {
        let caller = &self.callers[arrival.who];
        let uri = match arrival.role {
            Role::UnknownSale => &self.unknown_sales[arrival.who % self.unknown_sales.len()],
            _ => &self.sale,
        };
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(HOST, self.target.host.clone());
        headers.insert(AUTHORIZATION, caller.authorization.clone());
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(X_FORWARDED_FOR, caller.address.clone());
        if matches!(arrival.role, Role::Buyer | Role::SecondClick) {
            headers.insert(IDEMPOTENCY_KEY, caller.ticket.clone());
        }
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers;
        request
    }
}
