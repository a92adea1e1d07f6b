//! Changes policies, applications and grants. Every change is in the audit log, and waits until every instance follows
//! it.

use std::time::Duration;

use super::FlowError;
use crate::domain::account::{AccountName, Actor};
use crate::domain::policy::{Name, NewPolicy, Role};
use crate::ledger::Ledger;
use crate::ledger::flow::policies::PolicyChange;

/// How long a change waits for the instances. A notice takes milliseconds; the poll, should a notice be lost, a second.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes an application, and returns its token. The token cannot be read again: only its hash is stored.
///
/// # Errors
///
/// `Exists`: there is an application of this name.
pub async fn create_app(ledger: &Ledger, app: &Name, actor: &str) -> Result<String, FlowError> {
    // 32 random bytes cannot be guessed, so that a plain hash is as safe as a slow one.
    let secret: [u8; 32] = rand::random();
    let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let created = ledger.create_app(app, blake3::hash(token.as_bytes()).as_bytes(), actor).await?;
    if !created {
        return Err(FlowError::Exists(app.to_string()));
    }
    wait_for_instances(ledger, ledger.policy_version().await?).await?;
    Ok(token)
}

/// Makes or changes a policy. Returns whether every instance follows it already.
///
/// # Errors
///
/// `Policy`: the terms are wrong. `Ambiguous` or `NotOwned`: this change is not possible for this policy and actor.
pub async fn set(ledger: &Ledger, policy: NewPolicy, actor: impl Into<Actor>) -> Result<bool, FlowError> {
    let policy = policy.check()?;
    complete(ledger, ledger.set_policy(&policy, &actor.into()).await?, &policy.name).await
}

/// Deletes a policy. Returns whether every instance follows that already; callers are then answered with code 0.
///
/// # Errors
///
/// `Unknown`, `Ambiguous` or `NotOwned`: there is no such policy, or several, or the actor may not change it.
pub async fn delete(ledger: &Ledger, name: &Name, apps: &[Name], actor: impl Into<Actor>) -> Result<bool, FlowError> {
    complete(ledger, ledger.delete_policy(name, apps, &actor.into()).await?, name).await
}

/// Grants an account a role on the policies of an application; without a role, takes the grant back.
///
/// # Errors
///
/// `Unknown`: there is no such application.
pub async fn grant(
    ledger: &Ledger,
    app: &Name,
    account: &AccountName,
    role: Option<Role>,
    actor: &str,
) -> Result<(), FlowError> {
    let granted = ledger.grant(app, account, role, actor).await?;
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
    Ok(ledger.wait_until_followed(version, FOLLOW_TIMEOUT).await?)
}
