//! The switch that says whether winners of one call are committed as a group row (docs/upgrades.md).

use serde_json::json;
use uuid::Uuid;

use crate::ledger::{Ledger, LedgerError, audit_log};

/// What switching groups on came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupsOn {
    /// They are on, now or since before.
    On,
    /// These processes were seen within a minute, and do not know groups. Nothing was changed.
    OlderProcesses(Vec<Uuid>),
}

impl Ledger {
    /// Lets winners be committed as groups, unless a process of a version that does not know them runs.
    pub async fn groups_on(&self, actor: &str) -> Result<GroupsOn, LedgerError> {
        let older = sqlx::query_scalar!(
            r#"SELECT id AS "id!" FROM instances WHERE NOT knows_groups AND seen_at > now() - interval '1 minute'
               UNION ALL
               SELECT id FROM worker_processes WHERE NOT knows_groups AND seen_at > now() - interval '1 minute'
               LIMIT 100"#
        )
        .fetch_all(&self.pool)
        .await?;
        if !older.is_empty() {
            return Ok(GroupsOn::OlderProcesses(older));
        }
        self.switch_groups(true, actor).await?;
        Ok(GroupsOn::On)
    }

    /// Lets winners be committed as purchase rows. When it returns, no commit of a group is under way, and none will begin.
    pub async fn groups_off(&self, actor: &str) -> Result<(), LedgerError> {
        self.switch_groups(false, actor).await
    }

    /// Waits for the commits under way, which read the row FOR SHARE.
    async fn switch_groups(&self, grouped: bool, actor: &str) -> Result<(), LedgerError> {
        let mut tx = self.begin().await?;
        sqlx::query!("UPDATE purchase_form SET grouped = $1", grouped).execute(&mut *tx).await?;
        let action = if grouped { "groups on" } else { "groups off" };
        audit_log::append(&mut tx, actor, action, "purchases", json!({})).await?;
        Ok(tx.commit().await?)
    }

    /// How many rows about groups are still to be carried out, which a version that does not know them cannot read.
    pub async fn groups_left(&self) -> Result<i64, LedgerError> {
        let left = sqlx::query_scalar!(
            r#"SELECT (SELECT count(*) FROM purchase_groups WHERE settled_at IS NULL)
                    + (SELECT count(*) FROM outbox WHERE status = 'pending'
                       AND kind IN ('group_placed', 'group_expire', 'group_release'))
                    + (SELECT count(*) FROM outbox WHERE status = 'sent' AND kind IN ('group_placed', 'group_expire'))
                    + (SELECT count(*) FROM outbox WHERE status = 'parked'
                       AND kind IN ('group_placed', 'group_expire', 'group_release')) AS "left!""#
        );
        Ok(left.fetch_one(&self.pool).await?)
    }
}
