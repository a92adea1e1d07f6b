//! The configuration: config.default.toml, overridden by environment variables, checked before anything starts.

mod check;
pub mod production;
mod secret_files;
mod sections;
pub mod servers;
pub mod tls;

use std::collections::{BTreeMap, HashMap};

use config::{Config as Source, Environment, File, FileFormat, ValueKind};
use serde::Deserialize;

pub use sections::{
    Admin, Alarms, Allow, Amqp, Auth, Captcha, Channel, ChannelKind, Database, Flow, Http, Orders, Outbox, Outflow,
    Pages, Payments, Purchase, Reconcile, Redis, Retention, Shop, Traces, Work,
};

pub(crate) const DEFAULTS: &str = include_str!("../../../config.default.toml");

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub dev: bool,
    pub allow: Allow,
    pub http: Http,
    pub pages: Pages,
    pub auth: Auth,
    pub database: Database,
    pub redis: Redis,
    pub amqp: Amqp,
    pub purchase: Purchase,
    pub captcha: Captcha,
    pub outbox: Outbox,
    pub orders: Orders,
    pub retention: Retention,
    pub reconcile: Reconcile,
    pub flow: Flow,
    pub alarms: Alarms,
    pub admin: Admin,
    pub work: Work,
    pub outflow: Outflow,
    pub payments: Payments,
    pub channels: BTreeMap<String, Channel>,
    pub sandbox: seckill_sandbox::Settings,
    pub shop: Shop,
    pub traces: Traces,
}

/// Why the configuration cannot be used. Each message names the setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("configuration: {0}")]
    Unreadable(#[from] config::ConfigError),
    #[error("configuration: {0} is not a setting; config.default.toml lists all settings")]
    Unknown(String),
    #[error("configuration: {name} and {name}_FILE are both set; one of them must go")]
    GivenTwice { name: String },
    #[error("configuration: {variable}: cannot read {path}: {error}")]
    NoFile { variable: String, path: String, error: String },
    #[error("configuration: {setting} {problem} (set {})", variable_of(setting))]
    Wrong { setting: &'static str, problem: &'static str },
    #[error("configuration: {setting} must be {least} to {most} (set {})", variable_of(setting))]
    OutOfBounds { setting: &'static str, least: i128, most: i128 },
    #[error("configuration: channels.{channel}.{setting} {problem} (set SECKILL_CHANNELS__{}__{})",
            channel.to_uppercase(), setting.to_uppercase())]
    WrongChannel { channel: String, setting: &'static str, problem: &'static str },
    #[error(
        "configuration: channels.{0}: a channel's name must be 1 to 56 of a-z 0-9 _ -, begin with a letter or digit, and not be none"
    )]
    WrongChannelName(String),
}

impl ConfigError {
    pub fn setting(&self) -> Option<String> {
        match self {
            Self::Wrong { setting, .. } | Self::OutOfBounds { setting, .. } => Some((*setting).to_owned()),
            Self::WrongChannel { channel, setting, .. } => Some(format!("channels.{channel}.{setting}")),
            Self::Unreadable(_)
            | Self::Unknown(_)
            | Self::GivenTwice { .. }
            | Self::NoFile { .. }
            | Self::WrongChannelName(_) => None,
        }
    }
}

macro_rules! sensitive {
    ($($name:ident),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )+};
}
sensitive!(Auth, Database, Redis, Amqp, Alarms, Channel, Flow, Shop);

impl Config {
    pub fn read(environment: &HashMap<String, String>) -> Result<Self, ConfigError> {
        layers(environment)?.try_deserialize::<Self>()?.checked()
    }
}

/// The sandbox bank's settings under a given environment. The bank needs no other settings, and they are not checked.
pub fn sandbox_settings(environment: &HashMap<String, String>) -> Result<seckill_sandbox::Settings, ConfigError> {
    #[derive(Deserialize)]
    struct Alone {
        dev: bool,
        sandbox: seckill_sandbox::Settings,
    }
    let Alone { dev, sandbox } = layers(environment)?.try_deserialize()?;
    let sandbox = check::sandbox(sandbox, dev)?;
    production::check_sandbox(&sandbox, dev)?;
    if sandbox.secret.is_empty() {
        let setting = "sandbox.secret";
        return Err(ConfigError::Wrong { setting, problem: "is missing" });
    }
    Ok(sandbox)
}

/// Variables with this prefix belong to the test suite and are not settings.
const TEST_PREFIX: &str = "SECKILL_TEST_";

fn layers(environment: &HashMap<String, String>) -> Result<Source, ConfigError> {
    let defaults = Source::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml)).build()?;
    let environment = secret_files::read(environment, |name| is_setting(name, &defaults))?;
    let well_known = |name: &str| environment.get(name).cloned();
    let settings =
        environment.iter().filter(|(name, _)| name.starts_with("SECKILL_") && !name.starts_with(TEST_PREFIX));
    let settings: config::Map<String, String> = settings.map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(unknown) = settings.keys().filter(|name| !is_setting(name, &defaults)).min() {
        return Err(ConfigError::Unknown(unknown.clone()));
    }
    let layers = Source::builder()
        .add_source(defaults)
        .add_source(
            Source::builder()
                .set_override_option("redis.url", well_known("REDIS_URL"))?
                .set_override_option("database.url", well_known("DATABASE_URL"))?
                .set_override_option("amqp.url", well_known("AMQP_URL"))?
                .set_override_option("traces.endpoint", well_known("OTEL_EXPORTER_OTLP_ENDPOINT"))?
                .build()?,
        )
        .add_source(Environment::with_prefix("SECKILL").prefix_separator("_").separator("__").source(Some(settings)));
    Ok(layers.build()?)
}

/// The variable for a setting. A part of the setting may be named after a colon. Channels have their own names.
fn variable_of(setting: &str) -> String {
    match setting.split(':').next().unwrap_or_default() {
        "redis.url" => "REDIS_URL".to_owned(),
        "database.url" => "DATABASE_URL".to_owned(),
        "amqp.url" => "AMQP_URL".to_owned(),
        other => format!("SECKILL_{}", other.to_ascii_uppercase().replace('.', "__")),
    }
}

/// Whether a variable names a setting. Every setting has a default, except in `[channels.NAME]`, where deserialisation
/// checks the keys because any NAME is allowed.
fn is_setting(variable: &str, defaults: &Source) -> bool {
    let Some(key) = variable.strip_prefix("SECKILL_") else { return false };
    let key = key.to_ascii_lowercase().replace("__", ".");
    let in_channel = key.strip_prefix("channels.").is_some_and(|rest| rest.contains('.'));
    in_channel || defaults.get::<config::Value>(&key).is_ok_and(|value| !matches!(value.kind, ValueKind::Table(_)))
}
