//! Changes a planned sale's terms (protocol, rule 19).

use chrono::{DateTime, Utc};
use sqlx::{Executor, PgConnection};

use super::terms::{is_bought_in, per_user, plan_waves, product_named, shard_count, stock, version};
use crate::{LedgerError, Sales, audit_log};
use seckill_domain::ids::SaleId;
use seckill_domain::sale::{NewSale, SalePhase, SaleStatus, Wave};
use seckill_domain::sale_change::{AllowedChange, ChangeRefusal, SaleChange, SaleStanding};
use seckill_domain::stock::Stock;
use seckill_runtime::die_at;

/// Short, because refills of other sales may need the table of the epoch that is locked meanwhile. The caller tries again.
const BEHIND_LOCK: &str = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '1s'";

/// A change that is committed, and the catalogue version that has it.
#[derive(Debug)]
pub struct CommittedChange {
    pub version: i64,
    /// Whether the sale has a new epoch, under which Redis must be filled.
    pub needs_refill: bool,
}

impl Sales {
    /// How a sale stands for this change, and PostgreSQL's time in ms; `None` if there is no such sale.
    pub async fn standing(
        &self,
        sale: SaleId,
        change: &SaleChange,
    ) -> Result<Option<(SaleStanding, i64)>, LedgerError> {
        standing(&mut *self.0.pool.acquire().await?, sale, change).await
    }

    /// Changes a sale's terms, in one transaction. If Redis has anything of the change (`needs_refill`), it locks the sale's epoch: no purchase
    /// commits meanwhile, and those that were reserved under the old terms are refused afterwards. `keys` replace the purchase key and the
    /// waiting key, if the change needs that. `None`: there is no such sale, or nothing differs. Fails with `Locked` if another transaction
    /// does not release the sale in time, or has changed it meanwhile.
    pub async fn change_sale(
        &self,
        sale: SaleId,
        change: &SaleChange,
        needs_refill: bool,
        keys: [String; 2],
        actor: &str,
    ) -> Result<Result<Option<CommittedChange>, ChangeRefusal>, LedgerError> {
        let mut tx = if needs_refill { self.lock_epoch_of_stopped(sale).await? } else { self.0.begin().await? };
        (&mut *tx).execute(BEHIND_LOCK).await?;
        // Waves before the sale, as their release locks them.
        sqlx::query!(
            "SELECT FROM sale_waves WHERE sale_id = $1 AND released_at IS NULL ORDER BY id FOR UPDATE",
            sale.get()
        )
        .execute(&mut *tx)
        .await?;
        // A statement of its own: what follows sees the stock and the groups of the same fulfilments.
        sqlx::query!("SELECT FROM sales WHERE id = $1 FOR NO KEY UPDATE", sale.get()).execute(&mut *tx).await?;
        let Some((standing, now_ms)) = standing(&mut tx, sale, change).await? else { return Ok(Ok(None)) };
        let allowed = match standing.allows(change, now_ms) {
            Ok(allowed) if allowed.differences.is_empty() => return Ok(Ok(None)),
            Ok(allowed) if allowed.needs_refill && !needs_refill => return Err(LedgerError::Locked),
            Ok(allowed) => allowed,
            Err(refusal) => return Ok(Err(refusal)),
        };
        write_terms(&mut tx, sale, &standing.terms, &allowed, now_ms, keys).await?;
        if allowed.needs_refill {
            sqlx::query!("UPDATE sale_epochs SET epoch = epoch + 1, run_id = NULL WHERE sale_id = $1", sale.get())
                .execute(&mut *tx)
                .await?;
        }
        audit_log::append(&mut tx, actor, "sale changed", &format!("sale {sale}"), allowed.differences.into()).await?;
        let version = version(&mut tx).await?;
        die_at!("change.before_commit");
        tx.commit().await?;
        die_at!("change.committed");
        Ok(Ok(Some(CommittedChange { version, needs_refill: allowed.needs_refill })))
    }
}

async fn standing(
    connection: &mut PgConnection,
    sale: SaleId,
    change: &SaleChange,
) -> Result<Option<(SaleStanding, i64)>, LedgerError> {
    let row = sqlx::query!(
        r#"SELECT p.name AS product, price_cents, currency, total_stock, stock, per_user, min_level, captcha, shards, starts_at, ends_at,
                  pay_within_ms, status, refund_returns_stock, show_stock, clock_timestamp() AS "now!"
           FROM sales s JOIN products p ON p.id = s.product_id WHERE s.id = $1"#,
        sale.get()
    );
    let Some(row) = row.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let waves = sqlx::query!(
        "SELECT units, due_at FROM sale_waves WHERE sale_id = $1 AND planned AND released_at IS NULL ORDER BY due_at, units",
        sale.get()
    );
    let after_start = |due_at: DateTime<Utc>| (due_at - row.starts_at).num_milliseconds();
    let wave = |units: i32, due_at| Wave { after_ms: after_start(due_at), units: units.unsigned_abs() };
    let waves = waves.fetch_all(&mut *connection).await?.into_iter().map(|row| wave(row.units, row.due_at)).collect();
    // Reads the sale's backlog, so only for a change that could lower the stock below it.
    let accepted = if change.stock.is_some() || change.waves.is_some() {
        accepted_units(&mut *connection, sale).await?
    } else {
        0
    };
    let now_ms = row.now.timestamp_millis();
    let (starts_at_ms, ends_at_ms) = (row.starts_at.timestamp_millis(), row.ends_at.timestamp_millis());
    let status: SaleStatus = row.status.parse().map_err(|_| LedgerError::Unreadable("sales.status"))?;
    let terms = NewSale {
        product: row.product,
        price_cents: row.price_cents,
        currency: row.currency.parse().map_err(|_| LedgerError::Unreadable("sales.currency"))?,
        stock: stock(row.total_stock)?,
        per_user: per_user(row.per_user)?,
        starts_in_ms: starts_at_ms - now_ms,
        ends_in_ms: ends_at_ms - now_ms,
        pay_within_ms: row.pay_within_ms,
        refund_returns_stock: row.refund_returns_stock,
        show_stock: row.show_stock,
        min_level: row.min_level.into(),
        captcha: row.captcha.parse().map_err(|_| LedgerError::Unreadable("sales.captcha"))?,
        shards: shard_count(row.shards)?,
        waves,
    };
    let standing = SaleStanding {
        terms,
        phase: SalePhase::at(now_ms, status, starts_at_ms, ends_at_ms),
        is_bought: is_bought_in(connection, sale).await?,
        left: stock(row.stock)?,
        accepted,
    };
    Ok(Some((standing, now_ms)))
}

async fn accepted_units(connection: &mut PgConnection, sale: SaleId) -> Result<u64, LedgerError> {
    let units = sqlx::query_scalar!(
        r#"SELECT coalesce(sum(quantity), 0) AS "units!" FROM accepted_purchases WHERE sale_id = $1"#,
        sale.get()
    );
    Ok(units.fetch_one(connection).await?.unsigned_abs())
}

/// Times that stay keep their microseconds.
async fn write_terms(
    tx: &mut PgConnection,
    sale: SaleId,
    old: &NewSale,
    allowed: &AllowedChange,
    now_ms: i64,
    [purchase_key, waiting_key]: [String; 2],
) -> Result<(), LedgerError> {
    let terms = &allowed.terms;
    let product = product_named(&mut *tx, &terms.product).await?;
    sqlx::query!(
        "UPDATE sales SET product_id = $2, price_cents = $3, currency = $4, total_stock = $5, stock = $6, per_user = $7, min_level = $8,
             captcha = $9, pay_within_ms = $10, refund_returns_stock = $11, show_stock = $12,
             starts_at = coalesce('epoch'::timestamptz + $13::bigint * interval '1 ms', starts_at),
             ends_at = coalesce('epoch'::timestamptz + $14::bigint * interval '1 ms', ends_at),
             purchase_key = coalesce($15, purchase_key), waiting_key = coalesce($16, waiting_key),
             terms_version = terms_version + ($15::text IS NOT NULL)::integer
         WHERE id = $1",
        sale.get(),
        product,
        terms.price_cents,
        terms.currency.code(),
        terms.stock.as_i64(),
        allowed.left.as_i64(),
        terms.per_user.get().cast_signed(),
        i32::try_from(terms.min_level).map_err(|_| LedgerError::Unreadable("min_level"))?,
        terms.captcha.as_str(),
        terms.pay_within_ms,
        terms.refund_returns_stock,
        terms.show_stock,
        allowed.starts().then_some(now_ms + terms.starts_in_ms),
        allowed.ends().then_some(now_ms + terms.ends_in_ms),
        allowed.needs_keys.then_some(purchase_key),
        allowed.needs_keys.then_some(waiting_key)
    )
    .execute(&mut *tx)
    .await?;
    let is_unlimited = terms.stock == Stock::Unlimited;
    if is_unlimited {
        // Units that were added a moment ago have no meaning without a limit. Their rows keep the keys of their requests.
        sqlx::query!(
            "UPDATE sale_waves SET released_at = now() WHERE sale_id = $1 AND released_at IS NULL AND NOT planned",
            sale.get()
        )
        .execute(&mut *tx)
        .await?;
    }
    if allowed.waves() || is_unlimited {
        sqlx::query!("DELETE FROM sale_waves WHERE sale_id = $1 AND released_at IS NULL AND planned", sale.get())
            .execute(&mut *tx)
            .await?;
        return plan_waves(tx, sale.get(), &terms.waves).await;
    }
    if allowed.starts() {
        sqlx::query!(
            "UPDATE sale_waves SET due_at = date_trunc('milliseconds', due_at + $2::bigint * interval '1 ms')
             WHERE sale_id = $1 AND planned AND released_at IS NULL",
            sale.get(),
            terms.starts_in_ms - old.starts_in_ms
        )
        .execute(tx)
        .await?;
    }
    Ok(())
}
