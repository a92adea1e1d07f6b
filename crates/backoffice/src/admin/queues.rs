//! The outbox and the outflows: their backlog, parked messages and items, sending these again, and the rate of outflows. For operators.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::paging::{before_number, cut, given, limit};
use super::{AdminError, Office, found, operators_only};
use seckill_buying::sale_work::parked;
pub use seckill_buying::sale_work::parked::RetriedAll;
use seckill_delivery::outflow_changes::{self, OutflowChange};
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_domain::message::ParkedKind;
pub use seckill_postgres::flow::alarms::Backlog;
pub use seckill_postgres::outbox::ParkedRow;
pub use seckill_postgres::outflow::items::ChannelFigures;
pub use seckill_postgres::outflow::parked::ParkedItem;

/// After this time no further step of a thousand messages or items begins, so that the answer comes before the request is given up.
const ANSWER_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutboxQuery {
    /// `parked`, which is also the default: the messages of other statuses are only counted.
    #[param(value_type = Option<String>, nullable = false, pattern = "^parked$")]
    pub(crate) status: Option<String>,
    /// Only messages of this kind.
    #[param(value_type = Option<ParkedKind>, nullable = false)]
    pub(crate) kind: Option<String>,
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1)]
    pub(crate) before: Option<String>,
    /// The most messages to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ItemQuery {
    /// Only items of this outflow.
    #[param(value_type = Option<String>, nullable = false, pattern = "^[a-z0-9][a-z0-9_-]{0,63}$")]
    pub(crate) outflow: Option<String>,
    /// The next page: `next_before` of the page before.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1)]
    pub(crate) before: Option<String>,
    /// The most items to return; 100 by default.
    #[param(value_type = Option<i64>, nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<String>,
}

/// The backlog of the outbox, and a page of parked messages, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Outbox)]
pub(crate) struct OutboxPage {
    #[serde(rename = "to_do")]
    pub(crate) figures: Vec<Backlog>,
    pub(crate) parked: Vec<ParkedRow>,
    /// `before` of the next page; null on the last one.
    #[serde(rename = "next_before")]
    pub(crate) next: Option<i64>,
}

/// A page of parked items, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OutflowItems)]
pub(crate) struct ItemPage {
    pub(crate) items: Vec<ParkedItem>,
    /// `before` of the next page; null on the last one.
    pub(crate) next_before: Option<i64>,
}

impl Office {
    pub(crate) async fn outbox(&self, account: &Account, query: &OutboxQuery) -> Result<OutboxPage, AdminError> {
        operators_only(account)?;
        if given(&query.status).is_some_and(|status| status != "parked") {
            return Err(Invalid::new("status", "must be parked: other messages are only counted").into());
        }
        let limit = limit(&query.limit)?;
        let kind = given(&query.kind).map(ParkedKind::parse).transpose()?;
        let before = before_number(&query.before)?;
        self.record_pages(account, "outbox", before.is_some(), limit).await?;
        let mut parked = self.ledger.outbox.parked(kind, before, limit + 1).await?;
        let next = cut(&mut parked, limit).map(|last| last.id);
        let mut figures = self.ledger.alarms.shown_backlog().await?;
        figures.sort_by(|a, b| a.kind.cmp(&b.kind));
        Ok(OutboxPage { figures, parked, next })
    }

    pub(crate) async fn retry_message(&self, account: &Account, id: i64) -> Result<u64, AdminError> {
        operators_only(account)?;
        let retried = parked::retry(&self.ledger, &[id], account.name.as_str()).await?;
        found(retried > 0, "parked message")?;
        Ok(retried)
    }

    /// Sends all parked messages of a kind again, as far as the time allows. An instance does so for one person at a time, so that
    /// other changes keep their places.
    pub(crate) async fn retry_messages(&self, account: &Account, kind: ParkedKind) -> Result<RetriedAll, AdminError> {
        operators_only(account)?;
        let _place = self.retries.try_acquire().map_err(|_| AdminError::Busy("retries"))?;
        Ok(parked::retry_all(&self.ledger, Some(kind), ANSWER_MAX, account.name.as_str()).await?)
    }

    pub(crate) async fn outflows(&self, account: &Account) -> Result<Vec<ChannelFigures>, AdminError> {
        operators_only(account)?;
        Ok(outflow_changes::outflows(&self.ledger.outflows).await?)
    }

    pub(crate) async fn change_outflow(
        &self,
        account: &Account,
        name: &str,
        change: OutflowChange,
    ) -> Result<ChannelFigures, AdminError> {
        operators_only(account)?;
        outflow_changes::change(&self.ledger.outflows, name, change, account.name.as_str()).await?;
        let outflows = outflow_changes::outflows(&self.ledger.outflows).await?;
        outflows.into_iter().find(|outflow| outflow.name == name).ok_or(AdminError::Unknown("outflow"))
    }

    pub(crate) async fn parked_items(&self, account: &Account, query: &ItemQuery) -> Result<ItemPage, AdminError> {
        operators_only(account)?;
        let limit = limit(&query.limit)?;
        let before = before_number(&query.before)?;
        self.record_pages(account, "outflow items", before.is_some(), limit).await?;
        let mut items = self.ledger.outflows.parked_outflow(given(&query.outflow), before, limit + 1).await?;
        let next_before = cut(&mut items, limit).map(|last| last.seq);
        Ok(ItemPage { items, next_before })
    }

    pub(crate) async fn retry_item(&self, account: &Account, id: Uuid) -> Result<(), AdminError> {
        operators_only(account)?;
        found(self.ledger.outflows.unpark_outflow_item(id, account.name.as_str()).await?, "parked item")
    }

    pub(crate) async fn retry_items(&self, account: &Account, outflow: &str) -> Result<RetriedAll, AdminError> {
        operators_only(account)?;
        let outflows = self.ledger.outflows.outflow_figures().await?;
        found(outflows.iter().any(|known| known.name == outflow), "outflow")?;
        let _place = self.retries.try_acquire().map_err(|_| AdminError::Busy("retries"))?;
        Ok(parked::retry_items(&self.ledger, outflow, ANSWER_MAX, account.name.as_str()).await?)
    }
}
