//! Changing policies and who may use them. Every change is in the audit log, and is followed by every instance.

use std::time::Duration;

use super::FlowError;
use crate::domain::account::{AccountName, Actor};
use crate::domain::policy::{Name, NewPolicy, Role};
use crate::ledger::Ledger;
use crate::ledger::flow::policies::PolicyChange;

/// How long a change waits for the instances: a notice takes milliseconds, the poll behind it a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// Makes an application, and its token, which is told once: only the hash is kept.
pub async fn create_app(ledger: &Ledger, app: &Name, actor: &str) -> Result<String, FlowError> {
    // 32 random bytes: nothing to guess, so that a plain hash is as good as a slow one.
    let secret: [u8; 32] = rand::random();
    let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let made = ledger.create_app(app, blake3::hash(token.as_bytes()).as_bytes(), actor).await?;
    if !made {
        return Err(FlowError::Exists(app.to_string()));
    }
    follow(ledger, None).await?;
    Ok(token)
}

/// Makes or changes a policy. Returns whether every instance goes by it already.
pub async fn set(ledger: &Ledger, policy: NewPolicy, actor: impl Into<Actor>) -> Result<bool, FlowError> {
    let policy = policy.check()?;
    settled(ledger, ledger.set_policy(&policy, &actor.into()).await?, &policy.name).await
}

/// Removes a policy: who asks for it is told that there is none.
pub async fn delete(ledger: &Ledger, name: &Name, apps: &[Name], actor: impl Into<Actor>) -> Result<bool, FlowError> {
    settled(ledger, ledger.delete_policy(name, apps, &actor.into()).await?, name).await
}

/// Lets an account see an application's policies, or change them; with no role, neither any more.
pub async fn grant(
    ledger: &Ledger,
    app: &Name,
    account: &AccountName,
    role: Option<Role>,
    actor: &str,
) -> Result<(), FlowError> {
    match ledger.grant(app, account, role, actor).await? {
        true => Ok(()),
        false => Err(FlowError::Unknown(format!("application {app}"))),
    }
}

async fn settled(ledger: &Ledger, changed: PolicyChange, name: &Name) -> Result<bool, FlowError> {
    match changed {
        PolicyChange::At(version) => follow(ledger, Some(version)).await,
        PolicyChange::NotThere => Err(FlowError::Unknown(format!("policy {name} of these applications"))),
        PolicyChange::Ambiguous => Err(FlowError::Ambiguous),
        PolicyChange::NotOwned => Err(FlowError::NotOwned),
    }
}

async fn follow(ledger: &Ledger, version: Option<i64>) -> Result<bool, FlowError> {
    let version = match version {
        Some(version) => version,
        None => ledger.policy_version().await?,
    };
    Ok(ledger.everyone_follows(version, PATIENCE).await?)
}
