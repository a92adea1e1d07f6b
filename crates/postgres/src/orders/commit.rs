//! Commits purchases: a purchase is durable before it is answered (protocol, rule 3).

use std::time::Duration;

use sqlx::PgConnection;

use crate::orders::insert::{insert_on, unlocked_epochs};
use crate::orders::purchase::{CommitOutcome, Purchase};
use crate::{LedgerError, Orders};
use seckill_domain::ids::{GroupId, SaleId};
use seckill_domain::locked_sales::LockedSales;
use seckill_domain::trace_context::TraceContext;
use seckill_runtime::die_at;

/// How long a sale with a locked epoch sells nothing. Then a commit tries again.
pub(super) const LOCKED_FOR: Duration = Duration::from_secs(1);

impl Orders {
    /// Commits purchases. One bad row does not fail the others (rule 4). Fails only in an outage of PostgreSQL.
    pub async fn commit_purchases(&self, purchases: &[Purchase]) -> Result<Vec<CommitOutcome>, LedgerError> {
        let locked = LockedSales::new(LOCKED_FOR);
        commit_on(&mut *self.0.pool.acquire().await?, purchases, &locked).await
    }

    /// Checks that purchases could be written, without writing one. A read-only server, or one without a table, fails.
    pub async fn can_commit(&self) -> Result<(), LedgerError> {
        insert_on(&mut *self.0.reserved.acquire().await?, &[]).await.map(drop)
    }
}

/// Commits purchases together. Skips sales with an epoch that is locked, or was locked a moment ago. Fails in an outage of PostgreSQL, or
/// with `Locked` if no locked sale is found. Then no sale can sell.
pub(super) async fn commit_on(
    connection: &mut PgConnection,
    purchases: &[Purchase],
    locked: &LockedSales,
) -> Result<Vec<CommitOutcome>, LedgerError> {
    if !locked.is_any() {
        match commit_free(connection, purchases).await {
            Err(LedgerError::Locked) => _ = note_locked(connection, purchases, locked).await?,
            done => return done,
        }
    }
    let mut all = vec![CommitOutcome::Unknown; purchases.len()];
    let places: Vec<usize> = (0..purchases.len()).filter(|place| !locked.contains(purchases[*place].sale)).collect();
    let rest: Vec<Purchase> = places.iter().map(|place| purchases[*place].clone()).collect();
    match commit_free(connection, &rest).await {
        Ok(outcomes) => places.iter().zip(outcomes).for_each(|(place, outcome)| all[*place] = outcome),
        // Another sale's epoch was locked meanwhile. If none is found, the lock blocks all sales.
        Err(LedgerError::Locked) if note_locked(connection, &rest, locked).await? => {}
        Err(error) => return Err(error),
    }
    Ok(all)
}

/// Records the sales of these purchases with a locked epoch. Returns `false` if there is none.
async fn note_locked(
    connection: &mut PgConnection,
    purchases: &[Purchase],
    locked: &LockedSales,
) -> Result<bool, LedgerError> {
    let mut sales: Vec<SaleId> = purchases.iter().map(|purchase| purchase.sale).collect();
    sales.sort_unstable();
    sales.dedup();
    let free = unlocked_epochs(connection, &sales).await?;
    for sale in sales.iter().filter(|sale| !free.contains(*sale)) {
        tracing::error!(%sale, "the epoch of the sale is locked by another transaction; the sale is closed for a moment");
        locked.insert(*sale);
    }
    Ok(free.len() < sales.len())
}

/// Commits purchases together; if that fails, each group alone; if that fails too, its members as groups of one.
async fn commit_free(connection: &mut PgConnection, purchases: &[Purchase]) -> Result<Vec<CommitOutcome>, LedgerError> {
    match insert_on(connection, purchases).await {
        Ok(outcomes) => return Ok(outcomes),
        // A batch that was too slow is no faster in parts, and other purchases wait behind it.
        Err(error) if error.is_temporary() => return Err(error),
        Err(error) => {
            tracing::error!(%error, purchases = purchases.len(), "purchases were not committed together; trying apart");
        }
    }
    let mut all = vec![CommitOutcome::Unknown; purchases.len()];
    // A group is one row. Its members stay together, even if they are not neighbours in the input.
    let mut places: Vec<usize> = (0..purchases.len()).collect();
    places.sort_by_key(|place| purchases[*place].group);
    for part in places.chunk_by(|one, next| purchases[*one].group == purchases[*next].group) {
        let group: Vec<Purchase> = part.iter().map(|place| purchases[*place].clone()).collect();
        if group.len() > 1 && group.len() < purchases.len() {
            match insert_on(connection, &group).await {
                Ok(outcomes) => {
                    part.iter().zip(outcomes).for_each(|(place, outcome)| all[*place] = outcome);
                    continue;
                }
                Err(error) if error.is_temporary() => return Err(error),
                Err(error) => {
                    tracing::error!(%error, purchases = group.len(), "group not committed; trying one by one");
                }
            }
        }
        for (place, purchase) in part.iter().zip(group) {
            all[*place] = commit_alone(connection, purchase).await?;
            die_at!("commit.fallback");
        }
    }
    Ok(all)
}

async fn commit_alone(connection: &mut PgConnection, purchase: Purchase) -> Result<CommitOutcome, LedgerError> {
    let purchase = Purchase { group: GroupId::of_one(purchase.order), ..purchase };
    match insert_on(connection, std::slice::from_ref(&purchase)).await {
        Ok(outcomes) => Ok(outcomes.first().copied().unwrap_or(CommitOutcome::Unknown)),
        Err(error) if error.is_temporary() => Err(error),
        Err(error) => {
            let trace_id = purchase.trace().map(TraceContext::trace_id);
            tracing::error!(%error, order = %purchase.order, trace_id, "purchase not committed");
            Ok(CommitOutcome::Unknown)
        }
    }
}
