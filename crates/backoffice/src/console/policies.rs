//! The policies of flow control, by application, and the form for each algorithm. docs/limits.md explains the terms.

use actix_web::HttpResponse;
use askama::Template;
use serde::Deserialize;

use super::frame::{Frame, page};
use super::language::Text;
use super::policy_form::{Form, Hour};
use super::{policies, show};
use crate::admin::AdminError;
use crate::admin::policies::VisiblePolicy;
use crate::api::Ask;
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_domain::limiter::AlgorithmKind;
use seckill_domain::policy::{HOUSE_APP, Name, threshold};

/// The most applications on one page; a filter shows each of the others.
const APPS_MAX: usize = 200;

#[derive(Template)]
#[template(path = "console/policies.html")]
struct PoliciesPage {
    frame: Frame,
    app: String,
    apps: Vec<AppPolicies>,
    has_more: bool,
}

struct AppPolicies {
    name: String,
    rights: Text,
    may_change: bool,
    policies: Vec<VisiblePolicy>,
}

fn others(app: &str, visible: &VisiblePolicy) -> String {
    let others = visible.apps.iter().map(Name::as_str).filter(|other| *other != app);
    let hidden = (visible.apps.len() < visible.policy.terms.apps.len()).then_some("others");
    others.chain(hidden).collect::<Vec<_>>().join(", ")
}

fn rights(account: &Account, app: &Name) -> Text {
    match (account.is_admin(), account.may_change(std::slice::from_ref(app)).is_ok(), account.grants.get(app)) {
        (true, ..) => {
            Text { en: "as an admin you see and change them", zh: "作为管理员，您可以查看和更改" }
        }
        (false, true, _) => Text { en: "owner: you see and change them", zh: "所有者：可以查看和更改" },
        (false, false, Some(_)) => Text { en: "viewer: you see them", zh: "查看者：可以查看" },
        (false, false, None) => Text { en: "", zh: "" },
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Query {
    app: String,
    name: String,
    algorithm: Option<String>,
}

impl Query {
    fn algorithm(&self) -> Result<Option<AlgorithmKind>, Invalid> {
        let kind = self.algorithm.as_deref().map(str::parse::<AlgorithmKind>).transpose();
        kind.map_err(|_| Invalid::new("algorithm", "must be one of those that the page offers"))
    }
}

pub(crate) async fn list(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |office, caller, frame| {
        let account = &caller.account;
        let query: Query = caller.query()?;
        let only = (!query.app.is_empty()).then(|| Name::parse(&query.app, "app")).transpose()?;
        let policies = office.policies(account, only.as_ref()).await?;
        let apps = office.apps(account).await?.into_iter().map(|app| app.name);
        let mut apps: Vec<Name> = apps.filter(|app| only.as_ref().is_none_or(|only| only == app)).collect();
        let has_more = apps.len() > APPS_MAX;
        apps.truncate(APPS_MAX);
        let shown = apps.iter().map(|app| AppPolicies {
            name: app.to_string(),
            rights: rights(account, app),
            may_change: account.may_change(std::slice::from_ref(app)).is_ok(),
            policies: policies.iter().filter(|visible| visible.policy.terms.apps.contains(app)).cloned().collect(),
        });
        Ok(PoliciesPage { frame, app: query.app, apps: shown.collect(), has_more })
    })
    .await
}

#[derive(Template)]
#[template(path = "console/policy.html")]
struct PolicyPage {
    frame: Frame,
    app: String,
    name: String,
    /// None for a policy that is still to be made.
    existing: Option<VisiblePolicy>,
    moves_at: Option<i64>,
    hour: Option<Hour>,
    /// The form, for accounts that may use it, and the address of this page with each algorithm.
    form: Option<Form>,
    algorithms: Vec<(&'static str, String)>,
    /// Whether the policy limits purchases, which takes one algorithm only.
    limits_purchases: bool,
}

impl PolicyPage {
    /// The page with the form of an algorithm. `here` is its address; it ends with a question mark, or with a parameter and an ampersand.
    fn new(frame: Frame, [app, name]: [&Name; 2], form: Option<Form>, here: &str) -> Self {
        let algorithms = AlgorithmKind::ALL.iter().map(|kind| kind.as_str());
        Self {
            frame,
            existing: None,
            moves_at: None,
            hour: None,
            form,
            algorithms: algorithms.map(|kind| (kind, format!("{here}algorithm={kind}"))).collect(),
            limits_purchases: app.as_str() == HOUSE_APP,
            app: app.to_string(),
            name: name.to_string(),
        }
    }
}

pub(crate) async fn show(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |office, caller, frame| {
        let (app, name) = (Name::parse(caller.part("app"), "app")?, Name::parse(caller.part("name"), "name")?);
        let (visible, shown, minutes) = office.policy(&caller.account, &app, &name).await?;
        let policy = &visible.policy;
        let kind = caller.query::<Query>()?.algorithm()?.unwrap_or(policy.terms.algorithm.kind());
        let form = visible.may_change.then(|| Form::new(kind, &policy.terms.apps, Some(policy)));
        let here = format!("/admin/policies/{app}/{name}?");
        Ok(PolicyPage {
            moves_at: policy.terms.range.and_then(|_| threshold(&policy.algorithm)),
            hour: Some(Hour::new(shown, &minutes)),
            existing: Some(visible),
            ..PolicyPage::new(frame, [&app, &name], form, &here)
        })
    })
    .await
}

#[derive(Template)]
#[template(path = "console/policy-new.html")]
struct NewPolicyPage {
    frame: Frame,
    apps: Vec<(Name, bool)>,
    algorithms: Vec<&'static str>,
}

/// The first step to a new policy: its application, name and algorithm.
pub(crate) async fn plan(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |office, caller, frame| {
        let query: Query = caller.query()?;
        let apps = office.apps(&caller.account).await?.into_iter().map(|app| app.name);
        let apps = apps.filter(|app| caller.account.may_change(std::slice::from_ref(app)).is_ok());
        let apps = apps.map(|app| (app.clone(), app.as_str() == query.app));
        let algorithms = AlgorithmKind::ALL.iter().map(|kind| kind.as_str()).collect();
        Ok(NewPolicyPage { frame, apps: apps.collect(), algorithms })
    })
    .await
}

/// The second step to a new policy: the form of its algorithm.
pub(crate) async fn draft(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |office, caller, frame| {
        let query: Query = caller.query()?;
        let (app, name) = (Name::parse(&query.app, "app")?, Name::parse(&query.name, "name")?);
        // A hidden application gets the same answer as a missing one.
        let taken = office.policies(&caller.account, Some(&app)).await?;
        caller.account.may_change(std::slice::from_ref(&app)).map_err(AdminError::Denied)?;
        if taken.iter().any(|visible| visible.policy.terms.name == name) {
            return Err(Invalid::new("name", "is taken: the application has a policy of this name already").into());
        }
        let kind = query.algorithm()?.unwrap_or(AlgorithmKind::FixedWindow);
        let form = Form::new(kind, std::slice::from_ref(&app), None);
        let here = format!("/admin/policies/draft?app={app}&name={name}&");
        Ok(PolicyPage::new(frame, [&app, &name], Some(form), &here))
    })
    .await
}
