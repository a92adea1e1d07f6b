//! Manages sales and products: creates, changes and removes sales, adds stock, sets their status, and changes products.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::refill::{LedgerSlots, REFILL_LEASE, lock_name};
use crate::sale::{SaleError, Stores};
use seckill_domain::ids::{IdempotencyKey, SaleId};
use seckill_domain::sale::{NewSale, ProductChange, ProductEdit, SalePhase, SaleStatus};
use seckill_domain::sale_blocks::Shopper;
use seckill_domain::sale_change::{ChangeRefusal, SaleChange};
use seckill_postgres::LedgerError;
use seckill_postgres::sales::blocks::BlockChange;
use seckill_postgres::sales::products::{EditedProduct, NewPicture};
use seckill_postgres::sales::waves::StockAdded;
use seckill_redis::server_runs::has_no_master;
use seckill_runtime::die_at;

/// How long a change waits for the instances. Below the admin API's 5 s: a successful change must not look like a failure.
pub const WAIT_MAX: Duration = Duration::from_secs(3);
/// How often a change asks for its locks. Each time it holds up others for a tenth of a second at most.
const CHANGE_ATTEMPTS: usize = 5;
const CHANGE_PAUSE: Duration = Duration::from_millis(50);
/// How long added units may take until they are for sale.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(1);

impl Stores {
    /// Creates a sale and fills Redis. Waits until every live instance has loaded the sale. Returns whether all have.
    pub async fn create_sale(&self, new: &NewSale, actor: &str) -> Result<(SaleId, bool), SaleError> {
        self.create_sale_from(new, None, actor).await
    }

    /// The same, with times that count from `from_ms`.
    pub async fn create_sale_from(
        &self,
        new: &NewSale,
        from_ms: Option<i64>,
        actor: &str,
    ) -> Result<(SaleId, bool), SaleError> {
        let (sale, version) = self.ledger.sales.create_sale(new, random_keys(), from_ms, actor).await?;
        Ok((sale, self.publish_sale(sale, version).await?))
    }

    /// Creates a sale with times that count from `from_ms`, and removes the draft that it was. Returns whether it is loaded everywhere after
    /// a brief wait; `None` if the draft is gone. Once the sale is in the ledger, there is no error: instances fill and load it by
    /// themselves, and the caller must not create it twice.
    pub async fn plan_sale(
        &self,
        new: &NewSale,
        from_ms: i64,
        draft: Option<Uuid>,
        actor: &str,
    ) -> Result<Option<(SaleId, bool)>, SaleError> {
        let (sales, keys) = (&self.ledger.sales, random_keys());
        let created = match draft {
            None => Some(sales.create_sale(new, keys, Some(from_ms), actor).await?),
            Some(draft) => sales.create_sale_of_draft(draft, new, keys, Some(from_ms), actor).await?,
        };
        let Some((sale, version)) = created else { return Ok(None) };
        let published = timeout(WAIT_MAX, self.publish_sale(sale, version)).await.unwrap_or(Ok(false));
        Ok(Some((
            sale,
            published.unwrap_or_else(|error| {
                tracing::warn!(%sale, %error, "planned, but not yet filled in Redis; instances try again");
                false
            }),
        )))
    }

    /// Fills a new sale in Redis. Waits until every live instance has loaded the sale. Returns whether all have.
    async fn publish_sale(&self, sale: SaleId, version: i64) -> Result<bool, SaleError> {
        // Serving instances do the same. The first one fills the sale, and the others find it complete.
        let Some(of) = self.ledger.sales.epoch(sale).await?.map(|row| row.shards) else { return Ok(false) };
        let (mut servers, one) = (self.gate.connect_to_runs().await?, Arc::new(Semaphore::new(1)));
        let slots = LedgerSlots { short: Arc::clone(&one), long: one };
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match self.refill_once(&mut servers, of, &slots).await {
                Ok(()) => break,
                Err(SaleError::Busy(_) | SaleError::Overtaken) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.ledger.sales.wait_for_instances(version, WAIT_MAX).await?)
    }

    /// Changes a sale's terms (protocol, rule 19), and waits so long until every instance has loaded them. Once the change is committed
    /// there is no error: instances fill and load the sale by themselves.
    pub async fn change_sale(
        &self,
        sale: SaleId,
        change: &SaleChange,
        wait: Duration,
        actor: &str,
    ) -> Result<Result<SaleChanged, ChangeRefusal>, SaleError> {
        // Looks first: a change that is refused must not stop a sale that sells.
        let Some((standing, now_ms)) = self.ledger.sales.standing(sale, change).await? else {
            return Ok(Ok(SaleChanged::Unknown));
        };
        let needs_refill = match standing.allows(change, now_ms) {
            Ok(allowed) if allowed.differences.is_empty() => return Ok(Ok(SaleChanged::Same)),
            Ok(allowed) => allowed.needs_refill,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let stopped = needs_refill.then(|| StoppedSale { stores: self, sale });
        if needs_refill && let Err(error) = self.stop_selling(sale).await {
            // The epoch protects the change without it. But while a server is away, no refill could open what still sells.
            if standing.phase == SalePhase::Open {
                return Err(error);
            }
            tracing::debug!(%sale, %error, "not stopped in Redis before its change");
        }
        die_at!("change.stopped");
        let mut attempts = 1..CHANGE_ATTEMPTS;
        let changed = loop {
            match self.ledger.sales.change_sale(sale, change, needs_refill, random_keys(), actor).await {
                Err(LedgerError::TooSlow(_) | LedgerError::Locked) if attempts.next().is_some() => {
                    sleep(CHANGE_PAUSE).await;
                }
                changed => break changed?,
            }
        };
        let change = match changed {
            Ok(Some(change)) => change,
            Ok(None) => return Ok(Ok(SaleChanged::Same)),
            Err(refusal) => return Ok(Err(refusal)),
        };
        if change.needs_refill {
            std::mem::forget(stopped);
        }
        // A task, because a refill that lasts longer must not be given up.
        let (stores, version) = (self.clone(), change.version);
        let publish = tokio::spawn(async move {
            match change.needs_refill {
                true => stores.publish_sale(sale, version).await,
                false => Ok(stores.ledger.sales.wait_for_instances(version, WAIT_MAX).await?),
            }
        });
        let published = timeout(wait, publish).await;
        if !matches!(published, Ok(Ok(Ok(true)))) {
            tracing::warn!(%sale, ?published, "changed, but not yet known everywhere; instances try again");
        }
        Ok(Ok(SaleChanged::Done))
    }

    /// Stops a sale in Redis under its present epoch, until a refill.
    async fn stop_selling(&self, sale: SaleId) -> Result<(), SaleError> {
        let Some(row) = self.ledger.sales.epoch(sale).await? else { return Ok(()) };
        Ok(self.gate.connect_to_runs().await?.close(row.shards, row.epoch).await?)
    }

    /// Adds units to a sale's stock and puts them on sale.
    pub async fn add_stock(
        &self,
        sale: SaleId,
        units: i32,
        key: Option<&IdempotencyKey>,
        actor: &str,
    ) -> Result<StockAdded, SaleError> {
        let added = self.ledger.sales.add_stock(sale, units, key, actor).await?;
        if matches!(added, StockAdded::Now | StockAdded::Before) {
            // Workers do the same. A failure is no error: the units are already added, and the caller must not add them twice.
            let released = timeout(RELEASE_WAIT_MAX, self.release_waves(sale)).await;
            if !matches!(released, Ok(Ok(_))) {
                tracing::warn!(%sale, ?released, "units added, but not yet for sale; workers try again");
            }
        }
        Ok(added)
    }

    /// Removes a sale without purchases, everywhere. Returns `false` if the sale does not exist or has orders.
    pub async fn remove_sale(&self, sale: SaleId, actor: &str) -> Result<bool, SaleError> {
        let Some(of) = self.ledger.sales.shards_of(&[sale]).await?.pop().map(|of| of.shards) else { return Ok(false) };
        if self.ledger.sales.is_bought_in(sale).await? {
            return Ok(false);
        }
        // Redis first: keys of a removed sale would never be found. The lock keeps a refill from starting in between.
        let run_id = self.gate.connect_to_runs().await?.run_id(of).ok_or_else(has_no_master)?;
        let lock = self.gate.holder().lock_within(&lock_name(of, &run_id), REFILL_LEASE, WAIT_MAX).await?;
        let Some(lock) = lock else { return Err(SaleError::Busy("a refill of the sale")) };
        self.gate.delete_sale(of).await?;
        die_at!("remove.deleted");
        let removed = self.ledger.sales.remove_sale(sale, actor).await;
        if let Err(error) = lock.release().await {
            tracing::debug!(%sale, %error, "refill lock not released; its lease ends by itself");
        }
        if !matches!(removed, Ok(Some(_))) {
            self.gate.refill_wanted.add(sale);
        }
        let Some(version) = removed? else { return Ok(false) };
        self.ledger.sales.wait_for_instances(version, WAIT_MAX).await?;
        Ok(true)
    }

    /// Pauses, resumes or closes a sale, first in the ledger. Returns `false` if the sale does not exist or is closed, which is final.
    pub async fn set_sale_status(&self, sale: SaleId, status: SaleStatus, actor: &str) -> Result<bool, SaleError> {
        let Some(version) = self.ledger.sales.set_sale_status(sale, status, actor).await? else { return Ok(false) };
        // A refill in progress may have read the old status. Repeat until the served epoch has the new one.
        let deadline = Instant::now() + WAIT_MAX;
        while let Some(row) = self.ledger.sales.epoch(sale).await? {
            let taken = self.gate.set_sale_state(row.shards, row.epoch, row.status, row.version).await?;
            if taken || Instant::now() >= deadline {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.ledger.sales.wait_for_instances(version, deadline.saturating_duration_since(Instant::now())).await?;
        Ok(true)
    }

    /// Creates or changes a product. Waits until every live instance has loaded the change.
    pub async fn set_product(
        &self,
        change: &ProductChange,
        picture: Option<&NewPicture>,
        actor: &str,
    ) -> Result<ProductSet, SaleError> {
        let Some((id, version)) = self.ledger.sales.set_product(change, picture, actor).await? else {
            return Ok(ProductSet::NoPicture);
        };
        let known_everywhere = self.ledger.sales.wait_for_instances(version, WAIT_MAX).await?;
        if picture.is_some() {
            self.ledger.sales.clear_unused_pictures().await?;
        }
        Ok(ProductSet::Done { id, known_everywhere })
    }

    /// Blocks a buyer or an address in a sale, or, without a note, ends the block. Waits until every live instance has loaded the change.
    pub async fn set_block(
        &self,
        sale: SaleId,
        shopper: &Shopper,
        note: Option<&str>,
        actor: &str,
    ) -> Result<BlockChange, SaleError> {
        let change = match note {
            Some(note) => self.ledger.sales.block(sale, shopper, note, actor).await?,
            None => self.ledger.sales.unblock(sale, shopper, actor).await?,
        };
        if let BlockChange::Done(version) = change {
            self.ledger.sales.wait_for_instances(version, WAIT_MAX).await?;
        }
        Ok(change)
    }

    /// Renames a product, or removes it or its picture. Waits until every live instance has loaded the change: `Done` says whether all have.
    pub async fn edit_product(&self, name: &str, edit: &ProductEdit, actor: &str) -> Result<ProductEdited, SaleError> {
        let (id, version) = match self.ledger.sales.edit_product(name, edit, actor).await? {
            EditedProduct::Done { id, version } => (id, version),
            EditedProduct::Unknown => return Ok(ProductEdited::Unknown),
            EditedProduct::Refused => {
                return Ok(ProductEdited::Refused(match edit {
                    ProductEdit::Rename(_) => "the new name is another product's",
                    ProductEdit::RemovePicture => "the product has no picture",
                    ProductEdit::Remove => "the product has sales: remove these first",
                }));
            }
        };
        let known_everywhere = self.ledger.sales.wait_for_instances(version, WAIT_MAX).await?;
        self.ledger.sales.clear_unused_pictures().await?;
        Ok(ProductEdited::Done { id, known_everywhere })
    }
}

pub enum ProductEdited {
    Done {
        id: i64,
        known_everywhere: bool,
    },
    Unknown,
    /// Why nothing was changed.
    Refused(&'static str),
}

/// A sale that was stopped for a change. It is filled again, however the change ends; a committed change asks for that itself.
struct StoppedSale<'a> {
    stores: &'a Stores,
    sale: SaleId,
}

impl Drop for StoppedSale<'_> {
    fn drop(&mut self) {
        self.stores.gate.refill_wanted.add(self.sale);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleChanged {
    Done,
    /// The sale has these terms already. Nothing was changed.
    Same,
    Unknown,
}

pub enum ProductSet {
    Done {
        id: i64,
        known_everywhere: bool,
    },
    /// The change has an alternative text, but the product has no picture. Nothing was changed.
    NoPicture,
}

/// The purchase key and the waiting key: 128 random bits each. They must be unguessable before the sale opens.
fn random_keys() -> [String; 2] {
    [(); 2].map(|()| uuid::Uuid::new_v4().simple().to_string())
}
