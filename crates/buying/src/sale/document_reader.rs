//! Reads sales and products from the Bloom filter of known ids, this process's cache, Redis, and last PostgreSQL, with one loader in the whole
//! cluster at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::future::Cache;

use super::SaleError;
use super::id_filter::IdFilter;
use seckill_domain::ids::DocId;
use seckill_domain::sale::{Document, PlannedWave};
use seckill_postgres::Sales;
use seckill_redis::Gate;
use seckill_redis::document_cache::CachedDocument;

/// The bounds of this process's cache. A change removes a document at once.
const LOCAL_MAX_BYTES: u64 = 64 * 1024 * 1024;
const LOCAL_FOR: Duration = Duration::from_secs(30);
/// The size of a document without its texts, and of an absence.
const DOCUMENT_BYTES: usize = 700;
const CHANGED_MAX: u64 = 100_000;
/// The lease of the loader's lock. After the holder's death another instance may load.
const LOADER_LEASE: Duration = Duration::from_secs(2);

/// A document at a version of the catalogue; `None` when it did not exist.
#[derive(Clone)]
struct DocumentAt {
    as_of: i64,
    doc: Option<Arc<Document>>,
}

impl DocumentAt {
    fn bytes(&self) -> u32 {
        let texts = match self.doc.as_deref() {
            None => 0,
            Some(Document::Product(product)) => product.name.len() + product.description.len(),
            Some(Document::Sale(sale)) => {
                sale.product.len() + sale.description.len() + size_of_val::<[PlannedWave]>(&sale.waves)
            }
        };
        u32::try_from(DOCUMENT_BYTES + texts).unwrap_or(u32::MAX)
    }
}

pub(crate) struct DocumentReader {
    loader: Loader,
    filter: ArcSwap<IdFilter>,
    local: Cache<DocId, DocumentAt>,
    /// The version of each document's last known change: a copy of an older version is stale.
    changed: Cache<DocId, i64>,
    /// Changes up to this version were not followed: any older copy may be stale.
    followed_from: AtomicI64,
}

impl DocumentReader {
    pub(crate) fn new(sales: Sales, gate: Gate, filter: IdFilter) -> Self {
        let weight = |_: &DocId, found: &DocumentAt| found.bytes();
        let local = Cache::builder().max_capacity(LOCAL_MAX_BYTES).weigher(weight).time_to_live(LOCAL_FOR).build();
        // Longer than the life of a document in Redis.
        let changed = Cache::builder().max_capacity(CHANGED_MAX).time_to_live(Duration::from_secs(600)).build();
        Self {
            loader: Loader { sales, gate },
            filter: ArcSwap::from_pointee(filter),
            local,
            changed,
            followed_from: AtomicI64::new(0),
        }
    }

    /// The document; `None` when it does not exist.
    pub(crate) async fn read(&self, id: DocId) -> Result<Option<Arc<Document>>, SaleError> {
        if !self.filter.load().may_contain(id) {
            hit("filter");
            return Ok(None);
        }
        let followed_from = self.followed_from.load(Ordering::Relaxed);
        let changed_at = self.changed.get(&id).await.map_or(followed_from, |version| version.max(followed_from));
        if let Some(local) = self.local.get(&id).await {
            if local.as_of >= changed_at {
                hit("near");
                return Ok(local.doc);
            }
            // The change arrived during the load.
            self.local.invalidate(&id).await;
        }
        // Other readers of the document wait for this load. It continues when this reader hangs up: otherwise they would get an error, and
        // the loader's lock would stay until its lease ends.
        let (local, loader) = (self.local.clone(), self.loader.clone());
        let fetched = tokio::spawn(async move { local.try_get_with(id, loader.fetch(id, changed_at)).await }).await;
        match fetched {
            Ok(Ok(found)) => return Ok(found.doc),
            Ok(Err(error)) => tracing::warn!(%id, %error, "document not read"),
            Err(error) => tracing::error!(%id, %error, "document not read"),
        }
        Err(SaleError::Busy("reading"))
    }

    /// Drops cached copies of a document that was created, changed or removed at this version of the catalogue.
    pub(crate) async fn document_changed(&self, id: DocId, version: i64, add_to_filter: bool) {
        self.changed.insert(id, version).await;
        self.local.invalidate(&id).await;
        if add_to_filter && !self.filter.load().may_contain(id) {
            self.filter.rcu(|filter| {
                let mut grown = IdFilter::clone(filter);
                grown.insert(id);
                grown
            });
        }
    }

    /// Drops all copies of older versions, because their changes are not known one by one. If PostgreSQL has lost changes, `version` is
    /// older than some copies.
    pub(crate) fn forget_copies_before(&self, version: i64) {
        self.followed_from.store(version, Ordering::Relaxed);
        self.changed.invalidate_all();
        self.local.invalidate_all();
    }

    pub(crate) fn filter_is_full(&self) -> bool {
        self.filter.load().is_full()
    }

    pub(crate) fn set_filter(&self, filter: IdFilter) {
        metrics::gauge!("seckill_filter_items").set(filter.items() as f64);
        metrics::gauge!("seckill_filter_bits").set(filter.bits() as f64);
        self.filter.store(Arc::new(filter));
    }
}

/// Fetches documents that this process does not have.
#[derive(Clone)]
struct Loader {
    sales: Sales,
    gate: Gate,
}

impl Loader {
    async fn fetch(self, id: DocId, changed_at: i64) -> Result<DocumentAt, SaleError> {
        let cached = match self.read_redis(id, changed_at).await {
            // The master with the copy is away: one reader of each process loads the document.
            Err(SaleError::Gate(error)) if self.gate.is_of_one_master(&error) => return self.load(id).await,
            cached => cached?,
        };
        if let Some(found) = cached {
            hit("redis");
            return Ok(found);
        }
        let lock = match self.gate.lock(&format!("load:{id}"), LOADER_LEASE).await {
            Err(error) if self.gate.is_of_one_master(&error) => return self.load(id).await,
            lock => lock?,
        };
        let found = async {
            // A second look: the lock's last holder may have cached the document.
            match self.read_redis(id, changed_at).await? {
                Some(found) => {
                    hit("redis");
                    Ok(found)
                }
                None if lock.is_some() => self.load(id).await,
                None => Err(SaleError::Busy("loading")),
            }
        }
        .await;
        if let Some(lock) = lock
            && let Err(error) = lock.release().await
        {
            tracing::debug!(%id, %error, "loader's lock not released; its lease ends by itself");
        }
        found
    }

    /// The copy in Redis, unless it is stale or cannot be read.
    async fn read_redis(&self, id: DocId, changed_at: i64) -> Result<Option<DocumentAt>, SaleError> {
        let Some(cached) = self.gate.cached(id).await?.filter(|cached| cached.as_of >= changed_at) else {
            return Ok(None);
        };
        let as_of = cached.as_of;
        Ok(match cached.text.map(|text| serde_json::from_str(&text)) {
            None => Some(DocumentAt { as_of, doc: None }),
            Some(Ok(doc)) => Some(DocumentAt { as_of, doc: Some(Arc::new(doc)) }),
            Some(Err(_)) => None,
        })
    }

    async fn load(&self, id: DocId) -> Result<DocumentAt, SaleError> {
        hit("ledger");
        let (doc, as_of) = self.sales.in_time(self.sales.document(id)).await?;
        let text = doc.as_ref().and_then(|doc| serde_json::to_string(doc).ok());
        self.gate.cache(id, &CachedDocument { as_of, text }).await?;
        Ok(DocumentAt { as_of, doc: doc.map(Arc::new) })
    }
}

fn hit(level: &'static str) {
    metrics::counter!("seckill_reads_total", "level" => level).increment(1);
}
