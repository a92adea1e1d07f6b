//! Settings that are only allowed in development mode: secrets published in this repository, the sandbox bank, and receivers without
//! TLS. A service checks this before it starts; single commands do not.

use percent_encoding::percent_decode_str;
use seckill_webhook::is_http;
use url::Url;

use super::servers::{AT_SENTINELS, each_server};
use super::{Config, ConfigError};

/// One secret a line; lines with # are comments.
const PUBLISHED: &str = include_str!("published.txt");
/// The channel of config.default.toml: the sandbox bank, which approves every payment.
const PLAY_BANK: &str = "sandbox";
/// The password that RabbitMQ's client sends if the address has none.
const AMQP_PASSWORD: &str = "guest";

const IS_PUBLISHED: &str = "is published with the source code, so that anybody knows it: choose another, or use development mode (SECKILL_DEV=1)";
const HAS_PUBLISHED: &str = "has a password that is published with the source code, so that anybody knows it: choose another, \
                             or use development mode (SECKILL_DEV=1)";
const NOT_HTTPS: &str =
    "must be https:// outside development mode, unless SECKILL_ALLOW__HTTP_RECEIVERS=1 allows receivers without TLS";
const IS_PLAIN_ISSUER: &str =
    "must be https:// outside development mode: anybody on the way could give keys of their own, and be any buyer";
const IS_SANDBOX_BANK: &str = "offer the sandbox bank, which approves every payment: remove them, or set \
                            SECKILL_ALLOW__SANDBOX_CHANNEL=1 if this is what you want";

#[derive(Debug)]
pub struct Unfit {
    pub kind: UnfitKind,
    pub error: ConfigError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnfitKind {
    PublishedSecret,
    PlainReceiver,
    /// Anybody on the way to the issuer can replace its keys, and so be any buyer.
    PlainIssuer,
    /// The sandbox bank, which approves every payment.
    PlayBank,
}

impl Config {
    /// Whether payment channels and receivers of webhooks and outflows may have an `http://` address.
    pub fn allows_http(&self) -> bool {
        self.dev || self.allow.http_receivers
    }

    pub fn allows_target(&self, target: &str) -> bool {
        self.allows_http() || !is_http(target)
    }

    pub fn check_for_service(&self) -> Result<(), ConfigError> {
        let first = (!self.dev).then(|| self.unfit_for_production().into_iter().next()).flatten();
        first.map_or(Ok(()), |unfit| Err(unfit.error))
    }

    /// All settings that are only allowed in development mode, and not by `[allow]`.
    pub fn unfit_for_production(&self) -> Vec<Unfit> {
        let mut unfit = Vec::new();
        let mut found = |kind, setting, problem| {
            unfit.push(Unfit { kind, error: ConfigError::Wrong { setting, problem } });
        };
        let amqp_password = password_in(&self.amqp.url).unwrap_or_else(|| AMQP_PASSWORD.to_owned());
        let database_password = password_in(&self.database.url).or_else(|| std::env::var("PGPASSWORD").ok());
        let management = password_in(&self.amqp.management_url);
        let of_locks =
            self.redis.lock_urls.iter().filter_map(|url| password_in(url)).find(|password| is_published(password));
        let of_sentinels = |url: &String| parameter(url, &AT_SENTINELS[1..]);
        for (password, setting) in [
            (database_password, "database.url"),
            (password_in(&self.redis.url), "redis.url"),
            (password_in(&self.flow.redis_url), "flow.redis_url"),
            (of_sentinels(&self.redis.url), "redis.url"),
            (of_sentinels(&self.flow.redis_url), "flow.redis_url"),
            (Some(amqp_password), "amqp.url"),
            (management, "amqp.management_url"),
            (of_locks, "redis.lock_urls"),
        ] {
            if password.is_some_and(|password| is_published(&password)) {
                found(UnfitKind::PublishedSecret, setting, HAS_PUBLISHED);
            }
        }
        let one = std::slice::from_ref;
        for (secrets, setting) in [
            (one(&self.auth.jwt_secret), "auth.jwt_secret"),
            (one(&self.auth.jwt_secret_previous), "auth.jwt_secret_previous"),
            (&self.shop.webhook_secrets[..], "shop.webhook_secrets"),
            (one(&self.alarms.webhook_secret), "alarms.webhook_secret"),
            (one(&self.sandbox.secret), "sandbox.secret"),
        ] {
            if secrets.iter().any(|secret| is_published(secret)) {
                found(UnfitKind::PublishedSecret, setting, IS_PUBLISHED);
            }
        }
        if is_http(&self.auth.jwks_url) {
            found(UnfitKind::PlainIssuer, "auth.jwks_url", IS_PLAIN_ISSUER);
        }
        for (url, setting) in
            [(&self.shop.webhook_url, "shop.webhook_url"), (&self.alarms.webhook_url, "alarms.webhook_url")]
        {
            if is_http(url) && !self.allow.http_receivers {
                found(UnfitKind::PlainReceiver, setting, NOT_HTTPS);
            }
        }
        for (name, channel) in &self.channels {
            let mut found = |kind, setting, problem| {
                let error = ConfigError::WrongChannel { channel: name.clone(), setting, problem };
                unfit.push(Unfit { kind, error });
            };
            if channel.secrets.iter().any(|secret| is_published(secret)) {
                found(UnfitKind::PublishedSecret, "secrets", IS_PUBLISHED);
            }
            // The defaults name the sandbox bank's address. Without secrets, the bank is not offered to buyers.
            if name == PLAY_BANK && channel.is_offered() && !self.allow.sandbox_channel {
                found(UnfitKind::PlayBank, "secrets", IS_SANDBOX_BANK);
            }
            if is_http(&channel.url) && channel.is_offered() && !self.allow.http_receivers {
                found(UnfitKind::PlainReceiver, "url", NOT_HTTPS);
            }
        }
        unfit
    }
}

pub(super) fn check_sandbox(settings: &seckill_sandbox::Settings, dev: bool) -> Result<(), ConfigError> {
    let setting = "sandbox.secret";
    if !dev && is_published(&settings.secret) {
        return Err(ConfigError::Wrong { setting, problem: IS_PUBLISHED });
    }
    Ok(())
}

fn is_published(secret: &str) -> bool {
    let secret = secret.trim();
    !secret.is_empty() && PUBLISHED.lines().filter(|line| !line.starts_with('#')).any(|line| line == secret)
}

/// The password in an address: in `scheme://user:password@host`, or in the query.
fn password_in(address: &str) -> Option<String> {
    let url = Url::parse(each_server(address).first()?).ok()?;
    let before_host = url.password().map(|password| percent_decode_str(password).decode_utf8_lossy().into_owned());
    before_host.or_else(|| parameter(address, &["password", "pass"]))
}

/// The first parameter of an address that has one of these names.
fn parameter(address: &str, names: &[&str]) -> Option<String> {
    let url = Url::parse(each_server(address).first()?).ok()?;
    url.query_pairs().find(|(name, _)| names.contains(&&**name)).map(|(_, value)| value.into_owned())
}
