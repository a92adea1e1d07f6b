//! Commands for payments and refunds.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;
use uuid::Uuid;

use super::{ACTOR, Format, print};
use crate::app::payment_service;
use crate::config::Config;
use crate::domain::ids::OrderId;
use crate::domain::payment::{RefundId, RefundReason};
use crate::pay::RefundAsked;

#[derive(Subcommand)]
pub enum PaymentsCommand {
    /// Show the newest payments
    List {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=1_000_000))]
        limit: i64,
    },
    /// Show callbacks that were set aside, because they do not fit
    SetAside {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=1_000_000))]
        limit: i64,
    },
    /// Say that callbacks that were set aside have been looked into
    Settle {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<i64>,
    },
}

#[derive(Subcommand)]
pub enum RefundsCommand {
    /// Show the newest refunds
    List {
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=1_000_000))]
        limit: i64,
    },
    /// Give a paid order's money back
    Create {
        order: Uuid,
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Try a refund again that its channel has refused
    Retry { refund: Uuid },
}

impl PaymentsCommand {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let payment_service = payment_service(config)?;
        match self {
            Self::List { format, limit } => {
                print::rows(payment_service.ledger.payments(limit).await?.into_iter(), format)
            }
            Self::SetAside { format, limit } => {
                print::rows(payment_service.ledger.callbacks_set_aside(limit).await?.into_iter(), format)
            }
            Self::Settle { ids } => {
                let settled = payment_service.ledger.settle_set_aside(&ids, ACTOR).await?;
                println!("{}", json!({ "settled": settled }));
                Ok(())
            }
        }
    }
}

impl RefundsCommand {
    pub async fn run(self, config: &Config) -> anyhow::Result<()> {
        let payment_service = payment_service(config)?;
        match self {
            Self::List { format, limit } => {
                print::rows(payment_service.ledger.refunds(limit).await?.into_iter(), format)
            }
            Self::Create { order, reason } => {
                let reason = RefundReason::parse(&reason)?;
                match payment_service.refund(None, ACTOR, OrderId(order), &reason).await? {
                    RefundAsked::Refund(id, status) => {
                        println!("{}", json!({ "refund_id": id, "status": status }));
                        Ok(())
                    }
                    RefundAsked::Unknown => bail!("there is no order {order}"),
                    RefundAsked::IllegalState => bail!("order {order} is not paid, or not through a channel"),
                }
            }
            Self::Retry { refund } => {
                if !payment_service.ledger.retry_refund(RefundId(refund), ACTOR).await? {
                    bail!("there is no refund {refund} that was refused");
                }
                Ok(())
            }
        }
    }
}
