//! The policies of flow control, by application, and the form for each algorithm. docs/limits.md explains the terms.

use actix_web::HttpResponse;
use askama::Template;
use serde::Deserialize;

use super::frame::{Frame, page};
use super::policy_form::{Form, Hour};
use super::{policies, show};
use crate::admin::AdminError;
use crate::admin::policies::VisiblePolicy;
use crate::domain::account::Account;
use crate::domain::ids::Invalid;
use crate::domain::limiter::AlgorithmKind;
use crate::domain::policy::{HOUSE_APP, Name, threshold};
use crate::http::Ask;

/// The most applications on one page; a filter shows each of the others.
const APPS_MAX: usize = 200;

#[derive(Template)]
#[template(path = "console/policies.html")]
struct PoliciesPage {
    frame: Frame,
    /// The application that the page is filtered by; empty for all.
    app: String,
    apps: Vec<AppPolicies>,
    /// Whether there are more applications than the page shows.
    has_more: bool,
}

/// An application as the account sees it.
struct AppPolicies {
    name: String,
    rights: &'static str,
    may_change: bool,
    policies: Vec<VisiblePolicy>,
}

/// The policy's other applications that the account sees, and whether there are more.
fn others(app: &str, visible: &VisiblePolicy) -> String {
    let others = visible.apps.iter().map(Name::as_str).filter(|other| *other != app);
    let hidden = (visible.apps.len() < visible.policy.terms.apps.len()).then_some("others");
    others.chain(hidden).collect::<Vec<_>>().join(", ")
}

/// What an account may do with an application's policies, in words.
fn rights(account: &Account, app: &Name) -> &'static str {
    match (account.is_admin(), account.may_change(std::slice::from_ref(app)).is_ok(), account.grants.get(app)) {
        (true, ..) => "as an admin you see and change them",
        (false, true, _) => "owner: you see and change them",
        (false, false, Some(_)) => "viewer: you see them",
        (false, false, None) => "",
    }
}

#[derive(Deserialize)]
struct ListQuery {
    #[serde(default)]
    app: String,
}

/// The policies that the account sees, by application.
pub async fn list(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |console, caller, frame| {
        let account = &caller.account;
        let query: ListQuery = caller.query()?;
        let only = (!query.app.is_empty()).then(|| Name::parse(&query.app, "app")).transpose()?;
        let policies = console.policies(account, only.as_ref()).await?;
        let apps = console.apps(account).await?.into_iter().map(|app| app.name);
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
    /// The threshold in force, where it moves.
    moves_at: Option<i64>,
    hour: Option<Hour>,
    /// The form, for those who may use it, and this page with each algorithm.
    form: Option<Form>,
    algorithms: Vec<AlgorithmLink>,
    /// Whether the policy limits purchases, which takes one algorithm only.
    limits_purchases: bool,
}

struct AlgorithmLink {
    name: &'static str,
    address: String,
}

/// This page with each algorithm. `address` ends with a question mark, or with a parameter and an ampersand.
fn algorithms(address: &str) -> Vec<AlgorithmLink> {
    let link = |kind: &AlgorithmKind| AlgorithmLink {
        name: kind.as_str(),
        address: format!("{address}algorithm={}", kind.as_str()),
    };
    AlgorithmKind::ALL.iter().map(link).collect()
}

fn algorithm(text: Option<&str>) -> Result<Option<AlgorithmKind>, Invalid> {
    let kind = text.map(str::parse::<AlgorithmKind>).transpose();
    kind.map_err(|_| Invalid::new("algorithm", "must be one of those that the page offers"))
}

#[derive(Deserialize)]
struct FormQuery {
    algorithm: Option<String>,
}

/// A policy: its terms, its last hour, and the form that changes it.
pub async fn show(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |console, caller, frame| {
        let (app, name) = (Name::parse(caller.part("app"), "app")?, Name::parse(caller.part("name"), "name")?);
        let (visible, shown, minutes) = console.policy(&caller.account, &app, &name).await?;
        let query: FormQuery = caller.query()?;
        let policy = &visible.policy;
        let kind = algorithm(query.algorithm.as_deref())?.unwrap_or(policy.terms.algorithm.kind());
        let form = Form::new(kind, &policy.terms.apps, Some(policy));
        Ok(PolicyPage {
            frame,
            moves_at: policy.terms.range.and_then(|_| threshold(&policy.algorithm)),
            hour: Some(Hour::new(shown, &minutes)),
            form: visible.may_change.then_some(form),
            existing: Some(visible),
            algorithms: algorithms(&format!("/admin/policies/{app}/{name}?")),
            limits_purchases: app.as_str() == HOUSE_APP,
            app: app.to_string(),
            name: name.to_string(),
        })
    })
    .await
}

#[derive(Template)]
#[template(path = "console/policy-new.html")]
struct NewPolicyPage {
    frame: Frame,
    /// Applications whose policies the account may change.
    apps: Vec<AppChoice>,
    algorithms: Vec<&'static str>,
}

struct AppChoice {
    name: String,
    selected: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewQuery {
    app: String,
    name: String,
    algorithm: Option<String>,
}

/// The first step to a new policy: its application, name and algorithm.
pub async fn plan(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |console, caller, frame| {
        let query: NewQuery = caller.query()?;
        let apps = console.apps(&caller.account).await?.into_iter().map(|app| app.name);
        let apps = apps.filter(|app| caller.account.may_change(std::slice::from_ref(app)).is_ok());
        let apps = apps.map(|app| AppChoice { name: app.to_string(), selected: app.as_str() == query.app });
        let algorithms = AlgorithmKind::ALL.iter().map(|kind| kind.as_str()).collect();
        Ok(NewPolicyPage { frame, apps: apps.collect(), algorithms })
    })
    .await
}

/// The second step to a new policy: the form of its algorithm.
pub async fn draft(ask: Ask) -> HttpResponse {
    page(ask, "policies", async |console, caller, frame| {
        let query: NewQuery = caller.query()?;
        let (app, name) = (Name::parse(&query.app, "app")?, Name::parse(&query.name, "name")?);
        // An application that is hidden, and one that does not exist, are answered alike.
        let taken = console.policies(&caller.account, Some(&app)).await?;
        caller.account.may_change(std::slice::from_ref(&app)).map_err(AdminError::Denied)?;
        if taken.iter().any(|visible| visible.policy.terms.name == name) {
            return Err(Invalid::new("name", "is taken: the application has a policy of this name already").into());
        }
        let kind = algorithm(query.algorithm.as_deref())?.unwrap_or(AlgorithmKind::FixedWindow);
        Ok(PolicyPage {
            frame,
            existing: None,
            moves_at: None,
            hour: None,
            form: Some(Form::new(kind, std::slice::from_ref(&app), None)),
            algorithms: algorithms(&format!("/admin/policies/draft?app={app}&name={name}&")),
            limits_purchases: app.as_str() == HOUSE_APP,
            app: app.to_string(),
            name: name.to_string(),
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limiter::{Algorithm, Parameters};
    use crate::domain::policy::{Excess, NewPolicy, Policy, WhenDown};

    fn policy() -> VisiblePolicy {
        let parameters =
            Parameters { rate: Some(5), capacity: Some(10), window_ms: Some(1000), ..Parameters::default() };
        let name = |text| Name::parse(text, "name").unwrap();
        let terms = NewPolicy {
            name: name("login"),
            apps: vec![name("shop"), name("bank")],
            key: "user".to_owned(),
            spread: true,
            algorithm: Algorithm::new(AlgorithmKind::TokenBucket, &parameters).unwrap(),
            range: None,
            excess: Excess::Reject,
            when_down: WhenDown::Local,
            breaker: None,
        };
        let policy = Policy::planned(terms).unwrap();
        VisiblePolicy { policy, apps: vec![name("shop")], may_change: true, warnings: vec!["<b>low</b>".to_owned()] }
    }

    fn policy_page(visible: &VisiblePolicy, kind: AlgorithmKind) -> String {
        let (app, terms) = (Name::parse("shop", "app").unwrap(), &visible.policy.terms);
        let page = PolicyPage {
            frame: Frame::of_admin("policies"),
            app: app.to_string(),
            name: terms.name.to_string(),
            existing: Some(visible.clone()),
            moves_at: Some(7),
            hour: None,
            form: Some(Form::new(kind, &terms.apps, Some(&visible.policy))),
            algorithms: algorithms("/admin/policies/shop/login?"),
            limits_purchases: false,
        };
        page.render().unwrap()
    }

    #[test]
    fn the_form_of_each_algorithm_has_its_parameters_and_no_others() {
        let visible = policy();
        for kind in AlgorithmKind::ALL {
            let page = policy_page(&visible, *kind);
            for (name, bounds) in kind.bounds() {
                let used = bounds != crate::domain::limiter::ParameterBounds::Unused;
                assert_eq!(page.contains(&format!("name=\"{name}\"")), used, "{name} of {kind:?}");
            }
            assert!(page.contains(&format!("name=\"algorithm\" value=\"{}\"", kind.as_str())), "{kind:?}");
        }
        let own = policy_page(&visible, AlgorithmKind::TokenBucket);
        for shown in ["value=\"10\"", "shop\nbank", "data-method=\"DELETE\"", "policies/login/preview", "others"] {
            assert!(own.contains(shown), "{shown}: {own}");
        }
    }
}
