//! Commands of flow control.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::{ACTOR, Format, print};
use crate::app::stores;
use crate::config::Config;
use crate::domain::account::AccountName;
use crate::domain::limiter::AlgorithmKind;
use crate::domain::policy::{Name, Role, WhenDown};
use crate::domain::policy_form::{PolicyForm, names};
use crate::flow::policy_changes;

#[derive(Subcommand)]
pub enum AppCommand {
    /// Make an application that may ask for permits; prints its token, once
    Create { name: String },
}

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Make a policy, or change the one that these applications have under this name; counters go on
    Set(Box<SetArgs>),
    /// Let an account see an application's policies (viewer), or change them too (owner)
    Grant {
        #[arg(long)]
        app: String,
        #[arg(long)]
        account: String,
        #[arg(long)]
        role: Role,
    },
    /// Show the policies
    List {
        /// Only this application's
        #[arg(long)]
        app: Option<String>,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Remove a policy
    Delete {
        /// The applications that have it, or one of them
        #[arg(long, required = true, num_args = 1..)]
        app: Vec<String>,
        #[arg(long)]
        name: String,
    },
}

#[derive(clap::Args)]
pub struct SetArgs {
    /// The applications that may use it
    #[arg(long, required = true, num_args = 1..)]
    app: Vec<String>,
    #[arg(long)]
    name: String,
    /// fixed-window, sliding-log, sliding-counter, token-bucket, concurrency or leaky-bucket
    #[arg(long)]
    algorithm: AlgorithmKind,
    /// Permits in a window, or at once (concurrency); -1 is no limit
    #[arg(long, allow_hyphen_values = true)]
    limit: Option<i64>,
    /// The window; for a bucket, the time in which it gets back its rate (1000 where it is missing)
    #[arg(long, allow_hyphen_values = true)]
    window_ms: Option<i64>,
    /// Permits that a bucket gets back, or drains, a second
    #[arg(long, allow_hyphen_values = true)]
    rate: Option<i64>,
    /// Permits that a bucket holds; as many as a second's rate where it is missing
    #[arg(long, allow_hyphen_values = true)]
    capacity: Option<i64>,
    /// How long a place is kept for a caller who is not heard of again; 30000 where it is missing
    #[arg(long, allow_hyphen_values = true)]
    lease_ms: Option<i64>,
    /// With --ceiling: the limit, or a bucket's rate, moves between the two by itself
    #[arg(long, requires = "ceiling", allow_hyphen_values = true)]
    floor: Option<i64>,
    #[arg(long, requires = "floor", allow_hyphen_values = true)]
    ceiling: Option<i64>,
    /// Calls reported as slower than this make the limit move down
    #[arg(long, requires = "floor", value_parser = clap::value_parser!(i64).range(1..=3_600_000))]
    target_ms: Option<i64>,
    /// reject, queue:MS, degrade:JSON or shadow
    #[arg(long, default_value = "reject")]
    excess: String,
    /// When the limiter cannot be asked: closed, open, or local (each instance its share)
    #[arg(long, default_value = "closed")]
    when_down: WhenDown,
    /// A circuit breaker, as JSON; {} takes the defaults, which docs/limits.md shows
    #[arg(long, value_name = "JSON")]
    breaker: Option<String>,
    /// What the caller's key stands for: user, address, interface, channel…
    #[arg(long, default_value = "")]
    key: String,
    /// Spread the keys over a cluster's slots: more throughput, but alone in a call
    #[arg(long)]
    spread: bool,
}

pub async fn create_app(config: &Config, name: &str) -> anyhow::Result<()> {
    let app = Name::parse(name, "name")?;
    let token = policy_changes::create_app(&stores(config)?.ledger, &app, ACTOR).await?;
    println!("{}", json!({ "token": token }));
    Ok(())
}

pub async fn run(config: &Config, command: PolicyCommand) -> anyhow::Result<()> {
    match command {
        PolicyCommand::Set(args) => set(config, *args).await,
        PolicyCommand::Grant { app, account, role } => {
            let app = Name::parse(&app, "app")?;
            let account = AccountName::parse(&account, "account")?;
            Ok(policy_changes::grant(&stores(config)?.ledger, &app, &account, Some(role), ACTOR).await?)
        }
        PolicyCommand::List { app, format } => {
            let app = app.map(|app| Name::parse(&app, "app")).transpose()?;
            let policies = stores(config)?.ledger.policies(app.as_ref()).await?;
            print::rows(policies.iter().map(print::PolicyLine::from), format)
        }
        PolicyCommand::Delete { app, name } => {
            let name = Name::parse(&name, "name")?;
            told(policy_changes::delete(&stores(config)?.ledger, &name, &names(&app)?, ACTOR).await?);
            Ok(())
        }
    }
}

async fn set(config: &Config, args: SetArgs) -> anyhow::Result<()> {
    let ledger = stores(config)?.ledger;
    let breaker = args.breaker.as_deref().map(serde_json::from_str).transpose();
    let Ok(breaker) = breaker else { bail!("breaker must be a JSON object of its terms") };
    let form = PolicyForm {
        apps: args.app,
        algorithm: args.algorithm,
        limit: args.limit,
        window_ms: args.window_ms,
        rate: args.rate,
        capacity: args.capacity,
        lease_ms: args.lease_ms,
        floor: args.floor,
        ceiling: args.ceiling,
        target_ms: args.target_ms,
        excess: Some(args.excess),
        when_down: Some(args.when_down),
        breaker,
        key: args.key,
        spread: args.spread,
    };
    let policy = form.named(&args.name)?;
    for app in &policy.apps {
        if !ledger.has_app(app).await? {
            tracing::warn!(%app, "there is no such application yet: `seckill app create` makes it");
        }
    }
    told(policy_changes::set(&ledger, policy, ACTOR).await?);
    Ok(())
}

fn told(everyone: bool) {
    if everyone {
        tracing::info!("done: every instance goes by it");
    } else {
        tracing::warn!("done, but an instance that should be alive has not said that it goes by it");
    }
}
