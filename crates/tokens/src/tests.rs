//! Which tokens are believed, and whom they name.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use seckill_config::Auth;
use serde_json::{Value, json};

use super::*;

pub(crate) const SECRET: &str = "a secret of some length, for tests alone";

/// Public keys, and tokens of Ann signed by their private keys (which are not kept).
pub(crate) const SIGNED_BY_KEYS: [(&str, &str); 3] = [
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

const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----\n\
         MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDHDtIxceaBgp1iDGuGfykfZ/Yp\n\
         EKjMkCfz/bRLeC2HVdg62xZT43Ff++cCSFi+i8IpbZRFbRywfW372jpPJqGMZ50v\n\
         2rLRXdrq3Q1fhzbFCylJg1/eAnek0gl78g0SEXm641WzCvISA7sUu68j8/h3UMIk\n\
         Aih9XcQOby0JOxjg8QIDAQAB\n\
         -----END PUBLIC KEY-----\n";

pub(crate) fn auth() -> Auth {
    Auth {
        jwt_secret: SECRET.into(),
        jwt_secret_previous: String::new(),
        jwt_public_key: String::new(),
        jwks_url: String::new(),
        jwks_refresh_s: 300,
        jwks_min_interval_s: 10,
        jwks_timeout_ms: 1000,
        jwt_audience: String::new(),
        jwt_issuer: String::new(),
        jwt_leeway_s: 0,
        jwt_claim_id: "sub".into(),
        jwt_claim_level: "level".into(),
    }
}

pub(crate) fn tokens(auth: Auth) -> Tokens {
    Tokens::new(&auth, true).unwrap()
}

/// At second 1.
pub(crate) fn buyer(tokens: &Tokens, token: &str) -> Result<String, TokenFault> {
    tokens.buyer(token, 1_000).map(|buyer| buyer.user.to_string())
}

fn signed_text(text: &str, secret: &str) -> String {
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

pub(crate) fn message(header: &str, claims: &Value) -> String {
    let [header, claims] = [header, &claims.to_string()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    format!("{header}.{claims}")
}

pub(crate) fn signed(header: &str, claims: &Value, secret: &str) -> String {
    signed_text(&message(header, claims), secret)
}

const HS256: &str = r#"{"alg":"HS256"}"#;

pub(crate) fn of(sub: &str) -> Value {
    json!({ "sub": sub, "exp": 2 })
}

#[test]
fn a_token_is_checked_alike_whether_its_header_is_known_or_not() {
    for knows_header in [false, true] {
        let tokens = tokens(auth());
        if knows_header {
            assert_eq!(buyer(&tokens, &signed(HS256, &of("first"), SECRET)), Ok("first".into()));
        }
        let good = signed(HS256, &of("ann"), SECRET);
        let (message, signature) = good.rsplit_once('.').unwrap();
        let (head, claims) = message.split_once('.').unwrap();
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        for (forged, fault) in [
            (signed(HS256, &of("ann"), "another secret"), TokenFault::Signature),
            (format!("{message}."), TokenFault::Signature),
            (format!("{message}.{}", &signature[..20]), TokenFault::Signature),
            (format!("{message}.{signature}AAAA"), TokenFault::Signature),
            (format!("{message}.{}", "A".repeat(400)), TokenFault::Signature),
            (format!("{message}.{signature}."), TokenFault::Malformed),
            (message.to_owned(), TokenFault::Malformed),
            (signed_text(&format!("{head}.{claims}.{claims}"), SECRET), TokenFault::Malformed),
            (signed(r#"{"alg":"HS384"}"#, &of("ann"), SECRET), TokenFault::Algorithm),
            (signed(r#"{"alg":7}"#, &of("ann"), SECRET), TokenFault::Algorithm),
            (signed("{}", &of("ann"), SECRET), TokenFault::Algorithm),
            (signed("[]", &of("ann"), SECRET), TokenFault::Malformed),
            (signed(r#"{"alg":"RS256"}"#, &of("ann"), SECRET), TokenFault::Signature),
            (
                format!("{head}.{}.{signature}", BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"eve","exp":2}"#)),
                TokenFault::Signature,
            ),
            (format!("{none}.{claims}."), TokenFault::Algorithm),
            (format!(".{claims}.{signature}"), TokenFault::Malformed),
            (String::new(), TokenFault::Malformed),
        ] {
            assert_eq!(buyer(&tokens, &forged), Err(fault), "{forged}");
        }
        assert_eq!(buyer(&tokens, &good), Ok("ann".into()));
    }
}

#[test]
fn a_public_key_verifies_the_tokens_of_its_private_key_alone() {
    let of_key = |key: &str| {
        let settings = Auth { jwt_secret: String::new(), jwt_public_key: key.into(), ..auth() };
        Tokens::new(&settings, false)
    };
    for (at, (key, _)) in SIGNED_BY_KEYS.into_iter().enumerate() {
        let tokens = of_key(key).unwrap();
        for (of, (_, token)) in SIGNED_BY_KEYS.into_iter().enumerate() {
            assert_eq!(buyer(&tokens, token).ok(), (of == at).then(|| "ann".into()), "{token}");
            let (message, signature) = token.rsplit_once('.').unwrap();
            let (head, _) = message.split_once('.').unwrap();
            let eve = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"eve","exp":2}"#);
            assert!(buyer(&tokens, &format!("{head}.{eve}.{signature}")).is_err());
            // A public key must not be usable as an HS256 secret.
            let message = format!("{}.{eve}", BASE64_URL_SAFE_NO_PAD.encode(HS256));
            assert_eq!(buyer(&tokens, &signed_text(&message, key)), Err(TokenFault::Algorithm));
        }
    }
    let private = BASE64_STANDARD.encode(Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap());
    let private = |label: &str| format!("-----BEGIN {label}-----\n{private}\n-----END {label}-----\n");
    for wrong in [
        "secret",
        "-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n",
        RSA_1024,
        &private("PRIVATE KEY"),
        &private("EC PRIVATE KEY"),
        &format!("{}{RSA_1024}", SIGNED_BY_KEYS[0].0),
    ] {
        assert!(of_key(wrong).is_err(), "{wrong}");
    }
}

/// While one replaces another. Each algorithm has keys of its own.
#[test]
fn several_secrets_and_public_keys_verify_side_by_side() {
    let [rsa, ec, ed] = SIGNED_BY_KEYS;
    let previous = "the secret before, of some length, too";
    let tokens = tokens(Auth {
        jwt_secret_previous: previous.into(),
        jwt_public_key: format!("{}\n{}{}", rsa.0, ec.0, ed.0),
        ..auth()
    });
    for _ in 0..2 {
        for token in [rsa.1, ec.1, ed.1, &signed(HS256, &of("ann"), SECRET), &signed(HS256, &of("ann"), previous)] {
            assert_eq!(buyer(&tokens, token), Ok("ann".into()), "{token}");
        }
        assert_eq!(buyer(&tokens, &signed(HS256, &of("ann"), "another secret")), Err(TokenFault::Signature));
    }
    // The new secret signs.
    let issued = tokens.issue(&UserId::parse("ann").unwrap(), 3, 2).unwrap();
    assert_eq!(buyer(&super::tests::tokens(auth()), &issued), Ok("ann".into()));
}

/// RFC 7515, 4.1.11, and RFC 7519, 4.1.1.
#[test]
fn extensions_that_are_critical_and_lists_of_issuers_are_refused() {
    let tokens = tokens(Auth { jwt_issuer: "bank".into(), ..auth() });
    let token = |header: &str, issuer: Value| signed(header, &json!({ "sub": "ann", "exp": 2, "iss": issuer }), SECRET);
    // The second time, the header of the right token is known.
    for _ in 0..2 {
        assert_eq!(buyer(&tokens, &token(HS256, json!("bank"))), Ok("ann".into()));
        for issuers in [json!(["bank"]), json!(["bank", "eve"]), json!("eve"), json!({ "bank": 1 }), Value::Null] {
            assert_eq!(buyer(&tokens, &token(HS256, issuers.clone())), Err(TokenFault::Issuer), "{issuers}");
        }
        for critical in [r#"["b64"]"#, r#"["exp"]"#, "[]", "true", "null"] {
            let header = format!(r#"{{"alg":"HS256","crit":{critical},"b64":true}}"#);
            assert_eq!(buyer(&tokens, &token(&header, json!("bank"))), Err(TokenFault::Critical), "{critical}");
        }
    }
}

/// The claims' forms as issuers write them: docs/security.md lists them.
#[test]
fn each_claim_is_read_in_its_forms_and_named_when_it_has_another() {
    let tokens = tokens(Auth { jwt_audience: "shop".into(), ..auth() });
    let claims = |more: Value| {
        let mut claims = json!({ "sub": "ann", "exp": 2, "aud": "shop", "realm_access": { "roles": ["x", 1.5e300] } });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims
    };
    for (more, outcome) in [
        (json!({}), Ok(("ann", 0))),
        (json!({ "aud": ["other", "shop"] }), Ok(("ann", 0))),
        (json!({ "aud": ["other", 7, "shop"] }), Ok(("ann", 0))),
        (json!({ "aud": "other" }), Err(TokenFault::Audience)),
        (json!({ "aud": [] }), Err(TokenFault::Audience)),
        (json!({ "aud": { "shop": 1 } }), Err(TokenFault::Audience)),
        (json!({ "aud": null }), Err(TokenFault::Audience)),
        (json!({ "exp": 1.001 }), Ok(("ann", 0))),
        (json!({ "exp": 1e300 }), Ok(("ann", 0))),
        (json!({ "exp": u64::MAX }), Ok(("ann", 0))),
        (json!({ "exp": 1 }), Err(TokenFault::Expired)),
        (json!({ "exp": 0.999 }), Err(TokenFault::Expired)),
        (json!({ "exp": -1e300 }), Err(TokenFault::Expired)),
        (json!({ "exp": "2" }), Err(TokenFault::Expiry)),
        (json!({ "exp": null }), Err(TokenFault::Expiry)),
        (json!({ "nbf": 1 }), Ok(("ann", 0))),
        (json!({ "nbf": 0.5 }), Ok(("ann", 0))),
        (json!({ "nbf": 1.001 }), Err(TokenFault::Early)),
        (json!({ "nbf": 2 }), Err(TokenFault::Early)),
        (json!({ "nbf": "0" }), Err(TokenFault::Beginning)),
        (json!({ "nbf": null }), Ok(("ann", 0))),
        (json!({ "level": 3 }), Ok(("ann", 3))),
        (json!({ "level": -3.0 }), Ok(("ann", -3))),
        (json!({ "level": null }), Ok(("ann", 0))),
        (json!({ "level": "3" }), Err(TokenFault::Level)),
        (json!({ "level": 3.5 }), Err(TokenFault::Level)),
        (json!({ "level": [3] }), Err(TokenFault::Level)),
        (json!({ "sub": "auth0|5f7c" }), Ok(("auth0|5f7c", 0))),
        (json!({ "sub": "日本 \"a\"" }), Ok(("日本 \"a\"", 0))),
        (json!({ "sub": "a\nb" }), Err(TokenFault::Id)),
        (json!({ "sub": "" }), Err(TokenFault::Id)),
        (json!({ "sub": "x".repeat(129) }), Err(TokenFault::Id)),
        (json!({ "sub": 7 }), Err(TokenFault::Id)),
        (json!({ "sub": null }), Err(TokenFault::Id)),
    ] {
        let token = signed(HS256, &claims(more.clone()), SECRET);
        let found = tokens.buyer(&token, 1_000).map(|buyer| (buyer.user.to_string(), buyer.level));
        assert_eq!(found.as_ref().map(|(user, level)| (user.as_str(), *level)), outcome.as_ref().copied(), "{more}");
    }
    for (text, fault) in [
        (r#"["ann",0,2,"shop",null]"#, TokenFault::Malformed),
        (r#"{"sub":"ann","sub":"eve","exp":2,"aud":"shop"}"#, TokenFault::Malformed),
        (r#"{"sub":"ann","exp":2,"aud":"shop"} "#, TokenFault::Audience),
        (r#"{"sub":"ann","exp":2,"aud":"shop"}x"#, TokenFault::Malformed),
        ("", TokenFault::Malformed),
    ] {
        let [header, claims] = [HS256, text].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let found = buyer(&tokens, &signed_text(&format!("{header}.{claims}"), SECRET));
        assert!(found == Err(fault) || found == Ok("ann".into()) && text.ends_with(' '), "{text}: {found:?}");
    }
}

#[test]
fn the_names_of_claims_and_the_leeway_are_settings() {
    let tokens = tokens(Auth {
        jwt_claim_id: "https://shop.example/user".into(),
        jwt_claim_level: "member.level".into(),
        jwt_leeway_s: 2,
        ..auth()
    });
    let id = "https://shop.example/user";
    for (claims, outcome) in [
        (json!({ id: "ann", "sub": "eve", "level": 9, "member.level": 3, "exp": 2 }), Ok(3)),
        (json!({ id: "ann", "member": { "level": 3 }, "exp": 2 }), Ok(0)),
        (json!({ "sub": "ann", "exp": 2 }), Err(TokenFault::Id)),
        (json!({ id: "ann", "exp": -0.5 }), Ok(0)),
        (json!({ id: "ann", "exp": -1 }), Err(TokenFault::Expired)),
        (json!({ id: "ann", "exp": 9, "nbf": 3 }), Ok(0)),
        (json!({ id: "ann", "exp": 9, "nbf": 3.5 }), Err(TokenFault::Early)),
    ] {
        let found = tokens.buyer(&signed(HS256, &claims, SECRET), 1_000).map(|buyer| buyer.level);
        assert_eq!(found, outcome, "{claims}");
    }
    let issued = tokens.issue(&UserId::parse("ann").unwrap(), 3, 2).unwrap();
    assert_eq!(tokens.buyer(&issued, 1_000).map(|buyer| (buyer.user.to_string(), buyer.level)), Ok(("ann".into(), 3)));
    assert_eq!(tokens.unverified_user(&issued).as_deref(), Some("ann"));
    assert!(tokens.reason(TokenFault::Level).contains("member.level"));
}

#[test]
fn more_headers_than_are_remembered_are_read_each_time() {
    let tokens = tokens(auth());
    for _ in 0..2 {
        for kid in 0..8 {
            let header = format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#);
            assert_eq!(buyer(&tokens, &signed(&header, &of("ann"), SECRET)), Ok("ann".into()));
            assert_eq!(buyer(&tokens, &signed(&header, &of("ann"), "another secret")), Err(TokenFault::Signature));
        }
    }
}
