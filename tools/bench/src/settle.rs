//! After the 202: how many purchases per second the workers turn into orders.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::processes::{self, Cpu, cpu_us, seckill};

/// All purchases must be settled within this time.
const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) struct Settled {
    pub orders: i64,
    pub per_second: f64,
    /// Per order, not per request.
    pub cpu_us: Cpu,
}

/// Runs the workers until every purchase is an order in `pending_payment`.
pub(crate) async fn settle(sql: &PgPool, servers: &[(&'static str, u32)], log: &Path) -> anyhow::Result<Settled> {
    let backlog = count(sql, UNSETTLED, None).await?;
    let mut work = processes::work(log, None)?;
    let mut processes = vec![("work", work.id().context("the workers have ended")?)];
    processes.extend(servers);

    // Measured from the first orders to the last, without the time that the workers take to start.
    let sold = units_sold(sql).await?;
    let (mut first, mut last) = (None, sold);
    let begun = Instant::now();
    while last < sold + backlog {
        ensure!(begun.elapsed() < TIMEOUT, "{} of {backlog} purchases are orders after {TIMEOUT:?}", last - sold);
        ensure!(work.try_wait()?.is_none(), "the workers ended unexpectedly; see {}", log.display());
        sleep(Duration::from_millis(20)).await;
        last = units_sold(sql).await?;
        if first.is_none() && last > sold {
            first = Some((Instant::now(), last, cpu_us(&processes)?));
        }
    }
    let (since, before, cpu_before) = first.context("nothing to settle")?;
    let (seconds, orders) = (since.elapsed().as_secs_f64(), last - before);
    let cpu_us = Cpu::between(&cpu_before, &cpu_us(&processes)?, orders.unsigned_abs());

    // Purchases whose buyers' connections the load generator had ended were committed after the backlog was counted.
    settled(sql).await?;
    let pending = count(sql, "SELECT count(*) FROM orders WHERE status = 'pending_payment'", None).await?;
    let sold = units_sold(sql).await?;
    ensure!(pending == sold, "{pending} orders are pending_payment, and {sold} units are sold");
    work.kill().await?;
    Ok(Settled { orders, per_second: orders as f64 / seconds, cpu_us })
}

/// Counts purchases that are not orders yet.
const UNSETTLED: &str = "SELECT count(*) FROM accepted_purchases";

/// Waits until every purchase is an order.
pub(crate) async fn settled(sql: &PgPool) -> anyhow::Result<()> {
    wait_for(sql, UNSETTLED, None, 0, TIMEOUT).await
}

/// Waits until the broker has every message that is due.
pub(crate) async fn relayed(sql: &PgPool) -> anyhow::Result<()> {
    let due = "SELECT count(*) FROM outbox WHERE status = 'pending' AND next_attempt_at <= now()";
    wait_for(sql, due, None, 0, TIMEOUT).await
}

/// The moment at which all units of a sale were sold and settled.
pub(crate) async fn all_settled(sql: &PgPool, sale: i64, units: i64, within: Duration) -> anyhow::Result<SystemTime> {
    let sold = "SELECT (total_stock - stock)::bigint FROM sales WHERE id = $1";
    wait_for(sql, sold, Some(sale), units, within).await?;
    Ok(SystemTime::now())
}

/// A number of rows or units, of one sale or of all.
pub(crate) async fn count(sql: &PgPool, statement: &'static str, sale: Option<i64>) -> anyhow::Result<i64> {
    let counted = sqlx::query_scalar(statement);
    Ok(if let Some(sale) = sale { counted.bind(sale) } else { counted }.fetch_one(sql).await?)
}

/// Waits until a statement counts this many.
pub(crate) async fn wait_for(
    sql: &PgPool,
    statement: &'static str,
    sale: Option<i64>,
    expected: i64,
    within: Duration,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let found = count(sql, statement, sale).await?;
        if found == expected {
            return Ok(());
        }
        ensure!(begun.elapsed() < within, "{found} and not {expected} after {within:?}: {statement}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Units sold, by the stock, which changes in each order's transaction. Cheaper than counting orders.
async fn units_sold(sql: &PgPool) -> anyhow::Result<i64> {
    count(sql, "SELECT coalesce(sum(total_stock - stock), 0)::bigint FROM sales", None).await
}

/// Runs `seckill audit` on all sales, or with these arguments.
pub(crate) async fn audit(arguments: &[&str]) -> anyhow::Result<()> {
    let verdict = seckill(&[&["audit", "--json"], arguments].concat()).await?;
    ensure!(verdict["held"] == true, "the audit failed: {verdict}");
    Ok(())
}
