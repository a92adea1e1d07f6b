//! Unsafe settings. No server is needed: nothing listens at the addresses.

use std::time::Duration;

use seckill::doctor::Verdict::{self, Fail, Pass, Unknown, Warn};
use seckill_harness::{Environment, System, terms};

use super::{Look, config, shows_in_time};

/// Safe settings of production.
fn safe() -> Environment {
    let mut environment = seckill_harness::production_settings();
    environment.insert("SECKILL_HTTP__TRUSTED_PROXIES".to_owned(), "127.0.0.1".to_owned());
    environment
}

/// The doctor asks no server here, so the servers need no time.
async fn with(settings: &[(&str, &str)]) -> Look {
    Look::within(&config(&safe(), settings), Duration::from_millis(200)).await
}

type Settings<'a> = &'a [(&'a str, &'a str)];

const PROXIES: &str = "SECKILL_HTTP__TRUSTED_PROXIES";
const PUBLISHED: &str = "0123456789abcdef0123456789abcdef";
const PUBLISHED_WEBHOOK: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn safe_settings_pass() {
    for check in with(&[]).await.of("settings") {
        assert_eq!(check.verdict, Pass, "{check:#?}");
    }
}

/// Each unsafe setting is found. The finding is milder if a setting allows it, or if other machines cannot reach the service. An address
/// in the internet is worse than one in a private network.
#[tokio::test]
async fn unsafe_settings_are_found() {
    let secret = &*seckill_harness::webhook_secret();
    let (dev, everywhere) = (("SECKILL_DEV", "1"), ("SECKILL_HTTP__BIND", "0.0.0.0:8080"));
    let shop = [("SECKILL_SHOP__WEBHOOK_URL", "http://shop:80/"), ("SECKILL_SHOP__WEBHOOK_SECRETS", secret)];
    let bank = [("SECKILL_CHANNELS__SANDBOX__SECRETS", secret), ("SECKILL_CHANNELS__SANDBOX__URL", "https://bank")];
    let shop_allowed = [&shop[..], &[("SECKILL_ALLOW__HTTP_RECEIVERS", "1")]].concat();
    let bank_allowed = [&bank[..], &[("SECKILL_ALLOW__SANDBOX_CHANNEL", "1")]].concat();
    let open = [("SECKILL_HTTP__BIND", "10.0.0.7:8080"), ("SECKILL_HTTP__TRUSTED_PROXIES", "")];
    let unproven = "postgres://seckill@10.255.255.1/x?sslmode=require";
    let cases: [(Settings<'_>, &str, Verdict, &str); 22] = [
        (&[dev], "development", Warn, "this machine only"),
        (&[dev, everywhere], "development", Fail, "0.0.0.0:8080"),
        (&shop, "receivers", Fail, "shop.webhook_url"),
        (&shop_allowed, "receivers", Warn, "allow"),
        (&[("SECKILL_AUTH__JWKS_URL", "http://127.0.0.1:9/keys")], "issuer", Fail, "http://"),
        (&[("SECKILL_AUTH__JWKS_URL", "https://127.0.0.1:9/keys")], "issuer", Unknown, "not read"),
        (&bank, "play-bank", Fail, "sandbox bank"),
        (&bank_allowed, "play-bank", Warn, "allow"),
        (&[("REDIS_URL", "redis://203.0.113.7/")], "tls", Fail, "redis.url (over the internet)"),
        (&[("DATABASE_URL", "postgres://seckill@192.0.2.7/x")], "tls", Fail, "database.url (over the internet)"),
        (&[("DATABASE_URL", unproven)], "tls", Warn, "believes any certificate"),
        (&[("AMQP_URL", "amqp://10.255.255.1/%2f")], "tls", Warn, "amqp.url (in a private network)"),
        (&[("SECKILL_AMQP__MANAGEMENT_URL", "http://10.255.255.1:15672")], "tls", Warn, "amqp.management_url"),
        (&[everywhere], "bind", Warn, "0.0.0.0:8080"),
        (&[("SECKILL_HTTP__BIND", "[::]:8080")], "bind", Warn, "[::]:8080"),
        (&[("SECKILL_HTTP__BIND", "203.0.113.7:8080")], "bind", Fail, "203.0.113.7:8080"),
        (&open, "bind", Warn, "http.trusted_proxies is empty"),
        (&open, "proxies", Warn, "x-forwarded-for of a proxy is not believed"),
        (&[(PROXIES, "10.0.0.0/8,0.0.0.0/0")], "proxies", Fail, "from everybody: 0.0.0.0/0"),
        (&[(PROXIES, "::/1")], "proxies", Warn, "large parts of the Internet: ::/1"),
        (&[(PROXIES, "104.0.0.0/8,fd00::/8,192.0.2.0/24")], "proxies", Warn, "the Internet: 104.0.0.0/8"),
        (&[dev, ("SECKILL_AUTH__JWT_SECRET", PUBLISHED)], "secrets", Warn, "development mode allows it"),
    ];
    for (settings, check, verdict, found) in cases {
        with(settings).await.shows(&format!("settings.{check}"), verdict, found);
    }
    for networks in ["10.0.0.0/8,172.16.0.0/12", "fc00::/7, 100.64.0.0/10", "104.16.0.0/13,2400:cb00::/32", "127.0.0.1"]
    {
        let settings = [(PROXIES, networks), ("SECKILL_HTTP__FORWARDED_HEADER", "forwarded")];
        with(&settings).await.shows("settings.proxies", Pass, "forwarded is believed from");
    }
    for (setting, address) in [
        ("SECKILL_REDIS__LOCK_URLS", "rediss://203.0.113.8/"),
        ("AMQP_URL", "amqps://192.0.2.7/%2f"),
        ("DATABASE_URL", "postgres://seckill@10.255.255.1/x?sslmode=verify-full"),
    ] {
        assert_eq!(with(&[(setting, address)]).await.verdict("settings.tls"), Pass, "{address}");
    }
}

/// A running service knows whether its proxies write addresses.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_writes_no_addresses_is_found() {
    let system = System::shared().await;
    let sale = system.create_sale(terms(1)).await;
    system.buy(&sale, "ann").from("203.0.113.7, unknown").send().await;
    let bind = system.instances[0].address.to_string();
    let config = config(&safe(), &[("SECKILL_HTTP__BIND", &bind)]);
    let look = async || Look::within(&config, Duration::from_secs(5)).await;
    shows_in_time(look, "settings.proxies", Warn, "named a client by no address").await;
}

/// Every published secret is found in one run, by its setting, and none is shown.
#[tokio::test]
async fn published_secrets_are_found() {
    let look = with(&[
        ("SECKILL_AUTH__JWT_SECRET", PUBLISHED),
        ("SECKILL_ALARMS__WEBHOOK_URL", "https://127.0.0.1:1"),
        ("SECKILL_ALARMS__WEBHOOK_SECRET", PUBLISHED_WEBHOOK),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
    ])
    .await;
    look.shows("settings.secrets", Fail, "amqp.url, auth.jwt_secret, alarms.webhook_secret");
    for check in look.checks.values() {
        let shown = format!("{check:?}");
        assert!(!shown.contains(PUBLISHED) && !shown.contains(PUBLISHED_WEBHOOK), "{shown}");
    }
}
