//! Seeing and changing policies, applications and grants, as far as the account may.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;
use utoipa::ToSchema;

use super::{AdminError, Office, admins_only, found};
use seckill_domain::account::{Account, AccountName, Denial};
use seckill_domain::policy::{Name, NewPolicy, Policy, Role};
use seckill_domain::policy_preview::{self, RecordedMinute, Refusals, SHOWN_MINUTES};
use seckill_domain::warning::warnings;
use seckill_flow::FlowError;
use seckill_flow::policy_changes::{self, NewToken};

pub use seckill_postgres::flow::apps::App;

#[derive(Clone)]
pub(crate) struct VisiblePolicy {
    pub(crate) policy: Policy,
    /// The policy's applications that the account may see.
    pub(crate) apps: Vec<Name>,
    pub(crate) may_change: bool,
    pub(crate) warnings: Vec<String>,
}

/// The calls of the last hour that a change would have refused.
#[derive(Serialize, ToSchema)]
#[schema(as = PolicyPreview)]
pub(crate) struct Preview {
    /// The hour that was replayed: whole minutes, up to the latest that is over.
    from_ms: i64,
    to_ms: i64,
    /// The resolution: the order of calls within it is unknown.
    resolution_ms: i64,
    /// Calls in this hour, and how many of them were refused when they came.
    calls: u64,
    recorded_refused: u64,
    /// The refusals of the present terms in the same replay, for comparison; null if there is no such policy yet.
    present: Option<Refusals>,
    changed: Refusals,
    /// The minutes with calls.
    minutes: Vec<PreviewedMinute>,
    /// Thresholds that would contradict each other after the change.
    warnings: Vec<String>,
    /// Limits of the replay.
    notes: Vec<String>,
    /// The preview in words, with its warnings and notes, a line each.
    text: String,
}

/// A minute, replayed.
#[derive(Serialize, ToSchema)]
struct PreviewedMinute {
    at_ms: i64,
    calls: u64,
    recorded_refused: u64,
    changed: Refusals,
}

const MINUTE_MS: i64 = 60_000;

impl Office {
    pub(crate) async fn policies(
        &self,
        account: &Account,
        app: Option<&Name>,
    ) -> Result<Vec<VisiblePolicy>, AdminError> {
        if let Some(app) = app {
            self.check_visible(account, app).await?;
        }
        let policies = self.ledger.policies.policies(None).await?;
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

    /// The policy that an application has under a name, and its calls of the last hour, in minutes since
    /// the epoch.
    pub(crate) async fn policy(
        &self,
        account: &Account,
        app: &Name,
        name: &Name,
    ) -> Result<(VisiblePolicy, Range<i64>, Vec<RecordedMinute>), AdminError> {
        let policies = self.policies(account, Some(app)).await?;
        let found = policies.into_iter().find(|visible| visible.policy.terms.name == *name);
        let visible = found.ok_or(AdminError::Unknown("policy"))?;
        let shown = self.last_hour().await?;
        let minutes = self.recorded(visible.policy.id, shown.clone()).await?;
        Ok((visible, shown, minutes))
    }

    /// Creates or changes a policy. Returns whether every instance already uses the change.
    pub(crate) async fn set_policy(&self, account: &Account, policy: NewPolicy) -> Result<bool, AdminError> {
        let policy = self.check_change(account, policy).await?;
        // The ledger checks the existing policy's applications in the transaction that changes it.
        Ok(policy_changes::set(&self.ledger, policy, account).await?)
    }

    /// Replays the last hour under the terms of a change, for an account that may make the change. It changes nothing.
    pub(crate) async fn preview_policy(&self, account: &Account, policy: NewPolicy) -> Result<Preview, AdminError> {
        let policy = self.check_change(account, policy).await?;
        let all = self.ledger.policies.policies(None).await?;
        let is_shared = |other: &&Policy| other.terms.apps.iter().any(|app| policy.apps.contains(app));
        let mut found = all.iter().filter(|other| other.terms.name == policy.name).filter(is_shared);
        let existing = match (found.next(), found.next()) {
            (_, Some(_)) => return Err(FlowError::Ambiguous.into()),
            (Some(existing), None) if account.may_change(&existing.terms.apps).is_err() => {
                return Err(FlowError::NotOwned.into());
            }
            (existing, None) => existing,
        };
        let shown = self.last_hour().await?;
        let lead_of_existing = existing.map_or(0, |existing| policy_preview::lead_minutes(&existing.algorithm));
        let lead = policy_preview::lead_minutes(&policy.algorithm).max(lead_of_existing);
        let replayed = shown.start - lead..shown.end;
        let recorded = match existing {
            Some(existing) => self.recorded(existing.id, replayed).await?,
            None => Vec::new(),
        };
        // Minutes before the hour only fill windows and buckets.
        let first = recorded.partition_point(|minute| minute.minute < shown.start);
        let changed = policy_preview::replay(&policy.algorithm, &recorded).split_off(first);
        let present =
            |existing: &Policy| sum(policy_preview::replay(&existing.algorithm, &recorded).into_iter().skip(first));
        let present = existing.map(present);
        let minutes = recorded.into_iter().skip(first).zip(changed).map(|(minute, changed)| PreviewedMinute {
            at_ms: minute.minute * MINUTE_MS,
            calls: minute.calls(),
            recorded_refused: minute.refused,
            changed,
        });
        let minutes: Vec<_> = minutes.collect();
        let calls = minutes.iter().map(|minute| minute.calls).sum();
        let recorded_refused = minutes.iter().map(|minute| minute.recorded_refused).sum();
        let changed = sum(minutes.iter().map(|minute| minute.changed));
        let notes: Vec<String> = policy_preview::notes(&policy).into_iter().map(str::to_owned).collect();
        let warnings = warnings_after(account, &all, existing, policy);
        let warned = warnings.iter().map(|warning| format!("Warning: {warning}"));
        let summary = policy_preview::summary(calls, recorded_refused, changed);
        let lines: Vec<String> = std::iter::once(summary).chain(warned).chain(notes.iter().cloned()).collect();
        Ok(Preview {
            from_ms: shown.start * MINUTE_MS,
            to_ms: shown.end * MINUTE_MS,
            resolution_ms: MINUTE_MS,
            calls,
            recorded_refused,
            present,
            changed,
            minutes,
            warnings,
            notes,
            text: lines.join("\n"),
        })
    }

    async fn check_change(&self, account: &Account, policy: NewPolicy) -> Result<NewPolicy, AdminError> {
        // Checked first, because it bounds the number of applications that are looked up.
        let policy = policy.check().map_err(FlowError::from)?;
        for app in &policy.apps {
            self.check_visible(account, app).await?;
        }
        account.may_change(&policy.apps).map_err(AdminError::Denied)?;
        Ok(policy)
    }

    async fn last_hour(&self) -> Result<Range<i64>, AdminError> {
        let now = self.ledger.now_ms().await?.div_euclid(MINUTE_MS);
        Ok(now - SHOWN_MINUTES..now)
    }

    async fn recorded(&self, policy: i64, range: Range<i64>) -> Result<Vec<RecordedMinute>, AdminError> {
        let minutes = self.ledger.policies.policy_minutes(policy, range).await?.into_iter();
        let minutes =
            minutes.map(|row| RecordedMinute { minute: row.minute, granted: row.granted, refused: row.refused });
        Ok(minutes.collect())
    }

    pub(crate) async fn delete_policy(&self, account: &Account, name: &Name, app: &Name) -> Result<bool, AdminError> {
        self.check_visible(account, app).await?;
        Ok(policy_changes::delete(&self.ledger, name, std::slice::from_ref(app), account).await?)
    }

    /// The applications that the account sees, with all grants for an admin, and only their own for others.
    pub(crate) async fn apps(&self, account: &Account) -> Result<Vec<App>, AdminError> {
        let mut apps = self.ledger.policies.apps().await?;
        apps.retain(|app| account.sees(&app.name));
        if !account.is_admin() {
            apps.iter_mut().for_each(|app| app.grants.retain(|grant| grant.account == account.name.as_str()));
        }
        Ok(apps)
    }

    pub(crate) async fn create_app(&self, account: &Account, app: &Name) -> Result<String, AdminError> {
        admins_only(account)?;
        Ok(policy_changes::create_app(&self.ledger, app, account.name.as_str()).await?)
    }

    pub(crate) async fn rotate_token(
        &self,
        account: &Account,
        app: &Name,
        overlap_ms: i64,
    ) -> Result<NewToken, AdminError> {
        admins_only(account)?;
        Ok(policy_changes::rotate_token(&self.ledger, app, overlap_ms, account.name.as_str()).await?)
    }

    /// Lets another account see or change an application's policies; `None` revokes the grant.
    pub(crate) async fn grant(
        &self,
        account: &Account,
        app: &Name,
        to: &AccountName,
        role: Option<Role>,
    ) -> Result<(), AdminError> {
        admins_only(account)?;
        found(self.ledger.accounts.has_account(to).await?, "account")?;
        Ok(policy_changes::grant(&self.ledger, app, to, role, account.name.as_str()).await?)
    }

    /// Refuses an application that the account does not see. To all but admins, it looks as if it did not exist.
    async fn check_visible(&self, account: &Account, app: &Name) -> Result<(), AdminError> {
        if !account.sees(app) {
            return Err(AdminError::Denied(Denial::Hidden));
        }
        found(self.ledger.policies.has_app(app).await?, "application")
    }
}

fn sum(refusals: impl Iterator<Item = Refusals>) -> Refusals {
    refusals.fold(Refusals::default(), |mut sum, minute| {
        sum += minute;
        sum
    })
}

fn warnings_after(account: &Account, all: &[Policy], existing: Option<&Policy>, changed: NewPolicy) -> Vec<String> {
    let apps = changed.apps.clone();
    let others = all.iter().filter(|other| existing.is_none_or(|existing| existing.id != other.id)).cloned();
    let after: Vec<Policy> = others.chain(Policy::planned(changed)).collect();
    let concerned = after.iter().filter(|policy| policy.terms.apps.iter().any(|app| apps.contains(app)));
    let warned = concerned.flat_map(|policy| {
        let warnings = warnings(policy, &after, |app| account.sees(app)).into_iter();
        warnings.map(move |warning| format!("{}: {warning}", policy.terms.name))
    });
    // The same warning about two policies of one name is said once.
    warned.collect::<BTreeSet<String>>().into_iter().collect()
}
