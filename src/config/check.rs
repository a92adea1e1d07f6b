//! Checks each setting's value. An error names the setting and the variable that sets it.

use std::collections::HashSet;

use super::{Channel, ChannelKind, Config, ConfigError, servers};
use seckill_webhook::Secret;

/// Signs buyers' tokens in development mode, so that `SECKILL_DEV=1` is enough to start.
const DEV_SECRET: &str = "development-only-secret-0123456789abcdef";
/// A secret has at least this many different bytes. A secret of hexadecimal digits has about 14.
const SECRET_KINDS_MIN: usize = 8;
/// Signs calls to the sandbox bank and its callbacks in development mode.
const DEV_SANDBOX_SECRET: &str = "whsec_ZGV2ZWxvcG1lbnQtc2FuZGJveC1zZWNyZXQtMDE=";
const NO_CURRENCY: &str = "must be three capital letters (ISO 4217)";
const NO_ADDRESS: &str = "must be an http:// or https:// address";

fn wrong<T>(setting: &'static str, problem: &'static str) -> Result<T, ConfigError> {
    Err(ConfigError::Wrong { setting, problem })
}

fn must(holds: bool, setting: &'static str, problem: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { wrong(setting, problem) }
}

impl Config {
    pub(super) fn checked(mut self) -> Result<Self, ConfigError> {
        if self.redis.url.is_empty() {
            return wrong("redis.url", "is missing");
        }
        if self.database.url.is_empty() {
            return wrong("database.url", "is missing");
        }
        if self.amqp.url.is_empty() {
            return wrong("amqp.url", "is missing");
        }
        self.check_servers()?;
        self.check_tls()?;
        if self.dev && self.auth.jwt_secret.is_empty() && self.auth.jwt_public_key.is_empty() {
            DEV_SECRET.clone_into(&mut self.auth.jwt_secret);
        }
        match (self.auth.jwt_secret.len(), self.auth.jwt_public_key.len()) {
            (0, 0) => {
                return wrong("auth.jwt_secret", "is missing, and so is auth.jwt_public_key");
            }
            (1..32, _) => return wrong("auth.jwt_secret", "must be at least 32 bytes"),
            (32.., _) if self.auth.jwt_secret.bytes().collect::<HashSet<_>>().len() < SECRET_KINDS_MIN => {
                return wrong("auth.jwt_secret", "must have at least 8 different characters");
            }
            (32.., 1..) => {
                return wrong("auth.jwt_public_key", "cannot be combined with auth.jwt_secret");
            }
            _ => {}
        }
        for (limit, setting) in [
            (self.purchase.buyer_limit, "purchase.buyer_limit"),
            (self.purchase.address_limit, "purchase.address_limit"),
            (self.purchase.sale_limit, "purchase.sale_limit"),
            (self.purchase.lapses_max, "purchase.lapses_max"),
        ] {
            if limit < 1 && limit != -1 {
                return wrong(setting, "must be at least 1, or -1 for no limit");
            }
        }
        for (window, setting) in [
            (self.purchase.buyer_window_ms, "purchase.buyer_window_ms"),
            (self.purchase.address_window_ms, "purchase.address_window_ms"),
            (self.purchase.sale_window_ms, "purchase.sale_window_ms"),
            (self.purchase.lapse_wait_ms, "purchase.lapse_wait_ms"),
        ] {
            must((100..=86_400_000).contains(&window), setting, "must be 100 to 86400000 ms")?;
        }
        must(self.purchase.sold_out_memory_ms <= 500, "purchase.sold_out_memory_ms", "must be at most 500")?;
        if self.amqp.queue_stuck_after_ms < 1000 {
            return wrong("amqp.queue_stuck_after_ms", "must be at least 1000");
        }
        must((1..=60).contains(&self.amqp.heartbeat_s), "amqp.heartbeat_s", "must be 1 to 60")?;
        if !self.amqp.management_url.is_empty() && !is_address(&self.amqp.management_url) {
            return wrong("amqp.management_url", NO_ADDRESS);
        }
        must((5..=10_000).contains(&self.purchase.wait_target_ms), "purchase.wait_target_ms", "must be 5 to 10000")?;
        // None of them can be turned off: each bounds how long a client can hold a connection.
        for (time, setting) in [
            (self.http.client_timeout_ms, "http.client_timeout_ms"),
            (self.http.send_timeout_ms, "http.send_timeout_ms"),
            (self.http.keep_alive_ms, "http.keep_alive_ms"),
            (self.http.shutdown_timeout_ms, "http.shutdown_timeout_ms"),
        ] {
            must((100..=3_600_000).contains(&time), setting, "must be 100 to 3600000")?;
        }
        must((1..=1_000_000).contains(&self.http.max_connections), "http.max_connections", "must be 1 to 1000000")?;
        must((1..=100_000).contains(&self.http.line_max), "http.line_max", "must be 1 to 100000")?;
        if self.http.buyer_reads == 0 {
            return wrong("http.buyer_reads", "must be at least 1");
        }
        // Each request from another origin is compared with all of them.
        if self.http.cors_origins.len() > 100 {
            return wrong("http.cors_origins", "must be at most 100 origins");
        }
        if !self.pages.currency.is_empty() && !is_currency(&self.pages.currency) {
            return wrong("pages.currency", NO_CURRENCY);
        }
        must((1..=1000).contains(&self.flow.timeout_ms), "flow.timeout_ms", "must be 1 to 1000")?;
        must((1..=1_000_000).contains(&self.flow.app_keys_mb), "flow.app_keys_mb", "must be 1 to 1000000")?;
        // Bounds the memory in Redis of one key's queue.
        must((1..=100_000).contains(&self.flow.queue_max), "flow.queue_max", "must be 1 to 100000")?;
        must(
            (1000..=3_600_000).contains(&self.flow.adapt_interval_ms),
            "flow.adapt_interval_ms",
            "must be 1000 to 3600000",
        )?;
        must((100..=3_600_000).contains(&self.alarms.interval_ms), "alarms.interval_ms", "must be 100 to 3600000")?;
        must((1..=100).contains(&self.alarms.refused_percent), "alarms.refused_percent", "must be 1 to 100")?;
        must((1..=86_400).contains(&self.alarms.outbox_age_s), "alarms.outbox_age_s", "must be 1 to 86400")?;
        must(self.alarms.clear_after_ms <= 3_600_000, "alarms.clear_after_ms", "must be 0 to 3600000")?;
        if !self.alarms.webhook_url.is_empty() {
            if !is_address(&self.alarms.webhook_url) {
                return wrong("alarms.webhook_url", NO_ADDRESS);
            }
            if Secret::parse(&self.alarms.webhook_secret).is_err() {
                let problem = "must be whsec_ and base64 of 24 to 64 bytes";
                return wrong("alarms.webhook_secret", problem);
            }
        }
        if !self.shop.webhook_url.is_empty() {
            if !is_address(&self.shop.webhook_url) {
                return wrong("shop.webhook_url", NO_ADDRESS);
            }
            let good = self.shop.webhook_secrets.iter().all(|secret| Secret::parse(secret).is_ok());
            if !good || !(1..=2).contains(&self.shop.webhook_secrets.len()) {
                let problem = "must be one or two of whsec_ and base64 of 24 to 64 bytes, comma-separated";
                return wrong("shop.webhook_secrets", problem);
            }
        }
        for (time, setting) in [
            (self.admin.session_ms, "admin.session_ms"),
            (self.admin.idle_ms, "admin.idle_ms"),
            (self.admin.login_window_ms, "admin.login_window_ms"),
        ] {
            must((1000..=2_592_000_000).contains(&time), setting, "must be 1000 to 2592000000 ms (30 days)")?;
        }
        must((1..=10_000).contains(&self.admin.login_limit), "admin.login_limit", "must be 1 to 10000")?;
        must((1..=64).contains(&self.admin.hash_threads), "admin.hash_threads", "must be 1 to 64")?;
        must((1..=10_000).contains(&self.admin.hash_line_max), "admin.hash_line_max", "must be 1 to 10000")?;
        must(
            (100..=600_000).contains(&self.admin.hash_wait_max_ms),
            "admin.hash_wait_max_ms",
            "must be 100 to 600000 ms",
        )?;
        // reserve.lua takes a batch as the arguments of one call, and Lua's stack holds about 8000 values.
        must((1..=1000).contains(&self.purchase.batch_max), "purchase.batch_max", "must be 1 to 1000")?;
        for (value, setting) in [
            (self.http.streams_max, "http.streams_max"),
            (self.purchase.queue_max, "purchase.queue_max"),
            (self.purchase.commit_batch_max, "purchase.commit_batch_max"),
            (self.purchase.committers, "purchase.committers"),
            (self.orders.batch_max, "orders.batch_max"),
            (usize::try_from(self.outbox.batch_max).unwrap_or(0), "outbox.batch_max"),
            (self.outbox.max_attempts as usize, "outbox.max_attempts"),
            (self.outflow.max_attempts as usize, "outflow.max_attempts"),
            (self.payments.batch_max, "payments.batch_max"),
            (self.amqp.prefetch.into(), "amqp.prefetch"),
        ] {
            must((1..=1_000_000).contains(&value), setting, "must be 1 to 1000000")?;
        }
        self.check_background_work()?;
        self.check_payments()?;
        self.check_traces()?;
        self.check_captcha()?;
        must(
            (100..=60_000).contains(&self.outflow.request_timeout_ms),
            "outflow.request_timeout_ms",
            "must be 100 to 60000",
        )?;
        self.sandbox = sandbox(self.sandbox, self.dev)?;
        Ok(self)
    }

    /// Refuses intervals so short that a loop would never pause, and times that are absurdly long.
    fn check_background_work(&self) -> Result<(), ConfigError> {
        let reconcile = &self.reconcile;
        for (interval, setting) in [
            (self.outbox.poll_ms, "outbox.poll_ms"),
            (reconcile.interval_ms, "reconcile.interval_ms"),
            (reconcile.waves_interval_ms, "reconcile.waves_interval_ms"),
            (reconcile.drift_interval_ms, "reconcile.drift_interval_ms"),
            (reconcile.sweep_interval_ms, "reconcile.sweep_interval_ms"),
        ] {
            must((10..=86_400_000).contains(&interval), setting, "must be 10 to 86400000 ms")?;
        }
        for (time, setting) in [
            (self.outbox.backoff_base_ms, "outbox.backoff_base_ms"),
            (self.outbox.backoff_max_ms, "outbox.backoff_max_ms"),
            (self.outflow.backoff_base_ms, "outflow.backoff_base_ms"),
            (self.outflow.backoff_max_ms, "outflow.backoff_max_ms"),
        ] {
            must((10..=86_400_000).contains(&time), setting, "must be 10 to 86400000 ms (a day)")?;
        }
        for (time, setting) in [
            (self.outbox.resend_after_ms, "outbox.resend_after_ms"),
            (reconcile.sweep_grace_ms, "reconcile.sweep_grace_ms"),
            (reconcile.retire_after_ms, "reconcile.retire_after_ms"),
        ] {
            must((100..=31_536_000_000).contains(&time), setting, "must be 100 to 31536000000 ms (a year)")?;
        }
        // It should be longer than a commit takes. If shorter, the reconciler finishes purchases, at a higher cost.
        let unconfirmed_ms = reconcile.unconfirmed_after_ms;
        must((1..=86_400_000).contains(&unconfirmed_ms), "reconcile.unconfirmed_after_ms", "must be 1 to 86400000 ms")?;
        let days = 1..=3650;
        must(days.contains(&self.retention.messages_days), "retention.messages_days", "must be 1 to 3650")?;
        must(days.contains(&self.retention.steps_days), "retention.steps_days", "must be 1 to 3650")?;
        must(days.contains(&self.retention.records_days), "retention.records_days", "must be 1 to 3650")
    }

    /// Refuses lists of servers that make no sense.
    fn check_servers(&self) -> Result<(), ConfigError> {
        // Without a time-out, a wait for a silent server never ends.
        for (time, setting) in [
            (self.database.acquire_timeout_ms, "database.acquire_timeout_ms"),
            (self.database.statement_timeout_ms, "database.statement_timeout_ms"),
            (self.redis.connect_timeout_ms, "redis.connect_timeout_ms"),
            (self.redis.response_timeout_ms, "redis.response_timeout_ms"),
            (self.amqp.connect_timeout_ms, "amqp.connect_timeout_ms"),
            (self.amqp.confirm_timeout_ms, "amqp.confirm_timeout_ms"),
        ] {
            must((10..=600_000).contains(&time), setting, "must be 10 to 600000 ms")?;
        }
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

    /// Refuses a file of authorities that would have no effect.
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
        must(traces.per_second_max <= 10_000, "traces.per_second_max", "must be at most 10000")?;
        if traces.sample_one_in > 0 && traces.endpoint.is_empty() {
            let problem = "needs traces.endpoint: without it, traces that begin here are shown nowhere";
            return wrong("traces.sample_one_in", problem);
        }
        Ok(())
    }

    fn check_captcha(&self) -> Result<(), ConfigError> {
        let terms = &self.captcha;
        must(terms.opens_before_ms <= 86_400_000, "captcha.opens_before_ms", "must be at most 86400000 (a day)")?;
        for (time, setting) in [
            (terms.challenge_ttl_ms, "captcha.challenge_ttl_ms"),
            (terms.pass_ttl_ms, "captcha.pass_ttl_ms"),
            (terms.window_ms, "captcha.window_ms"),
        ] {
            must((1000..=86_400_000).contains(&time), setting, "must be 1000 to 86400000 (a day)")?;
        }
        // A buyer who solves a challenge as soon as it opens must still hold the pass when the sale starts.
        if terms.pass_ttl_ms <= terms.opens_before_ms {
            let problem = "must be longer than captcha.opens_before_ms: passes would expire before the start";
            return wrong("captcha.pass_ttl_ms", problem);
        }
        for (count, setting) in [(terms.images_max, "captcha.images_max"), (terms.sliders_max, "captcha.sliders_max")] {
            must((1..=100_000).contains(&count), setting, "must be 1 to 100000")?;
        }
        must(terms.draw_threads <= 64, "captcha.draw_threads", "must be at most 64")?;
        // A page computes a million hashes in seconds; 28 bits take it an hour.
        must((1..=28).contains(&terms.work_bits_min), "captcha.work_bits_min", "must be 1 to 28")?;
        if !(terms.work_bits_min..=28).contains(&terms.work_bits_max) {
            let problem = "must be captcha.work_bits_min to 28";
            return wrong("captcha.work_bits_max", problem);
        }
        for (limit, setting) in
            [(terms.buyer_limit, "captcha.buyer_limit"), (terms.address_limit, "captcha.address_limit")]
        {
            if limit == 0 {
                return wrong(setting, "must be at least 1");
            }
        }
        Ok(())
    }

    fn check_payments(&mut self) -> Result<(), ConfigError> {
        let terms = &self.payments;
        if !is_currency(&terms.currency) {
            return wrong("payments.currency", NO_CURRENCY);
        }
        must(terms.wait_ms <= 86_400_000, "payments.wait_ms", "must be at most 86400000 (a day)")?;
        must((100..=3_600_000).contains(&terms.ask_after_ms), "payments.ask_after_ms", "must be 100 to 3600000")?;
        let on_its_way = 1000..=86_400_000;
        must(on_its_way.contains(&terms.on_its_way_ms), "payments.on_its_way_ms", "must be 1000 to 86400000 (a day)")?;
        self.channels.iter_mut().try_for_each(|(name, channel)| check_channel(name, channel, self.dev))
    }
}

fn check_channel(name: &str, channel: &mut Channel, dev: bool) -> Result<(), ConfigError> {
    let wrong = |setting, problem| Err(ConfigError::WrongChannel { channel: name.to_owned(), setting, problem });
    let must = |holds: bool, setting, problem| if holds { Ok(()) } else { wrong(setting, problem) };
    // The outflow of its refunds is named after the channel, and its name has at most 64 characters.
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let well_named = name.bytes().enumerate().all(|(i, b)| fits(b) || (i > 0 && matches!(b, b'_' | b'-')));
    if !well_named || !(1..=56).contains(&name.len()) {
        return Err(ConfigError::WrongChannelName(name.to_owned()));
    }
    if dev && channel.secrets.is_empty() {
        match channel.kind {
            ChannelKind::Sandbox => channel.secrets.push(DEV_SANDBOX_SECRET.to_owned()),
        }
    }
    if !channel.url.is_empty() && !is_address(&channel.url) {
        return wrong("url", NO_ADDRESS);
    }
    if channel.secrets.len() > 2 || channel.secrets.iter().any(|secret| Secret::parse(secret).is_err()) {
        return wrong("secrets", "must be one or two of whsec_ and base64 of 24 to 64 bytes");
    }
    must((1..=10_000).contains(&channel.rate), "rate", "must be 1 to 10000")?;
    must((1..=100).contains(&channel.refund_rate), "refund_rate", "must be 1 to 100")?;
    must((0..=10_000).contains(&channel.jitter_ms), "jitter_ms", "must be 0 to 10000")?;
    must((100..=60_000).contains(&channel.timeout_ms), "timeout_ms", "must be 100 to 60000")?;
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
    if !settings.secret.is_empty() && Secret::parse(&settings.secret).is_err() {
        let problem = "must be whsec_ and base64 of 24 to 64 bytes";
        return wrong("sandbox.secret", problem);
    }
    if settings.data_file.is_empty() {
        return wrong("sandbox.data_file", "is missing");
    }
    if !is_address(&settings.callback_url) {
        return wrong("sandbox.callback_url", NO_ADDRESS);
    }
    for (rate, setting) in [(settings.pay_rate, "sandbox.pay_rate"), (settings.refund_rate, "sandbox.refund_rate")] {
        must((1..=100_000).contains(&rate), setting, "must be 1 to 100000")?;
    }
    must(settings.confirm_ms <= 86_400_000, "sandbox.confirm_ms", "must be at most 86400000 (a day)")?;
    Ok(settings)
}

fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|b| b.is_ascii_uppercase())
}

fn is_address(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme))
}
