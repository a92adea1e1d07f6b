//! Payment channels, and the delivery of signed requests to receivers outside.

pub mod deliver;
mod sandbox;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandbox::Sandbox;
use seckill_config::{self as config, ChannelKind};
use seckill_domain::delivery::DeliveryOutcome;
use seckill_domain::ids::Invalid;
use seckill_domain::outflow::Pace;
use seckill_domain::payment::{About, ChannelReport};
use seckill_domain::trace_context::TraceContext;
use seckill_webhook::{
    HttpAnswer, HttpSender, InvalidSecret, PreparedRequest, Secret, SendError, SignatureError, SignedRequest,
};

#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    pub about: About,
    pub amount_cents: i64,
    pub currency: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatusReply {
    ChannelReport(ChannelReport),
    /// The channel has never received it.
    Unknown,
    Unclear(String),
}

#[derive(Debug)]
pub struct BooksPage {
    pub movements: Vec<ChannelReport>,
    /// The start of the next page; `None` at the end.
    pub next: Option<i64>,
}

/// The longest body of a callback, in bytes. The bound matters because bodies from any sender are hashed to check the signature.
pub const CALLBACK_MAX_BYTES: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum BadCallback {
    #[error(transparent)]
    NotBelieved(#[from] SignatureError),
    #[error("the callback cannot be read: {0}")]
    Unreadable(String),
}

#[derive(Debug, Clone, Copy)]
pub struct SignatureHeaders<'a> {
    pub id: &'a str,
    pub timestamp: &'a str,
    pub signature: &'a str,
}

/// A payment channel: an entry `[channels.NAME]` of the settings. Channels share nothing: each has its own connections, queue, rate,
/// breaker, bound of requests, outflow of refunds, and books.
pub struct Channel {
    pub name: String,
    /// The name for buyers, in English and in Chinese.
    pub titles: [String; 2],
    /// Of payments.
    pub pace: Pace,
    pub refund_pace: Pace,
    pub patience: Duration,
    sender: HttpSender,
    /// The only kind of interface. Another kind is a file next to sandbox.rs.
    interface: Sandbox,
}

/// The channels that are offered, by name.
#[derive(Clone, Default)]
pub struct Channels(Arc<BTreeMap<String, Arc<Channel>>>);

/// Why an entry of the settings is not a valid channel.
#[derive(Debug, thiserror::Error)]
pub enum BadChannel {
    #[error("channels.{0}: {1}")]
    Pace(String, #[source] Invalid),
    #[error("channels.{0}: {1}")]
    Secret(String, #[source] InvalidSecret),
}

impl Channels {
    /// The channels that have an address and a secret.
    pub fn new(entries: &BTreeMap<String, config::Channel>) -> Result<Self, BadChannel> {
        let offered = entries.iter().filter(|(_, entry)| entry.is_offered());
        let channels = offered.map(|(name, entry)| Ok((name.clone(), Arc::new(Channel::new(name, entry)?))));
        Ok(Self(Arc::new(channels.collect::<Result<_, BadChannel>>()?)))
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Channel>> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Channel>> {
        self.0.values()
    }

    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

impl Channel {
    fn new(name: &str, entry: &config::Channel) -> Result<Self, BadChannel> {
        let pace = |error| BadChannel::Pace(name.to_owned(), error);
        let secrets = entry.secrets.iter().map(|secret| Secret::parse(secret)).collect::<Result<Vec<_>, _>>();
        let secrets = secrets.map_err(|error| BadChannel::Secret(name.to_owned(), error))?;
        let or = |title: &str, other: &str| if title.is_empty() { other.to_owned() } else { title.to_owned() };
        let title = or(&entry.title, name);
        Ok(Self {
            name: name.to_owned(),
            titles: [title.clone(), or(&entry.title_zh, &title)],
            pace: Pace::claimed_in_groups(entry.rate, entry.jitter_ms).map_err(pace)?,
            refund_pace: Pace::parse(entry.refund_rate, entry.jitter_ms).map_err(pace)?,
            patience: Duration::from_millis(entry.timeout_ms),
            sender: HttpSender::default(),
            interface: match entry.kind {
                ChannelKind::Sandbox => Sandbox::new(&entry.url, secrets),
            },
        })
    }

    pub fn sender(&self) -> &HttpSender {
        &self.sender
    }

    /// Connects for a payment's request; sends nothing yet. `now_s` is the time of the signature.
    pub async fn prepare(
        &self,
        charge: &Charge<'_>,
        trace: Option<&TraceContext>,
        now_s: i64,
    ) -> Result<PreparedRequest, SendError> {
        let request = self.request(charge, now_s).with_headers(trace.into_iter().flat_map(TraceContext::headers));
        self.sender.prepare(request).await
    }

    pub fn request(&self, charge: &Charge<'_>, now_s: i64) -> SignedRequest {
        self.interface.request(charge, now_s)
    }

    /// The channel's answer about a payment or refund, and what it says of the channel itself.
    pub async fn ask(&self, about: About) -> (Result<StatusReply, SendError>, DeliveryOutcome) {
        let answer = self.get(&self.interface.status_url(about)).await;
        let outcome = deliver::outcome_of(&answer);
        (answer.map(|answer| self.interface.read_status(&answer)), outcome)
    }

    /// The report of a callback; `None` if it is about something else than payments and refunds.
    pub fn read_callback(
        &self,
        signed: SignatureHeaders<'_>,
        body: &[u8],
        now_s: i64,
    ) -> Result<Option<ChannelReport>, BadCallback> {
        self.interface.read_callback(signed, body, now_s)
    }

    /// The page of the channel's books after `after`. It lists each movement of money once.
    pub async fn movements(&self, after: i64) -> Result<BooksPage, SendError> {
        self.interface.read_books(&self.get(&self.interface.books_url(after)).await?)
    }

    async fn get(&self, url: &str) -> Result<HttpAnswer, SendError> {
        self.sender.get(url, &[], self.patience).await
    }

    pub fn refund_url(&self) -> String {
        self.interface.refund_url()
    }

    /// The channel's name among the receivers.
    pub fn receiver(&self) -> String {
        format!("payments {}", self.name)
    }

    /// The name of the outflow that sends the channel's refunds.
    pub fn outflow(&self) -> String {
        format!("refunds-{}", self.name)
    }
}
