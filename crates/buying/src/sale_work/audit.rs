//! The auditor: checks the invariants of docs/guarantees.md against the data of PostgreSQL and Redis.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::sale::{SaleError, Stores};
use seckill_domain::ids::{OrderId, SaleId, Shard, WaveId};
use seckill_domain::shards::SaleShards;
use seckill_postgres::sales::audit::{Finding, LedgerSnapshot, LiveOrder};
use seckill_postgres::sales::epochs::ShardedSale;
use seckill_redis::holds::TicketKind;
use seckill_redis::sale_state::Snapshot;

/// How long an audit waits for the sale to be at rest, and how often it checks.
const WAIT_MAX: Duration = Duration::from_secs(10);
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// How many checks in a row must find something while the sale is at rest. A single finding may be a write in flight.
const CHECKS_TO_REPORT: u32 = 5;
/// An order is overdue this long after its deadline. The delay queues are up to a second late, and the sweeper comes after them.
const OVERDUE_GRACE_MS: i64 = 45_000;
const EVIDENCE_MAX: usize = 20;

#[derive(Debug, Clone, Serialize)]
pub struct SaleVerdict {
    pub sale_id: SaleId,
    pub held: bool,
    pub at_rest: bool,
    /// Whether Redis could be compared: the sale did not change during the check, and Redis serves the ledger's epoch.
    pub redis_compared: bool,
    /// The sale ended long ago, and Redis has dropped it.
    pub retired: bool,
    pub total_stock: i64,
    pub stock: i64,
    pub redis_available: Option<i64>,
    pub live_units: i64,
    pub in_flight: InFlight,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct InFlight {
    /// Units of purchases without an order.
    pub promised_units: i64,
    /// Units of holds that are not durable.
    pub unconfirmed_units: i64,
    /// Units of ended orders that are still held in Redis.
    pub unreleased_units: i64,
    /// Units of released waves that are not for sale in Redis.
    pub(crate) wave_units: i64,
    /// Loans between shards that are neither closed nor taken back.
    pub open_loans: i64,
    pub messages: i64,
    /// Payments and refunds with an unknown outcome.
    pub money: i64,
}

impl Stores {
    /// Audits one sale; `None` if there is no such sale.
    pub async fn audit(&self, sale: SaleId, retire_after_ms: u64) -> Result<Option<SaleVerdict>, SaleError> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut checks = 0;
        loop {
            let Some(verdict) = self.check_once(sale, retire_after_ms).await? else { return Ok(None) };
            let settled = verdict.at_rest && (verdict.redis_compared || verdict.retired);
            if settled && verdict.held {
                return Ok(Some(verdict));
            }
            checks = if settled { checks + 1 } else { 0 };
            if checks >= CHECKS_TO_REPORT || Instant::now() >= deadline {
                return Ok(Some(verdict));
            }
            sleep(CHECK_EVERY).await;
        }
    }

    async fn check_once(&self, sale: SaleId, retire_after_ms: u64) -> Result<Option<SaleVerdict>, SaleError> {
        let Some(of) = self.ledger.sales.shards_of(&[sale]).await?.pop() else { return Ok(None) };
        let mut redis = self.gate.snapshot(of.shards).await?;
        let ledger = self.ledger.sales.audit_snapshot(sale, OVERDUE_GRACE_MS, retire_after_ms).await?;
        let Some(ledger) = ledger else { return Ok(None) };
        redis = redis.filter(|redis| redis.view.serving && redis.view.epoch == ledger.epoch && !ledger.retired);
        if let Some(snapshot) = &redis
            && !self.gate.unchanged_since(of.shards, &snapshot.view).await?
        {
            redis = None;
        }
        let mut verdict = SaleVerdict {
            sale_id: sale,
            held: false,
            at_rest: false,
            redis_compared: redis.is_some(),
            retired: ledger.retired,
            total_stock: ledger.total_stock,
            stock: ledger.stock,
            redis_available: redis.as_ref().and_then(|redis| redis.view.available),
            live_units: ledger.live_units,
            in_flight: InFlight {
                promised_units: ledger.promised_units,
                messages: ledger.unsettled_rows,
                money: ledger.money_under_way,
                ..InFlight::default()
            },
            findings: ledger.findings.clone(),
        };
        if let Some(redis) = &redis {
            let without_row = self.without_row(sale, redis).await?;
            compare(redis, of, &ledger, &without_row, &mut verdict);
        }
        let flight = verdict.in_flight;
        verdict.at_rest = flight.messages + flight.unconfirmed_units + flight.unreleased_units + flight.open_loans == 0;
        verdict.held = verdict.findings.is_empty();
        Ok(Some(verdict))
    }

    /// Unconfirmed holds without a row in PostgreSQL.
    async fn without_row(&self, sale: SaleId, redis: &Snapshot) -> Result<HashSet<OrderId>, SaleError> {
        let unconfirmed: Vec<OrderId> = redis.shards.iter().flat_map(|shard| &shard.unconfirmed).copied().collect();
        let known = self.ledger.sales.known_orders(sale, &unconfirmed).await?;
        Ok(unconfirmed.into_iter().filter(|order| !known.contains(order)).collect())
    }
}

/// Compares Redis with the ledger (I1): every live ticket with its order, and the units for sale with the ledger's settled stock.
fn compare(
    redis: &Snapshot,
    of: ShardedSale,
    ledger: &LedgerSnapshot,
    without_row: &HashSet<OrderId>,
    verdict: &mut SaleVerdict,
) {
    let tickets = redis.shards.iter().flat_map(|shard| shard.tickets.values());
    let open_loans = tickets.filter(|ticket| ticket.kind == TicketKind::OpenLoan).count();
    verdict.in_flight.open_loans = i64::try_from(open_loans).unwrap_or(i64::MAX);
    let mut held: HashMap<OrderId, i64> = HashMap::new();
    let holds = redis.shards.iter().flat_map(|shard| &shard.tickets).filter(|(_, ticket)| ticket.kind.is_hold());
    // If two shards hold units for an order, it has more than it asked for.
    holds.for_each(|(order, ticket)| *held.entry(*order).or_default() += ticket.units);
    let mut unreleased = ledger.unreleased.clone();
    unreleased.retain(|order, _| held.contains_key(order));
    verdict.in_flight.unreleased_units = unreleased.values().sum();
    let (count, lot) = (of.shards.count, of.per_user);
    let unapplied = |(wave, units): (&WaveId, &i64)| {
        let without = count.all().zip(&redis.shards).filter(|(_, found)| !found.waves.contains(wave));
        without.map(|(shard, _)| count.part(units.unsigned_abs(), lot, shard).cast_signed()).sum::<i64>()
    };
    verdict.in_flight.wave_units = ledger.unreleased_waves.iter().map(unapplied).sum();
    verdict.in_flight.unconfirmed_units = without_row.iter().filter_map(|order| held.get(order)).sum();

    let is_known = |order: &OrderId| {
        ledger.live.contains_key(order) || unreleased.contains_key(order) || without_row.contains(order)
    };
    let stray = held.iter().filter(|(order, _)| !is_known(order));
    let stray = stray.map(|(order, units)| format!("order {order}, {units} units"));
    report(verdict, "Redis holds units for orders that are not live in the ledger", stray.collect());
    let missing = ledger.live.iter().filter(|(order, live)| held.get(*order) != Some(&live.units));
    let missing =
        missing.map(|(order, live)| format!("order {order}, {} units, Redis {:?}", live.units, held.get(order)));
    report(verdict, "live orders have no ticket of their size in Redis", missing.collect());
    if !count.is_one() {
        report(verdict, "live orders are not where their records say", misplaced(redis, of.shards, ledger));
    }

    if let Some(available) = redis.view.available {
        let InFlight { promised_units, unconfirmed_units, unreleased_units, wave_units, .. } = verdict.in_flight;
        let stock = ledger.stock;
        if available != stock - promised_units - unconfirmed_units - unreleased_units - wave_units {
            let evidence = format!(
                "Redis has {available} for sale; PostgreSQL has {stock} left, of these {promised_units} promised, {unconfirmed_units} \
                 unconfirmed, {unreleased_units} unreleased, {wave_units} in waves"
            );
            report(verdict, "what Redis sells is not what PostgreSQL has left", vec![evidence]);
        }
    }
}

/// Live orders with units at another shard than in their record, or unknown to their buyer's home.
fn misplaced(redis: &Snapshot, of: SaleShards, ledger: &LedgerSnapshot) -> Vec<String> {
    let ticket =
        |shard: Shard, order: &OrderId| redis.shards.get(usize::from(shard.0.unsigned_abs()))?.tickets.get(order);
    let is_misplaced = |(order, live): (&OrderId, &LiveOrder)| {
        let (home, at_shard) = (of.home(&live.user), ticket(live.shard, order).map(|ticket| ticket.kind));
        let at_home = ticket(home, order);
        let is_right = if home == live.shard {
            at_shard == Some(TicketKind::Live)
        } else {
            // An open loan is closed when its confirmation arrives.
            let knows = |kind| matches!(kind, TicketKind::ClosedLoan | TicketKind::OpenLoan);
            at_shard == Some(TicketKind::Lent)
                && at_home.is_some_and(|loan| knows(loan.kind) && loan.lender == Some(live.shard))
        };
        (!is_right).then(|| {
            let at_home = at_home.map(|ticket| ticket.kind);
            format!("order {order}, shard {} has {at_shard:?}, home {} has {at_home:?}", live.shard.0, home.0)
        })
    };
    ledger.live.iter().filter_map(is_misplaced).collect()
}

fn report(verdict: &mut SaleVerdict, problem: &str, mut evidence: Vec<String>) {
    if !evidence.is_empty() {
        let more = evidence.len().saturating_sub(EVIDENCE_MAX);
        evidence.truncate(EVIDENCE_MAX);
        if more > 0 {
            evidence.push(format!("and {more} more"));
        }
        verdict.findings.push(Finding { invariant: "I1", problem: problem.to_owned(), evidence });
    }
}
