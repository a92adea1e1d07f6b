//! Changes policies, applications and grants. Every change is in the audit log, and waits until every instance follows it.

use std::time::Duration;

use chrono::SecondsFormat;

use super::FlowError;
use seckill_domain::account::{AccountName, Actor};
use seckill_domain::ids::Invalid;
use seckill_domain::policy::{Name, NewPolicy, Role};
use seckill_postgres::Ledger;
use seckill_postgres::flow::apps::Rotation;
use seckill_postgres::flow::policies::PolicyChange;

/// A change waits this long for the instances. A notice takes milliseconds; the poll after a lost notice a second.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(3);

pub struct NewToken {
    pub token: String,
    pub old_ends_at_ms: i64,
    /// Whether every instance follows already.
    pub everywhere: bool,
}

/// Makes an application, and returns its token. Only the token's hash is stored.
pub async fn create_app(ledger: &Ledger, app: &Name, actor: &str) -> Result<String, FlowError> {
    let (token, hash) = new_token();
    if !ledger.policies.create_app(app, hash.as_bytes(), actor).await? {
        return Err(FlowError::Exists(app.to_string()));
    }
    wait_for_instances(ledger, ledger.policies.policy_version().await?).await?;
    Ok(token)
}

/// Gives an application a new token. The old one stays valid for `overlap_ms`; without an overlap, all earlier tokens end at once.
pub async fn rotate_token(ledger: &Ledger, app: &Name, overlap_ms: i64, actor: &str) -> Result<NewToken, FlowError> {
    if !(0..=2_592_000_000).contains(&overlap_ms) {
        return Err(Invalid::new("overlap_ms", "must be 0 to 2592000000 (30 days)").into());
    }
    let (token, hash) = new_token();
    match ledger.policies.rotate_token(app, hash.as_bytes(), overlap_ms, actor).await? {
        Rotation::Done { version, old_ends_at } => {
            let everywhere = wait_for_instances(ledger, version).await?;
            Ok(NewToken { token, old_ends_at_ms: old_ends_at.timestamp_millis(), everywhere })
        }
        Rotation::NotThere => Err(FlowError::Unknown(format!("application {app}"))),
        Rotation::TwoTokens { until } => {
            let until = until.to_rfc3339_opts(SecondsFormat::Secs, true);
            Err(FlowError::TwoTokens { app: app.to_string(), until })
        }
    }
}

/// A token, and its hash. 32 random bytes cannot be guessed, so a plain hash is as safe as a slow one.
fn new_token() -> (String, blake3::Hash) {
    let secret: [u8; 32] = rand::random();
    let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = blake3::hash(token.as_bytes());
    (token, hash)
}

/// Makes or changes a policy. Returns whether every instance follows already.
pub async fn set(ledger: &Ledger, policy: NewPolicy, actor: impl Into<Actor>) -> Result<bool, FlowError> {
    let policy = policy.check()?;
    complete(ledger, ledger.policies.set_policy(&policy, &actor.into()).await?, &policy.name).await
}

/// Deletes a policy: callers are then answered with code 0. Returns whether every instance follows already.
pub async fn delete(ledger: &Ledger, name: &Name, apps: &[Name], actor: impl Into<Actor>) -> Result<bool, FlowError> {
    complete(ledger, ledger.policies.delete_policy(name, apps, &actor.into()).await?, name).await
}

/// Grants an account a role on the policies of an application; without a role, takes the grant back.
pub async fn grant(
    ledger: &Ledger,
    app: &Name,
    account: &AccountName,
    role: Option<Role>,
    actor: &str,
) -> Result<(), FlowError> {
    let granted = ledger.policies.grant(app, account, role, actor).await?;
    if granted { Ok(()) } else { Err(FlowError::Unknown(format!("application {app}"))) }
}

async fn complete(ledger: &Ledger, change: PolicyChange, name: &Name) -> Result<bool, FlowError> {
    match change {
        PolicyChange::At(version) => wait_for_instances(ledger, version).await,
        PolicyChange::NotThere => Err(FlowError::Unknown(format!("policy {name} of these applications"))),
        PolicyChange::Ambiguous => Err(FlowError::Ambiguous),
        PolicyChange::NotOwned => Err(FlowError::NotOwned),
    }
}

async fn wait_for_instances(ledger: &Ledger, version: i64) -> Result<bool, FlowError> {
    Ok(ledger.sales.wait_until_followed(version, FOLLOW_TIMEOUT).await?)
}
