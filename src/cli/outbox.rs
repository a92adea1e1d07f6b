//! `outbox`: shows parked messages and sends them again.

use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use super::arguments::ListArgs;
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_buying::sale_work::parked::{self, RetriedAll};
use seckill_config::Config;
use seckill_postgres::outbox::ParkedRow;

#[derive(Subcommand)]
pub(super) enum OutboxCommand {
    /// Show parked messages, newest first, which failed too often and are no longer retried
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
            Self::List(list) => {
                let next =
                    async |last: Option<ParkedRow>, n| ledger.outbox.parked(None, last.map(|last| last.id), n).await;
                print::pages(&list, next, row).await
            }
            Self::Retry { ids } => {
                if !ids.is_empty() {
                    return print::json(&json!({ "retried": parked::retry(&ledger, &ids, ACTOR).await? }));
                }
                print::json(&retried(parked::retry_all(&ledger, None, Duration::MAX, ACTOR).await?))
            }
        }
    }
}

pub(super) fn retried(RetriedAll { retried, more }: RetriedAll) -> Row<2> {
    Row([("retried", retried.into()), ("more", more.into())])
}

fn row(of: ParkedRow) -> Row<8> {
    Row([
        ("id", of.id.into()),
        ("kind", of.kind.into()),
        ("order_id", of.order_id.to_string().into()),
        ("sale_id", of.sale_id.into()),
        ("user", of.user_id.into()),
        ("attempts", of.attempts.into()),
        ("error", of.last_error.unwrap_or_default().into()),
        ("created_at", print::time(of.created_at.timestamp_millis()).into()),
    ])
}
