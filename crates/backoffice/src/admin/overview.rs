//! The overview, the first page after signing in: sales, open alarms, waiting messages and running processes.

use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::log::{Alarm, visible_kinds};
use super::{AdminError, Office};
use seckill_domain::account::Account;
use seckill_domain::alarm::AlarmKind;
use seckill_domain::sale::{Sale, SalePhase};
use seckill_postgres::flow::alarms::Backlog;
use seckill_postgres::processes::SeenProcess;
use seckill_postgres::sales::terms::SaleFigures;

const SALES_MAX: i64 = 20;
const ALARMS_MAX: i64 = 50;
/// How long the overview waits for Redis: a server that does not answer costs the page its column and no more.
const UNITS_MAX: Duration = Duration::from_millis(500);

/// A sale that is not over.
#[derive(Serialize, ToSchema)]
pub(crate) struct OverviewSale {
    pub(crate) id: i64,
    pub(crate) product: String,
    pub(crate) phase: SalePhase,
    pub(crate) starts_at_ms: i64,
    pub(crate) ends_at_ms: i64,
    /// -1: unlimited.
    pub(crate) total_stock: i64,
    /// Units that are left in PostgreSQL; -1: unlimited.
    pub(crate) stock: i64,
    /// Units that can be bought now. Null if they are unlimited, or Redis does not know the sale or does not answer.
    pub(crate) available: Option<i64>,
}

/// The queues and the processes.
#[derive(Serialize, ToSchema)]
#[schema(as = Work)]
pub(crate) struct OverviewWork {
    pub(crate) backlog: Vec<Backlog>,
    /// Whether there may be more than were counted.
    #[serde(skip)]
    pub(crate) more: bool,
    pub(crate) parked: i64,
    /// The age of the oldest message that waits.
    pub(crate) oldest_s: i64,
    pub(crate) instances: Vec<SeenProcess>,
    pub(crate) workers: Vec<SeenProcess>,
    /// When a worker last finished a message.
    pub(crate) last_message_at_ms: Option<i64>,
}

/// Everything at one look.
#[derive(Serialize, ToSchema)]
pub(crate) struct Overview {
    pub(crate) now_ms: i64,
    /// In the order of their starts, 20 at most.
    pub(crate) sales: Vec<OverviewSale>,
    /// The newest first, 50 at most.
    pub(crate) alarms: Vec<Alarm>,
    /// The sales whose stock in Redis differs from PostgreSQL's.
    pub(crate) drift: Vec<String>,
    /// Null for viewers, and where it takes too long to read.
    pub(crate) work: Option<OverviewWork>,
}

impl Office {
    pub(crate) async fn open_alarms(&self, account: &Account) -> Result<i64, AdminError> {
        Ok(self.ledger.count_open_alarms(&visible_kinds(account)).await?)
    }

    /// Everything at one look. Each part is one query with a bound, and a read of Redis for each sale.
    pub(crate) async fn overview(&self, account: &Account) -> Result<Overview, AdminError> {
        let now_ms = self.ledger.now_ms().await?;
        let sales = self.ledger.current_sales(SALES_MAX).await?;
        let mut alarms = self.ledger.alarms.alarms(Some(&visible_kinds(account)), None, ALARMS_MAX).await?;
        alarms.retain(|alarm| alarm.cleared_at.is_none());
        let drift = alarms.iter().filter(|alarm| alarm.kind == AlarmKind::Drift.as_str());
        // The sales and the alarms are shown also if the rest takes too long to read.
        let unread = |error: &AdminError| tracing::debug!(%error, "queues and processes not read for the overview");
        let work = if account.may_operate() { self.work().await.inspect_err(unread).ok() } else { None };
        Ok(Overview {
            now_ms,
            sales: join_all(sales.into_iter().map(|sale| self.with_units(sale, now_ms))).await,
            drift: drift.map(|alarm| alarm.subject.clone()).collect(),
            alarms: alarms.into_iter().map(Alarm::from).collect(),
            work,
        })
    }

    async fn with_units(&self, figures: SaleFigures, now_ms: i64) -> OverviewSale {
        let SaleFigures { sale, total_stock, stock } = figures;
        let phase = SalePhase::at(now_ms, sale.status, sale.starts_at_ms, sale.ends_at_ms);
        let available = match timeout(UNITS_MAX, self.stores.gate.sale_view(sale.sharding())).await {
            Ok(Ok(view)) => view.filter(|view| view.serving).and_then(|view| view.available),
            Ok(Err(error)) => {
                tracing::debug!(%error, sale = %sale.id, "units in Redis not read for the overview");
                None
            }
            Err(_) => None,
        };
        let Sale { id, product, starts_at_ms, ends_at_ms, .. } = sale;
        OverviewSale { id: id.get(), product, phase, starts_at_ms, ends_at_ms, total_stock, stock, available }
    }

    async fn work(&self) -> Result<OverviewWork, AdminError> {
        let backlog = self.ledger.alarms.shown_backlog().await?;
        Ok(OverviewWork {
            more: backlog.iter().any(|row| row.more),
            parked: backlog.iter().map(|row| row.parked).sum(),
            oldest_s: backlog.iter().map(|row| row.oldest_s).max().unwrap_or(0).max(0),
            backlog,
            instances: self.ledger.instances().await?,
            workers: self.ledger.worker_processes().await?,
            last_message_at_ms: self.ledger.last_message_ms().await?,
        })
    }
}
