//! A purchase, from the request to the ticket. A refused purchase never reaches PostgreSQL. A successful one is committed there before the
//! answer (protocol, rules 1 to 5 and 13).

use super::thread_state::ThreadState;
use seckill_domain::admission::{Admission, Limit, ReserveRequest, Window};
use seckill_domain::captcha::{CaptchaKind, PassCheck};
use seckill_domain::client_address::ClientAddress;
use seckill_domain::ids::{IdempotencyKey, OrderId, SaleId, Units, UserId};
use seckill_domain::order::OrderStatus;
use seckill_domain::sale::Sale;
use seckill_domain::shards::SaleShards;
use seckill_domain::trace_context::TraceContext;
use seckill_redis::GateError;

/// A buyer's request, parsed.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) sale: SaleId,
    pub(crate) user: UserId,
    pub(crate) level: i64,
    pub(crate) address: ClientAddress,
    pub(crate) purchase_key: String,
    pub(crate) units: Units,
    pub(crate) idempotency_key: Option<IdempotencyKey>,
    /// The sealed pass of a challenge.
    pub(crate) pass: Option<Box<str>>,
    pub(crate) trace: Option<Box<TraceContext>>,
}

/// The terms of the sale for a purchase, and whether the request meets them.
#[derive(Clone, Copy)]
struct Terms {
    version: i32,
    shards: SaleShards,
    per_user: Units,
    min_level: i64,
    captcha: CaptchaKind,
    starts_at_ms: i64,
    ends_at_ms: i64,
    /// The database's time, and whether the sale is open then.
    now_ms: i64,
    is_open: bool,
    wrong_key: bool,
    level_too_low: bool,
    is_blocked: bool,
}

impl Terms {
    fn of(sale: &Sale, request: &Request, now_ms: i64) -> Self {
        Self {
            version: sale.terms_version,
            shards: sale.sharding(),
            per_user: sale.per_user,
            min_level: sale.min_level,
            captcha: sale.captcha,
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            now_ms,
            is_open: sale.is_open_at(now_ms),
            wrong_key: request.purchase_key != sale.purchase_key,
            level_too_low: request.level < sale.min_level,
            is_blocked: sale.blocks.is_blocked(&request.user, request.address),
        }
    }
}

/// A purchase that is durable.
#[derive(Debug, Clone, Copy, serde::Serialize, utoipa::ToSchema)]
pub(crate) struct Ticket {
    pub(crate) order_id: OrderId,
    pub(crate) status: OrderStatus,
    /// The deadline to pay; while the order is `accepted`, the earliest that the deadline can be.
    pub(crate) expires_at_ms: i64,
}

/// Why there is no ticket. `Lapsed`: the buyer let holds lapse, and must wait (rule 17). `Unavailable`: the stock was not touched, or a
/// repeat with the same key will get the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
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
    /// The shop has blocked the buyer or the address in this sale.
    NotAllowed,
    PassInvalid,
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
    Lapsed {
        allowed: Window,
        retry_ms: u64,
    },
    Unavailable,
}

impl ThreadState {
    /// Makes one purchase. The checks come in the order that the API promises. This function's future is copied before it runs: rare
    /// futures are boxed to keep it small.
    pub(crate) async fn purchase(&self, request: Request) -> Result<Ticket, Refusal> {
        let sale = request.sale;
        let terms = |sale: &Sale| Terms::of(sale, &request, self.catalog.clock.now_ms());
        let terms = match self.catalog.look_at(sale, terms) {
            Some(terms) => terms,
            None => {
                let found =
                    self.catalog.sale(sale).await.map_err(|_| Refusal::Unavailable)?.ok_or(Refusal::UnknownSale)?;
                terms(&found)
            }
        };
        if request.units > terms.per_user {
            return Err(Refusal::TooMany { per_user: terms.per_user });
        }
        if !self.committer.is_healthy() || self.committer.is_locked(sale) {
            return Err(Refusal::Unavailable);
        }
        let limits = self.gate.limits();
        if let Some((limit, retry_ms)) = self.refusals.find(sale, &request.user, request.address, &limits) {
            return Err(Refusal::Limited { limit, window: limits.of(limit), retry_ms });
        }
        let pass = self.check_pass(&terms, &request);
        if self.knows_sold_out(&terms, &request, &pass) {
            return Err(Refusal::SoldOut);
        }
        let order = match &request.idempotency_key {
            Some(key) => OrderId::derive(&self.order_id_secret, sale, &request.user, key),
            // A request without a key is a new purchase. UUIDs of version 7 sort by time.
            None => OrderId(uuid::Uuid::now_v7()),
        };
        if terms.now_ms > terms.ends_at_ms + self.retire_after_ms {
            return Box::pin(self.long_ended(&terms, order, &request)).await;
        }
        let reserve = ReserveRequest {
            order,
            user: request.user.clone(),
            address: request.address,
            units: request.units,
            terms_version: terms.version,
            wrong_key: terms.wrong_key,
            // A blocked buyer's repeats of an earlier purchase have their answer first.
            level_too_low: terms.level_too_low || terms.is_blocked,
            pass,
            trace: request.trace,
        };
        let in_flight = self.load_shedder.begin(sale);
        let admission = self.reserve_batcher.reserve(terms.shards, reserve, terms.now_ms).await;
        if let Err(GateError::Overloaded) = admission {
            in_flight.refuse();
            return Err(Refusal::Unavailable);
        }
        let _in_flight = in_flight;
        match admission.map_err(|_| Refusal::Unavailable)? {
            Admission::Reserved { expires_at_ms } => {
                Ok(Ticket { order_id: order, status: OrderStatus::Accepted, expires_at_ms })
            }
            Admission::Repeat { .. } | Admission::RepeatEnded => {
                let found = Box::pin(self.ticket_reader.read(order, &request.user)).await;
                let found = found.ok().flatten().ok_or(Refusal::Unavailable)?.order;
                Ok(Ticket { order_id: order, status: found.status, expires_at_ms: found.expires_at_ms })
            }
            Admission::Mismatch => Err(Refusal::IdempotencyMismatch),
            Admission::AtLimit { newest } => Err(Refusal::AlreadyPurchased { order: newest }),
            Admission::NotStarted => Err(Refusal::NotStarted { starts_at_ms: terms.starts_at_ms }),
            Admission::Ended => Err(Refusal::Ended),
            Admission::WrongKey => Err(Refusal::WrongKey),
            Admission::LevelTooLow if terms.is_blocked => Err(Refusal::NotAllowed),
            Admission::LevelTooLow => Err(Refusal::LevelTooLow { min_level: terms.min_level }),
            Admission::PassInvalid => Err(Refusal::PassInvalid),
            Admission::SoldOut => Err(Refusal::SoldOut),
            Admission::Limited { limit, retry_ms } => {
                self.refusals.insert(sale, (limit, retry_ms), &request.user, request.address, limits);
                Err(Refusal::Limited { limit, window: limits.of(limit), retry_ms })
            }
            Admission::Lapsed { retry_ms } => Err(Refusal::Lapsed { allowed: self.gate.lapses, retry_ms }),
            Admission::Paused | Admission::UnderWay | Admission::NotServing | Admission::NotDurable => {
                Err(Refusal::Unavailable)
            }
        }
    }

    /// Whether "sold out" is answered from memory: only if no other answer comes first (rule 13).
    fn knows_sold_out(&self, terms: &Terms, request: &Request, pass: &PassCheck) -> bool {
        self.reserve_batcher.remembers_sold_out(terms.shards, &request.user)
            && terms.is_open
            && !terms.wrong_key
            && !terms.level_too_low
            && !terms.is_blocked
            && pass.is_good_at(terms.now_ms)
    }

    /// Whether the sale asks for a pass, and the pass if it was made for this buyer and this sale. Only `reserve` knows whether it is spent.
    fn check_pass(&self, terms: &Terms, request: &Request) -> PassCheck {
        if terms.captcha == CaptchaKind::None {
            return PassCheck::NotAsked;
        }
        let shown = request.pass.as_deref();
        let pass = shown.and_then(|pass| self.challenges.open_pass(request.sale, &request.user, pass));
        PassCheck::Asked(pass.map(Box::new))
    }

    /// Answers for a sale that Redis no longer keeps, from the ledger. Nothing is for sale.
    async fn long_ended(&self, terms: &Terms, order: OrderId, request: &Request) -> Result<Ticket, Refusal> {
        let unavailable = |_| Refusal::Unavailable;
        if let Some(own) = self.order_of_now(&request.user, order).await.map_err(unavailable)? {
            return match own.sale_id == request.sale && i64::from(own.quantity) == i64::from(request.units.get()) {
                true => Ok(Ticket { order_id: order, status: own.status, expires_at_ms: own.expires_at_ms }),
                false => Err(Refusal::IdempotencyMismatch),
            };
        }
        let holdings = self.ledger.orders.holdings(request.sale, request.user.as_str());
        let (units, newest) = self.ledger.in_time(holdings).await.map_err(|error| unavailable(error.into()))?;
        if units >= i64::from(terms.per_user.get()) {
            return Err(Refusal::AlreadyPurchased { order: newest });
        }
        Err(Refusal::Ended)
    }
}
