//! What a serving instance knows of sales: the terms of those that Redis keeps, in memory and up to date within a
//! notice; and a reader for all others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::document_reader::DocumentReader;
use super::{SaleError, Step, Stores};
use crate::domain::database_clock::DatabaseClock;
use crate::domain::ids::{DocId, SaleId};
use crate::domain::sale::{Document, Product, Sale};
use crate::gate::id_filter::IdFilter;
use crate::ledger::Ledger;

/// Everything is loaded anew this often, also without a change: this bounds the effect of a change that was missed.
const RELOAD_EVERY: Duration = Duration::from_secs(300);

/// How long PostgreSQL may take for a heartbeat.
const BEAT_MAX: Duration = Duration::from_secs(2);

/// The sales in memory, and this instance's entry in the list of those that are alive.
pub struct Catalog {
    ledger: Ledger,
    instance: Uuid,
    retire_after_ms: u64,
    live: ArcSwap<HashMap<SaleId, Arc<Sale>>>,
    reader: DocumentReader,
    version: AtomicI64,
    /// When everything was loaded last. The lock admits one load at a time.
    loaded: Mutex<Instant>,
    pub clock: Arc<DatabaseClock>,
}

impl Catalog {
    /// Loads the whole catalogue.
    pub async fn load(stores: &Stores, retire_after_ms: u64) -> Result<Self, SaleError> {
        let empty = IdFilter::of(&[]).map_err(SaleError::Filter)?;
        let catalog = Self {
            ledger: stores.ledger.clone(),
            instance: Uuid::new_v4(),
            retire_after_ms,
            live: ArcSwap::default(),
            reader: DocumentReader::new(stores.ledger.clone(), stores.gate.clone(), empty),
            version: AtomicI64::new(0),
            loaded: Mutex::new(Instant::now()),
            clock: Arc::new(DatabaseClock::set_to(stores.ledger.now_ms().await?)),
        };
        catalog.load_all().await?;
        while catalog.load_changes().await? == Step::More {}
        // An instance that is ready is in the list, so that a new sale waits for it.
        catalog.ledger.send_heartbeat(catalog.instance, catalog.version.load(Ordering::Relaxed)).await?;
        Ok(catalog)
    }

    /// This instance's id in the list of those that are alive.
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// Reads a sale that Redis keeps, without taking a reference: the purchases of all threads would write to one reference count.
    pub fn look_at<T>(&self, sale: SaleId, look: impl FnOnce(&Sale) -> T) -> Option<T> {
        self.live.load().get(&sale).map(|sale| look(sale))
    }

    /// Any sale.
    pub async fn sale(&self, sale: SaleId) -> Result<Option<Arc<Sale>>, SaleError> {
        if let Some(live) = self.live.load().get(&sale).cloned() {
            metrics::counter!("seckill_reads_total", "level" => "live").increment(1);
            return Ok(Some(live));
        }
        // On the heap: the future is 14 kB long, and hardly any purchase needs it.
        let found = Box::pin(self.reader.read(DocId::Sale(sale.get()))).await?;
        Ok(found.and_then(|doc| match &*doc {
            Document::Sale(sale) => Some(Arc::new(sale.clone())),
            Document::Product(_) => None,
        }))
    }

    /// A product; `None` when there is no such product.
    pub async fn product(&self, id: i64) -> Result<Option<Product>, SaleError> {
        let found = Box::pin(self.reader.read(DocId::Product(id))).await?;
        Ok(found.and_then(|doc| match &*doc {
            Document::Product(product) => Some(product.clone()),
            Document::Sale(_) => None,
        }))
    }

    /// Whether a sale that Redis keeps is like this.
    pub fn any_live(&self, is_like: impl Fn(&Sale) -> bool) -> bool {
        self.live.load().values().any(|sale| is_like(sale))
    }

    /// The newest sales first.
    pub fn newest(&self, limit: usize) -> Vec<Arc<Sale>> {
        let mut sales: Vec<_> = self.live.load().values().cloned().collect();
        sales.sort_unstable_by_key(|sale| std::cmp::Reverse(sale.id));
        sales.truncate(limit);
        sales
    }

    /// Loads what has changed, and records in PostgreSQL that this instance has it.
    pub async fn load_changes(&self) -> Result<Step, SaleError> {
        self.ledger.in_time(async { Ok(self.load_changes_once().await) }).await?
    }

    /// Checks within two seconds that PostgreSQL takes purchases, and records that this instance is alive.
    pub async fn beat(&self) -> Result<(), SaleError> {
        let beat = async {
            self.ledger.can_commit().await?;
            let asked_at = Instant::now();
            let answer = self.ledger.send_heartbeat(self.instance, self.version.load(Ordering::Relaxed)).await?;
            self.clock.set(answer.now_ms, asked_at);
            Ok(())
        };
        Ok(Ledger::within(BEAT_MAX, beat).await?)
    }

    async fn load_changes_once(&self) -> Result<Step, SaleError> {
        let version = self.version.load(Ordering::Relaxed);
        match self.ledger.changes_since(version, self.retire_after_ms).await? {
            None => self.load_all().await?,
            Some(changes) => {
                let overdue = self.loaded.lock().await.elapsed() > RELOAD_EVERY;
                if changes.documents.is_empty() && !overdue {
                    return Ok(Step::Idle);
                }
                if changes.removed || overdue || self.reader.filter_is_full() {
                    // No id can be taken out of a Bloom filter: a removal needs a new one.
                    self.load_all().await?;
                } else {
                    let mut live = HashMap::clone(&self.live.load());
                    for (id, _) in &changes.documents {
                        // A changed sale that is not live any more ended long ago.
                        if let DocId::Sale(sale) = id {
                            live.remove(&SaleId::from_db(*sale));
                        }
                    }
                    live.extend(changes.live.into_iter().map(|sale| (sale.id, Arc::new(sale))));
                    self.live.store(Arc::new(live));
                }
                for (id, version) in changes.documents {
                    self.reader.document_changed(id, version, !changes.removed).await;
                }
                self.version.fetch_max(changes.version, Ordering::Relaxed);
            }
        }
        let version = self.version.load(Ordering::Relaxed);
        let asked_at = Instant::now();
        let answer = self.ledger.send_heartbeat(self.instance, version).await?;
        self.clock.set(answer.now_ms, asked_at);
        Ok(if answer.catalog_version > version { Step::More } else { Step::Idle })
    }

    async fn load_all(&self) -> Result<(), SaleError> {
        let mut loaded = self.loaded.lock().await;
        let all = self.ledger.catalogue(self.retire_after_ms).await?;
        self.reader.set_filter(IdFilter::of(&all.ids).map_err(SaleError::Filter)?);
        self.live.store(Arc::new(all.live.into_iter().map(|sale| (sale.id, Arc::new(sale))).collect()));
        self.version.fetch_max(all.version, Ordering::Relaxed);
        *loaded = Instant::now();
        Ok(())
    }

    /// Removes this instance from the list of those that are alive, so that no change waits for it.
    pub async fn leave(&self) -> Result<(), SaleError> {
        Ok(self.ledger.leave(self.instance).await?)
    }
}
