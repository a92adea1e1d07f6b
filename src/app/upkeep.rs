//! Background work of a process for itself: keeps Redis filled, its caches current, and its metrics bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;
use uuid::Uuid;

use super::parts::{Parts, Rhythm};
use seckill_buying::sale::Step;
use seckill_buying::sale::catalog::Catalog;
use seckill_buying::sale::challenges::Challenges;
use seckill_buying::sale::order_streams::OrderStreams;
use seckill_buying::sale_work::refill::supervisor::RefillSupervisor;
use seckill_domain::memory_level::MemoryLevel;
use seckill_flow::policy_cache::PolicyCache;
use seckill_flow::{FlowError, policy_counts};
use seckill_http::Health;
use seckill_postgres::notices::Topic;
use seckill_postgres::orders::committer::Committer;
use seckill_postgres::processes::WORKERS_REPORT_S;
use seckill_redis::GateError;
use seckill_redis::limiter::Limiter;
use seckill_runtime::failure_log::FailureLog;
use seckill_tokens::Issuer;

const EVERY_SECOND: Duration = Duration::from_secs(1);
/// How soon a new backlog of purchases is reported, and how often after that. A report stays valid for five times the interval.
const REPORT_WITHIN: Duration = Duration::from_millis(20);
const REPORT_EVERY: Duration = Duration::from_millis(100);
const METRICS_EVERY: Duration = Duration::from_secs(5);
/// The pause between two checks of sales in Redis. One check answers all callers that ask for a closed sale in this time.
const CHECKS_APART: Duration = Duration::from_millis(20);

impl Parts {
    /// Folds the observations of histograms, so that their memory is bounded even if nothing reads the metrics.
    pub(super) fn fold_metrics(&self, metrics: PrometheusHandle) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(METRICS_EVERY)).await.is_some() {
                metrics.run_upkeep();
            }
        });
    }

    /// Keeps the keys of the tokens' issuer current.
    pub(super) fn follow_issuer(&self, issuer: &Arc<Issuer>) {
        let (issuer, stop) = (Arc::clone(issuer), self.stop.clone());
        self.tasks.spawn(async move { stop.run_until_cancelled(issuer.follow()).await });
    }

    /// Keeps every sale complete in Redis. Reports in `health` whether Redis and PostgreSQL could be asked. Leaves an incomplete sale to
    /// other processes for `patience`.
    pub(super) fn supervise_refills(&self, health: Option<Arc<Health>>, patience: Duration) {
        let supervisor = RefillSupervisor::new(self.stores.clone(), self.config.reconcile.retire_after_ms);
        let mut supervisor = supervisor.with_patience(patience);
        let (gate, mut changed) = (self.stores.gate.clone(), self.listener.subscribe(Topic::Catalog));
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let mut next_check = Instant::now();
            let (mut next_turn, mut failure) = (next_check, None);
            loop {
                let checked = tokio::select! {
                    () = stop.cancelled() => break,
                    () = supervisor.refill_ended() => continue,
                    Ok(()) = changed.changed() => {
                        next_check = next_check.min(Instant::now() + CHECKS_APART);
                        continue;
                    }
                    asked = gate.refill_wanted.take() => {
                        let checked = supervisor.check_asked(&asked).await;
                        tokio::time::sleep(CHECKS_APART).await;
                        checked
                    }
                    () = tokio::time::sleep_until(next_check) => {
                        changed.mark_unchanged();
                        // A notice triggers an early check, but no early turn of other sales.
                        let with_turn = next_turn <= Instant::now();
                        let checked = supervisor.check(with_turn).await;
                        next_check = Instant::now() + EVERY_SECOND;
                        if with_turn && checked.is_ok() {
                            next_turn = next_check;
                        }
                        checked
                    }
                };
                if let Err(error) = &checked {
                    let reason = Some(error.to_string());
                    if failure != reason {
                        tracing::warn!(%error, "sales not checked in Redis; tried again until they are");
                        failure = reason;
                    }
                    metrics::counter!("seckill_step_failures_total", "step" => "refill").increment(1);
                    next_check = next_check.min(Instant::now() + CHECKS_APART * 10);
                } else {
                    failure = None;
                }
                if let Some(health) = &health {
                    health.gate.store(checked.is_ok(), Ordering::Relaxed);
                }
            }
            supervisor.finish().await;
        });
    }

    /// The heartbeat: keeps the catalogue and the clock current, and records whether PostgreSQL answers.
    pub(super) fn follow_catalog(&self, catalog: &Arc<Catalog>, health: &Arc<Health>, committer: &Committer) {
        let state = (Arc::clone(catalog), Arc::clone(health), committer.clone());
        let rhythm = Rhythm::every(EVERY_SECOND, "catalog").or_when(Topic::Catalog);
        self.repeat(rhythm, state, |(catalog, health, committer)| async move {
            let beat = catalog.beat().await;
            committer.set_healthy(beat.is_ok());
            health.ledger.store(beat.is_ok(), Ordering::Relaxed);
            let beat = beat?;
            health.note_migrations(catalog.has_migrations().await?);
            catalog.load_changes(beat.catalog_version).await
        });
    }

    pub(super) fn watch_memory(&self, limiter: &Limiter, health: &Arc<Health>) {
        let state = (self.stores.gate.clone(), limiter.clone(), Arc::clone(health));
        self.repeat(Rhythm::every(EVERY_SECOND, "memory"), state, |(gate, limiter, health)| async move {
            let levels = [limiter.check_memory().await, gate.memory_level().await];
            let least = levels.iter().flatten().max();
            health.note_redis_memory(least.copied().unwrap_or(MemoryLevel::Ample));
            levels.into_iter().collect::<Result<Vec<_>, GateError>>().map(|_| Step::Idle)
        });
    }

    pub(super) fn report_workers(&self, workers: Vec<String>) {
        let state = (self.stores.ledger.clone(), Uuid::new_v4(), workers);
        let every = Duration::from_secs(WORKERS_REPORT_S);
        self.repeat(Rhythm::every(every, "presence").giving_way(), state, |(ledger, process, workers)| async move {
            ledger.in_time(ledger.report_workers(process, &workers)).await.map(|()| Step::Idle)
        });
    }

    /// Keeps the policies current, passes the purchase policies to the gate, and writes how often each policy was asked.
    pub(super) fn follow_policies(&self, policies: &Arc<PolicyCache>) {
        let state = (Arc::clone(policies), self.stores.gate.clone());
        let defaults = self.stores.gate.limits();
        self.stores.gate.set_limits(policies.purchase_limits(defaults));
        let rhythm = Rhythm::every(EVERY_SECOND, "policies").or_when(Topic::Policies);
        self.repeat(rhythm, state.clone(), move |(policies, gate)| async move {
            policies.keep_up(|policies| gate.set_limits(policies.purchase_limits(defaults))).await?;
            Ok::<_, FlowError>(Step::Idle)
        });
        self.repeat(Rhythm::every(EVERY_SECOND, "count"), state, |(policies, gate)| async move {
            policy_counts::flush(&policies, &gate).await.map(|()| Step::Idle)
        });
    }

    pub(super) fn prepare_challenges(&self, challenges: &Arc<Challenges>, catalog: &Arc<Catalog>) {
        let (challenges, catalog, stop) = (Arc::clone(challenges), Arc::clone(catalog), self.stop.clone());
        self.tasks.spawn(async move {
            loop {
                challenges.prepare(&catalog);
                if stop.run_until_cancelled(tokio::time::sleep(EVERY_SECOND)).await.is_none() {
                    return;
                }
            }
        });
    }

    /// Reports a backlog of purchases to other processes, so that their work gives way too.
    pub(super) fn report_pressure(&self) {
        let (ledger, pressure, stop) = (self.stores.ledger.clone(), Arc::clone(&self.pressure), self.stop.clone());
        self.tasks.spawn(async move {
            let (mut pause, mut is_quiet, mut failures) = (REPORT_WITHIN, false, FailureLog::default());
            loop {
                // Without purchases, there is nothing to report.
                let due = async {
                    if is_quiet {
                        pressure.measured().await;
                    }
                    tokio::time::sleep(pause).await;
                };
                if stop.run_until_cancelled(due).await.is_none() {
                    return;
                }
                let now = std::time::Instant::now();
                let longest = pressure.longest_here(now);
                metrics::gauge!("seckill_purchase_wait_seconds").set(longest.as_secs_f64());
                let report = pressure.report(now);
                is_quiet = report.is_none() && longest.is_zero();
                pause = if report.is_some() { REPORT_EVERY } else { REPORT_WITHIN };
                let Some(report) = report else { continue };
                let reported = ledger.in_time(ledger.report_pressure(report)).await;
                failures.note(reported, "the workers of other processes do not give way to purchases");
            }
        });
    }

    pub(super) fn feed_order_streams(&self, streams: &OrderStreams) {
        let rhythm = Rhythm::every(EVERY_SECOND, "events").or_when(Topic::Orders).giving_way();
        self.repeat(rhythm, streams.clone(), |streams| async move { streams.feed_new_steps().await });
    }
}
