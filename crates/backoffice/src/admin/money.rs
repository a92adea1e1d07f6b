//! Payments, refunds, and callbacks that contradict our books: seeing them, and doing what needs a person's decision. For operators.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::paging::{before_number, before_uuid, cut, given, limit};
use super::{AdminError, Office, found, operators_only};
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_domain::payment::{PaymentId, PaymentStatus, RefundId, RefundStatus};
use seckill_postgres::money::lists::MoneyFilter;
pub use seckill_postgres::money::lists::{MoneyRow, SetAside};
pub use seckill_postgres::money::payment_status::MoneyFigures;

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PaymentQuery {
    /// Only payments of this status.
    #[param(value_type = Option<PaymentStatus>, nullable = false)]
    pub(crate) status: Option<String>,
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<PaymentId>, nullable = false)]
    pub(crate) before: Option<String>,
    /// The most payments to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RefundQuery {
    /// Only refunds of this status.
    #[param(value_type = Option<RefundStatus>, nullable = false)]
    pub(crate) status: Option<String>,
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<RefundId>, nullable = false)]
    pub(crate) before: Option<String>,
    /// The most refunds to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConflictQuery {
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1)]
    pub(crate) before: Option<String>,
    /// The most callbacks to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
}

#[derive(Debug)]
pub(crate) struct MoneyPage {
    pub(crate) figures: MoneyFigures,
    pub(crate) rows: Vec<MoneyRow>,
    pub(crate) next: Option<Uuid>,
}

/// A page of callbacks that are not settled yet, newest first.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CallbacksSetAside)]
pub(crate) struct ConflictPage {
    pub(crate) conflicts: Vec<SetAside>,
    /// `before` of the next page; null on the last one.
    pub(crate) next_before: Option<i64>,
}

impl Office {
    pub(crate) async fn payments(&self, account: &Account, query: &PaymentQuery) -> Result<MoneyPage, AdminError> {
        let PaymentQuery { status, before, limit } = query;
        let filter = self.money_filter::<PaymentStatus>(account, "payments", [status, before, limit]).await?;
        self.money_page(self.ledger.payments.payments(&filter).await?, filter.limit - 1).await
    }

    pub(crate) async fn refunds(&self, account: &Account, query: &RefundQuery) -> Result<MoneyPage, AdminError> {
        let RefundQuery { status, before, limit } = query;
        let filter = self.money_filter::<RefundStatus>(account, "refunds", [status, before, limit]).await?;
        self.money_page(self.ledger.payments.refunds(&filter).await?, filter.limit - 1).await
    }

    /// Which rows are read of a list: one more than the page has, which shows that there is another page.
    async fn money_filter<S: FromStr + Into<&'static str>>(
        &self,
        account: &Account,
        list: &'static str,
        [status, before, page]: [&Option<String>; 3],
    ) -> Result<MoneyFilter, AdminError> {
        operators_only(account)?;
        let status = given(status).map(|text| text.parse::<S>().map(S::into)).transpose();
        let status = status.map_err(|_| match list {
            "refunds" => Invalid::new("status", "is not a status of refunds"),
            _ => Invalid::new("status", "is not a status of payments"),
        })?;
        let limit = limit(page)?;
        let filter = MoneyFilter { order: None, status, before: before_uuid(before)?, limit: limit + 1 };
        self.record_pages(account, list, filter.before.is_some(), limit).await?;
        Ok(filter)
    }

    async fn money_page(&self, mut rows: Vec<MoneyRow>, limit: i64) -> Result<MoneyPage, AdminError> {
        let next = cut(&mut rows, limit).map(|last| last.id);
        Ok(MoneyPage { figures: self.ledger.payments.money_figures().await?, rows, next })
    }

    pub(crate) async fn conflicts(&self, account: &Account, query: &ConflictQuery) -> Result<ConflictPage, AdminError> {
        operators_only(account)?;
        let (before, limit) = (before_number(&query.before)?, limit(&query.limit)?);
        self.record_pages(account, "callbacks", before.is_some(), limit).await?;
        let mut conflicts = self.ledger.payments.callbacks_set_aside(before, limit + 1).await?;
        let next_before = cut(&mut conflicts, limit).map(|last| last.id);
        Ok(ConflictPage { conflicts, next_before })
    }

    pub(crate) async fn settle_conflict(&self, account: &Account, id: i64) -> Result<(), AdminError> {
        operators_only(account)?;
        let settled = self.ledger.payments.settle_set_aside(&[id], account.name.as_str()).await?;
        found(settled > 0, "callback that is set aside")
    }

    pub(crate) async fn retry_refund(&self, account: &Account, refund: RefundId) -> Result<(), AdminError> {
        operators_only(account)?;
        found(self.ledger.payments.retry_refund(refund, account.name.as_str()).await?, "refund that was refused")
    }
}
