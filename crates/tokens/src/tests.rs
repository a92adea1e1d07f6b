//! Which tokens are believed, and whom they name.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use seckill_config::Auth;
use serde_json::{Value, json};

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

const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----\n\
         MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDHDtIxceaBgp1iDGuGfykfZ/Yp\n\
         EKjMkCfz/bRLeC2HVdg62xZT43Ff++cCSFi+i8IpbZRFbRywfW372jpPJqGMZ50v\n\
         2rLRXdrq3Q1fhzbFCylJg1/eAnek0gl78g0SEXm641WzCvISA7sUu68j8/h3UMIk\n\
         Aih9XcQOby0JOxjg8QIDAQAB\n\
         -----END PUBLIC KEY-----\n";

fn auth() -> Auth {
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

fn tokens(auth: Auth) -> Tokens {
    Tokens::new(&auth, true).unwrap()
}

/// At second 1.
fn buyer(tokens: &Tokens, token: &str) -> Result<String, TokenFault> {
    tokens.buyer(token, 1_000).map(|buyer| buyer.user.to_string())
}

fn signed_text(text: &str, secret: &str) -> String {
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

fn message(header: &str, claims: &Value) -> String {
    let [header, claims] = [header, &claims.to_string()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    format!("{header}.{claims}")
}

fn signed(header: &str, claims: &Value, secret: &str) -> String {
    signed_text(&message(header, claims), secret)
}

const HS256: &str = r#"{"alg":"HS256"}"#;

fn of(sub: &str) -> Value {
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

/// A key pair of an issuer, as its key set has it.
struct Pair {
    sign: Box<dyn Fn(&str) -> Vec<u8>>,
    alg: &'static str,
    jwk: Value,
}

impl Pair {
    fn ed25519(kid: &str) -> Self {
        let random = SystemRandom::new();
        let pair = Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
        let x = BASE64_URL_SAFE_NO_PAD.encode(pair.public_key());
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x });
        Self { sign: Box::new(move |text| pair.sign(text.as_bytes()).as_ref().to_vec()), alg: "EdDSA", jwk }
    }

    fn ec(kid: &str) -> Self {
        let random = SystemRandom::new();
        let terms = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(terms, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(terms, document.as_ref(), &random).unwrap();
        let [x, y] = [1..33, 33..65].map(|part| BASE64_URL_SAFE_NO_PAD.encode(&pair.public_key().as_ref()[part]));
        let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": x, "y": y });
        Self {
            sign: Box::new(move |text| pair.sign(&random, text.as_bytes()).unwrap().as_ref().to_vec()),
            alg: "ES256",
            jwk,
        }
    }

    fn token(&self, kid: Option<&str>) -> String {
        let mut header = json!({ "alg": self.alg });
        header.as_object_mut().unwrap().extend(kid.map(|kid| ("kid".to_owned(), json!(kid))));
        let message = message(&header.to_string(), &of("ann"));
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode((self.sign)(&message)))
    }
}

/// The RSA key of `SIGNED_BY_KEYS`, taken apart.
fn rsa_jwk() -> Value {
    let pem = SIGNED_BY_KEYS[0].0.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    let der = BASE64_STANDARD.decode(pem).unwrap();
    let modulus = &der[der.len() - 5 - 256..der.len() - 5];
    json!({ "kty": "RSA", "n": BASE64_URL_SAFE_NO_PAD.encode(modulus), "e": "AQAB" })
}

/// A file of keys, and the tokens that are verified by it.
struct Published {
    path: std::path::PathBuf,
    tokens: Tokens,
}

impl Published {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("seckill-{name}-{}.json", std::process::id()));
        let tokens = tokens(Auth { jwks_url: format!("file://{}", path.display()), ..auth() });
        Self { path, tokens }
    }

    async fn publish(&self, text: impl ToString) {
        std::fs::write(&self.path, text.to_string()).unwrap();
        self.tokens.issuer().unwrap().read().await;
    }

    async fn keys(&self, keys: &[&Value]) {
        self.publish(json!({ "keys": keys })).await;
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}

#[tokio::test]
async fn a_published_key_is_used_as_it_says_and_by_its_name() {
    let published = Published::new("as-it-says");
    let (ed, ec, other) = (Pair::ed25519("ed"), Pair::ec("ec"), Pair::ed25519("ed"));
    let rsa_token = SIGNED_BY_KEYS[0].1;
    let with = |key: &Value, name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        key
    };
    let rsa = rsa_jwk();
    let secret = json!({ "kty": "oct", "kid": "ed", "k": BASE64_URL_SAFE_NO_PAD.encode(SECRET) });
    let ed_token = ed.token(Some("ed"));
    for (keys, token, is_valid) in [
        (vec![ed.jwk.clone()], &ed_token, true),
        (vec![json!({}), json!(7), json!({ "kty": "new" }), ed.jwk.clone()], &ed_token, true),
        (vec![with(&ed.jwk, "use", json!("sig"))], &ed_token, true),
        (vec![with(&ed.jwk, "use", json!("enc")), ec.jwk.clone()], &ed_token, false),
        (vec![with(&ed.jwk, "key_ops", json!(["verify"]))], &ed_token, true),
        (vec![with(&ed.jwk, "key_ops", json!(["sign"])), ec.jwk.clone()], &ed_token, false),
        (vec![with(&ed.jwk, "alg", json!("EdDSA"))], &ed_token, true),
        (vec![with(&ed.jwk, "alg", json!("ES256")), ec.jwk.clone()], &ed_token, false),
        (vec![with(&ed.jwk, "alg", json!("HS256")), ec.jwk.clone()], &ed_token, false),
        (vec![with(&ed.jwk, "d", json!("published")), ec.jwk.clone()], &ed_token, false),
        (vec![with(&ed.jwk, "kid", json!("other"))], &ed_token, false),
        (vec![with(&ed.jwk, "kid", Value::Null)], &ed_token, true),
        (vec![other.jwk.clone(), ed.jwk.clone()], &ed_token, true),
        (vec![other.jwk.clone()], &ed_token, false),
        (vec![ed.jwk.clone()], &ed.token(None), true),
        (vec![ec.jwk.clone()], &ec.token(Some("ec")), true),
        (vec![with(&ec.jwk, "crv", json!("P-384")), ed.jwk.clone()], &ec.token(Some("ec")), false),
        (vec![rsa.clone()], &rsa_token.to_owned(), true),
        (vec![with(&rsa, "alg", json!("RS256"))], &rsa_token.to_owned(), true),
        (vec![with(&rsa, "alg", json!("PS256")), ec.jwk.clone()], &rsa_token.to_owned(), false),
        (vec![with(&rsa, "n", json!("AQAB")), ec.jwk.clone()], &rsa_token.to_owned(), false),
        (vec![secret, ec.jwk.clone()], &signed(r#"{"alg":"HS256","kid":"ed"}"#, &of("ann"), SECRET), true),
    ] {
        published.keys(&keys.iter().collect::<Vec<_>>()).await;
        for _ in 0..2 {
            assert_eq!(buyer(&published.tokens, token).is_ok(), is_valid, "{keys:?}: {token}");
        }
    }
    // The published `x` is no secret of an HS256 token.
    published.keys(&[&ed.jwk]).await;
    let forged = signed(r#"{"alg":"HS256","kid":"ed"}"#, &of("eve"), ed.jwk["x"].as_str().unwrap());
    assert_eq!(buyer(&published.tokens, &forged), Err(TokenFault::Signature));
}

#[tokio::test]
async fn a_key_set_that_cannot_be_read_leaves_the_known_keys() {
    let published = Published::new("unread");
    let (old, new) = (Pair::ed25519("old"), Pair::ec("new"));
    let [of_old, of_new] = [old.token(Some("old")), new.token(Some("new"))];
    // Nothing has been read: no token is judged by its key.
    assert_eq!(buyer(&published.tokens, &of_old), Err(TokenFault::KeyNotRead));
    published.tokens.issuer().unwrap().read().await;
    assert_eq!(buyer(&published.tokens, &of_old), Err(TokenFault::KeyNotRead), "there is no file");
    published.keys(&[&old.jwk]).await;
    let long = format!("{{\"keys\":[],\"more\":\"{}\"}}", "x".repeat(300_000));
    for wrong in ["", "garbage", "[]", "{}", r#"{"keys":{}}"#, r#"{"keys":[]}"#, r#"{"keys":[{"kty":"RSA"}]}"#, &long] {
        published.publish(wrong).await;
        assert_eq!(buyer(&published.tokens, &of_old), Ok("ann".into()), "{wrong:.40}");
    }
    // Both, then the new one alone.
    published.keys(&[&old.jwk, &new.jwk]).await;
    for token in [&of_old, &of_new] {
        assert_eq!(buyer(&published.tokens, token), Ok("ann".into()));
    }
    published.keys(&[&new.jwk]).await;
    assert_eq!(buyer(&published.tokens, &of_new), Ok("ann".into()));
    assert!(buyer(&published.tokens, &of_old).is_err());
}

/// A name that is unknown is asked for once, and then refused. Invented ones do not fill the memory.
#[tokio::test]
async fn an_unknown_name_waits_for_one_read() {
    let published = Published::new("unknown");
    let (known, late) = (Pair::ed25519("known"), Pair::ed25519("late"));
    published.keys(&[&known.jwk]).await;
    let of_late = late.token(Some("late"));
    for _ in 0..3 {
        assert_eq!(buyer(&published.tokens, &of_late), Err(TokenFault::KeyNotRead));
    }
    // A failed read decides nothing.
    published.publish("garbage").await;
    assert_eq!(buyer(&published.tokens, &of_late), Err(TokenFault::KeyNotRead));
    published.keys(&[&known.jwk]).await;
    for _ in 0..3 {
        assert_eq!(buyer(&published.tokens, &of_late), Err(TokenFault::UnknownKey));
    }
    published.keys(&[&known.jwk, &late.jwk]).await;
    assert_eq!(buyer(&published.tokens, &of_late), Ok("ann".into()));
    let invented = (0..2_000).map(|n| buyer(&published.tokens, &known.token(Some(&format!("invented {n}")))));
    let waiting = invented.filter(|outcome| *outcome == Err(TokenFault::KeyNotRead)).count();
    assert_eq!(waiting, 1_000);
    assert_eq!(buyer(&published.tokens, &known.token(Some(&"x".repeat(257)))), Err(TokenFault::UnknownKey));
    assert_eq!(buyer(&published.tokens, &known.token(Some("known"))), Ok("ann".into()));
}
