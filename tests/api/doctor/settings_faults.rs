//! Unsafe settings. No server is needed: nothing listens at the addresses.

use std::time::Duration;

use seckill::doctor::Verdict::{Fail, Pass, Warn};
use seckill_harness::Environment;

use super::{Look, config};
use crate::published_secrets;

/// Safe settings of production.
fn safe() -> Environment {
    let mut environment = published_secrets::safe();
    environment.insert("SECKILL_HTTP__TRUSTED_PROXIES".to_owned(), "127.0.0.1".to_owned());
    environment
}

/// The doctor asks no server here, so the servers need no time.
async fn with(settings: &[(&str, &str)]) -> Look {
    Look::within(&config(&safe(), settings), Duration::from_millis(200)).await
}

const PUBLISHED: &str = "0123456789abcdef0123456789abcdef";
const PUBLISHED_WEBHOOK: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn safe_settings_pass() {
    for check in with(&[]).await.of("settings") {
        assert_eq!(check.verdict, Pass, "{check:#?}");
    }
}

/// Development mode is worse if other machines can reach it.
#[tokio::test]
async fn development_mode_is_found() {
    with(&[("SECKILL_DEV", "1")]).await.shows("settings.development", Warn, "this machine only");
    let reached = [("SECKILL_DEV", "1"), ("SECKILL_HTTP__BIND", "0.0.0.0:8080")];
    with(&reached).await.shows("settings.development", Fail, "0.0.0.0:8080");
}

/// Every published secret is found in one run, by its setting, and none is shown.
#[tokio::test]
async fn published_secrets_are_found() {
    let secrets = [
        ("SECKILL_AUTH__JWT_SECRET", PUBLISHED),
        ("SECKILL_ALARMS__WEBHOOK_URL", "https://127.0.0.1:1"),
        ("SECKILL_ALARMS__WEBHOOK_SECRET", PUBLISHED_WEBHOOK),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
    ];
    let look = with(&secrets).await;
    look.shows("settings.secrets", Fail, "amqp.url, auth.jwt_secret, alarms.webhook_secret");
    for check in look.checks.values() {
        let shown = format!("{check:?}");
        assert!(!shown.contains(PUBLISHED) && !shown.contains(PUBLISHED_WEBHOOK), "{shown}");
    }
    let developing: Vec<_> = secrets.into_iter().chain([("SECKILL_DEV", "1")]).collect();
    with(&developing).await.shows("settings.secrets", Warn, "development mode allows it");
}

/// Receivers without TLS and the sandbox bank are found. The finding is milder if they are allowed.
#[tokio::test]
async fn receivers_without_tls_and_the_play_bank_are_found() {
    let secret = seckill_harness::webhook_secret();
    let receivers = [("SECKILL_SHOP__WEBHOOK_URL", "http://shop:80/"), ("SECKILL_SHOP__WEBHOOK_SECRETS", &*secret)];
    with(&receivers).await.shows("settings.receivers", Fail, "shop.webhook_url");
    let allowed: Vec<_> = receivers.into_iter().chain([("SECKILL_ALLOW__HTTP_RECEIVERS", "1")]).collect();
    with(&allowed).await.shows("settings.receivers", Warn, "allow");

    let bank = [("SECKILL_CHANNELS__SANDBOX__SECRETS", &*secret), ("SECKILL_CHANNELS__SANDBOX__URL", "https://bank")];
    with(&bank).await.shows("settings.play-bank", Fail, "sandbox bank");
    let allowed: Vec<_> = bank.into_iter().chain([("SECKILL_ALLOW__SANDBOX_CHANNEL", "1")]).collect();
    with(&allowed).await.shows("settings.play-bank", Warn, "allow");
}

/// Servers reached without TLS are found. The finding is worse across the internet. The addresses are reserved.
#[tokio::test]
async fn servers_without_tls_are_found() {
    for (setting, address, verdict, found) in [
        ("REDIS_URL", "redis://203.0.113.7/", Fail, "redis.url (over the internet)"),
        ("DATABASE_URL", "postgres://seckill@192.0.2.7/x", Fail, "database.url (over the internet)"),
        ("DATABASE_URL", "postgres://seckill@10.255.255.1/x?sslmode=require", Warn, "believes any certificate"),
        ("AMQP_URL", "amqp://10.255.255.1/%2f", Warn, "amqp.url (in a private network)"),
        ("SECKILL_AMQP__MANAGEMENT_URL", "http://10.255.255.1:15672", Warn, "amqp.management_url"),
    ] {
        with(&[(setting, address)]).await.shows("settings.tls", verdict, found);
    }
    for (setting, address) in [
        ("SECKILL_REDIS__LOCK_URLS", "rediss://203.0.113.8/"),
        ("AMQP_URL", "amqps://192.0.2.7/%2f"),
        ("DATABASE_URL", "postgres://seckill@10.255.255.1/x?sslmode=verify-full"),
    ] {
        assert_eq!(with(&[(setting, address)]).await.verdict("settings.tls"), Pass, "{address}");
    }
}

/// An origin that is reachable past the proxy is found, and an untrusted proxy.
#[tokio::test]
async fn a_way_past_the_proxy_is_found() {
    with(&[("SECKILL_HTTP__BIND", "0.0.0.0:8080")]).await.shows("settings.bind", Warn, "0.0.0.0:8080");
    with(&[("SECKILL_HTTP__BIND", "[::]:8080")]).await.shows("settings.bind", Warn, "[::]:8080");
    with(&[("SECKILL_HTTP__BIND", "203.0.113.7:8080")]).await.shows("settings.bind", Fail, "203.0.113.7:8080");
    let open = with(&[("SECKILL_HTTP__BIND", "10.0.0.7:8080"), ("SECKILL_HTTP__TRUSTED_PROXIES", "")]).await;
    open.shows("settings.bind", Warn, "http.trusted_proxies is empty");
    open.shows("settings.proxies", Warn, "not believed");
}
