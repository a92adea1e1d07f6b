//! `buyer`: what the law may ask of a shop about one buyer.

use anyhow::bail;
use clap::Subcommand;

use super::arguments::user;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_config::Config;
use seckill_domain::ids::UserId;

#[derive(Subcommand)]
pub(super) enum BuyerCommand {
    /// Replace a buyer's id by a pseudonym in every table and in Redis, and print where it was; orders and sums stay
    Erase {
        /// The buyer's id, as in the token
        #[arg(long, value_parser = user)]
        user: UserId,
    },
}

impl BuyerCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let Self::Erase { user } = self;
        match stores(config)?.ledger.sales.erase_buyer(ACTOR, user.as_str()).await? {
            Ok(report) => print::json(&report),
            Err(obstacles) => {
                let obstacles: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
                bail!("the buyer is not erased: {}", obstacles.join("; "))
            }
        }
    }
}
