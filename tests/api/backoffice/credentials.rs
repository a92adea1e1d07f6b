//! Tokens of applications and of buyers: their rotation and their audience.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use seckill_domain::account::AccountRole;
use serde_json::{Value, json};

use crate::backoffice::admin_api::Person;
use crate::backoffice::admin_sessions::seckill;
use crate::flow::permits_and_policies::policies_are_followed;
use seckill_harness::{Answer, System, until};

/// The answer to a token at each instance.
async fn asked(system: &System, token: &str) -> Vec<u16> {
    let mut answers = Vec::new();
    for instance in &system.instances {
        let request = reqwest::Client::new().post(format!("http://{}/api/v1/flow/acquire", instance.address));
        let request = request.bearer_auth(token).json(&json!({ "app": "shop", "policy": "p" }));
        answers.push(request.send().await.unwrap().status().as_u16());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn an_applications_token_is_replaced_without_a_gap() {
    let mut system = System::prepare(&[]).await;
    for _ in 0..2 {
        system.serve(false).await;
    }
    let root = Person::new(&system, "root", AccountRole::Admin).await;
    let made = root.post("apps", json!({ "name": "shop" })).await;
    let first = made.body["token"].as_str().unwrap().to_owned();

    let hour = || Some(json!({ "overlap_ms": 3_600_000 }));
    let rotated = root.call("POST", "apps/shop/tokens", hour()).await;
    assert_eq!(rotated.status, 201, "{}", rotated.body);
    let second = rotated.body["token"].as_str().unwrap().to_owned();
    let left_ms = rotated.body["old_token_ends_at_ms"].as_i64().unwrap() - chrono::Utc::now().timestamp_millis();
    assert!((3_500_000..=3_600_000).contains(&left_ms), "{left_ms}");
    policies_are_followed(&system).await;
    for token in [&first, &second] {
        assert_eq!(asked(&system, token).await, [200, 200]);
    }
    // Another new token would end the first one early, while callers still use it.
    assert_eq!(root.call("POST", "apps/shop/tokens", hour()).await.code(), "409 conflict");
    // The list does not contain the tokens.
    let listed = root.get("apps").await.body.to_string();
    assert!(listed.contains("\"shop\"") && [&first, &second].iter().all(|secret| !listed.contains(&secret[..8])));

    // The old token ends by itself, without a change at that moment.
    let sooner = "UPDATE apps SET old_token_ends_at = now() + interval '1 second' WHERE name = 'shop'";
    system.execute(sooner).await;
    until([401, 401], || asked(&system, &first)).await;
    assert_eq!(asked(&system, &second).await, [200, 200]);

    // A leaked token is replaced without an overlap, and every earlier token ends.
    let [third, fourth] = ["600", "0"].map(|overlap| {
        let rotated = seckill(&system, &["app", "rotate", "shop", "--overlap", overlap], "").unwrap();
        serde_json::from_str::<Value>(&rotated).unwrap()["token"].as_str().unwrap().to_owned()
    });
    policies_are_followed(&system).await;
    for (token, answer) in [(&second, 401), (&third, 401), (&fourth, 200)] {
        assert_eq!(asked(&system, token).await, [answer, answer]);
    }
    let listed = seckill(&system, &["app", "list", "--format", "json"], "").unwrap();
    assert!(listed.contains("\"shop\"") && !listed.contains(&fourth), "{listed}");

    // Not for a missing application, or for the service itself, which needs no token.
    for app in ["nowhere", "seckill"] {
        assert_eq!(root.call("POST", &format!("apps/{app}/tokens"), hour()).await.code(), "404 not-found");
    }
    for overlap in [-1_i64, 2_592_000_001] {
        let wrong = root.post("apps/shop/tokens", json!({ "overlap_ms": overlap })).await;
        assert_eq!(wrong.code(), "400 invalid-request");
    }
    let actions = "SELECT count(*) FROM audit_log WHERE action = 'app token rotated' AND subject = 'app shop'";
    assert_eq!(system.value::<i64>(actions).await, 3);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_tokens_are_for_this_shop_when_it_says_so() {
    let (shop, issuer) = ("shop.example", "https://id.example");
    let settings = [("SECKILL_AUTH__JWT_AUDIENCE", shop), ("SECKILL_AUTH__JWT_ISSUER", issuer)];
    let mut system = System::without_workers(&settings).await;
    let read = async |more: Value| {
        let mut claims = json!({ "sub": "ann", "exp": chrono::Utc::now().timestamp() + 3600 });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let [header, claims] =
            [r#"{"alg":"HS256"}"#, &claims.to_string()].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let key = hmac::Key::new(hmac::HMAC_SHA256, system.config.auth.jwt_secret.as_bytes());
        let signature = hmac::sign(&key, format!("{header}.{claims}").as_bytes());
        let token = format!("{header}.{claims}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature));
        let request = reqwest::Client::new().get(system.url("/api/v1/orders")).bearer_auth(token);
        Answer::of(request.send().await.unwrap()).await
    };
    // Development mode names the claim.
    let detail = read(json!({ "aud": shop, "iss": issuer, "level": "gold" })).await.body["detail"].clone();
    assert_eq!(detail, "the token is not valid: the claim level is not a whole number");
    for (claims, status) in [
        (json!({ "aud": shop, "iss": issuer }), 200),
        (json!({ "aud": ["other.example", shop], "iss": issuer }), 200),
        (json!({ "aud": shop, "iss": issuer, "exp": chrono::Utc::now().timestamp() as f64 + 3600.5 }), 200),
        (json!({ "aud": shop, "iss": issuer, "nbf": chrono::Utc::now().timestamp() + 3600 }), 401),
        (json!({ "aud": shop, "iss": issuer, "sub": "auth0|5f7c" }), 200),
        (json!({}), 401),
        (json!({ "aud": "other.example", "iss": issuer }), 401),
        (json!({ "aud": shop, "iss": "https://other.example" }), 401),
    ] {
        assert_eq!(read(claims.clone()).await.status, status, "{claims}");
    }
    // The tokens of development mode are for this shop.
    let issued = reqwest::Client::new().post(system.url("/api/v1/dev/token")).json(&json!({ "user": "ann" }));
    let issued: Value = issued.send().await.unwrap().json().await.unwrap();
    let on_the_command_line = seckill(&system, &["token", "--user", "ann"], "").unwrap();
    for token in [issued["token"].as_str().unwrap(), on_the_command_line.trim()] {
        let request = reqwest::Client::new().get(system.url("/api/v1/orders")).bearer_auth(token);
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    system.stop().await;
}
