//! The sections of `config.default.toml`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use super::tls::{self, CaFile};
use seckill_domain::colour::Accent;
use seckill_domain::currency::Currency;
use seckill_domain::origin::Origin;
use seckill_domain::proxies::{ForwardedHeader, ProxyNetwork};
use seckill_domain::text::ShopName;

/// Unsafe settings that a service may have outside development mode.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    pub http_receivers: bool,
    pub sandbox_channel: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub bind: SocketAddr,
    pub workers: usize,
    #[serde(deserialize_with = "comma_separated")]
    pub trusted_proxies: Vec<ProxyNetwork>,
    #[serde(deserialize_with = "one_of")]
    pub forwarded_header: ForwardedHeader,
    #[serde(deserialize_with = "comma_separated")]
    pub cors_origins: Vec<Origin>,
    pub client_timeout_ms: u64,
    pub send_timeout_ms: u64,
    pub keep_alive_ms: u64,
    pub max_connections: usize,
    pub streams_max: usize,
    pub buyer_reads: u32,
    pub line_max: usize,
    pub body_max_bytes: usize,
    pub shutdown_timeout_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    #[serde(deserialize_with = "or_none")]
    pub origin: Option<Origin>,
    #[serde(deserialize_with = "one_of")]
    pub name: ShopName,
    #[serde(deserialize_with = "one_of")]
    pub name_zh: ShopName,
    pub logo: String,
    #[serde(deserialize_with = "one_of")]
    pub accent: Accent<false>,
    #[serde(deserialize_with = "one_of")]
    pub accent_dark: Accent<true>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    pub jwt_secret: String,
    pub jwt_secret_previous: String,
    pub jwt_public_key: String,
    pub jwks_url: String,
    pub jwks_refresh_s: u64,
    pub jwks_min_interval_s: u64,
    pub jwks_timeout_ms: u64,
    pub jwt_audience: String,
    pub jwt_issuer: String,
    pub jwt_leeway_s: u64,
    pub jwt_claim_id: String,
    pub jwt_claim_level: String,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    pub url: String,
    #[serde(deserialize_with = "tls::ca_file")]
    pub ca_file: Option<CaFile>,
    pub max_connections: u32,
    pub acquire_timeout_ms: u64,
    pub statement_timeout_ms: u64,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    pub url: String,
    #[serde(deserialize_with = "comma_separated")]
    pub lock_urls: Vec<String>,
    #[serde(deserialize_with = "tls::ca_file")]
    pub ca_file: Option<CaFile>,
    pub prefix: String,
    pub connect_timeout_ms: u64,
    pub response_timeout_ms: u64,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amqp {
    pub url: String,
    #[serde(deserialize_with = "tls::ca_file")]
    pub ca_file: Option<CaFile>,
    pub prefix: String,
    pub connect_timeout_ms: u64,
    pub confirm_timeout_ms: u64,
    pub queue_stuck_after_ms: u64,
    pub heartbeat_s: u16,
    pub prefetch: u16,
    pub queue_max_length: u32,
    pub management_url: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Purchase {
    pub buyer_limit: i64,
    pub buyer_window_ms: u64,
    pub address_limit: i64,
    pub address_window_ms: u64,
    pub sale_limit: i64,
    pub sale_window_ms: u64,
    pub lapses_max: i64,
    pub lapse_wait_ms: u64,
    pub sold_out_memory_ms: u64,
    pub wait_target_ms: u64,
    pub batch_max: usize,
    pub queue_max: usize,
    pub commit_batch_max: usize,
    pub committers: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Captcha {
    pub opens_before_ms: u64,
    pub challenge_ttl_ms: u64,
    pub pass_ttl_ms: u64,
    pub images_max: usize,
    pub sliders_max: usize,
    pub draw_threads: usize,
    pub work_bits_min: u32,
    pub work_bits_max: u32,
    pub buyer_limit: u32,
    pub address_limit: u32,
    pub window_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outbox {
    pub batch_max: i64,
    pub max_attempts: u32,
    pub backoff_base_ms: u64,
    pub backoff_max_ms: u64,
    pub resend_after_ms: u64,
    pub poll_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    pub batch_max: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    pub messages_days: u16,
    pub steps_days: u16,
    pub records_days: u16,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    pub interval_ms: u64,
    pub unconfirmed_after_ms: u64,
    pub waves_interval_ms: u64,
    pub drift_interval_ms: u64,
    pub sweep_interval_ms: u64,
    pub sweep_grace_ms: u64,
    pub retire_after_ms: u64,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    pub redis_url: String,
    pub timeout_ms: u64,
    pub queue_max: u32,
    pub app_keys_mb: u64,
    pub adapt_interval_ms: u64,
}

impl Flow {
    pub fn redis(&self, of_sales: &Redis) -> Redis {
        let url = if self.redis_url.is_empty() { &of_sales.url } else { &self.redis_url };
        Redis { url: url.clone(), ..of_sales.clone() }
    }

    pub const fn has_own_redis(&self) -> bool {
        !self.redis_url.is_empty()
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alarms {
    pub interval_ms: u64,
    pub outbox_age_s: u64,
    pub refused_percent: u64,
    pub clear_after_ms: u64,
    pub webhook_url: String,
    pub webhook_secret: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    pub session_ms: u64,
    pub idle_ms: u64,
    pub login_limit: i64,
    pub login_window_ms: u64,
    pub hash_threads: usize,
    pub hash_line_max: usize,
    pub hash_wait_max_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    #[serde(deserialize_with = "or_none")]
    pub metrics_bind: Option<SocketAddr>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outflow {
    pub request_timeout_ms: u64,
    pub max_attempts: u32,
    pub backoff_base_ms: u64,
    pub backoff_max_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payments {
    pub currency: Currency,
    pub wait_ms: u64,
    pub ask_after_ms: u64,
    pub on_its_way_ms: u64,
    pub batch_max: usize,
}

/// Which interface a payment channel speaks: each has a file in crates/channel/src.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelKind {
    Sandbox,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    pub kind: ChannelKind,
    pub url: String,
    #[serde(default, deserialize_with = "comma_separated")]
    pub secrets: Vec<String>,
    pub rate: i64,
    pub refund_rate: i64,
    pub jitter_ms: i64,
    pub timeout_ms: u64,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub title_zh: String,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shop {
    pub webhook_url: String,
    #[serde(deserialize_with = "comma_separated")]
    pub webhook_secrets: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    pub endpoint: String,
    pub per_second_max: u32,
    pub sample_one_in: u32,
}

impl Channel {
    pub fn is_offered(&self) -> bool {
        !self.url.is_empty() && !self.secrets.is_empty()
    }
}

fn or_none<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let value = (!text.is_empty()).then(|| text.parse()).transpose();
    value.map_err(|error| serde::de::Error::custom(format_args!("{text:?}: {error}")))
}

fn one_of<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| serde::de::Error::custom(format_args!("{text:?}: {error}")))
}

fn comma_separated<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| part.parse().map_err(|error| serde::de::Error::custom(format_args!("{part:?}: {error}"))))
        .collect()
}
