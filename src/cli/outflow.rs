//! Commands for outflows.

use anyhow::bail;
use clap::Subcommand;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Format, print};
use crate::app::stores;
use crate::config::Config;
use crate::domain::outflow::Pace;
use crate::ledger::LedgerError;
use crate::ledger::outflow::items::{ChannelFigures, Enqueued, NewItem, ParkedItem};

/// Who the audit log says it was.
const ACTOR: &str = "command line";

#[derive(Subcommand)]
pub enum OutflowCommand {
    /// Make a channel; items are sent to its target as POST requests
    Create {
        name: String,
        /// Requests per second at the receiver, never more in any second
        #[arg(long)]
        rate: i64,
        /// An http:// address
        #[arg(long)]
        target: String,
        /// By how much requests may differ in their time on the network
        #[arg(long, default_value_t = 15)]
        jitter_ms: i64,
        /// Items that may wait
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(i64).range(1..))]
        capacity: i64,
    },
    /// Show all channels
    List {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Stop sending for a while
    Pause { name: String },
    /// Go on sending
    Resume { name: String },
    /// Change a channel's rate; it rests a second in between
    Rate {
        name: String,
        rate: i64,
        /// As it is, where nothing is said
        #[arg(long)]
        jitter_ms: Option<i64>,
    },
    /// Put an item into a channel; prints its id
    Add {
        name: String,
        /// Items of one key are sent one after another
        #[arg(long)]
        key: String,
        /// The JSON document that is sent
        #[arg(long, value_parser = |text: &str| serde_json::from_str::<Value>(text))]
        payload: Value,
        /// The Idempotency-Key; an item that is known is not taken again
        #[arg(long)]
        id: Option<Uuid>,
    },
    /// Show parked items
    Parked {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
    },
    /// Send parked items again
    Retry {
        name: String,
        /// The items' ids; none means every parked one of the channel
        ids: Vec<Uuid>,
    },
}

impl OutflowCommand {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let ledger = stores(config)?.ledger;
        let known = |done: bool, name: &str| if done { Ok(()) } else { bail!("there is no outflow {name}") };
        match self {
            Self::Create { name, rate, target, jitter_ms, capacity } => {
                let pace = Pace::parse(rate, jitter_ms)?;
                match ledger.create_outflow(&name, pace, &target, capacity, ACTOR).await {
                    Ok(true) => {}
                    Ok(false) => bail!("there is an outflow {name} already"),
                    Err(LedgerError::Refused(by)) => bail!(said(&by)),
                    Err(error) => return Err(error.into()),
                }
            }
            Self::List { format } => {
                ledger.count_outflow().await?;
                return print::rows(ledger.outflow_figures().await?.iter().map(ChannelLine::from), format);
            }
            Self::Pause { name } => known(ledger.pause_outflow(&name, true, ACTOR).await?, &name)?,
            Self::Resume { name } => known(ledger.pause_outflow(&name, false, ACTOR).await?, &name)?,
            Self::Rate { name, rate, jitter_ms } => {
                let channels = ledger.outflow_figures().await?;
                let now = channels.iter().find(|channel| channel.name == name);
                let jitter_ms = jitter_ms.or(now.map(|channel| channel.jitter_ms.into())).unwrap_or(0);
                let pace = Pace::parse(rate, jitter_ms)?;
                known(ledger.set_outflow_pace(&name, pace, ACTOR).await?, &name)?;
            }
            Self::Add { name, key, payload, id } => {
                let item = NewItem { id: id.unwrap_or_else(Uuid::now_v7), channel: name, key, payload };
                match ledger.enqueue_outflow(&item).await {
                    Ok(Enqueued::Full) => bail!("outflow {} is full", item.channel),
                    Ok(taken) => println!("{}", json!({ "id": item.id, "new": taken == Enqueued::Taken })),
                    Err(LedgerError::Refused(by)) => bail!(said(&by)),
                    Err(error) => return Err(error.into()),
                }
            }
            Self::Parked { format, limit } => {
                return print::rows(ledger.parked_outflow(limit).await?.iter().map(ParkedItemLine::from), format);
            }
            Self::Retry { name, ids } => {
                println!("{}", json!({ "retried": ledger.unpark_outflow(&name, &ids, ACTOR).await? }));
            }
        }
        Ok(())
    }
}

/// What a constraint of the schema says to people.
fn said(constraint: &str) -> String {
    match constraint {
        "outflow_items_channel_known" => "there is no outflow of that name",
        "outflow_items_key_length" => "the key must have 1 to 200 characters",
        "outflow_items_payload_size" => "the payload must be below 64 KiB",
        "outflow_channels_name_fits" => "the name must be a-z, 0-9, _ and -, at most 64 of them",
        "outflow_channels_target_http" => "the target must be an http:// or https:// address",
        other => return format!("{other} refused it"),
    }
    .to_owned()
}

#[derive(Serialize)]
struct ChannelLine<'a> {
    name: &'a str,
    rate: i32,
    jitter_ms: i32,
    paused: bool,
    waiting: i64,
    oldest_s: i64,
    parked: i64,
    capacity: i64,
    target: &'a str,
}

impl<'a> From<&'a ChannelFigures> for ChannelLine<'a> {
    fn from(c: &'a ChannelFigures) -> Self {
        Self {
            name: &c.name,
            rate: c.rate,
            jitter_ms: c.jitter_ms,
            paused: c.paused,
            waiting: c.waiting,
            oldest_s: c.oldest_at.map_or(0, |at| (c.now - at).num_seconds()),
            parked: c.parked,
            capacity: c.capacity,
            target: &c.target,
        }
    }
}

#[derive(Serialize)]
struct ParkedItemLine<'a> {
    id: String,
    channel: &'a str,
    key: &'a str,
    attempts: i32,
    error: &'a str,
    created_at: String,
}

impl<'a> From<&'a ParkedItem> for ParkedItemLine<'a> {
    fn from(item: &'a ParkedItem) -> Self {
        Self {
            id: item.id.to_string(),
            channel: &item.channel,
            key: &item.key,
            attempts: item.attempts,
            error: item.last_error.as_deref().unwrap_or_default(),
            created_at: print::time(item.created_at.timestamp_millis()),
        }
    }
}
