//! The overview, the first page after signing in.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::overview::{self, OverviewWork, SeenProcess};
use crate::domain::alarm::AlarmKind;
use crate::domain::sale::SalePhase;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::problem::Problem;

/// A sale that is not over.
#[derive(Serialize, ToSchema)]
struct OverviewSale {
    id: i64,
    product: String,
    phase: SalePhase,
    starts_at_ms: i64,
    ends_at_ms: i64,
    /// -1: unlimited.
    total_stock: i64,
    /// Units that are left in PostgreSQL; -1: unlimited.
    stock: i64,
    /// Units that can be bought now. Null if they are unlimited, or Redis does not know the sale or does not answer.
    available: Option<i64>,
}

/// An open alarm.
#[derive(Serialize, ToSchema)]
struct OpenAlarm {
    id: i64,
    kind: String,
    subject: String,
    raised_at_ms: i64,
    /// The file that says what to do, from the top of the repository.
    runbook: Option<String>,
}

/// Messages of one kind that are still to be done.
#[derive(Serialize, ToSchema)]
struct Backlog {
    kind: String,
    pending: i64,
    parked: i64,
    oldest_s: i64,
    /// Whether there may be more: counting ends at 10000.
    more: bool,
}

/// A process that was seen within a day.
#[derive(Serialize, ToSchema)]
#[schema(as = SeenProcess)]
struct SeenProcessView {
    id: String,
    seen_at_ms: i64,
    /// Whether the process has reported itself in the last seconds.
    alive: bool,
    /// The workers that it runs.
    workers: Vec<String>,
}

/// The queues and the processes.
#[derive(Serialize, ToSchema)]
struct Work {
    backlog: Vec<Backlog>,
    parked: i64,
    /// The age of the oldest message that waits.
    oldest_s: i64,
    instances: Vec<SeenProcessView>,
    workers: Vec<SeenProcessView>,
    /// When a worker last finished a message.
    last_message_at_ms: Option<i64>,
}

/// Everything at one look.
#[derive(Serialize, ToSchema)]
struct Overview {
    now_ms: i64,
    /// In the order of their starts, 20 at most.
    sales: Vec<OverviewSale>,
    /// The newest first, 50 at most.
    alarms: Vec<OpenAlarm>,
    /// The sales whose stock in Redis differs from PostgreSQL's.
    drift: Vec<String>,
    /// Null for viewers, and where it takes too long to read.
    work: Option<Work>,
}

impl From<SeenProcess> for SeenProcessView {
    fn from(process: SeenProcess) -> Self {
        let SeenProcess { id, seen_at_ms, alive, workers } = process;
        Self { id: id.to_string(), seen_at_ms, alive, workers }
    }
}

impl From<OverviewWork> for Work {
    fn from(work: OverviewWork) -> Self {
        let backlog = work.backlog.into_iter().map(|row| Backlog {
            kind: row.kind,
            pending: row.pending,
            parked: row.parked,
            oldest_s: row.oldest_s,
            more: row.more,
        });
        Self {
            backlog: backlog.collect(),
            parked: work.parked,
            oldest_s: work.oldest_s,
            instances: work.instances.into_iter().map(Into::into).collect(),
            workers: work.workers.into_iter().map(Into::into).collect(),
            last_message_at_ms: work.last_message_ms,
        }
    }
}

impl From<overview::Overview> for Overview {
    fn from(overview: overview::Overview) -> Self {
        let sales = overview.sales.into_iter().map(|overview::OverviewSale { sale, phase, available }| OverviewSale {
            id: sale.id.get(),
            product: sale.product,
            phase,
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            total_stock: sale.total_stock,
            stock: sale.stock,
            available,
        });
        let alarms = overview.alarms.into_iter().map(|alarm| OpenAlarm {
            id: alarm.id,
            runbook: AlarmKind::runbook_of(&alarm.kind),
            kind: alarm.kind,
            subject: alarm.subject,
            raised_at_ms: alarm.raised_at.timestamp_millis(),
        });
        Self {
            now_ms: overview.now_ms,
            sales: sales.collect(),
            alarms: alarms.collect(),
            drift: overview.drift,
            work: overview.work.map(Into::into),
        }
    }
}

problems!(NotShown: SignedOut, TemporarilyUnavailable);

/// How the sales stand, and what needs a person
///
/// Viewers see sales and alarms; alarms that name an application are for admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/overview",
    responses((status = 200, description = "The overview", body = Overview), NotRead),
)]
pub async fn overview(ask: Ask) -> Answer {
    ask.answer(async |console, caller| console.overview(&caller.account).await).await
}
