//! `policy`: the policies that limit applications.

use anyhow::bail;
use clap::Subcommand;

use super::arguments::{Format, account, app};
use super::print::Row;
use super::{ACTOR, print};
use crate::app::stores;
use seckill_config::Config;
use seckill_domain::account::AccountName;
use seckill_domain::ids::Invalid;
use seckill_domain::limiter::AlgorithmKind;
use seckill_domain::policy::{Name, Policy, Role, WhenDown};
use seckill_domain::policy_form::{PolicyForm, names};
use seckill_flow::policy_changes;
use seckill_postgres::Ledger;

#[derive(Subcommand)]
pub(super) enum PolicyCommand {
    /// Create a policy, or change the existing one of that name; its counters are kept
    Set(Box<SetArgs>),
    /// Let an account see the policies of an application, or change them too
    Grant {
        /// Name of the application
        #[arg(long, value_parser = app)]
        app: Name,
        /// Name of the account
        #[arg(long, value_parser = account)]
        account: AccountName,
        /// Role: viewer (sees the policies) or owner (changes them too)
        #[arg(long)]
        role: Role,
    },
    /// Show policies
    List {
        /// Only policies of this application
        #[arg(long, value_parser = app)]
        app: Option<Name>,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Remove a policy
    Delete {
        /// Applications of the policy; one of them is enough
        #[arg(long, required = true, num_args = 1..)]
        app: Vec<String>,
        /// Name of the policy
        #[arg(long, value_parser = policy)]
        name: Name,
    },
}

#[derive(clap::Args)]
pub(super) struct SetArgs {
    /// Applications that may use the policy
    #[arg(long, required = true, num_args = 1..)]
    app: Vec<String>,
    /// Name of the policy
    #[arg(long)]
    name: String,
    /// Algorithm: fixed-window, sliding-log, sliding-counter, token-bucket, concurrency or leaky-bucket
    #[arg(long)]
    algorithm: AlgorithmKind,
    /// Permits in a window or, for concurrency, at the same time; -1 means unlimited
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    limit: Option<i64>,
    /// Length of the window or, for a bucket, the time in which --rate permits return (default 1000)
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    window_ms: Option<i64>,
    /// Permits that return to a token bucket, or drain from a leaky bucket, in each window
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    rate: Option<i64>,
    /// Permits that a bucket holds (default: the rate)
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    capacity: Option<i64>,
    /// Time after which a permit of the concurrency algorithm is taken back if it is not released (default 30000)
    #[arg(long, value_name = "MS", allow_hyphen_values = true)]
    lease_ms: Option<i64>,
    /// Lower bound of the limit, or of a bucket's rate, which then adapts between --floor and --ceiling
    #[arg(long, value_name = "N", requires = "ceiling", allow_hyphen_values = true)]
    floor: Option<i64>,
    /// Upper bound of the limit, or of a bucket's rate
    #[arg(long, value_name = "N", requires = "floor", allow_hyphen_values = true)]
    ceiling: Option<i64>,
    /// Lower the limit when calls are reported to take longer than this
    #[arg(long, value_name = "MS", requires = "floor", value_parser = clap::value_parser!(i64).range(1..=3_600_000))]
    target_ms: Option<i64>,
    /// Answer when the limit is reached: reject, queue:MS, degrade:JSON or shadow
    #[arg(long, default_value = "reject")]
    excess: String,
    /// Answer when Redis cannot be reached: closed (refuse), open (grant) or local (each instance grants its share)
    #[arg(long, default_value = "closed")]
    when_down: WhenDown,
    /// Circuit breaker settings; {} takes the defaults, which docs/limits.md lists
    #[arg(long, value_name = "JSON")]
    breaker: Option<String>,
    /// Meaning of the key in permit requests, such as user; for people, except that with `address` all spellings of a network address
    /// are counted together
    #[arg(long, default_value = "")]
    key: String,
    /// Spread the keys over the slots of a Redis cluster: more throughput, but no other policy in the same request
    #[arg(long)]
    spread: bool,
}

fn policy(text: &str) -> Result<Name, Invalid> {
    Name::parse(text, "policy")
}

impl PolicyCommand {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let ledger = stores(config)?.ledger;
        match self {
            Self::Set(args) => set(&ledger, *args).await?,
            Self::Grant { app, account, role } => {
                policy_changes::grant(&ledger, &app, &account, Some(role), ACTOR).await?;
            }
            Self::List { app, format } => {
                let policies = ledger.policies.policies(app.as_ref()).await?;
                return print::rows(policies.iter().map(row), format);
            }
            Self::Delete { app, name } => {
                report_change(policy_changes::delete(&ledger, &name, &names(&app)?, ACTOR).await?);
            }
        }
        Ok(())
    }
}

async fn set(ledger: &Ledger, args: SetArgs) -> anyhow::Result<()> {
    let breaker = args.breaker.as_deref().map(serde_json::from_str).transpose();
    let Ok(breaker) = breaker else { bail!("--breaker must be a JSON object; docs/limits.md lists its fields") };
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
        if !ledger.policies.has_app(app).await? {
            tracing::warn!(%app, "the application does not exist yet: create it with `seckill app create`");
        }
    }
    report_change(policy_changes::set(ledger, policy, ACTOR).await?);
    Ok(())
}

fn report_change(known_everywhere: bool) {
    if known_everywhere {
        tracing::info!("done: every instance applies the change");
    } else {
        tracing::warn!("done, but a live instance has not confirmed that it applies the change");
    }
}

fn row(policy: &Policy) -> Row<11> {
    let terms = &policy.terms;
    let apps: Vec<_> = terms.apps.iter().map(Name::as_str).collect();
    Row([
        ("name", terms.name.as_str().into()),
        ("apps", apps.join(" ").into()),
        ("algorithm", terms.algorithm.kind().as_str().into()),
        ("terms", policy.describe_terms().into()),
        ("excess", terms.excess.to_string().into()),
        ("when_down", terms.when_down.as_str().into()),
        ("key", terms.key.as_str().into()),
        ("version", policy.version.into()),
        ("created_by", policy.created_by.as_str().into()),
        ("updated_by", policy.updated_by.as_str().into()),
        ("updated_at", print::time(policy.updated_at_ms).into()),
    ])
}
