//! Bearer tokens, and the buyer that a token names.

use std::borrow::Cow;
use std::collections::HashMap;

use actix_web::dev::RequestHead;
use actix_web::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::shared_secret::SharedSecret;
use super::token_crypto::{InvalidKey, RING, public_key_of};
use crate::domain::ids::UserId;
use crate::domain::json_object;
use crate::http::problem::Problem;

/// A buyer, as the token says.
#[derive(Debug)]
pub struct Buyer {
    pub user: UserId,
    pub level: i64,
    /// When the token expires.
    pub expires_at_ms: i64,
}

/// The claims that are read.
#[derive(Debug, Deserialize)]
struct Claims<'a> {
    #[serde(borrow)]
    sub: Cow<'a, str>,
    #[serde(default)]
    level: i64,
    /// Seconds since the epoch.
    exp: i64,
    #[serde(borrow)]
    aud: Option<Names<'a>>,
    #[serde(borrow)]
    iss: Option<Names<'a>>,
}

/// A claim that is one name or a list of names.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Names<'a> {
    #[serde(borrow)]
    One(Cow<'a, str>),
    #[serde(borrow)]
    Several(Vec<Cow<'a, str>>),
    Other(IgnoredAny),
}

impl Names<'_> {
    fn contain(&self, name: &str) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Several(names) => names.iter().any(|other| other == name),
            Self::Other(_) => false,
        }
    }
}

/// The claims of a development token.
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
    shared_secret: Option<SharedSecret>,
    signing: Option<EncodingKey>,
    audience: Option<String>,
    issuer: Option<String>,
}

impl Tokens {
    /// The key decides the algorithm. A token whose header names another one is refused.
    pub fn new(secret: &str, public_key: &str, dev: bool) -> Result<Self, InvalidKey> {
        let _ = RING.install_default(); // fails where it is installed already
        let (key, algorithm) = match public_key {
            "" => (DecodingKey::from_secret(secret.as_bytes()), Algorithm::HS256),
            _ => public_key_of(public_key)?,
        };
        let mut validation = Validation::new(algorithm);
        // `buyer` checks `exp` against the database's clock, not this machine's.
        validation.validate_exp = false;
        validation.validate_aud = false;
        let shared_secret = public_key.is_empty().then(|| SharedSecret::new(secret));
        let signing = (dev && public_key.is_empty()).then(|| EncodingKey::from_secret(secret.as_bytes()));
        Ok(Self { key, validation, shared_secret, signing, audience: None, issuer: None })
    }

    /// Requires this audience and this issuer; an empty text requires nothing.
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
        // Without this, a token without an audience or issuer would pass.
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
    pub fn buyer(&self, request: &RequestHead, now_ms: i64) -> Result<Buyer, Problem> {
        let not_valid = || Problem::unauthenticated("the token is not valid");
        let token = bearer_token(request)?;
        self.check_signature(token).ok_or_else(not_valid)?;
        let json = claims_json(token).ok_or_else(not_valid)?;
        let claims: Claims = json_object::from_slice(&json).map_err(|_| not_valid())?;
        let is_for_us = |names: &Names| self.audience.as_ref().is_none_or(|name| names.contain(name));
        // A token has one issuer, but may have several audiences.
        let is_of_issuer = |names: &Names| {
            self.issuer.as_ref().is_none_or(|name| matches!(names, Names::One(issuer) if issuer == name))
        };
        let is_valid = claims.aud.as_ref().map_or(self.audience.is_none(), is_for_us)
            && claims.iss.as_ref().map_or(self.issuer.is_none(), is_of_issuer);
        if !is_valid {
            return Err(not_valid());
        }
        let expires_at_ms = claims.exp.saturating_mul(1000);
        if expires_at_ms <= now_ms {
            return Err(Problem::unauthenticated("the token has expired"));
        }
        let user = UserId::parse(&claims.sub).map_err(|_| Problem::unauthenticated("the token names no valid user"))?;
        Ok(Buyer { user, level: claims.level, expires_at_ms })
    }

    /// `None` unless the token is signed by the configured key.
    fn check_signature(&self, token: &str) -> Option<()> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        if claims.contains('.') {
            return None;
        }
        if self.shared_secret.as_ref().is_some_and(|secret| secret.has_signed(header, message, signature)) {
            return Some(());
        }
        // RFC 7515, 4.1.11: a recipient refuses a token whose header lists an unknown extension as critical. We know no extension.
        let parameters: HashMap<String, IgnoredAny> =
            json_object::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if parameters.contains_key("crit") {
            return None;
        }
        decode::<IgnoredAny>(token, &self.key, &self.validation).ok()?;
        if let Some(secret) = &self.shared_secret {
            secret.remember(header);
        }
        Some(())
    }
}

/// The claims of a token, unverified.
fn claims_json(token: &str) -> Option<Vec<u8>> {
    let (_, claims_and_signature) = token.split_once('.')?;
    let (claims, _) = claims_and_signature.split_once('.')?;
    BASE64_URL_SAFE_NO_PAD.decode(claims).ok()
}

/// The user that a token names, unverified: used only to choose which requests are shed.
pub fn unverified_user(request: &RequestHead) -> Option<String> {
    let json = claims_json(bearer_token(request).ok()?)?;
    let claims: Claims = json_object::from_slice(&json).ok()?;
    Some(claims.sub.into_owned())
}

/// The bearer token of the Authorization header.
pub fn bearer_token(request: &RequestHead) -> Result<&str, Problem> {
    let header =
        request.headers().get(AUTHORIZATION).ok_or_else(|| Problem::unauthenticated("no Authorization header"))?;
    let (scheme, token) = header.to_str().ok().and_then(|text| text.split_once(' ')).unwrap_or_default();
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(token.trim())
    } else {
        Err(Problem::unauthenticated("not a bearer token"))
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use ring::hmac;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "a secret of some length, for tests alone";

    /// Public keys, and tokens of Ann signed by their private keys (which are not kept).
    const SIGNED_BY_KEYS: [(&str, &str); 3] = [
        (
            "-----BEGIN PUBLIC KEY-----\n\
             MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA+lh4J/koA11dv/JBwkdo\n\
             rUdA0sktgxRQiXGrnK4Cd2duMl3PgUbJIGtLrE7s8Lg6u3FwhkvpRKBvcS0/YbGh\n\
             KfP8RRHrIz7dD6CyCdWpjSEs0Ns8jhMZ14ImPB13eOWOLK99Xrcl6VYMpE8j8SuR\n\
             QNtk0KVFO6wUz2xTL7WX5iWbmrXggijhLRpNhM8F+QREg5NzTU9EFUj0DVjAqCzT\n\
             AtpA+JOTXW+P12pS645q3S/0ojlDdD3IE7dpiJ26sIu9uRz6Oy2+tIrTAfw3Z/Rx\n\
             w8yY6reVhsdH4PnOcndtEslxnOgZDKGfCSYSfTiD7xQpfRXSih2KGH/4Y7cObr1q\n\
             FwIDAQAB\n\
             -----END PUBLIC KEY-----\n",
            "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjJ9.BtDiXStNsojIMhoZWM5HM4u9cBO826CyW2\
             Axoe9B7UN6p1A-cmLxqkUyfaLZecI6naBXhMVvNhqMS2nnrgZGbo30ptIwX2I39qVG9ty5Gt74FzKNwH44EJ5A1HT7VVRBk1i8Ay\
             BRn0AMZ6U89lQyaLRgBtNLYpLO2zH2-pnoENhoNetOHpdsoo4X0ujQaVqrXAg02gGfIn5L2Vcn2lvdfozN4rsMIwmkVdOoHKd6gD\
             Xaf69JxsTdsMRJdefUizfbHsgdwesKxHwSFvgBouDVoFawWlR0bIC8Pgs3Hoso0ZCQgmVJ_kU4fR4CbEEWTdqIJrx-8ilKi8YhYH\
             01i6GB0Q",
        ),
        (
            "-----BEGIN PUBLIC KEY-----\n\
             MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEoEObDCO1N8vrgPOBb42cVpViF0Ac\n\
             e18pnvnyWBLOqpbxFbullniEWvtxIfykE+i/GQK7mazQbQFmRRbI8p0/Kw==\n\
             -----END PUBLIC KEY-----\n",
            "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjJ9.GjLL3Ug_d5rnWaYmrJH4-FOxKkMSJupFio\
             pc80RyfxsS3neTzuMZ8kqwGWwTrI1-SZDlw_ETC2IbJPG_THqNZQ",
        ),
        (
            "-----BEGIN PUBLIC KEY-----\n\
             MCowBQYDK2VwAyEAFeU+2lIg5kmHuVuhszmjg8+GFa1Q+ev8EZXES8U6ExU=\n\
             -----END PUBLIC KEY-----\n",
            "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjJ9.M8yYGak2RRIO9MXTZ6XdVzbrpdZniAlAEt\
             QWxTixlvu4I3H8dcJeP3mF6avpgK7AWqUD9ptfDcXCcclL8g8gBw",
        ),
    ];

    fn tokens() -> Tokens {
        Tokens::new(SECRET, "", true).unwrap()
    }

    /// The buyer of a token, or the code of the problem.
    fn buyer(tokens: &Tokens, token: &str) -> Result<String, &'static str> {
        let request =
            TestRequest::default().insert_header((AUTHORIZATION, format!("Bearer {token}"))).to_http_request();
        tokens.buyer(request.head(), 1_000).map(|buyer| buyer.user.to_string()).map_err(|problem| problem.code())
    }

    fn signed(header: &Header, sub: &str, secret: &str) -> String {
        let claims = json!({ "sub": sub, "exp": 2 });
        encode(header, &claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
    }

    /// A text with its right signature.
    fn signed_text(text: &str) -> String {
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), text.as_bytes());
        format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn a_token_is_checked_alike_whether_its_header_is_known_or_not() {
        for knows_header in [false, true] {
            let (tokens, header) = (tokens(), Header::new(Algorithm::HS256));
            if knows_header {
                assert_eq!(buyer(&tokens, &signed(&header, "first", SECRET)), Ok("first".into()));
            }
            let good = signed(&header, "ann", SECRET);
            let (message, signature) = good.rsplit_once('.').unwrap();
            let (head, claims) = message.split_once('.').unwrap();
            for forged in [
                signed(&header, "ann", "another secret"),
                format!("{message}."),
                format!("{message}.{}", &signature[..20]),
                format!("{message}.{signature}AAAA"),
                format!("{message}.{}", "A".repeat(400)),
                format!("{message}.{signature}."),
                message.to_owned(),
                signed_text(&format!("{head}.{claims}.{claims}")),
                format!("{head}.{}.{signature}", BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"eve","exp":2}"#)),
                format!("{}.{claims}.", BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#)),
                format!(".{claims}.{signature}"),
                String::new(),
            ] {
                assert_eq!(buyer(&tokens, &forged), Err("unauthenticated"), "{forged}");
            }
            assert_eq!(buyer(&tokens, &good), Ok("ann".into()));
        }
    }

    #[test]
    fn a_public_key_verifies_the_tokens_of_its_private_key_alone() {
        for (at, (key, _)) in SIGNED_BY_KEYS.into_iter().enumerate() {
            let tokens = Tokens::new("", key, false).unwrap();
            for (of, (_, token)) in SIGNED_BY_KEYS.into_iter().enumerate() {
                let outcome = if of == at { Ok("ann".into()) } else { Err("unauthenticated") };
                assert_eq!(buyer(&tokens, token), outcome, "{token}");
                let (message, signature) = token.rsplit_once('.').unwrap();
                let (head, _) = message.split_once('.').unwrap();
                let eve = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"eve","exp":2}"#);
                assert_eq!(buyer(&tokens, &format!("{head}.{eve}.{signature}")), Err("unauthenticated"));
                // A public key must not be usable as an HS256 secret.
                let message = format!("{}.{eve}", BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#));
                let by_public_key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), message.as_bytes());
                let forged = format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(by_public_key));
                assert_eq!(buyer(&tokens, &forged), Err("unauthenticated"));
            }
        }
        for no_key in ["secret", "-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n"] {
            assert!(Tokens::new("", no_key, false).is_err());
        }
    }

    /// RFC 7515, 4.1.11, and RFC 7519, 4.1.1.
    #[test]
    fn extensions_that_are_critical_and_lists_of_issuers_are_refused() {
        let tokens = tokens().requiring("", "bank");
        let token = |header: &str, issuer: serde_json::Value| {
            let claims = json!({ "sub": "ann", "exp": 2, "iss": issuer }).to_string();
            let [header, claims] = [header, &claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
            signed_text(&format!("{header}.{claims}"))
        };
        let plain = r#"{"alg":"HS256"}"#;
        // The second time, the header of the right token is known.
        for _ in 0..2 {
            assert_eq!(buyer(&tokens, &token(plain, json!("bank"))), Ok("ann".into()));
            for issuers in [json!(["bank"]), json!(["bank", "eve"]), json!("eve"), json!({ "bank": 1 })] {
                assert_eq!(buyer(&tokens, &token(plain, issuers.clone())), Err("unauthenticated"), "{issuers}");
            }
            for critical in [r#"["b64"]"#, r#"["exp"]"#, "[]", "true", "null"] {
                let header = format!(r#"{{"alg":"HS256","crit":{critical},"b64":true}}"#);
                assert_eq!(buyer(&tokens, &token(&header, json!("bank"))), Err("unauthenticated"), "{critical}");
            }
        }
    }

    #[test]
    fn claims_are_checked_also_where_the_header_is_known() {
        let (tokens, header) = (tokens(), Header::new(Algorithm::HS256));
        let tokens = tokens.requiring("shop", "");
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        for (claims, outcome) in [
            (json!({ "sub": "ann", "exp": 2, "aud": ["other", "shop"] }), Ok("ann".into())),
            (json!({ "sub": "ann", "exp": 2, "aud": "shop" }), Ok("ann".into())),
            (json!({ "sub": "ann", "exp": 1, "aud": "shop" }), Err("unauthenticated")),
            (json!({ "sub": "ann", "exp": 2, "aud": "other" }), Err("unauthenticated")),
            (json!({ "sub": "ann", "exp": 2, "aud": { "shop": 1 } }), Err("unauthenticated")),
            (json!({ "sub": "ann", "exp": 2 }), Err("unauthenticated")),
            (json!({ "sub": "a b", "exp": 2, "aud": "shop" }), Err("unauthenticated")),
            (json!({ "sub": "ann", "aud": "shop" }), Err("unauthenticated")),
            (json!({ "sub": 7, "exp": 2, "aud": "shop" }), Err("unauthenticated")),
            (json!(["ann", 0, 2, "shop", null]), Err("unauthenticated")),
        ] {
            assert_eq!(buyer(&tokens, &encode(&header, &claims, &key).unwrap()), outcome, "{claims}");
        }
    }

    #[test]
    fn more_headers_than_are_remembered_are_read_each_time() {
        let tokens = tokens();
        for _ in 0..2 {
            for kid in 0..8 {
                let header = Header { kid: Some(kid.to_string()), ..Header::new(Algorithm::HS256) };
                assert_eq!(buyer(&tokens, &signed(&header, "ann", SECRET)), Ok("ann".into()));
                assert_eq!(buyer(&tokens, &signed(&header, "ann", "another secret")), Err("unauthenticated"));
            }
        }
    }
}
