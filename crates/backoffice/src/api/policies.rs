//! Policies, for the accounts that they are granted to.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, NotChanged, NotReadOne, app};
use crate::admin::AdminError;
use crate::admin::policies::{Preview, VisiblePolicy};
use crate::api::{Ask, Caller};
use seckill_domain::breaker::BreakerSettings;
use seckill_domain::ids::Invalid;
use seckill_domain::limiter::{AlgorithmKind, Parameters};
use seckill_domain::policy::{Name, NewPolicy, WhenDown, threshold};
use seckill_domain::policy_form::PolicyForm;
use seckill_flow::FlowError;
use seckill_http::codes::problems;

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
    breaker: Option<BreakerSettings>,
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

/// The change is done.
#[derive(Serialize, ToSchema)]
struct Changed {
    /// Whether every instance already uses the change. The others will within a second of recovering.
    everywhere: bool,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only policies of this application.
    #[param(value_type = Option<Name>, nullable = false)]
    app: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteQuery {
    /// The application that has it, or one of them.
    #[param(value_type = Name)]
    app: String,
}

problems! {
    NotSet: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    UnworkableTerms, TemporarilyUnavailable
}

fn described(caller: &Caller) -> Result<NewPolicy, AdminError> {
    let form: PolicyForm = caller.body()?;
    Ok(form.named(caller.part("name")).map_err(FlowError::from)?)
}

/// The policies that the account sees
#[utoipa::path(
    get,
    path = "/api/v1/admin/policies",
    params(ListQuery),
    responses((status = 200, description = "All of them, by name", body = Policies), NotReadOne),
)]
pub(super) async fn list_policies(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let app = caller.query::<ListQuery>()?.app.map(|text| app(&text)).transpose()?;
        let policies = office.policies(&caller.account, app.as_ref()).await?.into_iter().map(PolicyView::from);
        Ok(Policies { policies: policies.collect() })
    })
    .await
}

/// Create or change a policy
///
/// Changes the policy that these applications have under this name; counters continue. The account must be allowed to
/// change the policies of all of its applications, those before the change and those after it.
#[utoipa::path(
    put,
    path = "/api/v1/admin/policies/{name}",
    params(("name" = Name, Path, description = "The policy")),
    request_body = PolicyForm,
    responses((status = 200, description = "Done", body = Changed), NotSet),
)]
pub(super) async fn set_policy(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        Ok(Changed { everywhere: office.set_policy(&caller.account, described(caller)?).await? })
    })
    .await
}

/// Preview the refusals of a change
///
/// Replays the calls that were recorded in the last hour, by the minute, under the terms of the change. It changes
/// nothing. Whoever may make the change may ask.
#[utoipa::path(
    post,
    path = "/api/v1/admin/policies/{name}/preview",
    params(("name" = Name, Path, description = "The policy")),
    request_body = PolicyForm,
    responses((status = 200, description = "The replay", body = Preview), NotSet),
)]
pub(super) async fn preview_policy(ask: Ask) -> Answer {
    let ask = ask.that_reads();
    ask.answer(async |office, caller| office.preview_policy(&caller.account, described(caller)?).await).await
}

/// Delete a policy
///
/// Callers that ask for its permits are then told that nothing is configured.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/policies/{name}",
    params(("name" = Name, Path, description = "The policy"), DeleteQuery),
    responses((status = 200, description = "Done", body = Changed), NotChanged),
)]
pub(super) async fn delete_policy(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let query = caller.query::<DeleteQuery>();
        let query = query.map_err(|_| Invalid::new("app", "must be given in the query"))?;
        let name = Name::parse(caller.part("name"), "name")?;
        Ok(Changed { everywhere: office.delete_policy(&caller.account, &name, &app(&query.app)?).await? })
    })
    .await
}
