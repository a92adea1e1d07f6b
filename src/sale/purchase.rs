//! A purchase, from the request to the ticket. Losers never touch PostgreSQL; winners stand in it before they hear of
//! it (protocol, rules 1 to 5 and 13).

use super::thread_state::ThreadState;
use crate::die_at;
use crate::domain::admission::{Admission, Hold, Limit, ReserveRequest, Window};
use crate::domain::ids::{IdempotencyKey, OrderId, SaleId, Units, UserId};
use crate::domain::order::OrderStatus;
use crate::domain::sale::Sale;
use crate::ledger::orders::commit::{Committed, Purchase};

/// A buyer's request, parsed.
#[derive(Debug)]
pub struct Request {
    pub sale: SaleId,
    pub user: UserId,
    pub level: i64,
    pub address: String,
    pub purchase_key: String,
    pub units: Units,
    pub idempotency_key: Option<IdempotencyKey>,
}

/// A purchase that is durable.
#[derive(Debug, Clone, Copy, serde::Serialize, utoipa::ToSchema)]
pub struct Ticket {
    pub order_id: OrderId,
    pub status: OrderStatus,
    /// A lower bound while the order is `accepted`.
    pub expires_at_ms: i64,
}

/// Why there is no ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    TooMany {
        per_user: Units,
    },
    UnknownSale,
    NotStarted {
        starts_at_ms: i64,
    },
    Ended,
    WrongKey,
    LevelTooLow {
        min_level: i64,
    },
    SoldOut,
    AlreadyPurchased {
        order: Option<OrderId>,
    },
    IdempotencyMismatch,
    Limited {
        limit: Limit,
        window: Window,
        retry_ms: u64,
    },
    /// The stock was not touched, or the same key will say what became of it.
    Unavailable,
}

impl ThreadState {
    /// One purchase, in the contract's order of answers. The rare ways go by the heap, so that the future of all, which
    /// is copied about before it runs, stays small.
    pub async fn purchase(&self, request: Request) -> Result<Ticket, Refusal> {
        let sale = match self.catalog.live(request.sale) {
            Some(live) => live,
            None => {
                self.catalog.sale(request.sale).await.map_err(|_| Refusal::Unavailable)?.ok_or(Refusal::UnknownSale)?
            }
        };
        if request.units > sale.per_user {
            return Err(Refusal::TooMany { per_user: sale.per_user });
        }
        if !self.committer.is_healthy() {
            return Err(Refusal::Unavailable);
        }
        let limits = self.gate.limits();
        if let Some((limit, retry_ms)) = self.refusals.recall(sale.id, request.user.as_str(), &request.address, &limits)
        {
            return Err(Refusal::Limited { limit, window: limits.of(limit), retry_ms });
        }
        let now_ms = self.catalog.clock.now_ms();
        if self.knows_sold_out(&sale, &request, now_ms) {
            return Err(Refusal::SoldOut);
        }
        let order = match &request.idempotency_key {
            Some(key) => OrderId::derive(&self.order_id_secret, sale.id, &request.user, key),
            // Every request without a key is a new purchase; these ids sort by time (UUID version 7).
            None => OrderId(uuid::Uuid::now_v7()),
        };
        if now_ms > sale.ends_at_ms + self.retire_after_ms {
            return Box::pin(self.long_ended(&sale, order, &request)).await;
        }
        let ask = ReserveRequest {
            order,
            user: request.user.clone(),
            address: request.address.clone(),
            units: request.units,
            purchase_key: request.purchase_key,
            level: request.level,
        };
        let admission = self.reserve_batcher.reserve(sale.id, ask).await.map_err(|_| Refusal::Unavailable)?;
        match admission {
            Admission::Reserved { hold, expires_at_ms } => {
                die_at!("purchase.reserved");
                self.commit(sale.id, order, &request.user, request.units, hold).await?;
                Ok(Ticket { order_id: order, status: OrderStatus::Accepted, expires_at_ms })
            }
            Admission::Repeat { hold } => {
                if let Some(hold) = hold {
                    self.commit(sale.id, order, &request.user, request.units, hold).await?;
                }
                Box::pin(self.ticket(order)).await?.ok_or(Refusal::Unavailable)
            }
            Admission::RepeatEnded => Box::pin(self.ticket(order)).await?.ok_or(Refusal::Unavailable),
            Admission::Mismatch => Err(Refusal::IdempotencyMismatch),
            Admission::AtLimit { newest } => Err(Refusal::AlreadyPurchased { order: newest }),
            Admission::NotStarted => Err(Refusal::NotStarted { starts_at_ms: sale.starts_at_ms }),
            Admission::Ended => Err(Refusal::Ended),
            Admission::WrongKey => Err(Refusal::WrongKey),
            Admission::LevelTooLow => Err(Refusal::LevelTooLow { min_level: sale.min_level }),
            Admission::SoldOut => Err(Refusal::SoldOut),
            Admission::Limited { limit, retry_ms } => {
                match limit {
                    Limit::Buyer => self.refusals.note(sale.id, request.user.as_str(), limit, retry_ms, limits),
                    Limit::Address => self.refusals.note(sale.id, &request.address, limit, retry_ms, limits),
                    Limit::Sale => {}
                }
                Err(Refusal::Limited { limit, window: limits.of(limit), retry_ms })
            }
            Admission::Paused | Admission::NotServing => Err(Refusal::Unavailable),
        }
    }

    /// "Sold out" is told from memory only where no other answer comes before it.
    fn knows_sold_out(&self, sale: &Sale, request: &Request, now_ms: i64) -> bool {
        self.reserve_batcher.remembers_sold_out(sale.id, &request.user)
            && sale.is_open_at(now_ms)
            && request.purchase_key == sale.purchase_key
            && request.level >= sale.min_level
    }

    /// Makes the winner durable. Where that fails the hold stays: the same key, or the reconciler, finishes it (rule 4).
    #[tracing::instrument(level = "debug", name = "purchase", skip_all, fields(%sale, %order))]
    async fn commit(
        &self,
        sale: SaleId,
        order: OrderId,
        user: &UserId,
        units: Units,
        hold: Hold,
    ) -> Result<(), Refusal> {
        let (user, units) = (user.to_string(), units.get().cast_signed());
        match self.committer.commit(Purchase { order, sale, user, units, hold }).await {
            Committed::Durable => {
                die_at!("purchase.committed");
                self.confirmer.confirm(sale, hold.shard, order);
                Ok(())
            }
            Committed::StaleEpoch | Committed::Unknown => Err(Refusal::Unavailable),
        }
    }

    /// How a purchase stands that was made before.
    async fn ticket(&self, order: OrderId) -> Result<Option<Ticket>, Refusal> {
        let found = self.ledger.in_time(self.ledger.order(order)).await.map_err(|error| {
            tracing::warn!(%order, %error, "ticket not read");
            Refusal::Unavailable
        })?;
        Ok(found.map(|found| Ticket {
            order_id: order,
            status: found.order.status,
            expires_at_ms: found.order.expires_at_ms,
        }))
    }

    /// A sale that Redis has retired: its tickets are in the ledger, and nothing is for sale.
    async fn long_ended(&self, sale: &Sale, order: OrderId, request: &Request) -> Result<Ticket, Refusal> {
        let orders = self.orders_of(&request.user, Some(sale.id)).await.map_err(|_| Refusal::Unavailable)?;
        let units = i64::from(request.units.get());
        if let Some(own) = orders.iter().find(|own| own.order_id == order) {
            return match i64::from(own.quantity) == units {
                true => Ok(Ticket { order_id: order, status: own.status, expires_at_ms: own.expires_at_ms }),
                false => Err(Refusal::IdempotencyMismatch),
            };
        }
        let live = orders.iter().filter(|own| own.status.holds_units()).map(|own| i64::from(own.quantity));
        if live.sum::<i64>() >= i64::from(sale.per_user.get()) {
            return Err(Refusal::AlreadyPurchased { order: orders.first().map(|newest| newest.order_id) });
        }
        Err(Refusal::Ended)
    }
}
