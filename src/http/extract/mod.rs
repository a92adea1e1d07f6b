//! Who asks, and from where.

use std::net::{IpAddr, Ipv6Addr};

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::AUTHORIZATION;
use actix_web::web::{Bytes, Data};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use super::AppState;
use super::problem::Problem;
use crate::domain::ids::{OrderId, SaleId, UserId};

/// A buyer, as his token says.
#[derive(Debug)]
pub struct Buyer {
    pub user: UserId,
    pub level: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: String,
    #[serde(default)]
    level: i64,
    /// Seconds since the epoch.
    exp: i64,
}

/// Checks tokens, and in development mode makes them.
pub struct Tokens {
    key: DecodingKey,
    validation: Validation,
    signing: Option<EncodingKey>,
}

/// Why there is no checking tokens with this configuration.
#[derive(Debug, thiserror::Error)]
#[error(
    "configuration: auth.jwt_public_key is no RSA, EC (P-256) or Ed25519 public key in PEM form (set SECKILL_AUTH__JWT_PUBLIC_KEY)"
)]
pub struct BadKey;

impl Tokens {
    /// The key decides the algorithm; what a token's header says only has to agree.
    pub fn new(secret: &str, public_key: &str, dev: bool) -> Result<Self, BadKey> {
        let (key, algorithm) = match public_key.as_bytes() {
            [] => (DecodingKey::from_secret(secret.as_bytes()), Algorithm::HS256),
            pem => DecodingKey::from_rsa_pem(pem)
                .map(|key| (key, Algorithm::RS256))
                .or_else(|_| DecodingKey::from_ec_pem(pem).map(|key| (key, Algorithm::ES256)))
                .or_else(|_| DecodingKey::from_ed_pem(pem).map(|key| (key, Algorithm::EdDSA)))
                .map_err(|_| BadKey)?,
        };
        let mut validation = Validation::new(algorithm);
        // exp is judged by the database's clock, below, and not by this machine's.
        validation.validate_exp = false;
        validation.validate_aud = false;
        let signing = (dev && public_key.is_empty()).then(|| EncodingKey::from_secret(secret.as_bytes()));
        Ok(Self { key, validation, signing })
    }

    /// A buyer's token that is good until `expires_at_s`; only in development mode.
    pub fn issue(&self, user: &UserId, level: i64, expires_at_s: i64) -> Option<String> {
        let claims = Claims { sub: user.to_string(), level, exp: expires_at_s };
        encode(&Header::new(Algorithm::HS256), &claims, self.signing.as_ref()?).ok()
    }

    /// The buyer whose token the request carries.
    pub fn buyer(&self, request: &HttpRequest, now_ms: i64) -> Result<Buyer, Problem> {
        let header = request.headers().get(AUTHORIZATION).ok_or(Problem::unauthenticated("no Authorization header"))?;
        let (scheme, token) = header.to_str().ok().and_then(|text| text.split_once(' ')).unwrap_or_default();
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Problem::unauthenticated("not a bearer token"));
        }
        let claims = decode::<Claims>(token.trim(), &self.key, &self.validation)
            .map_err(|_| Problem::unauthenticated("the token is not valid"))?
            .claims;
        if claims.exp.saturating_mul(1000) <= now_ms {
            return Err(Problem::unauthenticated("the token has expired"));
        }
        let user = UserId::parse(&claims.sub).map_err(|_| Problem::unauthenticated("the token names no valid user"))?;
        Ok(Buyer { user, level: claims.level })
    }
}

/// The caller's address as limits see it: the nearest one that is not a trusted proxy's. An IPv6 caller commands a
/// whole /64, and counts as one.
pub fn caller_address(request: &HttpRequest, trusted_proxies: &[IpAddr]) -> String {
    let peer = request.peer_addr().map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.ip().to_canonical());
    let mut nearest = peer;
    if trusted_proxies.contains(&peer) {
        let headers = request.headers().get_all("x-forwarded-for");
        // Each proxy appends whom it heard from: read from the end, for as long as those are believed.
        let hops: Vec<&str> =
            headers.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).collect();
        for hop in hops.into_iter().rev() {
            let Ok(address) = hop.trim().parse::<IpAddr>() else { break };
            nearest = address.to_canonical();
            if !trusted_proxies.contains(&nearest) {
                break;
            }
        }
    }
    match nearest {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let network = u128::from(address) & (u128::MAX << 64);
            format!("{}/64", Ipv6Addr::from(network))
        }
    }
}

/// The sale that the path names.
pub fn sale_id(request: &HttpRequest) -> Result<SaleId, Problem> {
    Ok(SaleId::parse(request.match_info().query("id"))?)
}

/// The product that the path names; its number is written as a sale's is.
pub fn product_id(request: &HttpRequest) -> Result<i64, Problem> {
    let id = SaleId::parse(request.match_info().query("id"));
    id.map(SaleId::get).map_err(|_| Problem::invalid("the product id must be a positive whole number"))
}

/// The order that the path names.
pub fn order_id(request: &HttpRequest) -> Result<OrderId, Problem> {
    let id = uuid::Uuid::try_parse(request.match_info().query("id"));
    id.map(OrderId).map_err(|_| Problem::invalid("the order id must be a UUID"))
}

/// A request's body, whole: within its bound, and in time.
pub struct Body(pub Bytes);

impl FromRequest for Body {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    /// Always reads the body, even where the answer is known without it: an unread body closes the connection.
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let terms = request.app_data::<Data<AppState>>().map(|r| (r.body_max_bytes, r.client_timeout));
        let (max_bytes, patience) = terms.unwrap_or((0, Duration::ZERO));
        let payload = payload.take();
        Box::pin(async move {
            match tokio::time::timeout(patience, read(payload, max_bytes)).await {
                Ok(body) => body.map(Self),
                Err(_) => Err(Problem::too_slow()),
            }
        })
    }
}

async fn read(mut payload: Payload, max_bytes: usize) -> Result<Bytes, Problem> {
    let mut whole = match payload.next().await {
        None => return Ok(Bytes::new()),
        Some(chunk) => chunk.map_err(|_| Problem::invalid("the body could not be read"))?,
    };
    while whole.len() <= max_bytes {
        match payload.next().await {
            None => return Ok(whole),
            Some(chunk) => {
                let chunk = chunk.map_err(|_| Problem::invalid("the body could not be read"))?;
                whole = [whole, chunk].concat().into();
            }
        }
    }
    Err(Problem::too_large(max_bytes))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn address(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let mut request = TestRequest::default().peer_addr(format!("{peer}:1000").parse().unwrap());
        for value in forwarded {
            request = request.append_header(("X-Forwarded-For", *value));
        }
        let trusted: Vec<IpAddr> = trusted.iter().map(|t| t.parse().unwrap()).collect();
        caller_address(&request.to_http_request(), &trusted)
    }

    #[test]
    fn only_configured_proxies_are_believed() {
        assert_eq!(address("9.9.9.9", &["1.2.3.4"], &[]), "9.9.9.9");
        assert_eq!(address("9.9.9.9", &["1.2.3.4"], &["9.9.9.9"]), "1.2.3.4");
        // What the client itself put first is not believed: the last hop that is not ours counts.
        assert_eq!(address("9.9.9.9", &["6.6.6.6, 1.2.3.4"], &["9.9.9.9"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", &["6.6.6.6", "1.2.3.4, 8.8.8.8"], &["9.9.9.9", "8.8.8.8"]), "1.2.3.4");
        assert_eq!(address("9.9.9.9", &["nonsense"], &["9.9.9.9"]), "9.9.9.9");
    }

    #[test]
    fn an_ipv6_network_is_one_caller() {
        let from = |peer: &str| address(peer, &[], &[]);
        assert_eq!(from("[2001:db8:1:2:aaaa::1]"), from("[2001:db8:1:2:bbbb::2]"));
        assert_ne!(from("[2001:db8:1:2::1]"), from("[2001:db8:1:3::1]"));
        assert_eq!(from("[::ffff:1.2.3.4]"), "1.2.3.4");
    }
}
