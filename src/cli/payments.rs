//! `payments` and `refunds`: shows them, and does what needs a person's decision.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;
use uuid::Uuid;

use super::arguments::{ListArgs, order_id};
use super::print::Row;
use super::{ACTOR, print};
use crate::app::payment_service;
use seckill_config::Config;
use seckill_domain::ids::OrderId;
use seckill_domain::payment::{RefundId, RefundReason};
use seckill_money::RefundOutcome;
use seckill_postgres::money::lists::{MoneyFilter, MoneyRow, SetAside};

#[derive(Subcommand)]
pub(super) enum PaymentsCommand {
    /// Show payments, newest first
    List(ListArgs),
    /// Show callbacks that were set aside because they conflict with our data, newest first
    SetAside(ListArgs),
    /// Mark callbacks that were set aside as dealt with
    Settle {
        /// Ids of the callbacks, as `seckill payments set-aside` shows them
        #[arg(value_name = "ID", required = true, value_parser = clap::value_parser!(i64).range(1..), allow_negative_numbers = true)]
        ids: Vec<i64>,
    },
}

#[derive(Subcommand)]
pub(super) enum RefundsCommand {
    /// Show refunds, newest first
    List(ListArgs),
    /// Refund a paid order
    Create {
        /// The order's id
        #[arg(value_name = "ORDER_ID", value_parser = order_id, allow_negative_numbers = true)]
        order: OrderId,
        /// Reason for the refund, kept with it
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Send a refund again that its payment channel refused
    Retry {
        /// The refund's id
        #[arg(value_name = "REFUND_ID")]
        refund: Uuid,
    },
}

impl PaymentsCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let payments = payment_service(config)?.ledger.payments;
        match self {
            Self::List(list) => {
                let next = async |last, n| payments.payments(&after(last, n)).await;
                print::pages(&list, next, money_row).await
            }
            Self::SetAside(list) => {
                let next =
                    async |last: Option<SetAside>, n| payments.callbacks_set_aside(last.map(|last| last.id), n).await;
                print::pages(&list, next, callback_row).await
            }
            Self::Settle { ids } => {
                let settled = payments.settle_set_aside(&ids, ACTOR).await?;
                print::json(&json!({ "settled": settled }))
            }
        }
    }
}

impl RefundsCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let payment_service = payment_service(config)?;
        match self {
            Self::List(list) => {
                let next = async |last, n| payment_service.ledger.payments.refunds(&after(last, n)).await;
                print::pages(&list, next, money_row).await
            }
            Self::Create { order, reason } => {
                let reason = RefundReason::parse(&reason)?;
                match payment_service.refund(None, ACTOR, order, &reason).await? {
                    RefundOutcome::Refund(id, status) => print::json(&json!({ "refund_id": id, "status": status })),
                    RefundOutcome::Unknown => bail!("there is no order {order}"),
                    RefundOutcome::IllegalState => {
                        bail!("order {order} is not paid, or was not paid through a payment channel")
                    }
                }
            }
            Self::Retry { refund } => {
                if !payment_service.ledger.payments.retry_refund(RefundId(refund), ACTOR).await? {
                    bail!("refund {refund} does not exist, or was not refused by its payment channel");
                }
                Ok(())
            }
        }
    }
}

/// The next rows of a list.
fn after(last: Option<MoneyRow>, limit: i64) -> MoneyFilter {
    MoneyFilter { before: last.map(|last| last.id), limit, ..MoneyFilter::default() }
}

fn money_row(of: MoneyRow) -> Row<9> {
    Row([
        ("id", json!(of.id)),
        ("order_id", json!(of.order_id)),
        ("channel", of.channel.into()),
        ("amount_cents", of.amount_cents.into()),
        ("currency", of.currency.into()),
        ("status", of.status.into()),
        ("created_at", json!(of.created_at)),
        ("ended_at", json!(of.ended_at)),
        ("note", of.note.into()),
    ])
}

fn callback_row(of: SetAside) -> Row<6> {
    Row([
        ("id", of.id.into()),
        ("at", json!(of.at)),
        ("channel", of.channel.into()),
        ("message_id", of.message_id.into()),
        ("problem", of.problem.into()),
        ("body", of.body.into()),
    ])
}
