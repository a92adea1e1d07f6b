//! Pictures of products, cached in memory. Reads from PostgreSQL are bounded: neither a popular picture nor a flood of invented names
//! costs the database much.

use std::sync::Arc;
use std::time::Duration;

use actix_web::rt::spawn;
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::file::{File, JPEG};
use crate::domain::picture::PictureFile;
use crate::sale::thread_state::ThreadState;

/// Bytes of pictures in memory: some hundreds of pictures.
const KEPT_MAX: u64 = 64 * 1024 * 1024;
/// Pictures that are read at the same time: few of the connections to PostgreSQL.
const READS_MAX: usize = 2;
/// Requests in the queue, and how long they stay in it. All others are answered 503.
const LINE_MAX: usize = 100;
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Why there is no picture.
#[derive(Debug, Clone, Copy)]
pub(super) enum NoPicture {
    Unknown,
    Busy,
}

/// The pictures that were asked for most recently.
pub(super) struct Pictures {
    kept: Cache<PictureFile, File>,
    reads: Arc<Semaphore>,
    line: Arc<Semaphore>,
}

impl Default for Pictures {
    fn default() -> Self {
        let weight = |_: &PictureFile, file: &File| u32::try_from(file.body.plain.len()).unwrap_or(u32::MAX);
        Self {
            kept: Cache::builder().max_capacity(KEPT_MAX).weigher(weight).build(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            line: Arc::new(Semaphore::new(LINE_MAX)),
        }
    }
}

impl Pictures {
    /// The picture. Requests for a picture that is being read share one answer.
    pub(super) async fn read(&self, file: PictureFile, thread: &ThreadState) -> Result<File, NoPicture> {
        if let Some(kept) = self.kept.get(&file).await {
            return Ok(kept);
        }
        let (reads, line, ledger) = (Arc::clone(&self.reads), Arc::clone(&self.line), thread.ledger.clone());
        let name = file.clone();
        let read = async move {
            let in_line = line.try_acquire_owned().map_err(|_| NoPicture::Busy)?;
            let Ok(Ok(place)) = timeout(WAIT_MAX, reads.acquire_owned()).await else { return Err(NoPicture::Busy) };
            drop(in_line);
            // A separate task: a client that hangs up leaves no connection in the middle of an answer.
            let read = spawn(async move {
                let read = ledger.in_time(ledger.picture(&name)).await;
                drop(place);
                read
            });
            match read.await {
                Ok(Ok(Some(body))) => Ok(File::new(JPEG, body)),
                Ok(Ok(None)) => Err(NoPicture::Unknown),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "picture not read");
                    Err(NoPicture::Busy)
                }
                Err(_) => Err(NoPicture::Busy),
            }
        };
        self.kept.try_get_with(file, read).await.map_err(|why| *why)
    }
}
