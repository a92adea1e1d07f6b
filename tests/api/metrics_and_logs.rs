//! Metrics, traces, and the secrets that a log must never contain.

use std::process::Stdio;

use reqwest::Client;
use seckill::telemetry::described_metrics;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::payments_and_callbacks;
use crate::permits_and_policies::{Caller, a_day, policy, set};
use crate::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{System, eventually, terms};

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
    let settings = [("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "300"), ("SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS", "0")];
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
    eventually(|| async {
        let text = reqwest::get(system.url("/metrics")).await.unwrap().text().await.unwrap();
        text.contains("seckill_payments_sent_total").then_some(()).ok_or("no payment was sent".into())
    })
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

/// A server that answers every POST with 200. Returns its address, and the received bodies.
pub async fn collector() -> (String, tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sent, received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut wire, _)) = listener.accept().await {
            let sent = sent.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while let Ok(n @ 1..) = wire.read(&mut bytes).await {
                    let _ = sent.send(bytes[..n].to_vec());
                    let _ = wire.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                }
            });
        }
    });
    (address, received)
}

/// A17: no secret, token or key is ever logged, and no caller can forge a line. Traces show an order from purchase to
/// fulfilment.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_can_be_traced_and_no_secret_is_logged() {
    let mut system = System::prepare(&[]).await;
    let (endpoint, mut received) = collector().await;
    let address = free_address();
    let folder = std::env::temp_dir().join(format!("seckill-{}", uuid::Uuid::new_v4().simple()));
    let log = std::fs::File::create(&folder).unwrap();
    let more = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("SECKILL_TRACES__SAMPLE_ONE_IN", "1"),
        ("RUST_LOG", "trace,h2=off,hyper=off"),
        ("SECKILL_WORK__METRICS_BIND", "127.0.0.1:0"),
    ];
    let process = Process::start_with(&system, address, &more, Stdio::from(log)).ready(address).await;
    let sale = system.create_sale(terms(5)).await;
    let mut click = system.buy_at(address, &sale, "ann").idempotent("a-key-that-nobody-should-see");
    let token = click.token.clone().unwrap();
    let order = click.clone().send().await.order_id();
    click.path = format!("{}%0aforged%20line", sale.id);
    click.send().await;
    let forged = Client::new().get(format!("http://{address}/x%0aFORGED")).header("x-any", "FORGED").send().await;
    assert_eq!(forged.unwrap().status(), 404);
    let mut traced = Vec::new();
    eventually(|| {
        while let Ok(more) = received.try_recv() {
            traced.extend(more);
        }
        let text = String::from_utf8_lossy(&traced).into_owned();
        let found = ["POST purchases", "publish", "fulfil", order.as_str()].iter().all(|word| text.contains(word));
        std::future::ready(found.then_some(()).ok_or(format!("{} bytes", text.len())))
    })
    .await;
    system.settled(&sale).await;
    process.end();
    let log = std::fs::read_to_string(&folder).unwrap();
    std::fs::remove_file(&folder).unwrap();
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
