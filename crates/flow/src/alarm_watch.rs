//! Raises and clears alarms. Any number of workers may check: each kind and subject has at most one open row.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use strum::VariantArray;

use super::FlowError;
use super::policy_counts::recent;
use seckill_config as config;
use seckill_domain::alarm::{AlarmKind, Trouble, too_many_refused};
use seckill_domain::memory_level::MemoryLevel;
use seckill_domain::message::ParkedKind;
use seckill_postgres::Ledger;
use seckill_postgres::flow::alarms::AlarmChanges;
use seckill_redis::limiter::Limiter;
use seckill_redis::limiter::policy_counts::PolicyCounts;
use seckill_redis::{Gate, GateError};

#[derive(Clone)]
pub struct AlarmWatch {
    pub ledger: Ledger,
    pub gate: Gate,
    /// With the gate's time-out.
    pub limiter: Limiter,
    pub limiter_has_own_redis: bool,
    pub settings: Arc<config::Alarms>,
    /// The limiter's Redis is slow when even the fastest of a few calls takes this long.
    pub slow_ping: Duration,
}

impl AlarmWatch {
    /// How far back refusals count.
    const WINDOW_S: i64 = 60;
    /// One slow call may be chance.
    const PINGS: usize = 3;

    /// Checks the tables. A failed check leaves its own alarms as they are; the other checks go on. Returns the first error.
    pub async fn check_tables(&self) -> Result<(), FlowError> {
        let (open, ledger) = (self.ledger.alarms.open_alarm_kinds().await?, &self.ledger);
        let mut result = self.check_outbox(&open).await;
        for (kind, troubles) in [
            (AlarmKind::Drift, ledger.alarms.sales_with("reconciler", "drift").await),
            (AlarmKind::DeadChannel, ledger.alarms.dead_channels().await),
            (AlarmKind::SetAside, ledger.alarms.callbacks_aside().await),
            (AlarmKind::RefundFailed, ledger.alarms.failed_refunds().await),
            (AlarmKind::MoneyStuck, ledger.alarms.stuck_money().await),
            (AlarmKind::ReceiverAway, ledger.receivers.dead().await),
        ] {
            let updated = match troubles {
                Ok(troubles) => self.update(kind, &troubles, &open).await,
                Err(error) => Err(error.into()),
            };
            result = result.and(updated);
        }
        result
    }

    /// Shows the outbox's backlog as metrics, and checks for old and parked rows.
    async fn check_outbox(&self, open: &[String]) -> Result<(), FlowError> {
        let backlog = self.ledger.alarms.backlog().await?;
        for message in ParkedKind::VARIANTS.iter().map(|kind| kind.as_str()) {
            let row = backlog.iter().find(|row| row.kind == message);
            let gauge = |name: &'static str, value: i64| metrics::gauge!(name, "kind" => message).set(value as f64);
            gauge("seckill_outbox_pending", row.map_or(0, |row| row.pending));
            gauge("seckill_outbox_parked", row.map_or(0, |row| row.parked));
            gauge("seckill_outbox_oldest_seconds", row.map_or(0, |row| row.oldest_s));
        }
        let parked = backlog.iter().filter(|row| row.parked > 0);
        let parked: Vec<_> = parked.map(|row| Trouble::new(&row.kind, json!({ "rows": row.parked }))).collect();
        self.update(AlarmKind::Parked, &parked, open).await?;
        let old = backlog.iter().filter(|row| row.oldest_s >= self.settings.outbox_age_s.cast_signed());
        let old: Vec<_> = old.map(|row| Trouble::new(&row.kind, json!({ "oldest_s": row.oldest_s }))).collect();
        self.update(AlarmKind::OutboxOld, &old, open).await?;
        metrics::gauge!("seckill_orders_accepted").set(self.ledger.alarms.accepted_purchases().await? as f64);
        Ok(())
    }

    /// Checks that Redis keeps all keys of sales.
    pub async fn check_keys(&self) -> Result<(), FlowError> {
        let mut troubles = self.ledger.alarms.sales_with("refill supervisor", "keys-lost").await?;
        // While Redis is away, other alarms say so.
        if let Some(policy) = self.gate.connect_to_runs().await.ok().as_ref().and_then(|servers| servers.evicts()) {
            troubles.push(Trouble::new("redis", json!({ "maxmemory_policy": policy })));
        }
        self.update(AlarmKind::KeysLost, &troubles, &self.ledger.alarms.open_alarm_kinds().await?).await
    }

    /// Checks the limiter's Redis, and how the policies answer.
    pub async fn check_limiter(&self) -> Result<(), FlowError> {
        let open = &self.ledger.alarms.open_alarm_kinds().await?;
        match self.fastest_ping().await {
            Ok(took) => {
                self.update(AlarmKind::LimiterDown, &[], open).await?;
                let slow = (took >= self.slow_ping)
                    .then(|| Trouble::new("redis", json!({ "ping_ms": took.as_millis() as u64 })));
                self.update(AlarmKind::LimiterSlow, slow.as_slice(), open).await?;
                self.check_policies(open).await
            }
            Err(error) => {
                let down = Trouble::new("redis", json!({ "error": error.to_string() }));
                self.update(AlarmKind::LimiterDown, &[down], open).await
            }
        }
    }

    /// Checks how much memory Redis has left: that of the sales, and that of the limiters.
    pub async fn check_memory(&self) -> Result<(), FlowError> {
        // While Redis is away, other alarms say so.
        let mut levels = vec![("redis", self.gate.memory_level().await)];
        if self.limiter_has_own_redis {
            levels.push(("limiters", self.limiter.check_memory().await));
        }
        let levels = levels.into_iter().map(|(of, level)| (of, level.unwrap_or(MemoryLevel::Ample)));
        let short = levels.filter(|(_, level)| *level > MemoryLevel::Ample);
        let troubles: Vec<_> = short.map(|(of, level)| Trouble::new(of, json!({ "level": level.as_str() }))).collect();
        self.update(AlarmKind::RedisMemory, &troubles, &self.ledger.alarms.open_alarm_kinds().await?).await
    }

    async fn fastest_ping(&self) -> Result<Duration, GateError> {
        let mut fastest = Duration::MAX;
        for _ in 0..Self::PINGS {
            let began = Instant::now();
            self.limiter.ping_all().await?;
            fastest = fastest.min(began.elapsed());
        }
        Ok(fastest)
    }

    async fn check_policies(&self, open: &[String]) -> Result<(), FlowError> {
        let (mut refusals, mut broken, mut no_room) = (Vec::new(), Vec::new(), Vec::new());
        for policy in self.ledger.policies.policies(None).await? {
            let counts = match recent(&self.gate, policy.id, Self::WINDOW_S).await {
                // Policies on other masters are still checked.
                Err(FlowError::Gate(error)) if self.gate.is_of_one_master(&error) => continue,
                counts => counts?,
            };
            let subject = format!("{} of {}", policy.terms.name, policy.home);
            let PolicyCounts { granted, refused, .. } = counts;
            refusals.extend(too_many_refused(&subject, granted, refused, self.settings.refused_percent));
            if counts.no_room > 0 {
                no_room.push(Trouble::new(&subject, json!({ "requests": counts.no_room })));
            }
            if counts.broken > 0 {
                broken.push(Trouble::new(&subject, json!({ "requests": counts.broken })));
            }
        }
        self.update(AlarmKind::Refusals, &refusals, open).await?;
        self.update(AlarmKind::TooManyKeys, &no_room, open).await?;
        self.update(AlarmKind::LimiterBroken, &broken, open).await
    }

    /// Updates the alarms of one kind. `open` are the kinds with open alarms when the check began: others cost no statement without trouble.
    async fn update(&self, kind: AlarmKind, troubles: &[Trouble], open: &[String]) -> Result<(), FlowError> {
        if troubles.is_empty() && !open.iter().any(|one| one == kind.as_str()) {
            metrics::gauge!("seckill_alarms", "kind" => kind.as_str()).set(0.0);
            return Ok(());
        }
        let AlarmChanges { raised, cleared, open } =
            self.ledger.alarms.update_alarms(kind, troubles, self.settings.clear_after_ms.cast_signed()).await?;
        metrics::gauge!("seckill_alarms", "kind" => kind.as_str()).set(open as f64);
        if raised > 0 {
            tracing::error!(kind = kind.as_str(), ?troubles, "alarm raised");
        }
        if cleared > 0 {
            tracing::info!(kind = kind.as_str(), cleared, "alarm cleared");
        }
        Ok(())
    }
}
