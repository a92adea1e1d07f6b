//! Seeing and changing policies, applications, grants, the audit log and alarms, as far as the account may.

use super::{AdminError, Console, admins_only};
use crate::domain::account::{Account, AccountName, Denied};
use crate::domain::policy::{Name, NewPolicy, Policy, Role};
use crate::domain::warning::warnings;
use crate::flow::FlowError;
use crate::flow::policy_changes::{self, NewToken};
use crate::ledger::audit_log::LogLine;
use crate::ledger::flow::alarms::Alarm;
use crate::ledger::flow::apps::App;

/// A policy as an account sees it.
pub struct VisiblePolicy {
    pub policy: Policy,
    /// The policy's applications that the account may see.
    pub apps: Vec<Name>,
    pub may_change: bool,
    pub warnings: Vec<String>,
}

impl Console {
    /// The policies of the applications that the account sees, or of one of them.
    pub async fn policies(&self, account: &Account, app: Option<&Name>) -> Result<Vec<VisiblePolicy>, AdminError> {
        if let Some(app) = app {
            self.check_visible(account, app).await?;
        }
        let policies = self.ledger.policies(None).await?;
        let selected = |policy: &&Policy| {
            let apps = &policy.terms.apps;
            app.map_or(apps.iter().any(|app| account.sees(app)), |app| apps.contains(app))
        };
        let visible = policies.iter().filter(selected).map(|policy| VisiblePolicy {
            apps: policy.terms.apps.iter().filter(|app| account.sees(app)).cloned().collect(),
            may_change: account.may_change(&policy.terms.apps).is_ok(),
            warnings: warnings(policy, &policies, |app| account.sees(app)),
            policy: policy.clone(),
        });
        Ok(visible.collect())
    }

    /// Creates or changes a policy. Returns whether every instance already uses the change.
    pub async fn set_policy(&self, account: &Account, policy: NewPolicy) -> Result<bool, AdminError> {
        // Checked first, because it bounds the number of applications that are looked up.
        let policy = policy.check().map_err(FlowError::from)?;
        for app in &policy.apps {
            self.check_visible(account, app).await?;
        }
        account.may_change(&policy.apps).map_err(AdminError::Denied)?;
        // The ledger checks the existing policy's applications in the transaction that changes it.
        Ok(policy_changes::set(&self.ledger, policy, account).await?)
    }

    /// Deletes the policy that an application has under a name. Returns whether every instance already uses the change.
    pub async fn delete_policy(&self, account: &Account, name: &Name, app: &Name) -> Result<bool, AdminError> {
        self.check_visible(account, app).await?;
        Ok(policy_changes::delete(&self.ledger, name, std::slice::from_ref(app), account).await?)
    }

    /// The applications that the account sees, with all grants for an admin, and only their own for others.
    pub async fn apps(&self, account: &Account) -> Result<Vec<App>, AdminError> {
        let mut apps = self.ledger.apps().await?;
        apps.retain(|app| account.sees(&app.name));
        if !account.is_admin() {
            apps.iter_mut().for_each(|app| app.grants.retain(|grant| grant.account == account.name.as_str()));
        }
        Ok(apps)
    }

    /// Creates an application. Returns its token, which cannot be read again.
    pub async fn create_app(&self, account: &Account, app: &Name) -> Result<String, AdminError> {
        admins_only(account)?;
        Ok(policy_changes::create_app(&self.ledger, app, account.name.as_str()).await?)
    }

    /// Replaces an application's token. The old one is valid for `overlap_ms` more.
    pub async fn rotate_token(&self, account: &Account, app: &Name, overlap_ms: i64) -> Result<NewToken, AdminError> {
        admins_only(account)?;
        Ok(policy_changes::rotate_token(&self.ledger, app, overlap_ms, account.name.as_str()).await?)
    }

    /// Lets another account see or change an application's policies; `None` revokes the grant.
    pub async fn grant(
        &self,
        account: &Account,
        app: &Name,
        to: &AccountName,
        role: Option<Role>,
    ) -> Result<(), AdminError> {
        admins_only(account)?;
        if !self.ledger.has_account(to).await? {
            return Err(AdminError::Unknown("account"));
        }
        Ok(policy_changes::grant(&self.ledger, app, to, role, account.name.as_str()).await?)
    }

    /// The newest lines of the audit log.
    pub async fn audit_log(&self, account: &Account, limit: i64) -> Result<Vec<LogLine>, AdminError> {
        admins_only(account)?;
        Ok(self.ledger.audit_log(limit).await?)
    }

    /// The newest alarms, open ones first. They may name any application, so only admins see them.
    pub async fn alarms(&self, account: &Account, limit: i64) -> Result<Vec<Alarm>, AdminError> {
        admins_only(account)?;
        Ok(self.ledger.alarms(limit).await?)
    }

    /// Refuses an application that the account does not see. To all but admins, it looks like one that does not exist.
    async fn check_visible(&self, account: &Account, app: &Name) -> Result<(), AdminError> {
        if !account.sees(app) {
            return Err(AdminError::Denied(Denied::Hidden));
        }
        if self.ledger.has_app(app).await? { Ok(()) } else { Err(AdminError::Unknown("application")) }
    }
}
