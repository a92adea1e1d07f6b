//! Metrics, and the secrets that a log must never contain.

use std::process::Stdio;

use reqwest::Client;
use seckill_telemetry::described_metrics;
use serde_json::json;

use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use crate::network::service_killed::Process;
use crate::orders::payments_and_callbacks;
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::{System, eventually, terms, wait_until};

/// Metrics that appear only with failures, stuck queues, challenges, an outflow, order webhooks, loans between shards, or viewers of the
/// live page. Other tests cause them.
const NOT_HERE: [&str; 17] = [
    "seckill_queue_marks_total",
    "seckill_queues_replaced_total",
    "seckill_shed_total",
    "seckill_challenges_total",
    "seckill_challenge_answers_total",
    "seckill_clients_cut_total",
    "seckill_payment_wait_seconds",
    "seckill_outflow_waiting",
    "seckill_outflow_oldest_seconds",
    "seckill_outflow_parked",
    "seckill_outflow_total",
    "seckill_order_events_total",
    "seckill_policy_threshold",
    "seckill_step_failures_total",
    "seckill_live_streams",
    "seckill_loans_total",
    "seckill_loans_taken_back_total",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_stage_shows_its_metrics_and_no_others_exist() {
    let settings = [
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "300"),
        ("SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS", "0"),
        ("SECKILL_AUTH__JWKS_URL", "file:///dev/null"),
    ];
    let system = System::start_with(&settings).await;
    let sale = system.create_sale(terms(2)).await;
    let shop = Caller::new(&system, "shop").await;
    set(&system, policy("shop", "login", a_day(1))).await;
    shop.code(json!({ "app": "shop", "policy": "login" })).await;
    for user in ["ann", "ben", "eve"] {
        system.buy(&sale, user).send().await;
    }
    system.settled(&sale).await;
    let order: String = system.get("/api/v1/orders", Some("ann")).await.1[0]["order_id"].as_str().unwrap().into();
    assert_eq!(system.post(&format!("/api/v1/orders/{order}/cancel"), "ann").await.0, 200);
    let bens: String = system.get("/api/v1/orders", Some("ben")).await.1[0]["order_id"].as_str().unwrap().into();
    // The channel reports the outcome after the payment was sent to it.
    let bens = bens.parse().unwrap();
    payments_and_callbacks::pay(&system, bens, "ben").await;
    wait_until(
        || async { reqwest::get(system.url("/metrics")).await.unwrap().text().await.unwrap() },
        |text| text.contains("seckill_payments_sent_total"),
    )
    .await;
    payments_and_callbacks::paid(&system, bens, "ben").await;
    system.get("/api/v1/sales/424242", None).await;
    let current = || async {
        let text = reqwest::get(system.url("/metrics")).await.unwrap().text().await.unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let names = lines.filter_map(|line| line.split(['{', ' ']).next());
        let base_name = |name: &str| {
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
        };
        let names: std::collections::BTreeSet<String> =
            names.map(base_name).filter(|name| name.starts_with("seckill_")).collect();
        (names, text)
    };
    eventually(|| async {
        let (names, _) = current().await;
        let expected = described_metrics().map(|metric| metric.name).filter(|name| !NOT_HERE.contains(name));
        let missing: Vec<_> = expected.filter(|name| !names.contains(*name)).collect();
        missing.is_empty().then_some(()).ok_or(format!("{missing:?}"))
    })
    .await;
    let (names, text) = current().await;
    let undescribed: Vec<_> =
        names.iter().filter(|name| described_metrics().all(|metric| metric.name != **name)).collect();
    assert!(undescribed.is_empty(), "{undescribed:?}");
    for line in [
        "seckill_answers_total{code=\"sold-out\"}",
        "seckill_answers_total{code=\"accepted\"}",
        "seckill_reads_total{level=\"filter\"}",
    ] {
        assert!(text.contains(line), "{line}");
    }
    system.finish().await;
}

/// A17: no secret is logged, even with all levels on, and no caller can forge a line.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_logged_and_no_line_forged() {
    let mut system = System::prepare(&[]).await;
    let address = free_address();
    let folder = Folder::new("log");
    let log = std::fs::File::create(folder.file("log")).unwrap();
    let more = [("RUST_LOG", "trace,h2=off,hyper=off"), ("SECKILL_WORK__METRICS_BIND", "127.0.0.1:0")];
    let process = Process::start_with(&system, address, &more, Stdio::from(log)).ready(address).await;
    let sale = system.create_sale(terms(5)).await;
    let mut click = system.buy_at(address, &sale, "ann").idempotent("a-key-that-nobody-should-see");
    let token = click.token.clone().unwrap();
    let order = click.clone().send().await.order_id();
    click.path = format!("{}%0aforged%20line", sale.id);
    click.send().await;
    let forged = Client::new().get(format!("http://{address}/x%0aFORGED")).header("x-any", "FORGED").send().await;
    assert_eq!(forged.unwrap().status(), 404);
    system.settled(&sale).await;
    process.end();
    let log = std::fs::read_to_string(folder.file("log")).unwrap();
    assert!(log.contains(&order), "the log does not name the order");
    let secret = &system.environment["SECKILL_AUTH__JWT_SECRET"];
    let signature = token.rsplit('.').next().unwrap();
    for hidden in [secret, signature, &sale.key, "a-key-that-nobody-should-see"] {
        assert!(!log.contains(hidden), "logged: {hidden}");
    }
    assert!(
        !log.lines().any(|line| line.starts_with("FORGED") || line.starts_with("forged")),
        "a caller forged a line"
    );
    system.stop().await;
    system.finish().await;
}
