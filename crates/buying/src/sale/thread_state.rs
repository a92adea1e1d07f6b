//! The state of one worker thread of the HTTP server. Fields of one thread alone are not locked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::buyer_orders::ShownUnits;
use super::cancellations::Cancellations;
use super::catalog::Catalog;
use super::challenges::Challenges;
use super::load_shedder::LoadShedder;
use super::order_reader::OrderReader;
use super::refusal_cache::RefusalCache;
use seckill_domain::ids::SaleId;
use seckill_postgres::Ledger;
use seckill_postgres::orders::committer::Committer;
use seckill_redis::Gate;
use seckill_redis::reserve::batcher::ReserveBatcher;

pub struct ThreadState {
    pub reserve_batcher: ReserveBatcher,
    pub load_shedder: Rc<LoadShedder>,
    pub gate: Gate,
    pub ledger: Ledger,
    pub catalog: Arc<Catalog>,
    pub challenges: Arc<Challenges>,
    pub committer: Committer,
    pub order_reader: OrderReader,
    pub ticket_reader: OrderReader,
    pub cancellations: Cancellations,
    pub order_id_secret: [u8; 32],
    pub retire_after_ms: i64,
    /// The units for sale that pages show, and when they were read.
    pub shown_units: RefCell<HashMap<SaleId, (Instant, ShownUnits)>>,
    pub refusals: RefusalCache,
}
