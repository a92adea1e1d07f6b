//! `outbox`: shows parked messages and sends them again.

use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;

use super::arguments::ListArgs;
use super::{ACTOR, print};
use crate::app::stores;
use crate::config::Config;
use crate::ledger::outbox::ParkedRow;
use crate::sale_work::parked::{self, RetriedAll};

#[derive(Subcommand)]
pub(super) enum OutboxCommand {
    /// Show parked messages: the ones that failed too often and are no longer retried
    List(ListArgs),
    /// Send parked messages again
    Retry {
        /// Ids of the messages; without any, all parked messages
        #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..), allow_negative_numbers = true)]
        ids: Vec<i64>,
    },
}

impl OutboxCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let ledger = stores(config)?.ledger;
        match self {
            Self::List(ListArgs { format, limit }) => {
                print::rows(ledger.parked(limit).await?.iter().map(ParkedLine::from), format)
            }
            Self::Retry { ids } => {
                if !ids.is_empty() {
                    return print::json(&json!({ "retried": parked::retry(&ledger, &ids, ACTOR).await? }));
                }
                print::json(&RetriedLine::from(parked::retry_all(&ledger, None, Duration::MAX, ACTOR).await?))
            }
        }
    }
}

/// What sending all again came to.
#[derive(Serialize)]
pub(super) struct RetriedLine {
    retried: u64,
    /// Whether more are parked.
    more: bool,
}

impl From<RetriedAll> for RetriedLine {
    fn from(RetriedAll { retried, more }: RetriedAll) -> Self {
        Self { retried, more }
    }
}

#[derive(Serialize)]
struct ParkedLine {
    id: i64,
    kind: String,
    order_id: String,
    sale_id: i64,
    user: String,
    attempts: i32,
    error: String,
    created_at: String,
}

impl From<&ParkedRow> for ParkedLine {
    fn from(row: &ParkedRow) -> Self {
        Self {
            id: row.id,
            kind: row.kind.clone(),
            order_id: row.order_id.to_string(),
            sale_id: row.sale_id,
            user: row.user_id.clone(),
            attempts: row.attempts,
            error: row.last_error.clone().unwrap_or_default(),
            created_at: print::time(row.created_at.timestamp_millis()),
        }
    }
}
