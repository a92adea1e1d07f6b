//! The sales that Redis keeps, in memory and up to date within a notice; and a reader for all others.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::document_reader::DocumentReader;
use super::id_filter::IdFilter;
use super::{SaleError, Step, Stores};
use seckill_domain::database_clock::DatabaseClock;
use seckill_domain::ids::{DocId, SaleId};
use seckill_domain::sale::{Document, Product, Sale};
use seckill_postgres::sales::catalog::{CatalogChanges, Heartbeat};
use seckill_postgres::{Database, Ledger, LedgerError};

/// All live sales are loaded this often, also without a change. This repairs a missed change, and drops sales that ended long ago.
const RELOAD_EVERY: Duration = Duration::from_secs(300);
/// The longest list of the newest sales.
pub const NEWEST_MAX: usize = 100;

/// How long PostgreSQL may take for a heartbeat.
const BEAT_MAX: Duration = Duration::from_secs(2);

/// The sales that Redis keeps, at one moment.
#[derive(Default)]
pub(crate) struct LiveSales {
    by_id: HashMap<SaleId, Arc<Sale>>,
    /// The newest first. Lists are read far more often than sales change.
    newest: Vec<Arc<Sale>>,
}

impl LiveSales {
    fn new(by_id: HashMap<SaleId, Arc<Sale>>) -> Self {
        let mut ids: Vec<SaleId> = by_id.keys().copied().collect();
        if ids.len() > NEWEST_MAX {
            ids.select_nth_unstable_by_key(NEWEST_MAX, |id| Reverse(*id));
            ids.truncate(NEWEST_MAX);
        }
        ids.sort_unstable_by_key(|id| Reverse(*id));
        let newest = ids.iter().filter_map(|id| by_id.get(id).cloned()).collect();
        Self { by_id, newest }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sale> {
        self.by_id.values().map(|sale| &**sale)
    }
}

/// The sales in memory, and this instance's entry in the list of live instances.
pub struct Catalog {
    ledger: Ledger,
    instance: Uuid,
    retire_after_ms: u64,
    live: ArcSwap<LiveSales>,
    reader: DocumentReader,
    version: AtomicI64,
    /// When everything was loaded last. The lock admits one load at a time.
    loaded: Mutex<Instant>,
    pub clock: Arc<DatabaseClock>,
}

impl Catalog {
    pub async fn load(stores: &Stores, retire_after_ms: u64) -> Result<Self, SaleError> {
        let empty = IdFilter::of(&[]).map_err(SaleError::Filter)?;
        let catalog = Self {
            ledger: stores.ledger.clone(),
            instance: Uuid::new_v4(),
            retire_after_ms,
            live: ArcSwap::default(),
            reader: DocumentReader::new(stores.ledger.sales.clone(), stores.gate.clone(), empty),
            version: AtomicI64::new(0),
            loaded: Mutex::new(Instant::now()),
            clock: Arc::new(DatabaseClock::set_to(stores.ledger.now_ms().await?)),
        };
        catalog.start_over().await?;
        // A ready instance is in the list: a new sale waits for it.
        while {
            let newest = catalog.send_heartbeat().await?.catalog_version;
            catalog.load_changes(newest).await? == Step::More
        } {}
        Ok(catalog)
    }

    /// This instance's id in the list of live instances.
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// Reads a live sale without a reference: the purchases of all threads would write to one reference count.
    pub(crate) fn look_at<T>(&self, sale: SaleId, look: impl FnOnce(&Sale) -> T) -> Option<T> {
        self.live.load().by_id.get(&sale).map(|sale| look(sale))
    }

    pub async fn sale(&self, sale: SaleId) -> Result<Option<Arc<Sale>>, SaleError> {
        if let Some(live) = self.live.load().by_id.get(&sale).cloned() {
            metrics::counter!("seckill_reads_total", "level" => "live").increment(1);
            return Ok(Some(live));
        }
        // On the heap: the future is 14 kB long, and few purchases need it.
        let found = Box::pin(self.reader.read(DocId::Sale(sale.get()))).await?;
        Ok(found.and_then(|doc| match &*doc {
            Document::Sale(sale) => Some(Arc::new(sale.clone())),
            Document::Product(_) => None,
        }))
    }

    pub(crate) async fn product(&self, id: i64) -> Result<Option<Product>, SaleError> {
        let found = Box::pin(self.reader.read(DocId::Product(id))).await?;
        Ok(found.and_then(|doc| match &*doc {
            Document::Product(product) => Some(product.clone()),
            Document::Sale(_) => None,
        }))
    }

    /// The live sales. While they have not changed, this is the same allocation.
    pub(crate) fn live(&self) -> Arc<LiveSales> {
        self.live.load_full()
    }

    /// The newest sales first, at most `NEWEST_MAX`.
    pub fn newest(&self) -> Vec<Arc<Sale>> {
        self.live.load().newest.clone()
    }

    /// Checks within two seconds that PostgreSQL takes purchases, and records that this instance is alive.
    pub async fn beat(&self) -> Result<Heartbeat, SaleError> {
        let beat = async {
            self.ledger.orders.can_commit().await?;
            self.send_heartbeat().await
        };
        Ok(Database::within(BEAT_MAX, beat).await?)
    }

    pub async fn has_migrations(&self) -> Result<bool, SaleError> {
        Ok(Database::within(BEAT_MAX, self.ledger.has_migrations()).await?)
    }

    async fn send_heartbeat(&self) -> Result<Heartbeat, LedgerError> {
        let asked_at = Instant::now();
        let answer = self.ledger.sales.send_heartbeat(self.instance, self.version.load(Ordering::Relaxed)).await?;
        self.clock.set(answer.now_ms, asked_at);
        Ok(answer)
    }

    /// Loads the changes up to `newest`, or later, and records this instance's version in PostgreSQL. If `newest` is older than this
    /// version, PostgreSQL has lost changes. Then it loads everything.
    pub async fn load_changes(&self, newest: i64) -> Result<Step, SaleError> {
        let overdue = self.loaded.lock().await.elapsed() > RELOAD_EVERY;
        if newest == self.version.load(Ordering::Relaxed) && !overdue {
            return Ok(Step::Idle);
        }
        self.ledger.in_time(async { Ok(self.load_changes_now(newest, overdue).await) }).await?
    }

    async fn load_changes_now(&self, newest: i64, overdue: bool) -> Result<Step, SaleError> {
        let version = self.version.load(Ordering::Relaxed);
        let changes = match newest.cmp(&version) {
            Less => None,
            Equal => Some(CatalogChanges { version, ..CatalogChanges::default() }),
            Greater => self.ledger.sales.changes_since(version, self.retire_after_ms).await?,
        };
        match changes {
            None => self.start_over().await?,
            Some(changes) => {
                let needs_filter = changes.removed || self.reader.filter_is_full();
                if needs_filter || overdue {
                    // A removal needs a new Bloom filter.
                    self.reload(needs_filter).await?;
                } else {
                    let mut live = self.live.load().by_id.clone();
                    for (id, _) in &changes.documents {
                        // A changed sale without live terms ended long ago.
                        if let DocId::Sale(sale) = id {
                            live.remove(&SaleId::from_db(*sale));
                        }
                    }
                    live.extend(changes.live.into_iter().map(|sale| (sale.id, Arc::new(sale))));
                    self.live.store(Arc::new(LiveSales::new(live)));
                }
                for (id, version) in changes.documents {
                    self.reader.document_changed(id, version, !changes.removed).await;
                }
                self.version.fetch_max(changes.version, Ordering::Relaxed);
            }
        }
        let answer = self.send_heartbeat().await?;
        let is_behind = answer.catalog_version > self.version.load(Ordering::Relaxed);
        Ok(if is_behind { Step::More } else { Step::Idle })
    }

    /// Loads everything, and follows the changes from there. Earlier changes of documents are not known.
    async fn start_over(&self) -> Result<(), SaleError> {
        let version = self.reload(true).await?;
        self.reader.forget_copies_before(version);
        self.version.store(version, Ordering::Relaxed);
        Ok(())
    }

    /// Loads all live sales, and where asked the filter of all ids. Returns their version. The caller still follows the changes up to it.
    async fn reload(&self, with_filter: bool) -> Result<i64, SaleError> {
        let mut loaded = self.loaded.lock().await;
        let all = self.ledger.sales.catalogue(self.retire_after_ms, with_filter).await?;
        if let Some(ids) = all.ids {
            self.reader.set_filter(IdFilter::of(&ids).map_err(SaleError::Filter)?);
        }
        let known = self.live.load_full();
        // Unchanged sales keep their allocation.
        let same = |sale: &Sale| known.by_id.get(&sale.id).filter(|known| ***known == *sale).cloned();
        let live = all.live.into_iter().map(|sale| (sale.id, same(&sale).unwrap_or_else(|| Arc::new(sale))));
        self.live.store(Arc::new(LiveSales::new(live.collect())));
        *loaded = Instant::now();
        Ok(all.version)
    }

    /// Removes this instance from the list of live instances: no change waits for it then.
    pub async fn leave(&self) -> Result<(), SaleError> {
        Ok(self.ledger.sales.leave(self.instance).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::captcha::CaptchaKind;
    use seckill_domain::ids::Units;
    use seckill_domain::sale::SaleStatus;
    use seckill_domain::shards::ShardCount;
    use seckill_domain::stock::Stock;

    fn sale(id: i64) -> Sale {
        Sale {
            id: SaleId::from_db(id),
            product_id: 1,
            product: "Phone".into(),
            description: String::new(),
            picture: None,
            price_cents: 100,
            currency: "CNY".parse().unwrap(),
            per_user: Units::ONE,
            min_level: 0,
            captcha: CaptchaKind::None,
            total_stock: Stock::Units(10),
            show_stock: false,
            shards: ShardCount::ONE,
            starts_at_ms: 1000,
            ends_at_ms: 2000,
            pay_within_ms: 1000,
            status: SaleStatus::Open,
            purchase_key: "real".into(),
            waiting_key: "waiting".into(),
            terms_version: 0,
            blocks: seckill_domain::sale_blocks::SaleBlocks::default(),
            waves: Vec::new(),
        }
    }

    #[test]
    fn the_newest_sales_are_ready_however_many_there_are() {
        let sales =
            |count: i64| LiveSales::new((1..=count).map(|id| (SaleId::from_db(id), Arc::new(sale(id)))).collect());
        for (count, oldest) in [(0, None), (3, Some(1)), (100, Some(1)), (101, Some(2)), (5_000, Some(4_901))] {
            let sales = sales(count);
            let newest: Vec<i64> = sales.newest.iter().map(|sale| sale.id.get()).collect();
            assert!(newest.is_sorted_by(|one, next| one > next), "{count}");
            assert_eq!((newest.first().copied().unwrap_or(0), newest.last().copied()), (count, oldest));
            assert_eq!(sales.iter().count(), usize::try_from(count).unwrap());
        }
    }
}
