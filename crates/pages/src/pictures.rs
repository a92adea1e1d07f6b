//! Pictures of products, cached in memory. Reads from PostgreSQL are bounded: neither a popular picture nor a flood of invented names
//! costs the database much.

use moka::future::Cache;

use super::file::{File, JPEG};
use seckill_buying::sale::SaleError;
use seckill_buying::sale::thread_state::ThreadState;
use seckill_domain::picture::PictureFile;
use seckill_http::Bulkhead;

/// Bytes of pictures in memory: some hundreds of pictures.
const KEPT_MAX: u64 = 64 * 1024 * 1024;
/// Pictures that are read at the same time: few of the connections to PostgreSQL.
const READS_MAX: usize = 2;
const LINE_MAX: usize = 100;

#[derive(Debug, Clone, Copy)]
pub(super) enum NoPicture {
    Unknown,
    Busy,
}

pub(super) struct Pictures {
    kept: Cache<PictureFile, File>,
    reads: Bulkhead,
}

impl Default for Pictures {
    fn default() -> Self {
        let weight = |_: &PictureFile, file: &File| u32::try_from(file.body.plain.len()).unwrap_or(u32::MAX);
        Self {
            kept: Cache::builder().max_capacity(KEPT_MAX).weigher(weight).build(),
            reads: Bulkhead::new("pictures", READS_MAX, LINE_MAX),
        }
    }
}

impl Pictures {
    /// The picture. Requests for a picture that is being read share one answer.
    pub(super) async fn read(&self, file: PictureFile, thread: &ThreadState) -> Result<File, NoPicture> {
        let (ledger, name) = (thread.ledger.clone(), file.clone());
        let read = async move { ledger.in_time(ledger.sales.picture(&name)).await.map_err(SaleError::from) };
        let read = async {
            match self.reads.run(read).await {
                Ok(Some(body)) => Ok(File::new(JPEG, body)),
                Ok(None) => Err(NoPicture::Unknown),
                Err(_) => Err(NoPicture::Busy),
            }
        };
        self.kept.try_get_with(file, read).await.map_err(|why| *why)
    }
}
