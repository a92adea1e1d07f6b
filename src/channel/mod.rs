//! What is spoken to outside: payment channels, and receivers that take our requests over HTTP.

pub mod sandbox;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config;

use crate::domain::outflow::{Pace, PaceError};
use crate::domain::payment::{About, ChannelReport};
use sandbox::Sandbox;
use seckill_webhook::{HttpAnswer, InvalidSecret, PreparedRequest, Secret, SendError, SignatureError};

/// A payment as a channel is asked for it.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    pub about: About,
    pub amount_cents: i64,
    pub currency: &'a str,
}

/// What a channel answers to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatusReply {
    ChannelReport(ChannelReport),
    /// It has never heard of it.
    Unknown,
    /// It did not say.
    Unclear(String),
}

/// Why a callback is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BadCallback {
    #[error(transparent)]
    NotBelieved(#[from] SignatureError),
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// The headers of a signed message.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    pub id: &'a str,
    pub timestamp: &'a str,
    pub signature: &'a str,
}

/// Whose interface a channel speaks. Another provider is one more file beside sandbox.rs, and one more name here.
enum Provider {
    Sandbox(Sandbox),
}

/// A payment channel, and how it wants to be treated.
pub struct Channel {
    pub name: &'static str,
    /// Of payments, and of refunds.
    pub pace: Pace,
    pub refund_pace: Pace,
    pub patience: Duration,
    /// What its refunds' requests are signed with.
    pub secret: Secret,
    provider: Provider,
}

/// The channels that there are, by name.
#[derive(Clone, Default)]
pub struct Channels(Arc<BTreeMap<&'static str, Channel>>);

/// Why the configuration makes no channel.
#[derive(Debug, thiserror::Error)]
pub enum BadChannel {
    #[error("channels.{0}: {1}")]
    Pace(&'static str, #[source] PaceError),
    #[error("channels.{0}: {1}")]
    Secret(&'static str, #[source] InvalidSecret),
}

impl Channels {
    /// Those that have an address and a secret.
    pub fn new(config: &config::Channels) -> Result<Self, BadChannel> {
        let terms = &config.sandbox;
        let name = "sandbox";
        let secrets: Vec<Secret> = terms
            .secrets
            .iter()
            .map(|secret| Secret::parse(secret))
            .collect::<Result<_, _>>()
            .map_err(|error| BadChannel::Secret(name, error))?;
        let Some(secret) = secrets.first().cloned().filter(|_| !terms.url.is_empty()) else {
            return Ok(Self::default());
        };
        let pace = |error| BadChannel::Pace(name, error);
        let patience = Duration::from_millis(terms.timeout_ms);
        let channel = Channel {
            name,
            pace: Pace::claimed_in_groups(terms.rate, terms.jitter_ms).map_err(pace)?,
            refund_pace: Pace::parse(terms.refund_rate, terms.jitter_ms).map_err(pace)?,
            patience,
            secret,
            provider: Provider::Sandbox(Sandbox::new(&terms.url, secrets, patience)),
        };
        Ok(Self(Arc::new(BTreeMap::from([(name, channel)]))))
    }

    pub fn get(&self, name: &str) -> Option<&Channel> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.0.values()
    }
}

impl Channel {
    /// Prepares to ask for a payment: the connection is made, nothing is sent.
    pub async fn prepare(&self, charge: &Charge<'_>, now_s: i64) -> Result<PreparedRequest, SendError> {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.prepare(charge, now_s).await
    }

    /// Sends what was prepared, now: with the first poll.
    pub async fn send(&self, ready: PreparedRequest) -> Result<HttpAnswer, SendError> {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.send(ready).await
    }

    /// Keeps the connection of what is not to be sent after all.
    pub fn keep(&self, ready: PreparedRequest) {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.keep(ready);
    }

    /// Asks how it stands with a payment or refund, by the key that it was sent under.
    pub async fn ask(&self, about: About) -> Result<StatusReply, SendError> {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.ask(about).await
    }

    /// Reads a callback, if it is the channel's own.
    pub fn read_callback(&self, signed: Signed<'_>, body: &[u8], now_s: i64) -> Result<ChannelReport, BadCallback> {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.read_callback(signed, body, now_s)
    }

    /// The channel's own books: money that has moved, after a place in them, and the place behind.
    pub async fn movements(&self, after: i64) -> Result<(Vec<ChannelReport>, Option<i64>), SendError> {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.movements(after).await
    }

    /// Where refunds are posted to.
    pub fn refunds_at(&self) -> String {
        let Provider::Sandbox(sandbox) = &self.provider;
        sandbox.refunds_at()
    }

    /// The outflow that its refunds leave by.
    pub fn outflow(&self) -> String {
        format!("refunds-{}", self.name)
    }
}
