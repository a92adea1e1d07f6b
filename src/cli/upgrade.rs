//! `upgrade`: what an upgrade switches when all processes have been replaced, and switches back before older ones are started.

use std::time::Duration;

use anyhow::bail;
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{ACTOR, print};
use crate::app::stores;
use crate::config::Config;
use crate::ledger::Ledger;
use crate::ledger::purchase_form::GroupsOn;

/// Expiries of groups that are split at a time.
const EXPIRIES: i64 = 100;
/// Between two looks at what is left.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Subcommand)]
pub(super) enum UpgradeCommand {
    /// Say whether winners of one call to Redis are committed as a group; docs/upgrades.md says when
    Groups {
        /// Whether they are
        #[arg(value_enum)]
        switch: Switch,
        /// After `off`, wait at most this long until no group is left that an older version could not read
        #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86_400))]
        wait_s: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    /// As groups, once every process knows them
    On,
    /// One by one, as versions before groups do it
    Off,
}

impl UpgradeCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let ledger = stores(config)?.ledger;
        let Self::Groups { switch, wait_s } = self;
        match switch {
            Switch::On => match ledger.groups_on(ACTOR).await? {
                GroupsOn::On => print::json(&json!({ "groups": "on" })),
                GroupsOn::OlderProcesses(ids) => {
                    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                    bail!(
                        "{} processes of an older version were seen in the last minute: {}. Replace them, and repeat the command",
                        ids.len(),
                        ids.join(", ")
                    )
                }
            },
            Switch::Off => {
                ledger.groups_off(ACTOR).await?;
                wait_until_none_is_left(&ledger, Duration::from_secs(wait_s)).await?;
                print::json(&json!({ "groups": "off" }))
            }
        }
    }
}

/// Groups that were committed before are settled by the workers, as always. Their expiries, which may be weeks away, are split at once.
async fn wait_until_none_is_left(ledger: &Ledger, wait_max: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + wait_max;
    loop {
        while ledger.split_some_expiries(EXPIRIES).await? > 0 {}
        let left = ledger.groups_left().await?;
        if left == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "groups are off, and {left} rows about earlier groups are left: see that workers run and none is parked \
                 (`seckill outbox list`), and repeat the command before an older version is started"
            );
        }
        sleep(LOOK_EVERY).await;
    }
}
