//! `GET /api/v1/admin/sales/{id}/live`: a sale's figures as server-sent events.

use std::rc::Rc;
use std::time::Duration;

use actix_web::web::{Bytes, Data};
use futures_util::stream::{empty, unfold};
use tokio::time::{Instant, timeout_at};

use super::sales::named_sale;
use super::{Answer, Backoffice, NotReadOne};
use crate::admin::session::SessionToken;
use crate::api::Ask;
use crate::api::caller::session_token;
use seckill_buying::live::{LiveStream, Sample};
use seckill_domain::ids::SaleId;
use seckill_http::head_requests::was_head;
use seckill_http::{AppState, Problem, event_stream};

/// How often a stream checks that its session lasts.
const SESSION_EVERY: Duration = Duration::from_secs(3);
/// After this time without a successful check the stream ends. A check may fail because the service is busy.
const SESSION_UNCHECKED_MAX: Duration = Duration::from_secs(30);
/// The longest life of a stream. The page then opens another one, at an instance that is running.
const STREAM_MAX: Duration = Duration::from_secs(15 * 60);
const RETRY_MS: std::ops::RangeInclusive<u64> = 1_000..=3_000;

/// The figures of a sale and its surroundings, once a second
///
/// Server-sent events: `event: figures`, `data` is one `LiveFigures`. The stream begins with the figures of the last two minutes, if the sale was
/// watched, or with the figures after `Last-Event-ID`. While purchases wait there are fewer. It ends within seconds when the session ends,
/// within half a minute when the session cannot be checked, when the instance stops, and after 15 minutes. An instance keeps at most 64 streams, 8 of one account.
#[utoipa::path(
    get,
    path = "/api/v1/admin/sales/{id}/live",
    params(
        ("id" = SaleId, Path, description = "The sale"),
        (
            "Last-Event-ID" = Option<String>, Header, nullable = false,
            description = "The `id` of the last event received; any other value is ignored",
        ),
    ),
    responses((status = 200, description = "Events", body = String, content_type = "text/event-stream"), NotReadOne),
)]
pub(super) async fn watch_sale(ask: Ask) -> Answer {
    let (app_state, backoffice) = (ask.app_state.clone(), ask.backoffice.clone());
    let token = session_token(&ask.request, &backoffice)?;
    let seen = ask.request.headers().get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let is_head = was_head(&ask.request);
    let sale = ask.act(async |office, caller| {
        let sale = named_sale(caller)?;
        office.check_sale(sale).await?;
        Ok((sale, caller.account.name.clone()))
    });
    let (sale, account) = sale.await?;
    if is_head {
        return Ok(event_stream(RETRY_MS, empty()));
    }
    let stream = backoffice.live.watch(sale, account, seen).ok_or_else(|| Problem::shed("live streams"))?;
    let now = Instant::now();
    let watching = Watching {
        stream,
        token: Rc::new(token),
        app_state,
        backoffice,
        checked: now,
        next_check: now + SESSION_EVERY,
        until: now + STREAM_MAX,
    };
    let events = unfold(watching, |mut watching| async move { Some((watching.next().await?, watching)) });
    Ok(event_stream(RETRY_MS, events))
}

struct Watching {
    stream: LiveStream,
    token: Rc<SessionToken>,
    app_state: Data<AppState>,
    backoffice: Data<Backoffice>,
    /// When the session was last known to last, and when that is checked again.
    checked: Instant,
    next_check: Instant,
    until: Instant,
}

impl Watching {
    async fn next(&mut self) -> Option<Bytes> {
        let due = self.next_check.min(self.until);
        // A reader that is behind has a sample ready at every time: the session is checked first.
        if Instant::now() < due
            && let Ok(sample) = timeout_at(due, self.stream.next()).await
        {
            return sample.map(|sample| event(&sample));
        }
        if Instant::now() >= self.until {
            return None;
        }
        self.check_session().await?;
        // Also shows whether the reader is still there.
        Some(Bytes::from_static(b":\n\n"))
    }

    /// Checks that the session lasts, as each request does: a page that is looked at keeps it from idling. `None` if it has ended.
    async fn check_session(&mut self) -> Option<()> {
        let (backoffice, token) = (self.backoffice.clone(), Rc::clone(&self.token));
        let account = self.app_state.bulkheads.admin.run(async move { backoffice.office.account(&token).await }).await;
        let now = Instant::now();
        self.next_check = now + SESSION_EVERY;
        match account {
            Ok(_) => self.checked = now,
            Err(problem)
                if problem.code() == "signed-out" || now - self.checked >= SESSION_UNCHECKED_MAX - SESSION_EVERY =>
            {
                return None;
            }
            Err(_) => {}
        }
        Some(())
    }
}

fn event(sample: &Sample) -> Bytes {
    format!("event: figures\nid: {}\ndata: {}\n\n", sample.id, sample.json).into()
}
