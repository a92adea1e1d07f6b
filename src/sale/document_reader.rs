//! Reading sales and products: Bloom filter, this process's memory, Redis, and only then PostgreSQL, one loader in the
//! whole cluster at a time.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::future::Cache;

use super::SaleError;
use crate::domain::ids::DocId;
use crate::domain::sale::Document;
use crate::gate::Gate;
use crate::gate::document_cache::CachedDocument;
use crate::gate::id_filter::IdFilter;
use crate::ledger::Ledger;

/// Documents kept in memory, and for how long; a change is heard of long before.
const NEAR_MAX: u64 = 100_000;
const NEAR_FOR: Duration = Duration::from_secs(30);
/// How long somebody may look for one document in PostgreSQL before another may.
const LOADER_LEASE: Duration = Duration::from_secs(2);

/// A document as it was at a version of the catalogue, or the word that there is none.
#[derive(Clone)]
struct Near {
    as_of: i64,
    doc: Option<Arc<Document>>,
}

/// Reads documents, and remembers them.
pub struct DocumentReader {
    ledger: Ledger,
    gate: Gate,
    filter: ArcSwap<IdFilter>,
    near: Cache<DocId, Near>,
    /// Up to which version each document is known to have changed: what Redis has from before is stale.
    changed: Cache<DocId, i64>,
}

impl DocumentReader {
    pub fn new(ledger: Ledger, gate: Gate, filter: IdFilter) -> Self {
        let near = Cache::builder().max_capacity(NEAR_MAX).time_to_live(NEAR_FOR).build();
        // Longer than a document lives in Redis.
        let changed = Cache::builder().max_capacity(NEAR_MAX).time_to_live(Duration::from_secs(600)).build();
        Self { ledger, gate, filter: ArcSwap::from_pointee(filter), near, changed }
    }

    /// The document; `None` when there is no such thing.
    pub async fn read(&self, id: DocId) -> Result<Option<Arc<Document>>, SaleError> {
        if !self.filter.load().may_contain(id) {
            hit("filter");
            return Ok(None);
        }
        let changed_at = self.changed.get(&id).await.unwrap_or(0);
        if let Some(near) = self.near.get(&id).await {
            if near.as_of >= changed_at {
                hit("near");
                return Ok(near.doc);
            }
            // It was on its way here when the change was heard of.
            self.near.invalidate(&id).await;
        }
        // Whoever asks for the same meanwhile waits for this answer.
        let found = self.near.try_get_with(id, self.fetch(id, changed_at)).await;
        found.map(|near| near.doc).map_err(|error: Arc<SaleError>| {
            tracing::warn!(%id, %error, "document not read");
            SaleError::Busy("reading")
        })
    }

    async fn fetch(&self, id: DocId, changed_at: i64) -> Result<Near, SaleError> {
        if let Some(found) = self.far(id, changed_at).await? {
            hit("redis");
            return Ok(found);
        }
        let lock = self.gate.lock(&format!("load:{id}"), LOADER_LEASE).await?;
        // A second look: the lock's last holder may have brought it, whether we hold the lock now or gave up.
        let found = match self.far(id, changed_at).await? {
            Some(found) => {
                hit("redis");
                Ok(found)
            }
            None if lock.is_some() => self.load(id).await,
            None => Err(SaleError::Busy("loading")),
        };
        if let Some(lock) = lock
            && let Err(error) = lock.release().await
        {
            tracing::debug!(%id, %error, "loader's lock left to its lease");
        }
        found
    }

    /// What Redis has, unless it is known to be stale, or is no document.
    async fn far(&self, id: DocId, changed_at: i64) -> Result<Option<Near>, SaleError> {
        let Some(cached) = self.gate.cached(id).await?.filter(|cached| cached.as_of >= changed_at) else {
            return Ok(None);
        };
        let as_of = cached.as_of;
        Ok(match cached.text.map(|text| serde_json::from_str(&text)) {
            None => Some(Near { as_of, doc: None }),
            Some(Ok(doc)) => Some(Near { as_of, doc: Some(Arc::new(doc)) }),
            Some(Err(_)) => None,
        })
    }

    async fn load(&self, id: DocId) -> Result<Near, SaleError> {
        hit("ledger");
        let (doc, as_of) = self.ledger.in_time(self.ledger.document(id)).await?;
        self.gate
            .cache(id, &CachedDocument { as_of, text: doc.as_ref().and_then(|doc| serde_json::to_string(doc).ok()) })
            .await?;
        Ok(Near { as_of, doc: doc.map(Arc::new) })
    }

    /// A document changed, or came to be, or went, at this version of the catalogue. What came to be is let through,
    /// unless the filter has just been built from all that there is.
    pub async fn heard(&self, id: DocId, version: i64, let_through: bool) {
        self.changed.insert(id, version).await;
        self.near.invalidate(&id).await;
        if let_through && !self.filter.load().may_contain(id) {
            self.filter.rcu(|filter| {
                let mut grown = IdFilter::clone(filter);
                grown.insert(id);
                grown
            });
        }
    }

    /// Whether the filter lets through more than it should.
    pub fn wants_new_filter(&self) -> bool {
        self.filter.load().is_full()
    }

    pub fn set_filter(&self, filter: IdFilter) {
        metrics::gauge!("seckill_filter_items").set(filter.items() as f64);
        metrics::gauge!("seckill_filter_bits").set(filter.bits() as f64);
        self.filter.store(Arc::new(filter));
    }
}

fn hit(level: &'static str) {
    metrics::counter!("seckill_reads_total", "level" => level).increment(1);
}
