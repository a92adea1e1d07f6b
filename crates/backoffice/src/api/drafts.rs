//! Drafts of sales: operators see and change them, buyers never do.

use actix_web::HttpResponse;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Answer, NotDoneToOne, NotMade, NotReadGuarded};
use crate::admin::drafts::{DraftField, DraftForm, DraftRow};
use crate::api::Ask;
use seckill_http::codes::problems;

/// A form of a sale that is not published.
#[derive(Serialize, ToSchema)]
struct Draft {
    draft_id: Uuid,
    product: String,
    updated_by: String,
    updated_at_ms: i64,
}

impl From<DraftRow> for Draft {
    fn from(DraftRow { id, product, updated_by, updated_at }: DraftRow) -> Self {
        Self { draft_id: id, product, updated_by, updated_at_ms: updated_at.timestamp_millis() }
    }
}

/// All drafts.
#[derive(Serialize, ToSchema)]
struct Drafts {
    drafts: Vec<Draft>,
}

/// The fields of a draft, as they were typed.
#[derive(Serialize, ToSchema)]
struct DraftFields {
    form: Vec<DraftField>,
}

/// The draft is saved or removed.
#[derive(Serialize, ToSchema)]
struct DraftChanged {
    draft_id: Uuid,
}

problems!(NoDraft: InvalidRequest, SignedOut, Forbidden, NotFound, TemporarilyUnavailable);

/// Drafts of sales, the last changed one first
///
/// For managers and admins.
#[utoipa::path(
    get,
    path = "/api/v1/admin/drafts",
    responses((status = 200, description = "All of them, 200 at most", body = Drafts), NotReadGuarded),
)]
pub(super) async fn list_drafts(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let drafts = office.drafts(&caller.account).await?.into_iter().map(Draft::from).collect();
        Ok(Drafts { drafts })
    })
    .await
}

/// The fields of a draft
#[utoipa::path(
    get,
    path = "/api/v1/admin/drafts/{id}",
    params(("id" = Uuid, Path, description = "The draft")),
    responses((status = 200, description = "As they were typed", body = DraftFields), NoDraft),
)]
pub(super) async fn show_draft(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        Ok(DraftFields { form: office.draft(&caller.account, caller.uuid("draft id")?).await? })
    })
    .await
}

/// Save a new draft
///
/// For managers and admins. Buyers see nothing of it. It becomes a sale when its form is sent with its `draft_id`.
#[utoipa::path(
    post,
    path = "/api/v1/admin/drafts",
    request_body = DraftForm,
    responses((status = 201, description = "Saved", body = DraftChanged), NotMade),
)]
pub(super) async fn add_draft(ask: Ask) -> Answer {
    let draft_id = ask.act(async |office, caller| office.add_draft(&caller.account, caller.body()?).await).await?;
    Ok(HttpResponse::Created().json(DraftChanged { draft_id }))
}

/// Replace a draft
#[utoipa::path(
    put,
    path = "/api/v1/admin/drafts/{id}",
    params(("id" = Uuid, Path, description = "The draft")),
    request_body = DraftForm,
    responses((status = 200, description = "Saved", body = DraftChanged), NotDoneToOne),
)]
pub(super) async fn set_draft(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let draft_id = caller.uuid("draft id")?;
        office.set_draft(&caller.account, draft_id, caller.body()?).await?;
        Ok(DraftChanged { draft_id })
    })
    .await
}

/// Remove a draft
#[utoipa::path(
    delete,
    path = "/api/v1/admin/drafts/{id}",
    params(("id" = Uuid, Path, description = "The draft")),
    responses((status = 200, description = "Removed", body = DraftChanged), NotDoneToOne),
)]
pub(super) async fn remove_draft(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let draft_id = caller.uuid("draft id")?;
        office.remove_draft(&caller.account, draft_id).await?;
        Ok(DraftChanged { draft_id })
    })
    .await
}
