//! Checks each setting's value. An error names the setting and the variable that sets it.

use super::{Channel, ChannelKind, Config, ConfigError, servers};
use seckill_webhook::Secret;

/// Signs buyers' tokens in development mode, so that `SECKILL_DEV=1` is enough to start.
const DEV_SECRET: &str = "development-only-secret-0123456789abcdef";
/// Signs calls to the sandbox bank and its callbacks in development mode.
const DEV_SANDBOX_SECRET: &str = "whsec_ZGV2ZWxvcG1lbnQtc2FuZGJveC1zZWNyZXQtMDE=";
const NO_CURRENCY: &str = "must be three capital letters (ISO 4217)";
const NO_ADDRESS: &str = "must be an http:// or https:// address";

impl Config {
    pub(super) fn checked(mut self) -> Result<Self, ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        if self.redis.url.is_empty() {
            return wrong("redis.url", "is missing", "REDIS_URL");
        }
        if self.database.url.is_empty() {
            return wrong("database.url", "is missing", "DATABASE_URL");
        }
        if self.amqp.url.is_empty() {
            return wrong("amqp.url", "is missing", "AMQP_URL");
        }
        self.check_servers()?;
        self.check_tls()?;
        if self.dev && self.auth.jwt_secret.is_empty() && self.auth.jwt_public_key.is_empty() {
            DEV_SECRET.clone_into(&mut self.auth.jwt_secret);
        }
        match (self.auth.jwt_secret.len(), self.auth.jwt_public_key.len()) {
            (0, 0) => {
                return wrong(
                    "auth.jwt_secret",
                    "is missing, and so is auth.jwt_public_key",
                    "SECKILL_AUTH__JWT_SECRET",
                );
            }
            (1..32, _) => return wrong("auth.jwt_secret", "must be at least 32 bytes", "SECKILL_AUTH__JWT_SECRET"),
            (32.., 1..) => {
                return wrong(
                    "auth.jwt_public_key",
                    "cannot be combined with auth.jwt_secret",
                    "SECKILL_AUTH__JWT_PUBLIC_KEY",
                );
            }
            _ => {}
        }
        for (limit, setting, variable) in [
            (self.purchase.buyer_limit, "purchase.buyer_limit", "SECKILL_PURCHASE__BUYER_LIMIT"),
            (self.purchase.address_limit, "purchase.address_limit", "SECKILL_PURCHASE__ADDRESS_LIMIT"),
            (self.purchase.sale_limit, "purchase.sale_limit", "SECKILL_PURCHASE__SALE_LIMIT"),
            (self.purchase.lapses_max, "purchase.lapses_max", "SECKILL_PURCHASE__LAPSES_MAX"),
        ] {
            if limit < 1 && limit != -1 {
                return wrong(setting, "must be at least 1, or -1 for no limit", variable);
            }
        }
        for (window, setting, variable) in [
            (self.purchase.buyer_window_ms, "purchase.buyer_window_ms", "SECKILL_PURCHASE__BUYER_WINDOW_MS"),
            (self.purchase.address_window_ms, "purchase.address_window_ms", "SECKILL_PURCHASE__ADDRESS_WINDOW_MS"),
            (self.purchase.sale_window_ms, "purchase.sale_window_ms", "SECKILL_PURCHASE__SALE_WINDOW_MS"),
            (self.purchase.lapse_wait_ms, "purchase.lapse_wait_ms", "SECKILL_PURCHASE__LAPSE_WAIT_MS"),
        ] {
            if !(100..=86_400_000).contains(&window) {
                return wrong(setting, "must be 100 to 86400000 ms", variable);
            }
        }
        if self.purchase.sold_out_memory_ms > 500 {
            return wrong("purchase.sold_out_memory_ms", "must be at most 500", "SECKILL_PURCHASE__SOLD_OUT_MEMORY_MS");
        }
        if self.amqp.queue_stuck_after_ms < 1000 {
            return wrong("amqp.queue_stuck_after_ms", "must be at least 1000", "SECKILL_AMQP__QUEUE_STUCK_AFTER_MS");
        }
        if !(1..=60).contains(&self.amqp.heartbeat_s) {
            return wrong("amqp.heartbeat_s", "must be 1 to 60", "SECKILL_AMQP__HEARTBEAT_S");
        }
        if !self.amqp.management_url.is_empty() && !is_address(&self.amqp.management_url) {
            return wrong("amqp.management_url", NO_ADDRESS, "SECKILL_AMQP__MANAGEMENT_URL");
        }
        if !(5..=10_000).contains(&self.purchase.wait_target_ms) {
            return wrong("purchase.wait_target_ms", "must be 5 to 10000", "SECKILL_PURCHASE__WAIT_TARGET_MS");
        }
        // None of them can be turned off: each bounds how long a client can hold a connection.
        for (time, setting, variable) in [
            (self.http.client_timeout_ms, "http.client_timeout_ms", "SECKILL_HTTP__CLIENT_TIMEOUT_MS"),
            (self.http.send_timeout_ms, "http.send_timeout_ms", "SECKILL_HTTP__SEND_TIMEOUT_MS"),
            (self.http.keep_alive_ms, "http.keep_alive_ms", "SECKILL_HTTP__KEEP_ALIVE_MS"),
        ] {
            if !(100..=3_600_000).contains(&time) {
                return wrong(setting, "must be 100 to 3600000", variable);
            }
        }
        if !(1..=1_000_000).contains(&self.http.max_connections) {
            return wrong("http.max_connections", "must be 1 to 1000000", "SECKILL_HTTP__MAX_CONNECTIONS");
        }
        if !(1..=100_000).contains(&self.http.line_max) {
            return wrong("http.line_max", "must be 1 to 100000", "SECKILL_HTTP__LINE_MAX");
        }
        if self.http.buyer_reads == 0 {
            return wrong("http.buyer_reads", "must be at least 1", "SECKILL_HTTP__BUYER_READS");
        }
        // Each request from another origin is compared with all of them.
        if self.http.cors_origins.len() > 100 {
            return wrong("http.cors_origins", "must be at most 100 origins", "SECKILL_HTTP__CORS_ORIGINS");
        }
        if !self.pages.currency.is_empty() && !is_currency(&self.pages.currency) {
            return wrong("pages.currency", NO_CURRENCY, "SECKILL_PAGES__CURRENCY");
        }
        if !(1..=1000).contains(&self.flow.timeout_ms) {
            return wrong("flow.timeout_ms", "must be 1 to 1000", "SECKILL_FLOW__TIMEOUT_MS");
        }
        // Bounds what Redis keeps of one key's line.
        if !(1..=100_000).contains(&self.flow.queue_max) {
            return wrong("flow.queue_max", "must be 1 to 100000", "SECKILL_FLOW__QUEUE_MAX");
        }
        if !(1000..=3_600_000).contains(&self.flow.adapt_interval_ms) {
            return wrong("flow.adapt_interval_ms", "must be 1000 to 3600000", "SECKILL_FLOW__ADAPT_INTERVAL_MS");
        }
        if !(100..=3_600_000).contains(&self.alarms.interval_ms) {
            return wrong("alarms.interval_ms", "must be 100 to 3600000", "SECKILL_ALARMS__INTERVAL_MS");
        }
        if !(1..=100).contains(&self.alarms.refused_percent) {
            return wrong("alarms.refused_percent", "must be 1 to 100", "SECKILL_ALARMS__REFUSED_PERCENT");
        }
        if !(1..=86_400).contains(&self.alarms.outbox_age_s) {
            return wrong("alarms.outbox_age_s", "must be 1 to 86400", "SECKILL_ALARMS__OUTBOX_AGE_S");
        }
        if self.alarms.clear_after_ms > 3_600_000 {
            return wrong("alarms.clear_after_ms", "must be 0 to 3600000", "SECKILL_ALARMS__CLEAR_AFTER_MS");
        }
        if !self.alarms.webhook_url.is_empty() {
            if !is_address(&self.alarms.webhook_url) {
                return wrong("alarms.webhook_url", NO_ADDRESS, "SECKILL_ALARMS__WEBHOOK_URL");
            }
            if Secret::parse(&self.alarms.webhook_secret).is_err() {
                let problem = "must be whsec_ and base64 of 24 to 64 bytes";
                return wrong("alarms.webhook_secret", problem, "SECKILL_ALARMS__WEBHOOK_SECRET");
            }
        }
        if !self.shop.webhook_url.is_empty() {
            if !is_address(&self.shop.webhook_url) {
                return wrong("shop.webhook_url", NO_ADDRESS, "SECKILL_SHOP__WEBHOOK_URL");
            }
            let good = self.shop.webhook_secrets.iter().all(|secret| Secret::parse(secret).is_ok());
            if !good || !(1..=2).contains(&self.shop.webhook_secrets.len()) {
                let problem = "must be one or two of whsec_ and base64 of 24 to 64 bytes, comma-separated";
                return wrong("shop.webhook_secrets", problem, "SECKILL_SHOP__WEBHOOK_SECRETS");
            }
        }
        for (time, setting, variable) in [
            (self.admin.session_ms, "admin.session_ms", "SECKILL_ADMIN__SESSION_MS"),
            (self.admin.idle_ms, "admin.idle_ms", "SECKILL_ADMIN__IDLE_MS"),
            (self.admin.login_window_ms, "admin.login_window_ms", "SECKILL_ADMIN__LOGIN_WINDOW_MS"),
        ] {
            if !(1000..=2_592_000_000).contains(&time) {
                return wrong(setting, "must be 1000 to 2592000000 ms (30 days)", variable);
            }
        }
        if !(1..=10_000).contains(&self.admin.login_limit) {
            return wrong("admin.login_limit", "must be 1 to 10000", "SECKILL_ADMIN__LOGIN_LIMIT");
        }
        if !(1..=64).contains(&self.admin.hash_threads) {
            return wrong("admin.hash_threads", "must be 1 to 64", "SECKILL_ADMIN__HASH_THREADS");
        }
        if !(1..=10_000).contains(&self.admin.hash_line_max) {
            return wrong("admin.hash_line_max", "must be 1 to 10000", "SECKILL_ADMIN__HASH_LINE_MAX");
        }
        if !(100..=600_000).contains(&self.admin.hash_wait_max_ms) {
            return wrong("admin.hash_wait_max_ms", "must be 100 to 600000 ms", "SECKILL_ADMIN__HASH_WAIT_MAX_MS");
        }
        // reserve.lua takes a batch as the arguments of one call, and Lua's stack holds about 8000 values.
        if !(1..=1000).contains(&self.purchase.batch_max) {
            return wrong("purchase.batch_max", "must be 1 to 1000", "SECKILL_PURCHASE__BATCH_MAX");
        }
        for (value, setting, variable) in [
            (self.http.streams_max, "http.streams_max", "SECKILL_HTTP__STREAMS_MAX"),
            (self.purchase.queue_max, "purchase.queue_max", "SECKILL_PURCHASE__QUEUE_MAX"),
            (self.purchase.commit_batch_max, "purchase.commit_batch_max", "SECKILL_PURCHASE__COMMIT_BATCH_MAX"),
            (self.purchase.committers, "purchase.committers", "SECKILL_PURCHASE__COMMITTERS"),
            (self.orders.batch_max, "orders.batch_max", "SECKILL_ORDERS__BATCH_MAX"),
            (usize::try_from(self.outbox.batch_max).unwrap_or(0), "outbox.batch_max", "SECKILL_OUTBOX__BATCH_MAX"),
            (self.outbox.max_attempts as usize, "outbox.max_attempts", "SECKILL_OUTBOX__MAX_ATTEMPTS"),
            (self.outflow.max_attempts as usize, "outflow.max_attempts", "SECKILL_OUTFLOW__MAX_ATTEMPTS"),
            (self.payments.batch_max, "payments.batch_max", "SECKILL_PAYMENTS__BATCH_MAX"),
            (self.amqp.prefetch.into(), "amqp.prefetch", "SECKILL_AMQP__PREFETCH"),
        ] {
            if !(1..=1_000_000).contains(&value) {
                return wrong(setting, "must be 1 to 1000000", variable);
            }
        }
        self.check_background_work()?;
        self.check_payments()?;
        self.check_traces()?;
        self.check_captcha()?;
        if !(100..=60_000).contains(&self.outflow.request_timeout_ms) {
            let variable = "SECKILL_OUTFLOW__REQUEST_TIMEOUT_MS";
            return wrong("outflow.request_timeout_ms", "must be 100 to 60000", variable);
        }
        self.sandbox = sandbox(self.sandbox, self.dev)?;
        Ok(self)
    }

    /// Refuses an interval that would be a loop without a pause, and times that nobody waits for.
    fn check_background_work(&self) -> Result<(), ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        let reconcile = &self.reconcile;
        for (interval, setting, variable) in [
            (self.outbox.poll_ms, "outbox.poll_ms", "SECKILL_OUTBOX__POLL_MS"),
            (reconcile.interval_ms, "reconcile.interval_ms", "SECKILL_RECONCILE__INTERVAL_MS"),
            (reconcile.waves_interval_ms, "reconcile.waves_interval_ms", "SECKILL_RECONCILE__WAVES_INTERVAL_MS"),
            (reconcile.drift_interval_ms, "reconcile.drift_interval_ms", "SECKILL_RECONCILE__DRIFT_INTERVAL_MS"),
            (reconcile.sweep_interval_ms, "reconcile.sweep_interval_ms", "SECKILL_RECONCILE__SWEEP_INTERVAL_MS"),
        ] {
            if !(10..=86_400_000).contains(&interval) {
                return wrong(setting, "must be 10 to 86400000 ms", variable);
            }
        }
        for (time, setting, variable) in [
            (self.outbox.resend_after_ms, "outbox.resend_after_ms", "SECKILL_OUTBOX__RESEND_AFTER_MS"),
            (self.outbox.backoff_base_ms, "outbox.backoff_base_ms", "SECKILL_OUTBOX__BACKOFF_BASE_MS"),
            (self.outbox.backoff_max_ms, "outbox.backoff_max_ms", "SECKILL_OUTBOX__BACKOFF_MAX_MS"),
            (
                reconcile.unconfirmed_after_ms,
                "reconcile.unconfirmed_after_ms",
                "SECKILL_RECONCILE__UNCONFIRMED_AFTER_MS",
            ),
            (reconcile.sweep_grace_ms, "reconcile.sweep_grace_ms", "SECKILL_RECONCILE__SWEEP_GRACE_MS"),
            (reconcile.retire_after_ms, "reconcile.retire_after_ms", "SECKILL_RECONCILE__RETIRE_AFTER_MS"),
        ] {
            if time > 31_536_000_000 {
                return wrong(setting, "must be at most 31536000000 ms (a year)", variable);
            }
        }
        Ok(())
    }

    /// Refuses lists of servers that cannot be what is meant.
    fn check_servers(&self) -> Result<(), ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        for (address, setting, variable) in [
            (&self.database.url, "database.url", "DATABASE_URL"),
            (&self.redis.url, "redis.url", "REDIS_URL"),
            (&self.amqp.url, "amqp.url", "AMQP_URL"),
        ] {
            if let Some(problem) = servers::problem(address) {
                return wrong(setting, problem, variable);
            }
        }
        let redis = &self.redis.url;
        let names_group = servers::sentinels(redis).is_some() || servers::nodes(redis).is_some();
        if servers::each_server(redis).len() > 1 && !names_group {
            let problem = "names several servers: sentinels are redis+sentinel://one:26379,two:26379/NAME, nodes of a cluster redis+cluster://one:6379,two:6379";
            return wrong("redis.url", problem, "REDIS_URL");
        }
        if let Some(problem) = servers::sentinels_problem(redis).or_else(|| servers::nodes_problem(redis)) {
            return wrong("redis.url", problem, "REDIS_URL");
        }
        match servers::target_problem(&self.database.url) {
            Some(problem) => wrong("database.url", problem, "DATABASE_URL"),
            None => Ok(()),
        }
    }

    /// Refuses a file of authorities that would not be used.
    fn check_tls(&self) -> Result<(), ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        let over_tls = |url: &String| {
            ["rediss://", "valkeys://", "rediss+sentinel://", "rediss+cluster://"]
                .iter()
                .any(|scheme| url.starts_with(scheme))
        };
        let redis = &self.redis;
        if redis.ca_file.is_some() && !(over_tls(&redis.url) && redis.lock_urls.iter().all(over_tls)) {
            let problem = "needs rediss:// in redis.url and redis.lock_urls: other connections have no TLS";
            return wrong("redis.ca_file", problem, "SECKILL_REDIS__CA_FILE");
        }
        if self.amqp.ca_file.is_some() && !self.amqp.url.starts_with("amqps://") {
            let problem = "needs amqps:// in amqp.url: other connections have no TLS";
            return wrong("amqp.ca_file", problem, "SECKILL_AMQP__CA_FILE");
        }
        // Every other sslmode believes any certificate.
        let checked = ["mode=verify-full", "mode=verify-ca"].iter().any(|mode| self.database.url.contains(mode));
        let problem = "needs sslmode=verify-full in database.url: other modes check no certificate";
        if !checked && self.database.ca_file.is_some() {
            return wrong("database.ca_file", problem, "SECKILL_DATABASE__CA_FILE");
        }
        if !checked && ["sslrootcert=", "ssl-root-cert=", "ssl-ca="].iter().any(|name| self.database.url.contains(name))
        {
            return wrong("database.url: sslrootcert", problem, "DATABASE_URL");
        }
        Ok(())
    }

    fn check_traces(&self) -> Result<(), ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        let traces = &self.traces;
        // The exporter speaks no TLS: a collector stands on the same machine or in the same network, and forwards.
        let is_http = is_address(&traces.endpoint) && traces.endpoint.starts_with("http://");
        if !traces.endpoint.is_empty() && !is_http {
            return wrong("traces.endpoint", "must be an http:// address", "SECKILL_TRACES__ENDPOINT");
        }
        if traces.per_second_max > 10_000 {
            return wrong("traces.per_second_max", "must be at most 10000", "SECKILL_TRACES__PER_SECOND_MAX");
        }
        if traces.sample_one_in > 0 && traces.endpoint.is_empty() {
            let problem = "needs traces.endpoint: without it, traces that begin here are shown nowhere";
            return wrong("traces.sample_one_in", problem, "SECKILL_TRACES__SAMPLE_ONE_IN");
        }
        Ok(())
    }

    fn check_captcha(&self) -> Result<(), ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        let terms = &self.captcha;
        if terms.opens_before_ms > 86_400_000 {
            let variable = "SECKILL_CAPTCHA__OPENS_BEFORE_MS";
            return wrong("captcha.opens_before_ms", "must be at most 86400000 (a day)", variable);
        }
        for (time, setting, variable) in [
            (terms.challenge_ttl_ms, "captcha.challenge_ttl_ms", "SECKILL_CAPTCHA__CHALLENGE_TTL_MS"),
            (terms.pass_ttl_ms, "captcha.pass_ttl_ms", "SECKILL_CAPTCHA__PASS_TTL_MS"),
            (terms.window_ms, "captcha.window_ms", "SECKILL_CAPTCHA__WINDOW_MS"),
        ] {
            if !(1000..=86_400_000).contains(&time) {
                return wrong(setting, "must be 1000 to 86400000 (a day)", variable);
            }
        }
        // Who solves a challenge as soon as that is possible must be able to buy at the start.
        if terms.pass_ttl_ms <= terms.opens_before_ms {
            let problem = "must be longer than captcha.opens_before_ms: passes would expire before the start";
            return wrong("captcha.pass_ttl_ms", problem, "SECKILL_CAPTCHA__PASS_TTL_MS");
        }
        for (count, setting, variable) in [
            (terms.images_max, "captcha.images_max", "SECKILL_CAPTCHA__IMAGES_MAX"),
            (terms.sliders_max, "captcha.sliders_max", "SECKILL_CAPTCHA__SLIDERS_MAX"),
        ] {
            if !(1..=100_000).contains(&count) {
                return wrong(setting, "must be 1 to 100000", variable);
            }
        }
        if terms.draw_threads > 64 {
            return wrong("captcha.draw_threads", "must be at most 64", "SECKILL_CAPTCHA__DRAW_THREADS");
        }
        // A page searches a million numbers in seconds; 28 bits take it an hour.
        if !(1..=28).contains(&terms.work_bits_min) {
            return wrong("captcha.work_bits_min", "must be 1 to 28", "SECKILL_CAPTCHA__WORK_BITS_MIN");
        }
        if !(terms.work_bits_min..=28).contains(&terms.work_bits_max) {
            let problem = "must be captcha.work_bits_min to 28";
            return wrong("captcha.work_bits_max", problem, "SECKILL_CAPTCHA__WORK_BITS_MAX");
        }
        for (limit, setting, variable) in [
            (terms.buyer_limit, "captcha.buyer_limit", "SECKILL_CAPTCHA__BUYER_LIMIT"),
            (terms.address_limit, "captcha.address_limit", "SECKILL_CAPTCHA__ADDRESS_LIMIT"),
        ] {
            if limit == 0 {
                return wrong(setting, "must be at least 1", variable);
            }
        }
        Ok(())
    }

    fn check_payments(&mut self) -> Result<(), ConfigError> {
        let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
        let terms = &self.payments;
        if !is_currency(&terms.currency) {
            return wrong("payments.currency", NO_CURRENCY, "SECKILL_PAYMENTS__CURRENCY");
        }
        if terms.wait_ms > 86_400_000 {
            return wrong("payments.wait_ms", "must be at most 86400000 (a day)", "SECKILL_PAYMENTS__WAIT_MS");
        }
        if !(100..=3_600_000).contains(&terms.ask_after_ms) {
            return wrong("payments.ask_after_ms", "must be 100 to 3600000", "SECKILL_PAYMENTS__ASK_AFTER_MS");
        }
        if terms.on_its_way_ms > 86_400_000 {
            let variable = "SECKILL_PAYMENTS__ON_ITS_WAY_MS";
            return wrong("payments.on_its_way_ms", "must be at most 86400000 (a day)", variable);
        }
        self.channels.iter_mut().try_for_each(|(name, channel)| check_channel(name, channel, self.dev))
    }
}

fn check_channel(name: &str, channel: &mut Channel, dev: bool) -> Result<(), ConfigError> {
    let wrong = |setting, problem| Err(ConfigError::WrongChannel { channel: name.to_owned(), setting, problem });
    // The outflow of its refunds is named after the channel, and has at most 64 characters.
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
    if !(1..=10_000).contains(&channel.rate) {
        return wrong("rate", "must be 1 to 10000");
    }
    if !(1..=100).contains(&channel.refund_rate) {
        return wrong("refund_rate", "must be 1 to 100");
    }
    if !(0..=10_000).contains(&channel.jitter_ms) {
        return wrong("jitter_ms", "must be 0 to 10000");
    }
    if !(100..=60_000).contains(&channel.timeout_ms) {
        return wrong("timeout_ms", "must be 100 to 60000");
    }
    Ok(())
}

/// Checks the sandbox bank's settings. Only the bank itself needs its secret: a service may run without one.
pub(super) fn sandbox(
    mut settings: seckill_sandbox::Settings,
    dev: bool,
) -> Result<seckill_sandbox::Settings, ConfigError> {
    let wrong = |setting, problem, variable| Err(ConfigError::Wrong { setting, problem, variable });
    if dev && settings.secret.is_empty() {
        DEV_SANDBOX_SECRET.clone_into(&mut settings.secret);
    }
    if !settings.secret.is_empty() && Secret::parse(&settings.secret).is_err() {
        let problem = "must be whsec_ and base64 of 24 to 64 bytes";
        return wrong("sandbox.secret", problem, "SECKILL_SANDBOX__SECRET");
    }
    if settings.data_file.is_empty() {
        return wrong("sandbox.data_file", "is missing", "SECKILL_SANDBOX__DATA_FILE");
    }
    if !is_address(&settings.callback_url) {
        return wrong("sandbox.callback_url", NO_ADDRESS, "SECKILL_SANDBOX__CALLBACK_URL");
    }
    for (rate, setting, variable) in [
        (settings.pay_rate, "sandbox.pay_rate", "SECKILL_SANDBOX__PAY_RATE"),
        (settings.refund_rate, "sandbox.refund_rate", "SECKILL_SANDBOX__REFUND_RATE"),
    ] {
        if !(1..=100_000).contains(&rate) {
            return wrong(setting, "must be 1 to 100000", variable);
        }
    }
    if settings.confirm_ms > 86_400_000 {
        return wrong("sandbox.confirm_ms", "must be at most 86400000 (a day)", "SECKILL_SANDBOX__CONFIRM_MS");
    }
    Ok(settings)
}

fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|b| b.is_ascii_uppercase())
}

fn is_address(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme))
}
