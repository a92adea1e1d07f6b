//! Checks each setting's value. An error names the setting and the variable that sets it.

use std::collections::HashSet;

use super::{Channel, ChannelKind, Config, ConfigError, servers};
use seckill_domain::payment::NO_CHANNEL;
use seckill_domain::text;
use seckill_webhook::Secret;
use url::Url;

/// Signs buyers' tokens in development mode, so that `SECKILL_DEV=1` is enough to start.
const DEV_SECRET: &str = "development-only-secret-0123456789abcdef";
/// A secret has at least this many different bytes. A secret of hexadecimal digits has about 14.
const SECRET_KINDS_MIN: usize = 8;
/// Signs calls to the sandbox bank and its callbacks in development mode.
const DEV_SANDBOX_SECRET: &str = "whsec_ZGV2ZWxvcG1lbnQtc2FuZGJveC1zZWNyZXQtMDE=";
const NO_ADDRESS: &str = "must be an http:// or https:// address";
const NO_SIGNING_KEY: &str = "must be whsec_ and base64 of 24 to 64 bytes";

const YEAR_MS: i128 = 365 * DAY_MS;
const DAY_MS: i128 = 86_400_000;
const HOUR_MS: i128 = 3_600_000;

fn wrong<T>(setting: &'static str, problem: &'static str) -> Result<T, ConfigError> {
    Err(ConfigError::Wrong { setting, problem })
}

fn must(holds: bool, setting: &'static str, problem: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { wrong(setting, problem) }
}

impl Config {
    pub(super) fn checked(mut self) -> Result<Self, ConfigError> {
        must(!self.redis.url.is_empty(), "redis.url", "is missing")?;
        must(!self.database.url.is_empty(), "database.url", "is missing")?;
        must(!self.amqp.url.is_empty(), "amqp.url", "is missing")?;
        self.check_numbers()?;
        self.check_servers()?;
        self.check_tls()?;
        self.check_auth()?;
        for (limit, setting) in [
            (self.purchase.buyer_limit, "purchase.buyer_limit"),
            (self.purchase.address_limit, "purchase.address_limit"),
            (self.purchase.sale_limit, "purchase.sale_limit"),
            (self.purchase.lapses_max, "purchase.lapses_max"),
        ] {
            must(limit >= 1 || limit == -1, setting, "must be at least 1, or -1 for no limit")?;
        }
        must(self.amqp.queue_stuck_after_ms >= 1000, "amqp.queue_stuck_after_ms", "must be at least 1000")?;
        // Each request from another origin is compared with all of them.
        must(self.http.cors_origins.len() <= 100, "http.cors_origins", "must be at most 100 origins")?;
        for (url, setting) in [
            (&self.amqp.management_url, "amqp.management_url"),
            (&self.alarms.webhook_url, "alarms.webhook_url"),
            (&self.shop.webhook_url, "shop.webhook_url"),
        ] {
            must(url.is_empty() || is_address(url), setting, NO_ADDRESS)?;
        }
        if !self.alarms.webhook_url.is_empty() {
            must(is_secret(&self.alarms.webhook_secret), "alarms.webhook_secret", NO_SIGNING_KEY)?;
        }
        if !self.shop.webhook_url.is_empty() {
            let secrets = &self.shop.webhook_secrets;
            let are_good = (1..=2).contains(&secrets.len()) && secrets.iter().all(|secret| is_secret(secret));
            let problem = "must be one or two of whsec_ and base64 of 24 to 64 bytes, comma-separated";
            must(are_good, "shop.webhook_secrets", problem)?;
        }
        // A buyer who solves a challenge as soon as it opens must still hold the pass when the sale starts.
        let problem = "must be longer than captcha.opens_before_ms: passes would expire before the start";
        must(self.captcha.pass_ttl_ms > self.captcha.opens_before_ms, "captcha.pass_ttl_ms", problem)?;
        self.check_traces()?;
        self.channels.iter_mut().try_for_each(|(name, channel)| check_channel(name, channel, self.dev))?;
        self.sandbox = sandbox(self.sandbox, self.dev)?;
        Ok(self)
    }

    /// Refuses numbers out of their bounds. No loop is without a pause, and no wait without an end.
    fn check_numbers(&self) -> Result<(), ConfigError> {
        let Self { auth, http, database, redis, amqp, purchase, captcha, outbox, orders, retention, .. } = self;
        let Self { reconcile, flow, alarms, admin, outflow, payments, traces, .. } = self;
        for (setting, number, bounds) in [
            ("http.client_timeout_ms", http.client_timeout_ms.into(), 100..=HOUR_MS),
            ("http.send_timeout_ms", http.send_timeout_ms.into(), 100..=HOUR_MS),
            ("http.keep_alive_ms", http.keep_alive_ms.into(), 100..=HOUR_MS),
            ("http.shutdown_timeout_ms", http.shutdown_timeout_ms.into(), 100..=HOUR_MS),
            ("http.max_connections", http.max_connections as i128, 1..=1_000_000),
            ("http.line_max", http.line_max as i128, 1..=100_000),
            ("http.streams_max", http.streams_max as i128, 1..=1_000_000),
            ("http.buyer_reads", http.buyer_reads.into(), 1..=i128::from(u32::MAX)),
            ("auth.jwks_refresh_s", auth.jwks_refresh_s.into(), 10..=86_400),
            ("auth.jwks_min_interval_s", auth.jwks_min_interval_s.into(), 1..=3600),
            ("auth.jwks_timeout_ms", auth.jwks_timeout_ms.into(), 100..=60_000),
            ("auth.jwt_leeway_s", auth.jwt_leeway_s.into(), 0..=300),
            ("database.acquire_timeout_ms", database.acquire_timeout_ms.into(), 10..=600_000),
            ("database.statement_timeout_ms", database.statement_timeout_ms.into(), 10..=600_000),
            ("redis.connect_timeout_ms", redis.connect_timeout_ms.into(), 10..=600_000),
            ("redis.response_timeout_ms", redis.response_timeout_ms.into(), 10..=600_000),
            ("amqp.connect_timeout_ms", amqp.connect_timeout_ms.into(), 10..=600_000),
            ("amqp.confirm_timeout_ms", amqp.confirm_timeout_ms.into(), 10..=600_000),
            ("amqp.heartbeat_s", amqp.heartbeat_s.into(), 1..=60),
            ("amqp.prefetch", amqp.prefetch.into(), 1..=1_000_000),
            ("purchase.buyer_window_ms", purchase.buyer_window_ms.into(), 100..=DAY_MS),
            ("purchase.address_window_ms", purchase.address_window_ms.into(), 100..=DAY_MS),
            ("purchase.sale_window_ms", purchase.sale_window_ms.into(), 100..=DAY_MS),
            ("purchase.lapse_wait_ms", purchase.lapse_wait_ms.into(), 100..=DAY_MS),
            ("purchase.sold_out_memory_ms", purchase.sold_out_memory_ms.into(), 0..=500),
            ("purchase.wait_target_ms", purchase.wait_target_ms.into(), 5..=10_000),
            // reserve.lua takes a batch as the arguments of one call, and Lua's stack holds about 8000 values.
            ("purchase.batch_max", purchase.batch_max as i128, 1..=1000),
            ("purchase.queue_max", purchase.queue_max as i128, 1..=1_000_000),
            ("purchase.commit_batch_max", purchase.commit_batch_max as i128, 1..=1_000_000),
            ("purchase.committers", purchase.committers as i128, 1..=1_000_000),
            ("captcha.opens_before_ms", captcha.opens_before_ms.into(), 0..=DAY_MS),
            ("captcha.challenge_ttl_ms", captcha.challenge_ttl_ms.into(), 1000..=DAY_MS),
            ("captcha.pass_ttl_ms", captcha.pass_ttl_ms.into(), 1000..=DAY_MS),
            ("captcha.window_ms", captcha.window_ms.into(), 1000..=DAY_MS),
            ("captcha.images_max", captcha.images_max as i128, 1..=100_000),
            ("captcha.sliders_max", captcha.sliders_max as i128, 1..=100_000),
            ("captcha.draw_threads", captcha.draw_threads as i128, 0..=64),
            // A page computes a million hashes in seconds; 28 bits take it an hour.
            ("captcha.work_bits_min", captcha.work_bits_min.into(), 1..=28),
            ("captcha.work_bits_max", captcha.work_bits_max.into(), captcha.work_bits_min.into()..=28),
            ("captcha.buyer_limit", captcha.buyer_limit.into(), 1..=i128::from(u32::MAX)),
            ("captcha.address_limit", captcha.address_limit.into(), 1..=i128::from(u32::MAX)),
            ("outbox.batch_max", outbox.batch_max.into(), 1..=1_000_000),
            ("outbox.max_attempts", outbox.max_attempts.into(), 1..=1_000_000),
            ("outbox.backoff_base_ms", outbox.backoff_base_ms.into(), 10..=DAY_MS),
            ("outbox.backoff_max_ms", outbox.backoff_max_ms.into(), 10..=DAY_MS),
            ("outbox.resend_after_ms", outbox.resend_after_ms.into(), 100..=YEAR_MS),
            ("outbox.poll_ms", outbox.poll_ms.into(), 10..=DAY_MS),
            ("orders.batch_max", orders.batch_max as i128, 1..=1_000_000),
            ("retention.messages_days", retention.messages_days.into(), 1..=3650),
            ("retention.steps_days", retention.steps_days.into(), 1..=3650),
            ("retention.records_days", retention.records_days.into(), 1..=3650),
            ("reconcile.interval_ms", reconcile.interval_ms.into(), 10..=DAY_MS),
            // It should be longer than a commit takes. If shorter, the reconciler finishes purchases, at a higher cost.
            ("reconcile.unconfirmed_after_ms", reconcile.unconfirmed_after_ms.into(), 1..=DAY_MS),
            ("reconcile.waves_interval_ms", reconcile.waves_interval_ms.into(), 10..=DAY_MS),
            ("reconcile.drift_interval_ms", reconcile.drift_interval_ms.into(), 10..=DAY_MS),
            ("reconcile.sweep_interval_ms", reconcile.sweep_interval_ms.into(), 10..=DAY_MS),
            ("reconcile.sweep_grace_ms", reconcile.sweep_grace_ms.into(), 100..=YEAR_MS),
            ("reconcile.retire_after_ms", reconcile.retire_after_ms.into(), 100..=YEAR_MS),
            ("flow.timeout_ms", flow.timeout_ms.into(), 1..=1000),
            ("flow.app_keys_mb", flow.app_keys_mb.into(), 1..=1_000_000),
            // Bounds the memory in Redis of one key's queue.
            ("flow.queue_max", flow.queue_max.into(), 1..=100_000),
            ("flow.adapt_interval_ms", flow.adapt_interval_ms.into(), 1000..=HOUR_MS),
            ("alarms.interval_ms", alarms.interval_ms.into(), 100..=HOUR_MS),
            ("alarms.refused_percent", alarms.refused_percent.into(), 1..=100),
            ("alarms.outbox_age_s", alarms.outbox_age_s.into(), 1..=86_400),
            ("alarms.clear_after_ms", alarms.clear_after_ms.into(), 0..=HOUR_MS),
            ("admin.session_ms", admin.session_ms.into(), 1000..=30 * DAY_MS),
            ("admin.idle_ms", admin.idle_ms.into(), 1000..=30 * DAY_MS),
            ("admin.login_window_ms", admin.login_window_ms.into(), 1000..=30 * DAY_MS),
            ("admin.login_limit", admin.login_limit.into(), 1..=10_000),
            ("admin.hash_threads", admin.hash_threads as i128, 1..=64),
            ("admin.hash_line_max", admin.hash_line_max as i128, 1..=10_000),
            ("admin.hash_wait_max_ms", admin.hash_wait_max_ms.into(), 100..=600_000),
            ("outflow.request_timeout_ms", outflow.request_timeout_ms.into(), 100..=60_000),
            ("outflow.max_attempts", outflow.max_attempts.into(), 1..=1_000_000),
            ("outflow.backoff_base_ms", outflow.backoff_base_ms.into(), 10..=DAY_MS),
            ("outflow.backoff_max_ms", outflow.backoff_max_ms.into(), 10..=DAY_MS),
            ("payments.wait_ms", payments.wait_ms.into(), 0..=DAY_MS),
            ("payments.ask_after_ms", payments.ask_after_ms.into(), 100..=HOUR_MS),
            ("payments.on_its_way_ms", payments.on_its_way_ms.into(), 1000..=DAY_MS),
            ("payments.batch_max", payments.batch_max as i128, 1..=1_000_000),
            ("traces.per_second_max", traces.per_second_max.into(), 0..=10_000),
        ] {
            if !bounds.contains(&number) {
                return Err(ConfigError::OutOfBounds { setting, least: *bounds.start(), most: *bounds.end() });
            }
        }
        Ok(())
    }

    fn check_auth(&mut self) -> Result<(), ConfigError> {
        let auth = &mut self.auth;
        if self.dev && auth.jwt_secret.is_empty() && auth.jwt_public_key.is_empty() && auth.jwks_url.is_empty() {
            DEV_SECRET.clone_into(&mut auth.jwt_secret);
        }
        let without_key = auth.jwt_secret.is_empty() && auth.jwt_public_key.is_empty() && auth.jwks_url.is_empty();
        must(!without_key, "auth.jwt_secret", "is missing, and so are auth.jwt_public_key and auth.jwks_url")?;
        for (secret, setting) in
            [(&auth.jwt_secret, "auth.jwt_secret"), (&auth.jwt_secret_previous, "auth.jwt_secret_previous")]
        {
            must(secret.is_empty() || secret.len() >= 32, setting, "must be at least 32 bytes")?;
            let kinds = secret.bytes().collect::<HashSet<_>>().len();
            let problem = "must have at least 8 different characters";
            must(secret.is_empty() || kinds >= SECRET_KINDS_MIN, setting, problem)?;
        }
        let problem = "needs auth.jwt_secret, which signs the new tokens";
        must(auth.jwt_secret_previous.is_empty() || !auth.jwt_secret.is_empty(), "auth.jwt_secret_previous", problem)?;
        let is_source = |url: &str| match url.strip_prefix("file://") {
            Some(path) => path.starts_with('/'),
            None => is_address(url) && Url::parse(url).is_ok_and(|url| url.username().is_empty() && url.has_host()),
        };
        let problem = "must be an https:// address without a user, or file:// and a path from the root";
        must(auth.jwks_url.is_empty() || is_source(&auth.jwks_url), "auth.jwks_url", problem)?;
        for (claim, setting) in
            [(&auth.jwt_claim_id, "auth.jwt_claim_id"), (&auth.jwt_claim_level, "auth.jwt_claim_level")]
        {
            let is_taken = ["", "exp", "nbf", "aud", "iss"].contains(&claim.as_str());
            must(!is_taken, setting, "must be the name of a claim that has no other meaning here")?;
        }
        let problem = "must be another claim than auth.jwt_claim_id";
        must(auth.jwt_claim_id != auth.jwt_claim_level, "auth.jwt_claim_level", problem)
    }

    fn check_servers(&self) -> Result<(), ConfigError> {
        let limiters = self.flow.redis(&self.redis).url;
        for (address, setting) in [
            (&self.database.url, "database.url"),
            (&self.redis.url, "redis.url"),
            (&limiters, "flow.redis_url"),
            (&self.amqp.url, "amqp.url"),
        ] {
            if let Some(problem) = servers::problem(address) {
                return wrong(setting, problem);
            }
        }
        for (redis, setting) in [(&self.redis.url, "redis.url"), (&limiters, "flow.redis_url")] {
            let names_group = servers::sentinels(redis).is_some() || servers::nodes(redis).is_some();
            if servers::each_server(redis).len() > 1 && !names_group {
                let problem = "names several servers: sentinels are redis+sentinel://one:26379,two:26379/NAME, nodes of a cluster redis+cluster://one:6379,two:6379";
                return wrong(setting, problem);
            }
            if let Some(problem) = servers::sentinels_problem(redis).or_else(|| servers::nodes_problem(redis)) {
                return wrong(setting, problem);
            }
        }
        match servers::target_problem(&self.database.url) {
            Some(problem) => wrong("database.url", problem),
            None => Ok(()),
        }
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        let over_tls = |url: &String| {
            ["rediss://", "valkeys://", "rediss+sentinel://", "rediss+cluster://"]
                .iter()
                .any(|scheme| url.starts_with(scheme))
        };
        let redis = &self.redis;
        let addresses = [&redis.url, &self.flow.redis(redis).url];
        if redis.ca_file.is_some() && !addresses.into_iter().chain(&redis.lock_urls).all(over_tls) {
            let problem =
                "needs rediss:// in redis.url, redis.lock_urls and flow.redis_url: other connections have no TLS";
            return wrong("redis.ca_file", problem);
        }
        if self.amqp.ca_file.is_some() && !self.amqp.url.starts_with("amqps://") {
            let problem = "needs amqps:// in amqp.url: other connections have no TLS";
            return wrong("amqp.ca_file", problem);
        }
        // Every other sslmode accepts any certificate.
        let checked = ["mode=verify-full", "mode=verify-ca"].iter().any(|mode| self.database.url.contains(mode));
        let problem = "needs sslmode=verify-full in database.url: other modes check no certificate";
        if !checked && self.database.ca_file.is_some() {
            return wrong("database.ca_file", problem);
        }
        if !checked && ["sslrootcert=", "ssl-root-cert=", "ssl-ca="].iter().any(|name| self.database.url.contains(name))
        {
            return wrong("database.url: sslrootcert", problem);
        }
        Ok(())
    }

    fn check_traces(&self) -> Result<(), ConfigError> {
        let traces = &self.traces;
        // The exporter has no TLS: use a collector on the same machine or network that forwards the spans.
        let is_http = is_address(&traces.endpoint) && traces.endpoint.starts_with("http://");
        if !traces.endpoint.is_empty() && !is_http {
            return wrong("traces.endpoint", "must be an http:// address");
        }
        if traces.sample_one_in > 0 && traces.endpoint.is_empty() {
            let problem = "needs traces.endpoint: without it, traces that begin here are shown nowhere";
            return wrong("traces.sample_one_in", problem);
        }
        Ok(())
    }
}

fn check_channel(name: &str, channel: &mut Channel, dev: bool) -> Result<(), ConfigError> {
    let wrong = |setting, problem| ConfigError::WrongChannel { channel: name.to_owned(), setting, problem };
    let must = |holds: bool, setting, problem| if holds { Ok(()) } else { Err(wrong(setting, problem)) };
    // The outflow of its refunds is named after the channel, and its name has at most 64 characters.
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let well_named = name.bytes().enumerate().all(|(i, b)| fits(b) || (i > 0 && matches!(b, b'_' | b'-')));
    if !well_named || !(1..=56).contains(&name.len()) || name == NO_CHANNEL {
        return Err(ConfigError::WrongChannelName(name.to_owned()));
    }
    if dev && channel.secrets.is_empty() {
        match channel.kind {
            ChannelKind::Sandbox => channel.secrets.push(DEV_SANDBOX_SECRET.to_owned()),
        }
    }
    must(channel.url.is_empty() || is_address(&channel.url), "url", NO_ADDRESS)?;
    let are_good = channel.secrets.len() <= 2 && channel.secrets.iter().all(|secret| is_secret(secret));
    must(are_good, "secrets", "must be one or two of whsec_ and base64 of 24 to 64 bytes")?;
    must((1..=10_000).contains(&channel.rate), "rate", "must be 1 to 10000")?;
    must((1..=100).contains(&channel.refund_rate), "refund_rate", "must be 1 to 100")?;
    must((0..=10_000).contains(&channel.jitter_ms), "jitter_ms", "must be 0 to 10000")?;
    must((100..=60_000).contains(&channel.timeout_ms), "timeout_ms", "must be 100 to 60000")?;
    for (title, setting) in [(&mut channel.title, "title"), (&mut channel.title_zh, "title_zh")] {
        *title = text::line(title, "title", 0..=60)
            .map_err(|_| wrong(setting, "must be one line of at most 60 characters"))?;
    }
    Ok(())
}

/// Checks the sandbox bank's settings. Only the bank itself needs its secret: a service may run without one.
pub(super) fn sandbox(
    mut settings: seckill_sandbox::Settings,
    dev: bool,
) -> Result<seckill_sandbox::Settings, ConfigError> {
    if dev && settings.secret.is_empty() {
        DEV_SANDBOX_SECRET.clone_into(&mut settings.secret);
    }
    must(settings.secret.is_empty() || is_secret(&settings.secret), "sandbox.secret", NO_SIGNING_KEY)?;
    must(!settings.data_file.is_empty(), "sandbox.data_file", "is missing")?;
    must(is_address(&settings.callback_url), "sandbox.callback_url", NO_ADDRESS)?;
    for (rate, setting) in [(settings.pay_rate, "sandbox.pay_rate"), (settings.refund_rate, "sandbox.refund_rate")] {
        must((1..=100_000).contains(&rate), setting, "must be 1 to 100000")?;
    }
    must(settings.confirm_ms <= 86_400_000, "sandbox.confirm_ms", "must be at most 86400000 (a day)")?;
    Ok(settings)
}

fn is_secret(text: &str) -> bool {
    Secret::parse(text).is_ok()
}

fn is_address(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme))
}
