//! `serve`, `work` and `channel-sandbox`: the processes that run until they are told to stop.

use seckill_sandbox::Sandbox;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::app::{Service, Worker, work};
use seckill_config::Config;

#[derive(clap::Args)]
pub(super) struct ServeArgs {
    /// Run the background workers in the same process
    #[arg(long)]
    with_workers: bool,
}

#[derive(clap::Args)]
pub(super) struct WorkArgs {
    /// Run only these workers, comma-separated; without it, all of them
    #[arg(long, value_name = "WORKERS", value_delimiter = ',')]
    only: Option<Vec<Worker>>,
}

impl ServeArgs {
    pub(super) async fn run(self, config: Config) -> anyhow::Result<()> {
        let stop = stop_signal()?;
        let service = Service::bind(config, self.with_workers).await?;
        let stopper = service.stopper();
        let stopping = tokio::spawn(async move {
            stop.cancelled().await;
            tracing::info!("stopping: requests in progress are answered first");
            stopper.stop().await;
        });
        service.run().await?;
        stopping.abort();
        Ok(())
    }
}

impl WorkArgs {
    pub(super) async fn run(self, config: Config) -> anyhow::Result<()> {
        work(config, self.only, stop_signal()?).await
    }
}

pub(super) async fn channel_sandbox(settings: seckill_sandbox::Settings) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    let sandbox = Sandbox::bind(&settings)?;
    let stopper = sandbox.stopper();
    let stopping = tokio::spawn(async move {
        stop.cancelled().await;
        stopper.stop(true).await;
    });
    sandbox.run().await?;
    stopping.abort();
    Ok(())
}

pub(super) fn stop_signal() -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(token)
}
