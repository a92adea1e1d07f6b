//! The auditor: proves the invariants of docs/guarantees.md from the data itself.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{SaleError, Stores};
use crate::domain::ids::{OrderId, SaleId};
use crate::gate::holds::TicketKind;
use crate::gate::sale_state::Snapshot;
use crate::ledger::sales::audit::{Finding, LedgerSnapshot};

/// How long to wait for rest, and how often to look meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many times in a row a difference at rest must be seen: what is just being written is not broken.
const LOOKS_TO_CONVICT: u32 = 5;
/// An order this long past its deadline hangs: the delay queues' last second, and the sweeper's net.
const OVERDUE_GRACE_MS: i64 = 45_000;
/// How much evidence is shown of each finding.
const SHOWN: usize = 20;

/// The verdict on one sale.
#[derive(Debug, Clone, Serialize)]
pub struct SaleVerdict {
    pub sale_id: SaleId,
    pub held: bool,
    pub at_rest: bool,
    /// Whether Redis could be compared: it stood still, and serves the ledger's epoch.
    pub redis_compared: bool,
    /// Long over, and no longer kept in Redis.
    pub retired: bool,
    pub total_stock: i64,
    pub stock: i64,
    pub redis_available: Option<i64>,
    pub live_units: i64,
    pub in_flight: InFlight,
    pub findings: Vec<Finding>,
}

/// What is under way.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct InFlight {
    /// Units of purchases that are no orders yet.
    pub promised_units: i64,
    /// Units of holds whose purchase row is not written (yet).
    pub unconfirmed_units: i64,
    /// Units of ended orders that Redis still holds.
    pub unreleased_units: i64,
    /// Units of waves that Redis has not put up for sale yet.
    pub wave_units: i64,
    /// Outbox rows that are not settled.
    pub messages: i64,
    /// Payments and refunds whose outcome is not known yet.
    pub money: i64,
}

impl Stores {
    /// Audits one sale; `None` when there is no such sale.
    pub async fn audit(&self, sale: SaleId, retire_after_ms: u64) -> Result<Option<SaleVerdict>, SaleError> {
        let deadline = Instant::now() + PATIENCE;
        let mut looks = 0;
        loop {
            let Some(verdict) = self.look(sale, retire_after_ms).await? else { return Ok(None) };
            let settled = verdict.at_rest && (verdict.redis_compared || verdict.retired);
            if settled && verdict.held {
                return Ok(Some(verdict));
            }
            looks = if settled { looks + 1 } else { 0 };
            if looks >= LOOKS_TO_CONVICT || Instant::now() >= deadline {
                return Ok(Some(verdict));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self, sale: SaleId, retire_after_ms: u64) -> Result<Option<SaleVerdict>, SaleError> {
        let snapshot = self.gate.snapshot(sale).await?;
        let Some(books) = self.ledger.books(sale, OVERDUE_GRACE_MS, retire_after_ms).await? else { return Ok(None) };
        let redis = match &snapshot {
            Some(redis) if redis.view.serving && redis.view.epoch == books.epoch && !books.retired => {
                self.gate.unchanged_since(sale, &redis.view).await?.then_some(redis)
            }
            _ => None,
        };
        let mut verdict = SaleVerdict {
            sale_id: sale,
            held: false,
            at_rest: false,
            redis_compared: redis.is_some(),
            retired: books.retired,
            total_stock: books.total_stock,
            stock: books.stock,
            redis_available: redis.and_then(|redis| redis.view.available),
            live_units: books.live_units,
            in_flight: InFlight {
                promised_units: books.promised_units,
                messages: books.moving,
                money: books.money_under_way,
                ..InFlight::default()
            },
            findings: books.findings.clone(),
        };
        if let Some(redis) = redis {
            let without_row = self.without_row(redis).await?;
            compare(redis, &books, &without_row, &mut verdict);
        }
        let flight = verdict.in_flight;
        verdict.at_rest = flight.messages + flight.unconfirmed_units + flight.unreleased_units == 0;
        verdict.held = verdict.findings.is_empty();
        Ok(Some(verdict))
    }

    /// Unconfirmed holds that have no purchase row.
    async fn without_row(&self, redis: &Snapshot) -> Result<HashSet<OrderId>, SaleError> {
        let known: HashSet<OrderId> = self.ledger.known_orders(&redis.unconfirmed).await?.into_iter().collect();
        Ok(redis.unconfirmed.iter().copied().filter(|order| !known.contains(order)).collect())
    }
}

/// Holds Redis against the ledger (I1): every live ticket has its order, every live order its ticket, and what is
/// available is what the ledger has left, less what is under way.
fn compare(redis: &Snapshot, books: &LedgerSnapshot, without_row: &HashSet<OrderId>, verdict: &mut SaleVerdict) {
    let held: HashMap<OrderId, i64> = redis
        .tickets
        .iter()
        .filter(|(_, ticket)| ticket.kind == TicketKind::Live)
        .map(|(order, ticket)| (*order, ticket.units))
        .collect();
    let unreleased: HashMap<OrderId, i64> =
        books.unreleased.iter().copied().filter(|(order, _)| held.contains_key(order)).collect();
    verdict.in_flight.unreleased_units = unreleased.values().sum();
    let unapplied = books.waves_on_their_way.iter().filter(|(wave, _)| !redis.waves.contains(wave));
    verdict.in_flight.wave_units = unapplied.map(|(_, units)| units).sum();
    verdict.in_flight.unconfirmed_units = without_row.iter().filter_map(|order| held.get(order)).sum();

    let ledger: HashMap<OrderId, i64> = books.live.iter().map(|(order, units, _)| (*order, *units)).collect();
    let stray = held
        .iter()
        .filter(|(order, _)| {
            !ledger.contains_key(*order) && !unreleased.contains_key(*order) && !without_row.contains(*order)
        })
        .map(|(order, units)| format!("order {order}, {units} units"));
    report(verdict, "Redis holds units for orders that the ledger does not know as live", stray.collect());
    let missing = ledger
        .iter()
        .filter(|(order, units)| held.get(*order) != Some(*units))
        .map(|(order, units)| format!("order {order}, {units} units, Redis {:?}", held.get(order)));
    report(verdict, "live orders have no ticket of their size in Redis", missing.collect());

    if let Some(available) = redis.view.available {
        let flight = verdict.in_flight;
        let expected = books.stock
            - flight.promised_units
            - flight.unconfirmed_units
            - flight.unreleased_units
            - flight.wave_units;
        if available != expected {
            let evidence = format!(
                "Redis has {available} for sale; PostgreSQL {} left; of these {} promised, {} unconfirmed, {} unreleased, {} in waves",
                books.stock,
                flight.promised_units,
                flight.unconfirmed_units,
                flight.unreleased_units,
                flight.wave_units
            );
            report(verdict, "what Redis sells is not what PostgreSQL has left", vec![evidence]);
        }
    }
}

fn report(verdict: &mut SaleVerdict, problem: &str, mut evidence: Vec<String>) {
    if !evidence.is_empty() {
        let more = evidence.len().saturating_sub(SHOWN);
        evidence.truncate(SHOWN);
        if more > 0 {
            evidence.push(format!("and {more} more"));
        }
        verdict.findings.push(Finding { invariant: "I1", problem: problem.to_owned(), evidence });
    }
}
