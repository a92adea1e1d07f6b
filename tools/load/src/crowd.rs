//! The callers of a rush, and the requests they send.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use http::HeaderValue;
use uuid::Uuid;

use super::LoadError;
use super::plan::{Arrival, Buyer, Plan, Role, address, forger_address};
use super::target::Target;

/// Number of different sales that do not exist.
const UNKNOWN_SALES: i64 = 64;
/// Number of different forged tokens, each sent from an address of its own.
const FORGED_TOKENS: usize = 64;

/// All callers, and the parts of their requests. A request is copied together when it is sent: that takes a fraction of a
/// microsecond, and requests made beforehand would take half a kilobyte for each of up to a million buyers.
pub(crate) struct Crowd {
    buyers: Arc<[Buyer]>,
    /// The callers' Idempotency-Keys.
    keys: Vec<Uuid>,
    forged_tokens: Vec<String>,
    addresses: Vec<Ipv4Addr>,
    /// The beginnings of purchases, at the sale and at each sale that does not exist.
    sale: Vec<u8>,
    unknown_sales: Vec<Vec<u8>>,
}

impl Crowd {
    pub(crate) fn prepare(plan: &Plan, buyers: &Arc<[Buyer]>, target: &Target) -> Result<Self, LoadError> {
        let needed = plan.identities();
        let Some(callers) = buyers.get(..needed) else {
            return Err(LoadError::TooFewBuyers { needed, given: buyers.len() });
        };
        if let Some(buyer) = callers.iter().find(|buyer| HeaderValue::from_str(&buyer.token).is_err()) {
            return Err(LoadError::Token(buyer.user.clone()));
        }
        let purchases = |sale_id: i64| {
            let path = target.path(&format!("/api/v1/sales/{sale_id}/purchases"));
            let host = &target.host;
            format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n").into_bytes()
        };
        // Far above all ids in use.
        let unknown = |n: i64| purchases(plan.sale_id.saturating_add(1_000_000_000 + n * 7_919));
        Ok(Self {
            keys: callers.iter().map(|_| Uuid::now_v7()).collect(),
            forged_tokens: callers.iter().take(FORGED_TOKENS).map(|buyer| forged(&buyer.token)).collect(),
            addresses: (0..needed).map(|caller| address(plan, caller)).collect(),
            sale: purchases(plan.sale_id),
            unknown_sales: (0..UNKNOWN_SALES).map(unknown).collect(),
            buyers: Arc::clone(buyers),
        })
    }

    /// Writes an arrival's request, with the end that all share (see [`ending`]).
    pub(crate) fn write(&self, arrival: &Arrival, ending: &[u8], request: &mut Vec<u8>) {
        let caller = arrival.caller;
        let forger = caller % self.forged_tokens.len().max(1);
        let (token, address) = match arrival.role {
            Role::ForgedToken => (&self.forged_tokens[forger], forger_address(forger)),
            _ => (&self.buyers[caller].token, self.addresses[caller]),
        };
        let beginning = match arrival.role {
            Role::UnknownSale => &self.unknown_sales[caller % self.unknown_sales.len()],
            _ => &self.sale,
        };
        request.clear();
        for part in [beginning.as_slice(), b"Authorization: Bearer ", token.as_bytes()] {
            request.extend_from_slice(part);
        }
        // Writing to memory does not fail.
        let _ = write!(request, "\r\nX-Forwarded-For: {address}\r\n");
        if matches!(arrival.role, Role::Buyer | Role::SecondClick) {
            let _ = write!(request, "Idempotency-Key: {}\r\n", self.keys[caller]);
        }
        request.extend_from_slice(ending);
    }
}

/// The end of each purchase's request: the length of its body, and the body, which names the key of the sale.
pub(crate) fn ending(key: &str) -> Vec<u8> {
    let body = serde_json::json!({ "key": key }).to_string();
    format!("Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
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
    use std::time::Duration;

    use super::*;

    /// Every role's whole request: token, sale, address and Idempotency-Key.
    #[tokio::test]
    async fn each_role_has_its_request() -> Result<(), LoadError> {
        let plan = Plan { sale_id: 7, buyers: 1, bots: 1, forged: 1, ..Plan::default() };
        let buyer = |user: &str, token: &str| Buyer { user: user.to_owned(), token: token.to_owned() };
        let buyers: Arc<[Buyer]> = [buyer("u", "a.b.c"), buyer("bot", "d.e.f")].into();
        let crowd = Crowd::prepare(&plan, &buyers, &Target::resolve("http://127.0.0.1:1/shop").await?)?;
        let key = crowd.keys[0];
        let keyed = format!("Idempotency-Key: {key}\r\n");
        let unknown = 7 + 1_000_000_000_i64;
        for (role, caller, sale_id, token, address, key) in [
            (Role::Buyer, 0, 7, "a.b.c", "10.0.0.1", keyed.as_str()),
            (Role::SecondClick, 0, 7, "a.b.c", "10.0.0.1", keyed.as_str()),
            (Role::EarlyClick, 0, 7, "a.b.c", "10.0.0.1", ""),
            (Role::UnknownSale, 0, unknown, "a.b.c", "10.0.0.1", ""),
            (Role::ForgedToken, 0, 7, "a.b.A", "192.168.0.1", ""),
            (Role::Bot, 1, 7, "d.e.f", "172.16.0.1", ""),
        ] {
            let mut request = b"of another".to_vec();
            crowd.write(&Arrival { due: Duration::ZERO, role, caller }, &ending("k1"), &mut request);
            let expected = format!(
                "POST /shop/api/v1/sales/{sale_id}/purchases HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\
                 Content-Type: application/json\r\nAuthorization: Bearer {token}\r\nX-Forwarded-For: {address}\r\n{key}\
                 Content-Length: 12\r\n\r\n{{\"key\":\"k1\"}}"
            );
            assert_eq!(String::from_utf8_lossy(&request), expected, "{role:?}");
        }
        Ok(())
    }

    /// A crowd that is too small, or a token that would break out of its header, ends the rush before it begins.
    #[tokio::test]
    async fn buyers_that_cannot_be_sent_are_refused() -> Result<(), LoadError> {
        let target = Target::resolve("http://127.0.0.1:1").await?;
        let plan = Plan { buyers: 1, bots: 0, ..Plan::default() };
        let buyers: Arc<[Buyer]> = [Buyer { user: "eve".to_owned(), token: "a\r\nHost: b".to_owned() }].into();
        let prepared = |plan: &Plan| Crowd::prepare(plan, &buyers, &target).err();
        assert!(matches!(prepared(&plan), Some(LoadError::Token(user)) if user == "eve"));
        let more = Plan { buyers: 2, ..plan };
        assert!(matches!(prepared(&more), Some(LoadError::TooFewBuyers { needed: 2, given: 1 })));
        Ok(())
    }
}
