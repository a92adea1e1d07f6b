//! Configuration: an invalid or unknown setting stops the start with a message that names it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

use std::collections::HashMap;

use seckill_config::{self as config, Config};

/// The default configuration with these settings.
fn read(settings: &[(&str, &str)]) -> Result<Config, String> {
    let base = [
        ("REDIS_URL", "redis://127.0.0.1:1/"),
        ("DATABASE_URL", "postgres://x@127.0.0.1:1/x"),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
        ("SECKILL_DEV", "1"),
    ];
    let environment: HashMap<String, String> =
        base.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Config::read(&environment).map_err(|error| error.to_string())
}

#[test]
fn the_environment_overrides_the_defaults() {
    let config = read(&[
        ("SECKILL_HTTP__BIND", "127.0.0.1:9999"),
        ("SECKILL_HTTP__TRUSTED_PROXIES", "127.0.0.1, ::1,10.0.0.0/8, fd00::/8"),
        ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
        ("SECKILL_REDIS__URL", "redis://127.0.0.1:2/"),
    ])
    .unwrap();
    assert_eq!((config.http.bind.port(), config.http.trusted_proxies.len()), (9999, 4));
    assert_eq!((config.purchase.buyer_limit, config.redis.url.as_str()), (-1, "redis://127.0.0.1:2/"));
    assert!(config.dev && !config.auth.jwt_secret.is_empty());
}

#[test]
fn a_wrong_value_names_its_setting() {
    for (name, value, named) in [
        ("SECKILL_HTTP__BIND", "nowhere", "http.bind"),
        ("SECKILL_HTTP__TRUSTED_PROXIES", "127.0.0.1,proxy", "proxy"),
        ("SECKILL_HTTP__TRUSTED_PROXIES", "10.0.0.7/8", "write 10.0.0.0/8"),
        ("SECKILL_HTTP__FORWARDED_HEADER", "x-real-ip", "http.forwarded_header"),
        ("SECKILL_HTTP__CORS_ORIGINS", "*", "http.cors_origins"),
        ("SECKILL_HTTP__CORS_ORIGINS", "https://shop.example,https://other.example/", "https://other.example/"),
        ("SECKILL_PAGES__ORIGIN", "https://shop.example/", "pages.origin"),
        ("SECKILL_PAGES__ORIGIN", "shop.example", "https://shop.example"),
        ("SECKILL_PAGES__NAME", "n".repeat(61).as_str(), "pages.name"),
        ("SECKILL_PAGES__NAME_ZH", "秒\u{200b}杀", "pages.name_zh"),
        ("SECKILL_PAGES__ACCENT", "red", "pages.accent"),
        ("SECKILL_PAGES__ACCENT", "#ff8a70", "must be darker"),
        ("SECKILL_PAGES__ACCENT_DARK", "#b8321f", "must be lighter"),
        ("SECKILL_CHANNELS__SANDBOX__TITLE", "t".repeat(61).as_str(), "channels.sandbox.title"),
        ("SECKILL_PAYMENTS__CURRENCY", "yuan", "payments.currency"),
        ("SECKILL_PAYMENTS__CURRENCY", "ZZZ", "payments.currency"),
        ("SECKILL_PAYMENTS__CURRENCY", "XAU", "payments.currency"),
        ("SECKILL_PURCHASE__BUYER_LIMIT", "0", "purchase.buyer_limit"),
        ("SECKILL_PURCHASE__BUYER_LIMIT", "many", "purchase.buyer_limit"),
        ("SECKILL_ADMIN__LOGIN_LIMIT", "-1", "admin.login_limit"),
        ("SECKILL_ADMIN__HASH_THREADS", "0", "admin.hash_threads"),
        ("SECKILL_ADMIN__HASH_LINE_MAX", "0", "admin.hash_line_max"),
        ("SECKILL_ADMIN__HASH_WAIT_MAX_MS", "99", "admin.hash_wait_max_ms"),
        ("SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS", "501", "purchase.sold_out_memory_ms"),
        ("SECKILL_PURCHASE__BATCH_MAX", "5000", "purchase.batch_max"),
        ("SECKILL_CAPTCHA__PASS_TTL_MS", "120000", "captcha.pass_ttl_ms"),
        ("SECKILL_CAPTCHA__CHALLENGE_TTL_MS", "999", "captcha.challenge_ttl_ms"),
        ("SECKILL_CAPTCHA__OPENS_BEFORE_MS", "86400001", "captcha.opens_before_ms"),
        ("SECKILL_CAPTCHA__WORK_BITS_MIN", "29", "captcha.work_bits_min"),
        ("SECKILL_CAPTCHA__WORK_BITS_MAX", "15", "captcha.work_bits_max"),
        ("SECKILL_CAPTCHA__IMAGES_MAX", "0", "captcha.images_max"),
        ("SECKILL_CAPTCHA__BUYER_LIMIT", "0", "captcha.buyer_limit"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "9", "reconcile.sweep_interval_ms"),
        ("SECKILL_RECONCILE__RETIRE_AFTER_MS", "9223372036854775808", "reconcile.retire_after_ms"),
        ("SECKILL_SANDBOX__SECRET", "short", "sandbox.secret"),
        ("SECKILL_SANDBOX__CALLBACK_URL", "ftp://bank", "sandbox.callback_url"),
        ("SECKILL_SANDBOX__REFUND_RATE", "0", "sandbox.refund_rate"),
        ("SECKILL_HTTP__STREAMS_MAX", "0", "http.streams_max"),
        ("SECKILL_SHOP__WEBHOOK_URL", "shop.example/orders", "shop.webhook_url"),
        ("SECKILL_SHOP__WEBHOOK_URL", "http://shop.example/orders", "shop.webhook_secrets"),
        ("SECKILL_TRACES__ENDPOINT", "https://collector:4318", "traces.endpoint"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "traces.endpoint"),
        ("SECKILL_TRACES__PER_SECOND_MAX", "10001", "traces.per_second_max"),
        ("SECKILL_TRACES__SAMPLE_ONE_IN", "10", "traces.endpoint"),
        ("SECKILL_AUTH__JWT_SECRET", "short", "auth.jwt_secret"),
        ("SECKILL_AUTH__JWT_SECRET", "ab".repeat(20).as_str(), "auth.jwt_secret"),
        ("SECKILL_AUTH__JWT_SECRET_PREVIOUS", "short", "auth.jwt_secret_previous"),
        ("SECKILL_AUTH__JWKS_URL", "id.example/keys", "auth.jwks_url"),
        ("SECKILL_AUTH__JWKS_URL", "https://user:password@id.example/keys", "auth.jwks_url"),
        ("SECKILL_AUTH__JWKS_URL", "file://keys.json", "auth.jwks_url"),
        ("SECKILL_AUTH__JWKS_REFRESH_S", "9", "auth.jwks_refresh_s"),
        ("SECKILL_AUTH__JWT_LEEWAY_S", "301", "auth.jwt_leeway_s"),
        ("SECKILL_AUTH__JWT_CLAIM_ID", "exp", "auth.jwt_claim_id"),
        ("SECKILL_AUTH__JWT_CLAIM_LEVEL", "sub", "auth.jwt_claim_level"),
        ("SECKILL_DEV", "0", "auth.jwt_secret"),
        ("REDIS_URL", "", "redis.url"),
        ("SECKILL_REDIS__CA_FILE", "/nowhere/ca.pem", "redis.ca_file"),
        ("SECKILL_AMQP__CA_FILE", "/dev/null", "amqp.ca_file"),
        ("SECKILL_AMQP__MANAGEMENT_URL", "broker:15672", "amqp.management_url"),
        ("DATABASE_URL", "postgres://x@one:1,two:2,one:1/x", "database.url"),
        ("DATABASE_URL", "postgres://x@one,two/x?target_session_attrs=any", "target_session_attrs=read-write"),
        ("AMQP_URL", "amqp://x@one:1,/%2f", "amqp.url"),
        ("REDIS_URL", "redis://one:1,two:1/", "redis+sentinel://"),
        ("REDIS_URL", "redis+sentinel://one:1,two:1/", "redis.url"),
        ("DATABASE_URL", "postgres://x@127.0.0.1:1/x?sslmode=require&sslrootcert=/ca.pem", "sslmode=verify-full"),
    ] {
        let error = read(&[(name, value)]).expect_err(name);
        assert!(error.contains(named), "{name}={value}: {error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
}

/// A time of 0 would mean a loop without a pause, or a feature that never works. Where 0 has a meaning, the setting's comment says so.
#[test]
fn no_time_may_be_nothing_unless_its_comment_says_what_that_means() {
    let (mut section, mut comment, mut checked, mut taken) = (String::new(), String::new(), 0, Vec::new());
    for line in include_str!("../../../config.default.toml").lines() {
        if let Some(name) = line.strip_prefix('[') {
            name.trim_end_matches(']').clone_into(&mut section);
        } else if line.starts_with('#') {
            comment.push_str(line);
        } else if let Some((name, _)) = line.split_once(" = ") {
            let is_time = ["_ms", "_s", "_days"].iter().any(|unit| name.ends_with(unit));
            // An entry of a list has no variable of this form.
            if is_time && !section.contains('.') && !comment.contains(" 0 ") {
                let variable = format!("SECKILL_{}__{}", section.to_uppercase(), name.to_uppercase());
                match read(&[(&variable, "0")]) {
                    Ok(_) => taken.push(variable),
                    Err(error) => assert!(error.contains(&format!("{section}.{name}")), "{error}"),
                }
                checked += 1;
            }
            comment.clear();
        }
    }
    assert!(taken.is_empty(), "{taken:?} may be 0");
    assert!(checked > 30, "{checked}");
}

#[test]
fn an_unknown_setting_is_refused_by_its_name() {
    for name in [
        "SECKILL_HTPP__BIND",
        "SECKILL_HTTP__BINDD",
        "SECKILL_HTTP",
        "SECKILL_HTTP_BIND",
        "SECKILL_BIND",
        "SECKILL_HTTP__BIND__PORT",
        "SECKILL_CHANNELS",
        "SECKILL_CHANNELS__SANDBOX",
    ] {
        let error = read(&[(name, "127.0.0.1:9999")]).expect_err(name);
        assert!(error.contains(&format!("{name} is not a setting")), "{error}");
        let bank = HashMap::from([("SECKILL_DEV".to_owned(), "1".to_owned()), (name.to_owned(), "1".to_owned())]);
        assert!(config::sandbox_settings(&bank).is_err_and(|error| error.to_string().contains(name)), "{name}");
    }
    let error = read(&[("SECKILL_CHANNELS__SANDBOX__URI", "http://bank")]).unwrap_err();
    assert!(error.contains("uri"), "{error}");
}

#[test]
fn variables_of_the_test_suite_and_of_others_are_no_settings() {
    assert!(read(&[("SECKILL_TEST_LONG", "1"), ("SECKILLET", "1"), ("RUST_LOG", "info")]).is_ok());
}

#[test]
fn the_sandbox_channel_needs_none_of_the_servers() {
    let dev = HashMap::from([("SECKILL_DEV".to_owned(), "1".to_owned())]);
    assert!(config::sandbox_settings(&dev).unwrap().secret.starts_with("whsec_"));
    let error = config::sandbox_settings(&HashMap::new()).unwrap_err().to_string();
    assert!(error.contains("sandbox.secret"), "{error}");
    // The service does not need the bank's secret.
    let served =
        read(&[("SECKILL_DEV", "0"), ("SECKILL_AUTH__JWT_SECRET", "0123456789abcdef0123456789abcdef")]).unwrap();
    assert!(served.sandbox.secret.is_empty());
}

#[test]
fn secrets_do_not_print() {
    let config = read(&[
        ("SECKILL_AUTH__JWT_SECRET", "0123456789abcdef0123456789abcdef"),
        ("SECKILL_SHOP__WEBHOOK_SECRETS", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ])
    .unwrap();
    let shown = format!("{config:?}");
    assert!(!shown.contains("0123456789abcdef") && !shown.contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
}

/// A file in the place of a value, as secrets are mounted.
#[test]
fn a_setting_may_be_read_from_a_file() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str, content: &[u8]| {
        let path = folder.join(format!("{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let address = file("address", b"postgres://x@127.0.0.1:7/x\n");
    let key = file("key", b"a secret with a space at its end \r\n");
    let hook = format!("whsec_{}", "A".repeat(40));
    let hooks = file("hooks", format!("{hook},{hook}").as_bytes());
    let config = read(&[
        ("SECKILL_AUTH__JWT_SECRET_FILE", &key),
        ("SECKILL_CHANNELS__BANK__KIND", "sandbox"),
        ("SECKILL_CHANNELS__BANK__URL", "https://bank.example"),
        ("SECKILL_CHANNELS__BANK__SECRETS_FILE", &hooks),
        ("SECKILL_CHANNELS__BANK__RATE", "1"),
        ("SECKILL_CHANNELS__BANK__REFUND_RATE", "1"),
        ("SECKILL_CHANNELS__BANK__JITTER_MS", "1"),
        ("SECKILL_CHANNELS__BANK__TIMEOUT_MS", "1000"),
        // A compose file passes variables on that are not set.
        ("SECKILL_ALARMS__WEBHOOK_SECRET_FILE", ""),
        ("SECKILL_REDIS__CA_FILE", ""),
    ])
    .unwrap();
    assert_eq!(config.auth.jwt_secret, "a secret with a space at its end ");
    assert_eq!(config.channels["bank"].secrets.len(), 2);
    let alone: HashMap<String, String> = [
        ("DATABASE_URL_FILE", address.as_str()),
        ("REDIS_URL", "redis://127.0.0.1:1/"),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
        ("SECKILL_DEV", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    assert_eq!(Config::read(&alone).unwrap().database.url, "postgres://x@127.0.0.1:7/x");

    let (large, binary) = (file("large", &[b'a'; 65_537]), file("binary", &[0xff, 0xfe]));
    for (name, path, named) in [
        ("SECKILL_AUTH__JWT_SECRET_FILE", "/no/such/file", "SECKILL_AUTH__JWT_SECRET_FILE: cannot read /no/such/file"),
        ("SECKILL_AUTH__JWT_SECRET_FILE", &large, "64 KiB"),
        ("SECKILL_SHOP__WEBHOOK_SECRETS_FILE", &binary, "SECKILL_SHOP__WEBHOOK_SECRETS_FILE"),
        ("DATABASE_URL_FILE", &address, "DATABASE_URL and DATABASE_URL_FILE are both set"),
        ("SECKILL_AUTH__NO_SUCH_FILE", &key, "SECKILL_AUTH__NO_SUCH_FILE is not a setting"),
        // What is in the file is checked as if it stood in the variable.
        ("SECKILL_HTTP__BIND_FILE", &key, "http.bind"),
    ] {
        let error = read(&[(name, path)]).map(drop).unwrap_err();
        assert!(error.contains(named), "{name}: {error}");
        assert!(!error.contains("127.0.0.1:7") && !error.contains("a secret"), "{error}");
    }
}
