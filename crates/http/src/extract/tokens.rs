//! Bearer tokens, and the buyer that a token names.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

use actix_web::dev::RequestHead;
use actix_web::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::token_key::{InvalidKey, TokenKey};
use crate::problem::Problem;
use seckill_domain::ids::UserId;
use seckill_domain::json_object;

#[derive(Debug)]
pub struct Buyer {
    pub user: UserId,
    pub level: i64,
    pub expires_at_ms: i64,
}

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

/// Verifies buyers' tokens, and issues them in development mode.
pub struct Tokens {
    key: TokenKey,
    /// Headers of tokens that were signed by the key. An issuer uses one header until it names a new key. To parse it for each token of a
    /// crowd would double the time of the check.
    headers: [OnceLock<Box<str>>; 4],
    dev: bool,
    audience: Option<String>,
    issuer: Option<String>,
}

impl Tokens {
    /// The key decides the algorithm. A token whose header names another one is refused.
    pub fn new(secret: &str, public_key: &str, dev: bool) -> Result<Self, InvalidKey> {
        let key = if public_key.is_empty() { TokenKey::secret(secret) } else { TokenKey::public(public_key)? };
        Ok(Self { key, headers: Default::default(), dev, audience: None, issuer: None })
    }

    /// Requires this audience and this issuer; an empty text requires nothing.
    pub fn requiring(self, audience: &str, issuer: &str) -> Self {
        let required = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self { audience: required(audience), issuer: required(issuer), ..self }
    }

    /// A buyer's token that is valid until `expires_at_s`. `None` outside development mode, and without a secret to sign it.
    pub fn issue(&self, user: &UserId, level: i64, expires_at_s: i64) -> Option<String> {
        let TokenKey::Secret(key) = &self.key else { return None };
        if !self.dev {
            return None;
        }
        let mut claims = json!({ "sub": user.as_str(), "level": level, "exp": expires_at_s });
        for (name, required) in [("aud", &self.audience), ("iss", &self.issuer)] {
            if let Some(required) = required {
                claims[name] = json!(required);
            }
        }
        let [header, claims] =
            [r#"{"alg":"HS256","typ":"JWT"}"#, &claims.to_string()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let message = format!("{header}.{claims}");
        let signature = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(key, message.as_bytes()));
        Some(format!("{message}.{signature}"))
    }

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
        let known = |place: &OnceLock<Box<str>>| place.get().is_some_and(|known| **known == *header);
        let is_known = self.headers.iter().any(known);
        if !is_known {
            // RFC 7515, 4.1.11: a recipient refuses a token whose header lists an unknown extension as critical. We know no extension.
            let parameters: HashMap<String, Value> =
                json_object::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
            if parameters.get("alg")? != self.key.algorithm() || parameters.contains_key("crit") {
                return None;
            }
        }
        if !self.key.has_signed(message, signature) {
            return None;
        }
        if !is_known {
            // The first header that is equal, or the first free place.
            _ = self.headers.iter().any(|place| **place.get_or_init(|| header.into()) == *header);
        }
        Some(())
    }
}

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
    use super::*;
    use actix_web::test::TestRequest;

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

    fn buyer(tokens: &Tokens, token: &str) -> Result<String, &'static str> {
        let request =
            TestRequest::default().insert_header((AUTHORIZATION, format!("Bearer {token}"))).to_http_request();
        tokens.buyer(request.head(), 1_000).map(|buyer| buyer.user.to_string()).map_err(|problem| problem.code())
    }

    fn signed_text(text: &str, secret: &str) -> String {
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
        format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    fn signed(header: &str, claims: &Value, secret: &str) -> String {
        let [header, claims] = [header, &claims.to_string()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        signed_text(&format!("{header}.{claims}"), secret)
    }

    const HS256: &str = r#"{"alg":"HS256"}"#;

    fn of(sub: &str) -> Value {
        json!({ "sub": sub, "exp": 2 })
    }

    #[test]
    fn a_token_is_checked_alike_whether_its_header_is_known_or_not() {
        for knows_header in [false, true] {
            let tokens = tokens();
            if knows_header {
                assert_eq!(buyer(&tokens, &signed(HS256, &of("first"), SECRET)), Ok("first".into()));
            }
            let good = signed(HS256, &of("ann"), SECRET);
            let (message, signature) = good.rsplit_once('.').unwrap();
            let (head, claims) = message.split_once('.').unwrap();
            for forged in [
                signed(HS256, &of("ann"), "another secret"),
                format!("{message}."),
                format!("{message}.{}", &signature[..20]),
                format!("{message}.{signature}AAAA"),
                format!("{message}.{}", "A".repeat(400)),
                format!("{message}.{signature}."),
                message.to_owned(),
                signed_text(&format!("{head}.{claims}.{claims}"), SECRET),
                signed(r#"{"alg":"HS384"}"#, &of("ann"), SECRET),
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
                assert_eq!(buyer(&tokens, &signed_text(&message, key)), Err("unauthenticated"));
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
        let token =
            |header: &str, issuer: Value| signed(header, &json!({ "sub": "ann", "exp": 2, "iss": issuer }), SECRET);
        // The second time, the header of the right token is known.
        for _ in 0..2 {
            assert_eq!(buyer(&tokens, &token(HS256, json!("bank"))), Ok("ann".into()));
            for issuers in [json!(["bank"]), json!(["bank", "eve"]), json!("eve"), json!({ "bank": 1 })] {
                assert_eq!(buyer(&tokens, &token(HS256, issuers.clone())), Err("unauthenticated"), "{issuers}");
            }
            for critical in [r#"["b64"]"#, r#"["exp"]"#, "[]", "true", "null"] {
                let header = format!(r#"{{"alg":"HS256","crit":{critical},"b64":true}}"#);
                assert_eq!(buyer(&tokens, &token(&header, json!("bank"))), Err("unauthenticated"), "{critical}");
            }
        }
    }

    #[test]
    fn claims_are_checked_also_where_the_header_is_known() {
        let tokens = tokens().requiring("shop", "");
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
            assert_eq!(buyer(&tokens, &signed(HS256, &claims, SECRET)), outcome, "{claims}");
        }
    }

    #[test]
    fn more_headers_than_are_remembered_are_read_each_time() {
        let tokens = tokens();
        for _ in 0..2 {
            for kid in 0..8 {
                let header = format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#);
                assert_eq!(buyer(&tokens, &signed(&header, &of("ann"), SECRET)), Ok("ann".into()));
                assert_eq!(buyer(&tokens, &signed(&header, &of("ann"), "another secret")), Err("unauthenticated"));
            }
        }
    }
}
