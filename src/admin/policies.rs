//! What people see and change, each as far as the account may.

use super::{AdminError, Console};
use crate::domain::account::{Account, AccountName, Denied};
use crate::domain::policy::{Name, NewPolicy, Policy, Role};
use crate::domain::warning::warnings;
use crate::flow::{FlowError, policy_changes};
use crate::ledger::accounts::LogLine;
use crate::ledger::flow::alarms::Alarm;
use crate::ledger::flow::apps::App;

/// A policy as an account sees it.
pub struct VisiblePolicy {
    pub policy: Policy,
    /// Those of its applications that the account may know of.
    pub apps: Vec<Name>,
    pub may_change: bool,
    pub warnings: Vec<String>,
}

impl Console {
    /// The policies of the applications that the account sees, or of one of them.
    pub async fn policies(&self, account: &Account, app: Option<&Name>) -> Result<Vec<VisiblePolicy>, AdminError> {
        if let Some(app) = app {
            self.visible(account, app).await?;
        }
        let all = self.ledger.policies(None).await?;
        let wanted = |policy: &&Policy| {
            let apps = &policy.terms.apps;
            app.map_or(apps.iter().any(|app| account.sees(app)), |app| apps.contains(app))
        };
        let seen = all.iter().filter(wanted).map(|policy| VisiblePolicy {
            apps: policy.terms.apps.iter().filter(|app| account.sees(app)).cloned().collect(),
            may_change: account.may_change(&policy.terms.apps).is_ok(),
            warnings: warnings(policy, &all, |app| account.sees(app)),
            policy: policy.clone(),
        });
        Ok(seen.collect())
    }

    /// Makes or changes a policy. Returns whether every instance goes by it already.
    pub async fn set_policy(&self, account: &Account, policy: NewPolicy) -> Result<bool, AdminError> {
        // First of all, so that no more applications are looked up than a policy may have.
        let policy = policy.check().map_err(FlowError::from)?;
        for app in &policy.apps {
            self.visible(account, app).await?;
        }
        account.may_change(&policy.apps).map_err(AdminError::Denied)?;
        // Whether the policy that is there now is theirs too, the ledger looks at in the same transaction.
        Ok(policy_changes::set(&self.ledger, policy, account).await?)
    }

    /// Removes the policy that an application has under a name.
    pub async fn delete_policy(&self, account: &Account, name: &Name, app: &Name) -> Result<bool, AdminError> {
        self.visible(account, app).await?;
        Ok(policy_changes::delete(&self.ledger, name, std::slice::from_ref(app), account).await?)
    }

    /// The applications that the account sees, with everybody's grants for an admin, and only its own for others.
    pub async fn apps(&self, account: &Account) -> Result<Vec<App>, AdminError> {
        let mut apps = self.ledger.apps().await?;
        apps.retain(|app| account.sees(&app.name));
        if !account.is_admin() {
            apps.iter_mut().for_each(|app| app.grants.retain(|grant| grant.account == account.name.as_str()));
        }
        Ok(apps)
    }

    /// Makes an application, and its token, which is told once.
    pub async fn create_app(&self, account: &Account, app: &Name) -> Result<String, AdminError> {
        admins_only(account)?;
        Ok(policy_changes::create_app(&self.ledger, app, account.name.as_str()).await?)
    }

    /// Lets another account see an application's policies, or change them; with no role, neither any more.
    pub async fn grant(
        &self,
        account: &Account,
        app: &Name,
        to: &AccountName,
        role: Option<Role>,
    ) -> Result<(), AdminError> {
        admins_only(account)?;
        if self.ledger.password_hash(to).await?.is_none() {
            return Err(AdminError::Unknown("account"));
        }
        Ok(policy_changes::grant(&self.ledger, app, to, role, account.name.as_str()).await?)
    }

    /// The newest lines of the audit log.
    pub async fn audit_log(&self, account: &Account, limit: i64) -> Result<Vec<LogLine>, AdminError> {
        admins_only(account)?;
        Ok(self.ledger.audit_log(limit).await?)
    }

    /// The newest alarms, those that are open first. Their subjects are of the whole house.
    pub async fn alarms(&self, account: &Account, limit: i64) -> Result<Vec<Alarm>, AdminError> {
        admins_only(account)?;
        Ok(self.ledger.alarms(limit).await?)
    }

    /// An application that is not there, and one that was not granted, are one and the same to who is no admin.
    async fn visible(&self, account: &Account, app: &Name) -> Result<(), AdminError> {
        if !account.sees(app) {
            return Err(AdminError::Denied(Denied::Hidden));
        }
        if self.ledger.has_app(app).await? { Ok(()) } else { Err(AdminError::Unknown("application")) }
    }
}

fn admins_only(account: &Account) -> Result<(), AdminError> {
    if account.is_admin() { Ok(()) } else { Err(AdminError::Denied(Denied::Forbidden)) }
}
