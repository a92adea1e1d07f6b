//! `outflow`: shows and changes outflows, queues whose items are sent at a constant rate.

use std::time::Duration;

use anyhow::{Error, anyhow, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use uuid::Uuid;

use super::arguments::{FormatArg, ListArgs};
use super::outbox::retried;
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_buying::sale_work::parked;
use seckill_config::Config;
use seckill_delivery::outflow_changes::{self, OutflowChange};
use seckill_domain::outflow::Pace;
use seckill_domain::text;
use seckill_postgres::LedgerError;
use seckill_postgres::outflow::items::{ChannelFigures, EnqueueOutcome, NewItem};
use seckill_postgres::outflow::parked::ParkedItem;

#[derive(Subcommand)]
pub(super) enum OutflowCommand {
    /// Create an outflow; its items are sent to the target as POST requests
    Create {
        /// Name of the outflow
        name: String,
        /// Requests per second; the receiver never gets more in any second
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        rate: i64,
        /// Receiver of the items: an http:// or https:// address
        #[arg(long, value_name = "URL")]
        target: String,
        /// Largest difference between the network delays of two requests, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 15)]
        jitter_ms: i64,
        /// Number of items that may wait; more are refused
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(i64).range(1..))]
        capacity: i64,
    },
    /// Show all outflows
    List(FormatArg),
    /// Stop sending until `outflow resume`
    Pause(OutflowArg),
    /// Continue a paused outflow
    Resume(OutflowArg),
    /// Change an outflow's rate; it sends nothing for a second in between
    Rate {
        /// Name of the outflow
        name: String,
        /// Requests per second
        #[arg(allow_negative_numbers = true)]
        rate: i64,
        /// Largest difference between the network delays of two requests, in milliseconds; unchanged by default
        #[arg(long, value_name = "MS")]
        jitter_ms: Option<i64>,
    },
    /// Add an item to an outflow and print the item's id
    Add {
        /// Name of the outflow
        name: String,
        /// Key of the item; items with the same key are sent in order, one at a time
        #[arg(long)]
        key: String,
        /// JSON document to send
        #[arg(long, value_parser = |text: &str| serde_json::from_str::<Value>(text))]
        payload: Value,
        /// Id of the item, sent as its Idempotency-Key; an id that exists is not added again
        #[arg(long)]
        id: Option<Uuid>,
    },
    /// Show parked items, newest first, which failed too often and are no longer retried
    Parked(ListArgs),
    /// Send parked items again
    Retry {
        /// Name of the outflow
        name: String,
        /// Ids of the items; without any, all parked items of the outflow
        #[arg(value_name = "ID")]
        ids: Vec<Uuid>,
    },
}

/// The outflow that a command is about.
#[derive(clap::Args)]
pub(super) struct OutflowArg {
    /// Name of the outflow
    name: String,
}

impl OutflowCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let ledger = stores(config)?.ledger;
        let change = async |name: String, change: OutflowChange| -> anyhow::Result<()> {
            if !outflow_changes::change(&ledger.outflows, &name, change, ACTOR).await? {
                bail!("there is no outflow {name}");
            }
            Ok(())
        };
        match self {
            Self::Create { name, rate, target, jitter_ms, capacity } => {
                let pace = Pace::parse(rate, jitter_ms)?;
                if !config.allows_target(&target) {
                    bail!(
                        "the target must be an https:// address outside development mode, unless \
                         SECKILL_ALLOW__HTTP_RECEIVERS=1 allows receivers without TLS"
                    );
                }
                if !ledger.outflows.create_outflow(&name, pace, &target, capacity, ACTOR).await.map_err(in_words)? {
                    bail!("outflow {name} already exists");
                }
            }
            Self::List(FormatArg { format }) => {
                return print::rows(
                    outflow_changes::outflows(&ledger.outflows).await?.into_iter().map(outflow_row),
                    format,
                );
            }
            Self::Pause(of) => change(of.name, OutflowChange { paused: Some(true), ..Default::default() }).await?,
            Self::Resume(of) => change(of.name, OutflowChange { paused: Some(false), ..Default::default() }).await?,
            Self::Rate { name, rate, jitter_ms } => {
                change(name, OutflowChange { rate: Some(rate), jitter_ms, ..Default::default() }).await?;
            }
            Self::Add { name, key, payload, id } => {
                let key = text::line(&key, "key", 1..=200)?;
                let item = NewItem { id: id.unwrap_or_else(Uuid::now_v7), channel: name, key, payload };
                match ledger.outflows.enqueue_outflow(&item).await.map_err(in_words)? {
                    EnqueueOutcome::Full => bail!("outflow {} is full", item.channel),
                    result => print::json(&json!({ "id": item.id, "new": result == EnqueueOutcome::Taken }))?,
                }
            }
            Self::Parked(list) => {
                let next = async |last: Option<ParkedItem>, n| {
                    ledger.outflows.parked_outflow(None, last.map(|last| last.seq), n).await
                };
                return print::pages(&list, next, item_row).await;
            }
            Self::Retry { name, ids } => {
                if ids.is_empty() {
                    let all = parked::retry_items(&ledger, &name, Duration::MAX, ACTOR).await?;
                    return print::json(&retried(all));
                }
                print::json(&json!({ "retried": ledger.outflows.unpark_outflow(&name, &ids, ACTOR).await? }))?;
            }
        }
        Ok(())
    }
}

fn in_words(error: LedgerError) -> Error {
    let LedgerError::Refused(constraint) = error else { return error.into() };
    Error::msg(match constraint.as_str() {
        "outflow_items_channel_known" => "there is no outflow of that name",
        "outflow_items_payload_size" => "the payload must be smaller than 64 KiB",
        "outflow_channels_name_fits" => "the name must be 1 to 64 of a-z 0-9 _ -",
        "outflow_channels_target_http" => "the target must be an http:// or https:// address",
        other => return anyhow!("the database refused the change: constraint {other}"),
    })
}

fn outflow_row(of: ChannelFigures) -> Row<9> {
    Row([
        ("name", of.name.as_str().into()),
        ("rate", of.rate.into()),
        ("jitter_ms", of.jitter_ms.into()),
        ("paused", of.paused.into()),
        ("waiting", of.waiting.into()),
        ("oldest_s", of.oldest_s().into()),
        ("parked", of.parked.into()),
        ("capacity", of.capacity.into()),
        ("target", of.target.into()),
    ])
}

fn item_row(of: ParkedItem) -> Row<6> {
    Row([
        ("id", of.id.to_string().into()),
        ("channel", of.channel.into()),
        ("key", of.key.into()),
        ("attempts", of.attempts.into()),
        ("error", of.last_error.unwrap_or_default().into()),
        ("created_at", print::time(of.created_at.timestamp_millis()).into()),
    ])
}
