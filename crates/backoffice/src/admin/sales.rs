//! Sales, as their managers see and change them. A sale is published by being planned: every instance loads it, and it opens by itself
//! when its window does.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::paging::{cut, given, limit};
use super::sale_form::{ChangeForm, PlanForm};
use super::{AdminError, Office, found, operators_only, those_who_see_buyers_only};
use seckill_buying::sale_work::manage::{SaleChanged, WAIT_MAX};
use seckill_domain::account::Account;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::currency::Currency;
use seckill_domain::ids::{IdempotencyKey, Invalid, SaleId, Units};
use seckill_domain::live::LedgerFigures;
use seckill_domain::sale::{SalePhase, SaleStatus};
use seckill_domain::sale_result::SaleResult;
use seckill_domain::text;
use seckill_postgres::LedgerError;
pub use seckill_postgres::sales::lapsed_holds::LapsedHolds;
pub use seckill_postgres::sales::terms::{SaleFigures, SaleSearch};
use seckill_postgres::sales::waves::StockAdded;
pub use seckill_postgres::sales::waves::WaveRow;

/// The longest text that is searched for, in characters: no product's name is longer.
const TEXT_MAX: usize = 200;
const LAPSED_MAX: i64 = 20;

/// A sale, as its manager sees it.
#[derive(Serialize, ToSchema)]
pub struct ManagedSale {
    pub id: SaleId,
    pub product: String,
    pub(crate) product_id: i64,
    pub price_cents: i64,
    pub currency: Currency,
    /// Units that are left in PostgreSQL; -1 without a limit.
    pub stock: i64,
    /// All units ever put up for sale, with future waves; -1 without a limit.
    pub total_stock: i64,
    pub per_user: Units,
    pub min_level: i64,
    pub captcha: CaptchaKind,
    /// Into how many parts the stock is divided.
    pub shards: u8,
    pub status: SalePhase,
    pub starts_at_ms: i64,
    pub ends_at_ms: i64,
    pub pay_within_s: i64,
    /// Whether buyers see how far the sale is sold.
    pub show_stock: bool,
    /// Null until it is counted: a large sale is counted while it is shown, and then again from time to time.
    pub result: Option<SaleResult>,
    /// Whether it ended by being closed.
    #[serde(skip)]
    pub(crate) is_closed: bool,
}

impl ManagedSale {
    pub fn new(SaleFigures { sale, total_stock, stock }: SaleFigures, now_ms: i64) -> Self {
        Self {
            id: sale.id,
            status: sale.phase_at(now_ms),
            is_closed: sale.status == SaleStatus::Closed,
            product: sale.product,
            product_id: sale.product_id,
            price_cents: sale.price_cents,
            currency: sale.currency,
            stock,
            total_stock,
            per_user: sale.per_user,
            min_level: sale.min_level,
            captcha: sale.captcha,
            shards: sale.shards.get(),
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            pay_within_s: sale.pay_within_ms / 1000,
            show_stock: sale.show_stock,
            result: None,
        }
    }
}

/// All of a sale.
#[derive(Serialize, ToSchema)]
#[schema(as = ManagedSaleDetails)]
pub(crate) struct SaleDetails {
    pub(crate) sale: ManagedSale,
    /// Whether the units of refunded orders are not for sale again.
    pub(crate) keep_refunded: bool,
    pub(crate) created_at_ms: i64,
    /// Stock that was planned for later, and stock that was added; the last one first, at most 1000.
    pub(crate) waves: Vec<WaveRow>,
    /// The address of the sale's page for buyers.
    pub(crate) page: String,
}

#[derive(Default)]
pub(crate) struct LapsedLists {
    pub(crate) by_buyer: Vec<LapsedHolds>,
    pub(crate) by_address: Vec<LapsedHolds>,
}

/// The sale that was planned. It is published: its page is there, and it opens by itself.
#[derive(Serialize, ToSchema)]
#[schema(as = PlannedSale)]
pub(crate) struct Planned {
    pub(crate) sale_id: SaleId,
    /// Whether every instance knows the sale already. The others will within seconds of recovering.
    pub(crate) everywhere: bool,
    /// The address of the sale's page for buyers.
    pub(crate) page: String,
}

fn page_of(sale: SaleId) -> String {
    format!("/sales/{sale}")
}

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SaleQuery {
    /// The most sales to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
    /// Only sales that come after this one in the list: older ones.
    #[param(value_type = Option<SaleId>, nullable = false)]
    pub(crate) before: Option<String>,
    /// Only sales of this status.
    #[param(value_type = Option<SalePhase>, nullable = false)]
    pub(crate) status: Option<String>,
    /// A part of the product's name, in capitals or not.
    #[param(nullable = false, max_length = 200)]
    pub(crate) q: Option<String>,
}

impl SaleQuery {
    pub(crate) fn search(&self) -> Result<SaleSearch, Invalid> {
        let before = given(&self.before).map(SaleId::parse).transpose();
        let phase = given(&self.status).map(SalePhase::from_str).transpose();
        let text = given(&self.q).map(|text| text::line(text, "q", 0..=TEXT_MAX)).transpose()?;
        Ok(SaleSearch {
            only: None,
            before: before.map_err(|_| Invalid::new("before", "must be the id of a sale"))?,
            phase: phase.map_err(|_| Invalid::new("status", "must be scheduled, open, paused or ended"))?,
            text,
            limit: limit(&self.limit)?,
        })
    }
}

impl Office {
    /// A page of sales, and the `before` of the next page.
    pub(crate) async fn sales(&self, search: SaleSearch) -> Result<(Vec<ManagedSale>, Option<SaleId>), AdminError> {
        let more = SaleSearch { limit: search.limit + 1, ..search.clone() };
        let (mut sales, now_ms) = (self.ledger.sales.sale_figures(&more).await?, self.ledger.now_ms().await?);
        let next = cut(&mut sales, search.limit).map(|last| last.sale.id);
        let ids: Vec<SaleId> = sales.iter().map(|figures| figures.sale.id).collect();
        let ledger = self.ledger.clone();
        let read = move |sale| {
            let ledger = ledger.clone();
            async move { ledger.sales.sale_result(sale).await }
        };
        let results = self.results_of_sales.of_list(&ids, read).await;
        let managed = sales.into_iter().zip(results).map(|(figures, result)| ManagedSale {
            result: result.as_deref().copied(),
            ..ManagedSale::new(figures, now_ms)
        });
        Ok((managed.collect(), next))
    }

    pub(crate) async fn sale(&self, sale: SaleId) -> Result<SaleDetails, AdminError> {
        let figures = self.ledger.sales.sale_figures(&SaleSearch::one(sale)).await?.pop();
        let (figures, plan) =
            figures.zip(self.ledger.sales.sale_plan(sale).await?).ok_or(AdminError::Unknown("sale"))?;
        Ok(SaleDetails {
            sale: ManagedSale::new(figures, self.ledger.now_ms().await?),
            keep_refunded: !plan.refund_returns_stock,
            created_at_ms: plan.created_at.timestamp_millis(),
            waves: plan.waves,
            page: page_of(sale),
        })
    }

    /// A sale with its result, and the figures that this follows from; `None` if counting takes too long.
    pub(crate) async fn counted_sale(
        &self,
        sale: SaleId,
    ) -> Result<(SaleDetails, Option<Arc<LedgerFigures>>), AdminError> {
        let mut details = self.sale(sale).await?;
        let counted = self.sale_orders(sale).await;
        details.sale.result = match &counted {
            Some(of) => Some(SaleResult::of(&of.orders, of.read_at_ms)),
            // As the list counts it: slower, and also of millions.
            None => {
                let ledger = self.ledger.clone();
                let read = || async move { ledger.sales.sale_result(sale).await };
                self.results_of_sales.of(sale, read).await.as_deref().copied()
            }
        };
        Ok((details, counted))
    }

    /// The sale's orders by status, and its backlog, as they were counted last; `None` if counting takes too long.
    async fn sale_orders(&self, sale: SaleId) -> Option<Arc<LedgerFigures>> {
        let ledger = self.ledger.clone();
        self.orders_of_sales.of(sale, || async move { ledger.sales.live_figures(sale).await }).await
    }

    /// Who let most holds of a sale lapse, as they were counted last; `None` if counting takes too long, and for an account that may
    /// not see buyers.
    pub(crate) async fn sale_lapsed(&self, account: &Account, sale: SaleId) -> Option<Arc<LapsedLists>> {
        if !account.sees_buyers() {
            return None;
        }
        let ledger = self.ledger.clone();
        let count = async move {
            let by_buyer = ledger.sales.lapsed_holds(sale, false, LAPSED_MAX).await?;
            let by_address = ledger.sales.lapsed_holds(sale, true, LAPSED_MAX).await?;
            Ok::<_, LedgerError>(Some(LapsedLists { by_buyer, by_address }))
        };
        self.lapsed_of_sales.of(sale, || count).await
    }

    pub(crate) async fn lapsed_holds(
        &self,
        account: &Account,
        sale: SaleId,
        by_address: bool,
        limit: i64,
    ) -> Result<(Vec<LapsedHolds>, bool), AdminError> {
        those_who_see_buyers_only(account)?;
        self.check_sale(sale).await?;
        self.record_pages(account, "lapsed holds", false, limit).await?;
        let mut lapsed = self.ledger.sales.lapsed_holds(sale, by_address, limit + 1).await?;
        let more = cut(&mut lapsed, limit).is_some();
        Ok((lapsed, more))
    }

    pub(crate) async fn plan_sale(&self, account: &Account, form: PlanForm) -> Result<Planned, AdminError> {
        operators_only(account)?;
        let now_ms = self.ledger.now_ms().await?;
        let draft = form.draft_id;
        let new = form.new_sale(now_ms, self.currency)?;
        let planned = self.stores.plan_sale(&new, now_ms, draft, account.name.as_str()).await?;
        let (sale_id, everywhere) =
            planned.ok_or_else(|| AdminError::Conflict("the draft was published or removed already".to_owned()))?;
        Ok(Planned { sale_id, everywhere, page: page_of(sale_id) })
    }

    pub(crate) async fn set_sale_status(
        &self,
        account: &Account,
        sale: SaleId,
        status: SaleStatus,
    ) -> Result<(), AdminError> {
        operators_only(account)?;
        self.check_sale(sale).await?;
        match self.stores.set_sale_status(sale, status, account.name.as_str()).await? {
            true => Ok(()),
            false => Err(AdminError::Conflict(format!("sale {sale} is closed, which is final"))),
        }
    }

    pub(crate) async fn change_sale(
        &self,
        account: &Account,
        sale: SaleId,
        form: ChangeForm,
    ) -> Result<(), AdminError> {
        operators_only(account)?;
        match self.stores.change_sale(sale, &form.change()?, WAIT_MAX, account.name.as_str()).await?? {
            SaleChanged::Done | SaleChanged::Same => Ok(()),
            SaleChanged::Unknown => Err(AdminError::Unknown("sale")),
        }
    }

    pub(crate) async fn add_stock(
        &self,
        account: &Account,
        sale: SaleId,
        units: i32,
        key: Option<&IdempotencyKey>,
    ) -> Result<(), AdminError> {
        operators_only(account)?;
        self.check_sale(sale).await?;
        match self.stores.add_stock(sale, units, key, account.name.as_str()).await? {
            StockAdded::Now | StockAdded::Before => Ok(()),
            StockAdded::OtherUnits => Err(AdminError::OtherRequest),
            StockAdded::Impossible => {
                Err(AdminError::Conflict(format!("sale {sale} is closed, or its stock is unlimited")))
            }
        }
    }

    pub(crate) async fn remove_sale(&self, account: &Account, sale: SaleId) -> Result<(), AdminError> {
        operators_only(account)?;
        self.check_sale(sale).await?;
        match self.stores.remove_sale(sale, account.name.as_str()).await? {
            true => Ok(()),
            false => Err(AdminError::Conflict(format!("sale {sale} has orders: it can be closed, not removed"))),
        }
    }

    /// Whether buyers have bought in the sale, so that only some of its terms may change.
    pub(crate) async fn is_sold(&self, sale: SaleId) -> Result<bool, AdminError> {
        Ok(self.ledger.sales.is_bought_in(sale).await?)
    }

    pub(crate) async fn check_sale(&self, sale: SaleId) -> Result<(), AdminError> {
        found(self.ledger.sales.epoch(sale).await?.is_some(), "sale")
    }
}
