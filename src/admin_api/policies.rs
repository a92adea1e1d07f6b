//! Policies, for the accounts that they are granted to.

use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::app;
use crate::admin::policies::{Preview, VisiblePolicy};
use crate::domain::breaker::BreakerTerms;
use crate::domain::ids::Invalid;
use crate::domain::json_object;
use crate::domain::limiter::{AlgorithmKind, Parameters};
use crate::domain::policy::{Name, WhenDown, threshold};
use crate::domain::policy_form::PolicyForm;
use crate::domain::policy_preview::{self, Refusals};
use crate::flow::FlowError;
use crate::http::AppState;
use crate::http::caller::{as_caller, as_reader};
use crate::http::codes::problems;
use crate::http::extract::Body;
use crate::http::problem::Problem;

/// A policy as the account sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = Policy)]
struct PolicyView {
    name: Name,
    /// The policy's applications that the account sees.
    apps: Vec<Name>,
    /// Whether the policy has more applications than those.
    shared: bool,
    /// Whether the account may change the policy.
    may_change: bool,
    /// Thresholds that contradict other policies'.
    warnings: Vec<String>,
    key: String,
    spread: bool,
    algorithm: AlgorithmKind,
    limit: Option<i64>,
    capacity: Option<i64>,
    rate: Option<i64>,
    window_ms: Option<i64>,
    lease_ms: Option<i64>,
    floor: Option<i64>,
    ceiling: Option<i64>,
    target_ms: Option<i64>,
    /// The current limit, or a bucket's current rate; null without a limit.
    threshold: Option<i64>,
    /// `reject`, `queue:MS`, `degrade:JSON` or `shadow`.
    excess: String,
    when_down: WhenDown,
    breaker: Option<BreakerTerms>,
    version: i64,
    created_by: String,
    updated_by: String,
    updated_at_ms: i64,
}

impl From<VisiblePolicy> for PolicyView {
    fn from(visible: VisiblePolicy) -> Self {
        let VisiblePolicy { policy, apps, may_change, warnings } = visible;
        let terms = policy.terms;
        let Parameters { limit, capacity, rate, window_ms, lease_ms } = terms.algorithm.parameters();
        Self {
            shared: apps.len() < terms.apps.len(),
            apps,
            may_change,
            warnings,
            algorithm: terms.algorithm.kind(),
            limit,
            capacity,
            rate,
            window_ms,
            lease_ms,
            floor: terms.range.map(|range| range.floor),
            ceiling: terms.range.map(|range| range.ceiling),
            target_ms: terms.range.and_then(|range| range.target_ms),
            threshold: threshold(&policy.algorithm),
            excess: terms.excess.to_string(),
            when_down: terms.when_down,
            breaker: terms.breaker,
            name: terms.name,
            key: terms.key,
            spread: terms.spread,
            version: policy.version,
            created_by: policy.created_by,
            updated_by: policy.updated_by,
            updated_at_ms: policy.updated_at_ms,
        }
    }
}

/// The policies of the applications that the account sees.
#[derive(Serialize, ToSchema)]
struct Policies {
    policies: Vec<PolicyView>,
}

/// What a change would have refused in the last hour.
#[derive(Serialize, ToSchema)]
struct PolicyPreview {
    /// The hour that was replayed: whole minutes, up to the latest that is over.
    from_ms: i64,
    to_ms: i64,
    /// The resolution: the order of calls within it is unknown.
    resolution_ms: i64,
    /// Calls in this hour, and how many of them were refused when they came.
    calls: u64,
    recorded_refused: u64,
    /// What the present terms refuse by the same replay, to compare with; null if there is no such policy yet.
    present: Option<Replayed>,
    changed: Replayed,
    /// The minutes with calls.
    minutes: Vec<PreviewedMinute>,
    /// Thresholds that would contradict each other after the change.
    warnings: Vec<String>,
    /// What the figures leave out.
    notes: Vec<String>,
    /// The preview in words, with its warnings and notes, a line each.
    text: String,
}

/// How many calls a replay refuses.
#[derive(Serialize, ToSchema)]
struct Replayed {
    /// If the calls of each minute came evenly.
    evenly: u64,
    /// If all calls of a minute came at once.
    at_once: u64,
}

/// A minute, replayed.
#[derive(Serialize, ToSchema)]
struct PreviewedMinute {
    at_ms: i64,
    calls: u64,
    recorded_refused: u64,
    changed: Replayed,
}

impl From<Refusals> for Replayed {
    fn from(Refusals { evenly, at_once }: Refusals) -> Self {
        Self { evenly, at_once }
    }
}

impl From<Preview> for PolicyPreview {
    fn from(preview: Preview) -> Self {
        let (calls, recorded_refused) = preview.recorded();
        let summary = policy_preview::summary(calls, recorded_refused, preview.changed);
        let warnings = preview.warnings.iter().map(|warning| format!("Warning: {warning}"));
        let notes = preview.notes.iter().map(|note| (*note).to_owned());
        let lines: Vec<String> = std::iter::once(summary).chain(warnings).chain(notes).collect();
        let minutes = preview.minutes.into_iter().map(|(minute, changed)| PreviewedMinute {
            at_ms: minute.minute * MINUTE_MS,
            calls: minute.calls(),
            recorded_refused: minute.refused,
            changed: changed.into(),
        });
        Self {
            from_ms: preview.shown.start * MINUTE_MS,
            to_ms: preview.shown.end * MINUTE_MS,
            resolution_ms: MINUTE_MS,
            calls,
            recorded_refused,
            present: preview.present.map(Replayed::from),
            changed: preview.changed.into(),
            minutes: minutes.collect(),
            warnings: preview.warnings,
            notes: preview.notes.into_iter().map(str::to_owned).collect(),
            text: lines.join("\n"),
        }
    }
}

/// What is recorded of a policy, is recorded by the minute.
const MINUTE_MS: i64 = 60_000;

/// The change is done.
#[derive(Serialize, ToSchema)]
struct Changed {
    /// Whether every instance already uses the change. The others will within a second of recovering.
    everywhere: bool,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only policies of this application.
    #[param(value_type = Option<Name>, nullable = false)]
    app: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// The application that has it, or one of them.
    #[param(value_type = Name)]
    app: String,
}

problems!(NotListed: InvalidRequest, SignedOut, NotFound, TemporarilyUnavailable);
problems! {
    NotSet: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    UnworkableTerms, TemporarilyUnavailable
}
problems! {
    NotPreviewed: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    UnworkableTerms, TemporarilyUnavailable
}
problems! {
    NotDeleted: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}

/// The policies that the account sees
#[utoipa::path(
    get,
    path = "/api/v1/admin/policies",
    operation_id = "list_policies",
    tag = "admin",
    security(("session" = [])),
    params(ListQuery),
    responses((status = 200, description = "All of them, by name", body = Policies), NotListed),
)]
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let policies = as_caller(request, &app_state, async move |console, caller| {
        let query = Query::<ListQuery>::from_query(caller.request.query_string());
        let query = query.map_err(|_| Invalid::new("app", "must be given once"))?;
        let app = query.into_inner().app.map(|text| app(&text)).transpose()?;
        console.policies(&caller.account, app.as_ref()).await
    });
    let policies = policies.await?.into_iter().map(PolicyView::from).collect();
    Ok(HttpResponse::Ok().json(Policies { policies }))
}

/// Create or change a policy
///
/// Changes the policy that these applications have under this name; counters continue. The account must be allowed to
/// change the policies of all of its applications, those before the change and those after it.
#[utoipa::path(
    put,
    path = "/api/v1/admin/policies/{name}",
    operation_id = "set_policy",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = Name, Path, description = "The policy")),
    request_body = PolicyForm,
    responses((status = 200, description = "Done", body = Changed), NotSet),
)]
pub async fn set(request: HttpRequest, app_state: Data<AppState>, Body(body): Body) -> Result<HttpResponse, Problem> {
    let everywhere = as_caller(request, &app_state, async move |console, caller| {
        let form: PolicyForm = json_object::from_slice(&body)?;
        let policy = form.named(caller.request.match_info().query("name")).map_err(FlowError::from)?;
        console.set_policy(&caller.account, policy).await
    });
    Ok(HttpResponse::Ok().json(Changed { everywhere: everywhere.await? }))
}

/// Say what a change would have refused
///
/// Replays the calls that were recorded in the last hour, by the minute, under the terms of the change. It changes
/// nothing. Whoever may make the change may ask.
#[utoipa::path(
    post,
    path = "/api/v1/admin/policies/{name}/preview",
    operation_id = "preview_policy",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = Name, Path, description = "The policy")),
    request_body = PolicyForm,
    responses((status = 200, description = "The replay", body = PolicyPreview), NotPreviewed),
)]
pub async fn preview(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let preview = as_reader(request, &app_state, async move |console, caller| {
        let form: PolicyForm = json_object::from_slice(&body)?;
        let policy = form.named(caller.request.match_info().query("name")).map_err(FlowError::from)?;
        console.preview_policy(&caller.account, policy).await
    });
    Ok(HttpResponse::Ok().json(PolicyPreview::from(preview.await?)))
}

/// Delete a policy
///
/// Callers that ask for its permits are then told that nothing is configured.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/policies/{name}",
    operation_id = "delete_policy",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = Name, Path, description = "The policy"), DeleteQuery),
    responses((status = 200, description = "Done", body = Changed), NotDeleted),
)]
pub async fn delete(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let everywhere = as_caller(request, &app_state, async move |console, caller| {
        let query = Query::<DeleteQuery>::from_query(caller.request.query_string());
        let query = query.map_err(|_| Invalid::new("app", "must be given in the query"))?;
        let name = Name::parse(caller.request.match_info().query("name"), "name")?;
        console.delete_policy(&caller.account, &name, &app(&query.app)?).await
    });
    Ok(HttpResponse::Ok().json(Changed { everywhere: everywhere.await? }))
}
