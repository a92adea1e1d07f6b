//! The background workers, and the process that runs only them.

use std::time::Duration;

use actix_web::{App, HttpServer};
use anyhow::Context;
use clap::ValueEnum;
use tokio_util::sync::CancellationToken;

use super::notifying_payment_service;
use super::parts::Parts;
use super::worker_names::Worker;
use super::worker_wiring::WorkerWiring;
use crate::api;
use seckill_config::Config;
use seckill_money::PaymentService;
use seckill_telemetry as telemetry;

/// How long a process of workers leaves an incomplete sale to the selling instances. It has a low priority: with few processors, its refill
/// of a live sale takes longer, and theirs must wait for it.
const REFILL_PATIENCE: Duration = Duration::from_secs(3);

pub async fn work(config: Config, only: Option<Vec<Worker>>, stop: CancellationToken) -> anyhow::Result<()> {
    let metrics = telemetry::metrics();
    let parts = Parts::assemble(config, true).await?;
    let payment_service =
        notifying_payment_service(&parts.config, parts.stores.ledger.clone(), parts.notifier.clone())?;
    if let Some(bind) = parts.config.work.metrics_bind {
        let metrics = metrics.clone();
        let server = HttpServer::new(move || App::new().configure(api::worker_routes(metrics.clone())));
        let server = server.workers(1).disable_signals().bind(bind);
        let server = server.with_context(|| format!("cannot listen on {bind} (work.metrics_bind)"))?.run();
        let (handle, stop) = (server.handle(), parts.stop.clone());
        parts.tasks.spawn(async move {
            stop.cancelled().await;
            handle.stop(false).await;
        });
        parts.tasks.spawn(async move { _ = server.await });
    }
    parts.fold_metrics(metrics);
    parts.supervise_refills(None, REFILL_PATIENCE);
    spawn_workers(&parts, only.as_deref(), &payment_service)?;
    tracing::info!("working");
    stop.cancelled().await;
    parts.shut().await;
    tracing::info!("stopped");
    Ok(())
}

pub(super) fn spawn_workers(
    parts: &Parts,
    only: Option<&[Worker]>,
    payment_service: &PaymentService,
) -> anyhow::Result<()> {
    let wiring = WorkerWiring::new(parts, payment_service)?;
    let chosen = Worker::value_variants().iter().filter(|worker| only.is_none_or(|only| only.contains(worker)));
    let mut names = Vec::new();
    for worker in chosen {
        wiring.spawn(*worker);
        names.extend(worker.to_possible_value().map(|value| value.get_name().to_owned()));
    }
    parts.report_workers(names);
    Ok(())
}
