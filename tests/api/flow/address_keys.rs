//! Keys that are network addresses.

use reqwest::Client;
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::NewPolicy;
use serde_json::json;
use url::Url;

use crate::backoffice::console_frame::header;
use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use seckill_harness::System;

/// Where a policy's key is `address`, gateways and clients may write one in any form. Other policies take every key as it is.
#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_an_address_is_one_key() {
    let system = System::shared().await;
    let app = "address-shop";
    let shop = Caller::new(&system, app).await;
    set(&system, NewPolicy { key: "address".into(), ..policy(app, "web", a_day(100)) }).await;
    set(&system, NewPolicy { key: "user".into(), ..policy(app, "text", a_day(100)) }).await;
    let left = async |policy: &str, key: &str| {
        shop.ask(json!({ "app": app, "policy": policy, "key": key })).await["remaining"].as_i64().unwrap()
    };
    let by_gateway = async |part: &str, key: &str| {
        let url = system.url("/api/v1/flow/authorize");
        let request = match part {
            "query" => Client::new().get(Url::parse_with_params(&url, [("policy", "web"), ("key", key)]).unwrap()),
            _ => Client::new().head(url).header("X-Seckill-Policy", "web").header("X-Seckill-Key", key),
        };
        let answer = request.bearer_auth(&shop.token).send().await.unwrap();
        let state = header(&answer, "ratelimit").strip_prefix("\"web\";r=").unwrap().split(';').next().unwrap();
        state.parse::<i64>().unwrap()
    };
    for spellings in [
        &[
            "2001:db8:5:6::1",
            "2001:DB8:5:6::2",
            "[2001:0db8:0005:0006:0:0:0:3]:443",
            "2001:db8:5:6::4%eth0",
            "2001:db8:5:6::/64",
        ][..],
        &["198.51.100.9", "::ffff:198.51.100.9", "198.51.100.9:1234", "64:ff9b::c633:6409", "2002:c633:6409::7"],
        // No addresses: each is a key of its own.
        &["address 198.51.100.9"],
        &["198.51.100.9, 198.51.100.10"],
        &["2001:db8:5:6"],
    ] {
        let mut all = 100;
        for (n, spelling) in spellings.iter().enumerate() {
            assert_eq!(left("web", spelling).await, all - 1, "{spelling}");
            assert_eq!(by_gateway("query", spelling).await, all - 2, "{spelling}");
            assert_eq!(by_gateway("header", spelling).await, all - 3, "{spelling}");
            all -= 3;
            assert_eq!(left("text", spelling).await, 99, "{n}: {spelling}");
        }
    }
    // Twice in one call, in two spellings.
    let twice = json!({ "app": app, "policy": "web", "key": "::ffff:1.2.3.4", "also": [{ "policy": "web", "key": "1.2.3.4" }] });
    assert_eq!(shop.post("acquire", &twice).await.0, 400);

    let one = Parameters { limit: Some(1), lease_ms: Some(3_600_000), ..Parameters::default() };
    let one = Algorithm::new(AlgorithmKind::Concurrency, &one).unwrap();
    set(&system, NewPolicy { key: "address".into(), ..policy(app, "slow", one) }).await;
    let ask = async |key: &str| shop.ask(json!({ "app": app, "policy": "slow", "key": key })).await;
    let granted = ask("2001:db8:7::1").await;
    assert_eq!(ask("[2001:DB8:7::2]:80").await["code"], -1);
    let give = json!({ "app": app, "policy": "slow", "key": "2001:db8:7:0::3", "lease": granted["lease"] });
    assert_eq!(shop.post("release", &give).await.1, json!({ "released": true }));
    assert_eq!(ask("2001:db8:7::4").await["code"], 1);
}
