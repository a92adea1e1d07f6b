//! `app`: applications that may ask for permits, and their tokens.

use clap::Subcommand;
use serde_json::json;

use super::arguments::{FormatArg, app};
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_config::Config;
use seckill_domain::policy::Name;
use seckill_flow::policy_changes;
use seckill_postgres::flow::apps::App;

#[derive(Subcommand)]
pub(super) enum AppCommand {
    /// Create an application and print its token, which is shown only once
    Create {
        /// Name of the application
        #[arg(value_parser = app)]
        name: Name,
    },
    /// Show applications and their valid tokens, without secrets
    List(FormatArg),
    /// Print a new token for an application; the old one stays valid for a time, and then ends by itself
    Rotate {
        /// Name of the application
        #[arg(value_parser = app)]
        name: Name,
        /// Seconds for which the old token stays valid, at most 30 days; 0 ends all earlier tokens at once
        #[arg(long, value_name = "SECONDS", default_value_t = 86_400, value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
        overlap: i64,
    },
}

impl AppCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let ledger = stores(config)?.ledger;
        match self {
            Self::Create { name } => {
                let token = policy_changes::create_app(&ledger, &name, ACTOR).await?;
                print::json(&json!({ "token": token }))
            }
            Self::List(FormatArg { format }) => {
                let apps = ledger.policies.apps().await?;
                print::rows(apps.iter().map(row), format)
            }
            Self::Rotate { name, overlap } => {
                let new = policy_changes::rotate_token(&ledger, &name, overlap * 1000, ACTOR).await?;
                if !new.everywhere {
                    tracing::warn!("a live instance has not confirmed that it knows the new token");
                }
                print::json(&json!({ "token": new.token, "old_token_ends_at_ms": new.old_ends_at_ms }))
            }
        }
    }
}

fn row(app: &App) -> Row<4> {
    let tokens = app.tokens.iter().map(|token| match token.ends_at_ms {
        None => format!("{} of {}", token.id, print::time(token.created_at_ms)),
        Some(ends_at_ms) => format!("{} until {}", token.id, print::time(ends_at_ms)),
    });
    Row([
        ("name", app.name.as_str().into()),
        ("created_by", app.created_by.as_str().into()),
        ("created_at", print::time(app.created_at.timestamp_millis()).into()),
        ("tokens", tokens.collect::<Vec<_>>().join(", ").into()),
    ])
}
