//! `payments` and `refunds`: shows them, and does what needs a person's decision.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;
use uuid::Uuid;

use super::arguments::{ListArgs, order_id};
use super::{ACTOR, print};
use crate::app::payment_service;
use crate::config::Config;
use crate::domain::ids::OrderId;
use crate::domain::payment::{RefundId, RefundReason};
use crate::ledger::money::lists::MoneyFilter;
use crate::pay::RefundAsked;

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
        let payment_service = payment_service(config)?;
        match self {
            Self::List(ListArgs { format, limit }) => {
                let filter = MoneyFilter { limit, ..MoneyFilter::default() };
                print::rows(payment_service.ledger.payments(&filter).await?.into_iter(), format)
            }
            Self::SetAside(ListArgs { format, limit }) => {
                print::rows(payment_service.ledger.callbacks_set_aside(None, limit).await?.into_iter(), format)
            }
            Self::Settle { ids } => {
                let settled = payment_service.ledger.settle_set_aside(&ids, ACTOR).await?;
                print::json(&json!({ "settled": settled }))
            }
        }
    }
}

impl RefundsCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let payment_service = payment_service(config)?;
        match self {
            Self::List(ListArgs { format, limit }) => {
                let filter = MoneyFilter { limit, ..MoneyFilter::default() };
                print::rows(payment_service.ledger.refunds(&filter).await?.into_iter(), format)
            }
            Self::Create { order, reason } => {
                let reason = RefundReason::parse(&reason)?;
                match payment_service.refund(None, ACTOR, order, &reason).await? {
                    RefundAsked::Refund(id, status) => print::json(&json!({ "refund_id": id, "status": status })),
                    RefundAsked::Unknown => bail!("there is no order {order}"),
                    RefundAsked::IllegalState => {
                        bail!("order {order} is not paid, or was not paid through a payment channel")
                    }
                }
            }
            Self::Retry { refund } => {
                if !payment_service.ledger.retry_refund(RefundId(refund), ACTOR).await? {
                    bail!("refund {refund} does not exist, or was not refused by its payment channel");
                }
                Ok(())
            }
        }
    }
}
