//! `publish`: writes the pages as files.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tokio::time::sleep;

use super::{print, serve};
use crate::app::{page_settings, stores};
use seckill_config::Config;
use seckill_domain::ids::Invalid;
use seckill_domain::origin::Origin;
use seckill_pages::bundle::Publisher;

const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(super) struct PublishArgs {
    /// Folder of the files; created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Origin of the API that the pages call, scheme and host and port; without it, they call their own server. The API must
    /// list the pages' origin in http.cors_origins
    #[arg(long, value_name = "URL", value_parser = origin)]
    api: Option<Origin>,
    /// Publish again within two seconds of a change, until SIGTERM
    #[arg(long)]
    watch: bool,
}

/// An origin, also as an address with nothing but a slash behind.
fn origin(text: &str) -> Result<Origin, Invalid> {
    text.strip_suffix('/').unwrap_or(text).parse()
}

impl PublishArgs {
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let settings = page_settings(config, self.api)?;
        let stores = stores(config)?;
        let publisher = Publisher::open(&self.out, settings, stores, config.reconcile.retire_after_ms);
        let mut publisher = publisher.context("cannot publish")?;
        if self.watch {
            return watch(publisher).await;
        }
        print::json(&publisher.publish().await.context("cannot publish")?)
    }
}

/// Publishes whenever something has changed. The first time must succeed; later, a failure is repeated until it passes.
async fn watch(mut publisher: Publisher) -> anyhow::Result<()> {
    let stop = serve::stop_signal()?;
    let mut has_published = false;
    // A publish that is interrupted leaves whole files, so nothing is waited for.
    while let Some(done) = stop.run_until_cancelled(publisher.publish_changes()).await {
        match done {
            Ok(Some(published)) => print::json(&published)?,
            Ok(None) => {}
            Err(error) if has_published => tracing::warn!(%error, "not published; tried again"),
            Err(error) => return Err(error).context("cannot publish"),
        }
        has_published = true;
        if stop.run_until_cancelled(sleep(LOOK_EVERY)).await.is_none() {
            break;
        }
    }
    tracing::info!("stopped");
    Ok(())
}
