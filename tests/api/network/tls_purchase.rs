//! A whole system over TLS: a private authority has signed each server's certificate, and each server asks for a password.

use std::process::Command;
use std::time::Duration;

use seckill_harness::{System, terms, until, wait_until};
use serde_json::{Value, json};

use crate::flow::permits_and_policies::Caller;
use crate::network::tls_servers::TlsServers;

/// Settings of a service outside development mode that reaches the servers.
fn settings(servers: &TlsServers) -> Vec<(&'static str, String)> {
    vec![
        ("SECKILL_DEV", "0".to_owned()),
        ("REDIS_URL", servers.redis_url()),
        ("SECKILL_REDIS__LOCK_URLS", servers.redis_url()),
        ("SECKILL_REDIS__CA_FILE", servers.file("ca.pem")),
        ("DATABASE_URL", format!("{}&sslrootcert={}", servers.postgres_url(), servers.file("ca.pem"))),
        ("AMQP_URL", servers.amqp_url()),
        ("SECKILL_AMQP__CA_FILE", servers.file("ca.pem")),
        // Each connection reads the machine's authorities, which is slow in an unoptimized program.
        ("SECKILL_REDIS__CONNECT_TIMEOUT_MS", "20000".to_owned()),
        ("SECKILL_REDIS__RESPONSE_TIMEOUT_MS", "20000".to_owned()),
        ("SECKILL_DATABASE__ACQUIRE_TIMEOUT_MS", "20000".to_owned()),
        ("SECKILL_AMQP__CONNECT_TIMEOUT_MS", "20000".to_owned()),
        ("SECKILL_PURCHASE__BUYER_LIMIT", "-1".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_goes_its_whole_way_over_tls_and_a_wrong_authority_stops_the_start() {
    let servers = TlsServers::start().await;
    let settings = settings(&servers);
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let system = System::start_with(&settings).await;

    let sale = system.create_sale(terms(2)).await;
    let bought = async |key: &str, code: &str| {
        wait_until(|| system.buy(&sale, "alice").idempotent(key).send(), |answer| answer.code() == code).await
    };
    let order = bought("one", "202").await;
    bought("another", "409 already-purchased").await;
    let path = format!("/api/v1/orders/{}", order.order_id());
    let becomes = async |status: &str| {
        until(status, || async { system.get(&path, Some("alice")).await.1["status"].clone() }).await;
    };
    // The message of the purchase has gone through the broker.
    becomes("pending_payment").await;
    assert_eq!(system.post(&format!("{path}/cancel"), "alice").await.0, 200);
    becomes("cancelled").await;
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, 2);
    let plain = system.number("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_addr IS NOT NULL AND NOT ssl",).await;
    assert_eq!(plain, 0);

    let run = |command: &[&str], more: &[(&str, &str)]| {
        // A service that starts by mistake would not end.
        let mut program = Command::new("timeout");
        program
            .arg("120")
            .arg(env!("CARGO_BIN_EXE_seckill"))
            .args(command)
            .env_clear()
            .envs(&system.environment)
            .envs(more.iter().copied())
            .env("RUST_LOG", "error");
        let ended = program.output().unwrap();
        (ended.status.success(), String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap())
    };
    // Commands connect in the same way. The authority's file has its own setting too.
    let (ca, without_ca) = (servers.file("ca.pem"), servers.postgres_url());
    let own_setting = [("DATABASE_URL", without_ca.as_str()), ("SECKILL_DATABASE__CA_FILE", ca.as_str())];
    let (done, verdict, error) = run(&["audit", "--json"], &own_setting);
    assert!(done, "{error}");
    assert_eq!(serde_json::from_str::<Value>(&verdict).unwrap()["held"], true);

    // The limiter and the lock servers have their own connections.
    let (done, app, error) = run(&["app", "create", "shop"], &[]);
    assert!(done, "{error}");
    let app: Value = serde_json::from_str(&app).unwrap();
    let policy = ["policy", "set", "--app", "shop", "--name", "p", "--algorithm", "fixed-window", "--limit", "10"];
    let (done, _, error) = run(&[&policy[..], &["--window-ms", "60000", "--when-down", "closed"]].concat(), &[]);
    assert!(done, "{error}");
    let shop = Caller::of(app["token"].as_str().unwrap().to_owned(), system.instances[0].address);
    until(1, || shop.code(json!({ "app": "shop", "policy": "p" }))).await;
    assert!(system.stores.gate.lock("l", Duration::from_secs(30)).await.unwrap().is_some());

    // Without a file, only the authorities of this machine are trusted.
    let (other, none) = (servers.file("other-ca.pem"), String::new());
    for (ca, setting) in [&other, &none].into_iter().flat_map(|ca| ["redis", "amqp", "database"].map(|name| (ca, name)))
    {
        let variable = format!("SECKILL_{}__CA_FILE", setting.to_uppercase());
        let mut wrong = vec![(variable.as_str(), ca.as_str())];
        if setting == "database" {
            wrong.push(("DATABASE_URL", &without_ca));
        }
        let setting = format!("{setting}.ca_file");
        for command in [&["serve", "--with-workers"][..], &["work"]] {
            let (done, _, error) = run(command, &wrong);
            assert!(!done && error.contains(&setting) && error.contains("certificate"), "{command:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
    // The authority is right, but the name is not.
    let renamed = servers.redis_url().replace("127.0.0.1", "localhost");
    let (done, _, error) = run(&["work"], &[("REDIS_URL", renamed.as_str())]);
    assert!(!done && error.contains("redis.url"), "{error}");
    // An address without TLS would not use the file.
    let plain = servers.redis_url().replace("rediss://", "redis://");
    let (done, _, error) = run(&["work"], &[("REDIS_URL", plain.as_str())]);
    assert!(!done && error.contains("redis.ca_file") && error.contains("rediss://"), "{error}");
    system.finish().await;
}
