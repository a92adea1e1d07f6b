//! Outside development mode no service starts with a secret that this repository publishes (A22). The test finds the secrets in the files,
//! so a new one fails it until crates/config/src/published.txt has it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use regex::Regex;
use seckill_config::Config;
use seckill_harness::{production_settings, webhook_secret};
use seckill_webhook::Secret;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const LIST: &str = "crates/config/src/published.txt";

fn with(settings: &[(&str, &str)]) -> HashMap<String, String> {
    let mut environment = production_settings();
    environment.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    environment
}

fn check(settings: &[(&str, &str)]) -> Result<(), String> {
    let config = Config::read(&with(settings)).map_err(|error| format!("not even readable: {error}"))?;
    config.check_for_service().map_err(|error| error.to_string())
}

fn files(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(ROOT).unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), ".git" | ".dev" | ".sqlx" | "target") {
                files(&path, found);
            }
        } else if name != "Cargo.lock" && name != LIST {
            // A binary file has no secrets.
            found.extend(std::fs::read_to_string(&path).ok().map(|text| (name, text)));
        }
    }
}

/// The ways in which a file gives a value to a secret or a password.
fn patterns() -> Vec<Regex> {
    let any = r"(?:^|[^.\w])(?:\w+_)?(?:[sS]ecrets?|SECRETS?|[pP]assword|PASSWORD|PASS)";
    let capital = r"\b(?:\w+_)?(?:SECRETS?|PASSWORD|PASS)";
    [
        // name = "value", name: "value", const NAME: &str = "value"
        format!(r#"{any}(?:: &(?:'static )?str =|["']?\s*[:=])\s*"([^"\n]+)""#),
        // ("NAME", "value")
        format!(r#"{capital}",\s*"([^"\n]+)""#),
        // NAME=value, NAME: value, NAME: ${NAME:-value}
        format!(r#"{capital}(?:=|: )["']?([^\s"'$`,;:)&{{]+)"#),
        format!(r"\$\{{{capital}:-([^}}\n$]+)\}}"),
        // an address with a user and a password
        r#"\b[a-z][a-z0-9+]*://[^\s/"'@:]*:([^\s/"'@${}<]+)@"#.to_owned(),
        r"(whsec_[A-Za-z0-9+/]+=*)".to_owned(),
    ]
    .iter()
    .map(|pattern| Regex::new(pattern).unwrap())
    .collect()
}

fn published() -> BTreeMap<String, Vec<String>> {
    let (mut texts, mut found) = (BTreeMap::new(), BTreeMap::<String, Vec<String>>::new());
    files(Path::new(ROOT), &mut texts);
    for (pattern, (name, text)) in patterns().iter().flat_map(|pattern| texts.iter().map(move |text| (pattern, text))) {
        for capture in pattern.captures_iter(text) {
            let value = capture.get(1).unwrap();
            let called_secret = capture.get(0).unwrap().as_str().to_ascii_uppercase().contains("SECRET");
            // A service refuses shorter secrets anyway, and an example like whsec_... is not a secret.
            let usable = !called_secret || value.as_str().len() >= 32;
            if usable && (!value.as_str().starts_with("whsec_") || Secret::parse(value.as_str()).is_ok()) {
                let line = text[..value.start()].matches('\n').count() + 1;
                found.entry(value.as_str().to_owned()).or_default().push(format!("{name}:{line}"));
            }
        }
    }
    found
}

/// The settings that a secret fits: the settings to use, and the setting that a refusal must name.
fn uses(secret: &str) -> Vec<(Vec<(&'static str, String)>, &'static str)> {
    let encoded = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
    let mut single = vec![
        ("DATABASE_URL", format!("postgres://seckill:{encoded}@127.0.0.1:1/x")),
        ("DATABASE_URL", format!("postgres://seckill@127.0.0.1:1/x?password={encoded}")),
        ("DATABASE_URL", format!("postgres://seckill:{encoded}@127.0.0.1:1,127.0.0.1:2/x")),
        ("REDIS_URL", format!("redis://:{encoded}@127.0.0.1:1/")),
        ("REDIS_URL", format!("redis+sentinel://:{encoded}@127.0.0.1:1,127.0.0.1:2/shop")),
        ("AMQP_URL", format!("amqp://seckill:{encoded}@127.0.0.1:1/%2f")),
        ("AMQP_URL", format!("amqp://seckill:{encoded}@127.0.0.1:1,127.0.0.1:2/%2f")),
        ("SECKILL_AMQP__MANAGEMENT_URL", format!("https://seckill:{encoded}@127.0.0.1:1")),
        ("SECKILL_REDIS__LOCK_URLS", format!("redis://127.0.0.1:1/,rediss://a:{encoded}@127.0.0.1:2/")),
    ];
    if secret.len() >= 32 {
        single.push(("SECKILL_AUTH__JWT_SECRET", secret.to_owned()));
    }
    let two = format!("{},{secret}", webhook_secret());
    let is_webhook_secret = Secret::parse(secret).is_ok();
    if is_webhook_secret {
        single.extend([
            ("SECKILL_CHANNELS__SANDBOX__SECRETS", secret.to_owned()),
            ("SECKILL_SANDBOX__SECRET", secret.to_owned()),
            ("SECKILL_SHOP__WEBHOOK_SECRETS", two.clone()),
            ("SECKILL_ALARMS__WEBHOOK_SECRET", secret.to_owned()),
        ]);
    }
    let mut uses: Vec<_> = single.into_iter().map(|(name, value)| (vec![(name, value)], name)).collect();
    if is_webhook_secret {
        let bank = [("KIND", "sandbox"), ("URL", "https://bank"), ("RATE", "1"), ("REFUND_RATE", "1")];
        let bank = bank.into_iter().chain([("JITTER_MS", "1"), ("TIMEOUT_MS", "1000"), ("SECRETS", two.as_str())]);
        let variable = |name: &str| -> &'static str { format!("SECKILL_CHANNELS__BANK__{name}").leak() };
        let settings = bank.map(|(name, value)| (variable(name), value.to_owned())).collect();
        uses.push((settings, "SECKILL_CHANNELS__BANK__SECRETS"));
    }
    uses
}

#[test]
fn no_service_takes_a_published_secret_for_any_setting() {
    assert_eq!(check(&[]), Ok(()), "the settings of these tests must be all right");
    let published = published();
    // One of each place with secrets, so that the search cannot silently find nothing.
    for (value, file) in [
        ("development", "compose.yaml"),
        ("development-only-secret-0123456789abcdef", "crates/config/src/check.rs"),
        ("guest", "dev.d/sets.sh"),
        ("password", "config.default.toml"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "tests/api/orders/order_webhooks.rs"),
        ("a password of the tests", "tests/api/backoffice/admin_api.rs"),
    ] {
        let places = published.get(value).map(Vec::as_slice).unwrap_or_default();
        assert!(places.iter().any(|place| place.starts_with(file)), "{value} is not found in {file}: {published:#?}");
    }
    let mut taken = Vec::new();
    for (value, places) in &published {
        for (settings, named) in uses(value) {
            let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
            match check(&settings) {
                Err(error) if error.contains(named) && error.contains("is published") && !error.contains('\n') => {
                    assert!(!error.contains(value.as_str()) || value.len() < 12, "the secret is shown: {error}");
                }
                other => taken.push(format!("{value} of {places:?} in {named}: {other:?}")),
            }
        }
    }
    assert!(taken.is_empty(), "add to {LIST} what is published: {taken:#?}");
}

#[test]
fn the_program_does_not_start_with_a_published_secret() {
    let refused = |command: &str, environment: &HashMap<String, String>, named: &str| {
        // A service that starts by mistake would not end.
        let mut program = Command::new("timeout");
        program.arg("120").arg(env!("CARGO_BIN_EXE_seckill"));
        let ended = program.arg(command).env_clear().envs(environment).env("RUST_LOG", "error").output().unwrap();
        let error = String::from_utf8(ended.stderr).unwrap();
        assert!(
            !ended.status.success() && error.contains(named) && error.contains("is published"),
            "{command}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    for value in published().keys() {
        let uses = uses(value);
        let (settings, named) = uses.last().unwrap();
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        for command in ["serve", "work"] {
            refused(command, &with(&settings), named);
        }
        if Secret::parse(value).is_ok() {
            let bank = HashMap::from([("SECKILL_SANDBOX__SECRET".to_owned(), value.clone())]);
            refused("channel-sandbox", &bank, "SECKILL_SANDBOX__SECRET");
        }
    }
}

#[test]
fn an_address_without_a_password_is_refused_where_the_client_sends_a_known_one() {
    let error = check(&[("AMQP_URL", "amqp://127.0.0.1:1/%2f")]).unwrap_err();
    assert!(error.contains("AMQP_URL") && error.contains("is published"), "{error}");
    assert_eq!(check(&[("REDIS_URL", "redis://127.0.0.1:1/"), ("DATABASE_URL", "postgres://x@127.0.0.1:1/x")]), Ok(()));
}

#[test]
fn no_key_of_a_published_pair_is_in_the_repository() {
    let mut texts = BTreeMap::new();
    files(Path::new(ROOT), &mut texts);
    let key = Regex::new("-----BEGIN [A-Z ]*(?:PUBLIC|PRIVATE) KEY-----\\s").unwrap();
    let with_keys: Vec<_> = texts.iter().filter(|(_, text)| key.is_match(text)).map(|(name, _)| name).collect();
    assert!(with_keys.is_empty(), "generate keys where they are needed: {with_keys:?}");
}

#[test]
fn the_play_bank_is_not_offered_outside_development_mode() {
    let own = webhook_secret();
    assert!(!Config::read(&production_settings()).unwrap().channels["sandbox"].is_offered());
    let settings = [("SECKILL_CHANNELS__SANDBOX__SECRETS", own.as_str()), ("SECKILL_ALLOW__HTTP_RECEIVERS", "1")];
    let error = check(&settings).unwrap_err();
    assert!(error.contains("SECKILL_CHANNELS__SANDBOX__SECRETS") && error.contains("sandbox bank"), "{error}");
    assert!(error.contains("SECKILL_ALLOW__SANDBOX_CHANNEL=1"), "{error}");
    let allowed = ("SECKILL_ALLOW__SANDBOX_CHANNEL", "1");
    assert_eq!(check(&[&settings[..], &[allowed]].concat()), Ok(()));
    // The two permissions are independent.
    let error = check(&[settings[0], allowed]).unwrap_err();
    assert!(error.contains("SECKILL_CHANNELS__SANDBOX__URL") && error.contains("https://"), "{error}");
}

#[test]
fn receivers_without_tls_are_refused_unless_they_are_allowed() {
    let own = webhook_secret();
    let bank: Vec<(&str, &str)> = vec![
        ("SECKILL_CHANNELS__BANK__KIND", "sandbox"),
        ("SECKILL_CHANNELS__BANK__URL", "http://bank.example"),
        ("SECKILL_CHANNELS__BANK__SECRETS", &own),
        ("SECKILL_CHANNELS__BANK__RATE", "10"),
        ("SECKILL_CHANNELS__BANK__REFUND_RATE", "1"),
        ("SECKILL_CHANNELS__BANK__JITTER_MS", "60"),
        ("SECKILL_CHANNELS__BANK__TIMEOUT_MS", "5000"),
    ];
    let shop =
        vec![("SECKILL_SHOP__WEBHOOK_URL", "http://shop.example"), ("SECKILL_SHOP__WEBHOOK_SECRETS", own.as_str())];
    let alarms =
        vec![("SECKILL_ALARMS__WEBHOOK_URL", "http://pager.example"), ("SECKILL_ALARMS__WEBHOOK_SECRET", own.as_str())];
    for settings in [bank, shop, alarms] {
        let url = settings.iter().find(|(_, value)| value.starts_with("http://")).copied().unwrap();
        let error = check(&settings).unwrap_err();
        assert!(error.contains(url.0) && error.contains("SECKILL_ALLOW__HTTP_RECEIVERS=1"), "{error}");
        let more = |setting| [&settings[..], &[setting]].concat();
        assert_eq!(check(&more(("SECKILL_ALLOW__HTTP_RECEIVERS", "1"))), Ok(()));
        assert_eq!(check(&more(("SECKILL_DEV", "1"))), Ok(()));
        assert_eq!(check(&more((url.0, &url.1.replace("http://", "https://")))), Ok(()));
    }
}
