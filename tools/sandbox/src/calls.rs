//! The bank's HTTP interface, with all its routes in one table. docs/payments.md describes the interface.

use actix_web::web::{self, Bytes, Data, Json, Path, Query, ServiceConfig, get, post, put, resource};
use actix_web::{HttpResponse, Resource};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bank::{Bank, Call};
use super::event::TransferRef;
use super::limit::Peak;
use super::problem::Problem;
use super::request::{Body, Signed};
use super::switches::Switches;
use super::transfer::{Document, Status, TransferKind, TransferRequest};

type Answer<T> = Result<Json<T>, Problem>;

/// Adds all routes of the bank.
pub(crate) fn routes(app: &mut ServiceConfig) {
    let table = [
        ("/v1/payments", vec![post().to(pay)]),
        ("/v1/payments/{key}", vec![get().to(show_payment)]),
        ("/v1/refunds", vec![post().to(refund)]),
        ("/v1/refunds/{key}", vec![get().to(show_refund)]),
        ("/v1/ledger", vec![get().to(ledger)]),
        ("/v1/arrivals", vec![get().to(arrivals)]),
        ("/v1/arrivals/peak", vec![get().to(peak)]),
        ("/v1/admin/switches", vec![get().to(switches), put().to(switch)]),
        ("/v1/admin/payments/{key}", vec![post().to(decide)]),
        ("/v1/admin/callbacks/{key}", vec![get().to(callback)]),
        ("/v1/admin/callbacks/{key}/again", vec![post().to(send_again)]),
        ("/healthz", vec![get().to(alive)]),
    ];
    for (path, routes) in table {
        let address = routes.into_iter().fold(resource(path), Resource::route);
        app.service(address.default_service(web::to(async || Err::<HttpResponse, _>(Problem::Method))));
    }
    app.app_data(web::QueryConfig::default().error_handler(|error, _| Problem::malformed(&error).into()));
    app.app_data(web::PathConfig::default().error_handler(|error, _| Problem::malformed(&error).into()));
    app.default_service(web::to(async || Err::<HttpResponse, _>(Problem::NotFound)));
}

async fn alive() -> &'static str {
    "ok\n"
}

async fn pay(bank: Data<Bank>, call: Signed) -> Result<HttpResponse, Problem> {
    submit(&bank, TransferKind::Payment, call).await
}

async fn refund(bank: Data<Bank>, call: Signed) -> Result<HttpResponse, Problem> {
    submit(&bank, TransferKind::Refund, call).await
}

async fn submit(bank: &Bank, kind: TransferKind, signed: Signed) -> Result<HttpResponse, Problem> {
    let Signed { at_us, key, body } = signed;
    let valid_key = key.ok_or("the header Idempotency-Key must be a UUID".to_owned());
    let parsed = valid_key.and_then(|key| Ok((key, TransferRequest::parse(kind, &body)?)));
    let reply = bank.submit(&Call { kind, at_us, key, parsed });
    tokio::time::sleep(reply.delay).await;
    let (document, is_new) = reply.result?;
    let mut answer = if is_new { HttpResponse::Accepted() } else { HttpResponse::Ok() };
    Ok(answer.json(document))
}

async fn show_payment(bank: Data<Bank>, key: Path<Uuid>) -> Answer<Document> {
    show(&bank, TransferRef { kind: TransferKind::Payment, key: *key })
}

async fn show_refund(bank: Data<Bank>, key: Path<Uuid>) -> Answer<Document> {
    show(&bank, TransferRef { kind: TransferKind::Refund, key: *key })
}

fn show(bank: &Bank, which: TransferRef) -> Answer<Document> {
    bank.document(which).map(Json).ok_or(Problem::Unknown)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    kind: Option<TransferKind>,
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

impl Page {
    fn kind(&self) -> Result<TransferKind, Problem> {
        self.kind.ok_or_else(|| Problem::malformed(&"kind must be pay or refund"))
    }

    fn limit(&self, max: usize) -> Result<usize, Problem> {
        let limit = self.limit.unwrap_or(max);
        let within = (1..=max).contains(&limit);
        within.then_some(limit).ok_or_else(|| Problem::malformed(&format_args!("limit must be 1 to {max}")))
    }
}

async fn ledger(bank: Data<Bank>, page: Query<Page>) -> Answer<Value> {
    let (entries, more) = bank.ledger(page.after, page.limit(1000)?);
    let next = entries.last().filter(|_| more).map(|entry| entry.seq);
    Ok(Json(json!({ "entries": entries, "next": next })))
}

async fn arrivals(bank: Data<Bank>, page: Query<Page>) -> Answer<Value> {
    let (arrivals, more) = bank.arrivals(page.kind()?, page.after, page.limit(10_000)?);
    let next = arrivals.last().filter(|_| more).map(|arrival| arrival.n);
    Ok(Json(json!({ "arrivals": arrivals, "next": next })))
}

async fn peak(bank: Data<Bank>, page: Query<Page>) -> Answer<Peak> {
    let kind = page.kind()?;
    // Sorting up to a million arrivals takes long, so a blocking thread does it.
    let peak = web::block(move || bank.peak(kind)).await;
    peak.map(Json).map_err(|_| Problem::Unwritten)
}

async fn switches(bank: Data<Bank>) -> Json<Switches> {
    Json(bank.switches())
}

async fn switch(bank: Data<Bank>, Body(body): Body) -> Answer<Switches> {
    Ok(Json(bank.switch(&read(&body)?)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    status: Status,
}

async fn decide(bank: Data<Bank>, key: Path<Uuid>, Body(body): Body) -> Answer<Document> {
    let Decision { status } = read(&body)?;
    if status == Status::Pending {
        return Err(Problem::malformed(&"status must be succeeded or failed"));
    }
    let which = TransferRef { kind: TransferKind::Payment, key: *key };
    Ok(Json(bank.decide(which, status == Status::Succeeded)?))
}

async fn callback(bank: Data<Bank>, key: Path<Uuid>) -> Answer<Value> {
    let (message, fate) = bank.callback(*key).ok_or(Problem::Unknown)?;
    Ok(Json(json!({ "id": format!("msg_{message}"), "fate": fate })))
}

async fn send_again(bank: Data<Bank>, key: Path<Uuid>, _: Body) -> Result<HttpResponse, Problem> {
    bank.send_again(*key)?;
    Ok(HttpResponse::Accepted().json(json!({ "key": *key })))
}

fn read<T: for<'de> Deserialize<'de>>(body: &Bytes) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::malformed(&error))
}
