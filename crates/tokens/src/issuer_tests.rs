//! Key sets of an issuer: which of their keys are used, and what a read that fails changes.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use seckill_config::Auth;
use serde_json::{Value, json};

use super::tests::{SECRET, SIGNED_BY_KEYS, auth, buyer, message, of, signed, tokens};
use super::*;
use crate::issuer::NAMES_MAX;

type Signer = Box<dyn Fn(&str) -> Vec<u8>>;

/// A key pair of an issuer, as its key set has it.
struct Pair {
    sign: Signer,
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
        let tokens = tokens(Auth { jwks_url: format!("file://{}", path.display()), jwks_refresh_s: 1, ..auth() });
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
    assert_eq!(waiting, 2_000);
    let issuer = published.tokens.issuer().unwrap();
    assert_eq!(issuer.names_waiting(), NAMES_MAX);
    // Failed reads forget nothing, and add nothing.
    for round in 0..3 {
        published.publish("garbage").await;
        assert_eq!(
            buyer(&published.tokens, &known.token(Some(&format!("again {round}")))),
            Err(TokenFault::KeyNotRead)
        );
        assert!(issuer.names_waiting() <= NAMES_MAX);
    }
    assert_eq!(buyer(&published.tokens, &known.token(Some(&"x".repeat(257)))), Err(TokenFault::UnknownKey));
    assert_eq!(buyer(&published.tokens, &known.token(Some("known"))), Ok("ann".into()));
}

/// Few keys are tried for one token. The named key comes first, then keys without a name.
#[tokio::test]
async fn the_key_that_a_token_names_is_tried_first() {
    let published = Published::new("named-first");
    let nameless: Vec<Value> = (0..6)
        .map(|_| {
            let mut jwk = Pair::ed25519("").jwk;
            jwk["kid"] = Value::Null;
            jwk
        })
        .collect();
    let named = Pair::ed25519("named");
    published.keys(&nameless.iter().chain([&named.jwk]).collect::<Vec<_>>()).await;
    assert_eq!(buyer(&published.tokens, &named.token(Some("named"))), Ok("ann".into()));
}

/// No token asks for a read here: that of the old key is known.
#[tokio::test]
async fn the_keys_are_read_again_before_they_are_old() {
    let published = Published::new("again");
    let (old, new) = (Pair::ed25519("old"), Pair::ed25519("new"));
    published.keys(&[&old.jwk]).await;
    let issuer = Arc::clone(published.tokens.issuer().unwrap());
    let following = tokio::spawn(async move { issuer.follow().await });
    std::fs::write(&published.path, json!({ "keys": [new.jwk] }).to_string()).unwrap();
    let of_old = old.token(Some("old"));
    let forgotten = async {
        while buyer(&published.tokens, &of_old).is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), forgotten).await.unwrap();
    assert_eq!(buyer(&published.tokens, &new.token(Some("new"))), Ok("ann".into()));
    following.abort();
}
