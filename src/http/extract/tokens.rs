//! Bearer tokens, and the buyer that a token names.

use actix_web::HttpRequest;
use actix_web::http::header::AUTHORIZATION;
use jsonwebtoken::dangerous::insecure_decode;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use crate::domain::ids::UserId;
use crate::http::problem::Problem;

/// A buyer, as the token says.
#[derive(Debug)]
pub struct Buyer {
    pub user: UserId,
    pub level: i64,
}

/// What is read of a token. Its audience and issuer are checked before.
#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
    #[serde(default)]
    level: i64,
    /// Seconds since the epoch.
    exp: i64,
}

/// What is written into a token of development mode.
#[derive(Debug, Serialize)]
struct IssuedClaims<'a> {
    sub: &'a str,
    level: i64,
    exp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
}

/// Verifies buyers' tokens, and issues them in development mode.
pub struct Tokens {
    key: DecodingKey,
    validation: Validation,
    signing: Option<EncodingKey>,
    audience: Option<String>,
    issuer: Option<String>,
}

/// The configured key cannot verify tokens.
#[derive(Debug, thiserror::Error)]
#[error(
    "configuration: auth.jwt_public_key is not an RSA, EC (P-256) or Ed25519 public key in PEM form (set SECKILL_AUTH__JWT_PUBLIC_KEY)"
)]
pub struct InvalidKey;

impl Tokens {
    /// The key decides the algorithm; a token whose header names another one is refused.
    pub fn new(secret: &str, public_key: &str, dev: bool) -> Result<Self, InvalidKey> {
        let (key, algorithm) = match public_key.as_bytes() {
            [] => (DecodingKey::from_secret(secret.as_bytes()), Algorithm::HS256),
            pem => DecodingKey::from_rsa_pem(pem)
                .map(|key| (key, Algorithm::RS256))
                .or_else(|_| DecodingKey::from_ec_pem(pem).map(|key| (key, Algorithm::ES256)))
                .or_else(|_| DecodingKey::from_ed_pem(pem).map(|key| (key, Algorithm::EdDSA)))
                .map_err(|_| InvalidKey)?,
        };
        let mut validation = Validation::new(algorithm);
        // `buyer` checks `exp` against the database's clock, not this machine's.
        validation.validate_exp = false;
        validation.validate_aud = false;
        let signing = (dev && public_key.is_empty()).then(|| EncodingKey::from_secret(secret.as_bytes()));
        Ok(Self { key, validation, signing, audience: None, issuer: None })
    }

    /// Takes only tokens that are meant for this audience, and come from this issuer; an empty text requires nothing.
    pub fn requiring(mut self, audience: &str, issuer: &str) -> Self {
        let required = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (self.audience, self.issuer) = (required(audience), required(issuer));
        let mut claims = vec!["exp"];
        if let Some(audience) = &self.audience {
            self.validation.validate_aud = true;
            self.validation.set_audience(&[audience]);
            claims.push("aud");
        }
        if let Some(issuer) = &self.issuer {
            self.validation.set_issuer(&[issuer]);
            claims.push("iss");
        }
        // Without this, a token that does not name its audience or issuer would pass.
        self.validation.set_required_spec_claims(&claims);
        self
    }

    /// A buyer's token that is valid until `expires_at_s`; `None` outside development mode.
    pub fn issue(&self, user: &UserId, level: i64, expires_at_s: i64) -> Option<String> {
        let (audience, issuer) = (self.audience.as_deref(), self.issuer.as_deref());
        let user = user.to_string();
        let claims = IssuedClaims { sub: &user, level, exp: expires_at_s, aud: audience, iss: issuer };
        encode(&Header::new(Algorithm::HS256), &claims, self.signing.as_ref()?).ok()
    }

    /// The buyer whose token the request carries.
    ///
    /// # Errors
    /// `unauthenticated` if the token is missing, not valid, or expired at `now_ms`.
    pub fn buyer(&self, request: &HttpRequest, now_ms: i64) -> Result<Buyer, Problem> {
        let claims = decode::<Claims>(bearer_token(request)?, &self.key, &self.validation)
            .map_err(|_| Problem::unauthenticated("the token is not valid"))?
            .claims;
        if claims.exp.saturating_mul(1000) <= now_ms {
            return Err(Problem::unauthenticated("the token has expired"));
        }
        let user = UserId::parse(&claims.sub).map_err(|_| Problem::unauthenticated("the token names no valid user"))?;
        Ok(Buyer { user, level: claims.level })
    }
}

/// The user that a token claims to be of. Anybody can claim that: good only to decide who is refused unread.
pub fn unverified_user(request: &HttpRequest) -> Option<String> {
    let token = insecure_decode::<Claims>(bearer_token(request).ok()?).ok()?;
    Some(token.claims.sub)
}

/// The bearer token of the Authorization header.
pub fn bearer_token(request: &HttpRequest) -> Result<&str, Problem> {
    let header =
        request.headers().get(AUTHORIZATION).ok_or_else(|| Problem::unauthenticated("no Authorization header"))?;
    let (scheme, token) = header.to_str().ok().and_then(|text| text.split_once(' ')).unwrap_or_default();
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(token.trim())
    } else {
        Err(Problem::unauthenticated("not a bearer token"))
    }
}
