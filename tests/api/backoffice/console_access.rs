//! The console's part for policies, applications and the audit log: the preview of a change, filters, and the runbooks.

use seckill_domain::account::AccountRole;
use seckill_domain::limiter::{AlgorithmKind, ParameterBounds};
use seckill_domain::policy::Role;
use serde_json::{Value, json};

use crate::backoffice::admin_api::{Person, UNLIMITED, account, granted};
use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use seckill_harness::System;

/// A window of a minute with this limit.
fn a_minute(app: &str, limit: i64) -> Value {
    json!({ "apps": [app], "algorithm": "fixed-window", "limit": limit, "window_ms": 60_000 })
}

/// The owner of a new application with the policy `p`.
async fn owner(system: &System, app: &str) -> Person {
    Caller::new(system, app).await;
    set(system, policy(app, "p", a_day(5))).await;
    let name = format!("{app}-owner");
    account(system, &name, AccountRole::Manager).await;
    granted(system, &name, &[(app, Role::Owner)]).await;
    Person::sign_in(system, &name).await
}

/// A preview replays the recorded calls under the new and the present terms, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_preview_says_what_a_change_would_have_refused() {
    const APP: &str = "previewed";
    let system = System::shared_with(&UNLIMITED).await;
    let owner = owner(&system, APP).await;
    assert_eq!(owner.put("policies/p", a_minute(APP, 4)).await.status, 200);
    // Two minutes of the hour, and one long before it.
    let record = "INSERT INTO policy_minutes (policy_id, minute, granted, refused, waited_ms, failed)
                  SELECT id, date_trunc('minute', now()) - $1::bigint * interval '1 minute', $2, $3, 0, 0
                  FROM policies JOIN policy_apps ON policy_id = id WHERE app = $4";
    for (ago, granted, refused) in [(30_i64, 4_i64, 1_i64), (10, 4, 4), (300, 1000, 1000)] {
        sqlx::query(record).bind(ago).bind(granted).bind(refused).bind(APP).execute(&system.sql).await.unwrap();
    }
    let before = owner.get("policies?app=previewed").await.body;
    let preview = owner.post("policies/p/preview", a_minute(APP, 6)).await;
    assert_eq!(preview.status, 200, "{}", preview.body);
    let seen = &preview.body;
    assert_eq!(json!([seen["calls"], seen["recorded_refused"], seen["resolution_ms"]]), json!([13, 5, 60_000]));
    assert_eq!(seen["changed"], json!({ "evenly": 2, "at_once": 2 }));
    assert_eq!(seen["present"], json!({ "evenly": 5, "at_once": 5 }));
    let minutes: Vec<_> =
        seen["minutes"].as_array().unwrap().iter().map(|at| [&at["calls"], &at["changed"]["evenly"]]).collect();
    assert_eq!(minutes, [[&json!(5), &json!(0)], [&json!(8), &json!(2)]]);
    assert_eq!(seen["to_ms"].as_i64().unwrap() - seen["from_ms"].as_i64().unwrap(), 3_600_000);
    let text = seen["text"].as_str().unwrap();
    assert!(
        text.starts_with("Of 13 calls in the last hour, 5 were refused") && text.contains("by the minute"),
        "{text}"
    );

    // Invalid terms, and a policy that does not exist yet.
    let wrong = owner.post("policies/p/preview", a_minute(APP, 0)).await;
    assert_eq!(wrong.code(), "400 invalid-request");
    let new = owner.post("policies/new/preview", a_minute(APP, 5)).await.body;
    assert_eq!((&new["calls"], &new["present"]), (&json!(0), &Value::Null));
    assert!(new["text"].as_str().unwrap().contains("nothing to replay"), "{new}");
    assert_eq!(owner.get("policies?app=previewed").await.body, before, "a preview has changed something");
}

/// The page of a policy has a form for each algorithm, and names what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_changed_by_a_form_of_its_algorithm() {
    let system = System::shared_with(&UNLIMITED).await;
    let owner = owner(&system, "viewed").await;
    for kind in AlgorithmKind::ALL {
        for address in ["/admin/policies/viewed/p?", "/admin/policies/draft?app=viewed&name=new&"] {
            let (status, form) = owner.page(&format!("{address}algorithm={}", kind.as_str())).await;
            assert_eq!(status, 200, "{address} {kind:?}");
            for (name, bounds) in kind.bounds() {
                let used = bounds != ParameterBounds::Unused;
                assert_eq!(form.contains(&format!("name=\"{name}\"")), used, "{name} of {kind:?}: {form}");
            }
        }
    }
    for (address, status) in [
        ("/admin/policies/viewed/p?algorithm=guess", 400),
        ("/admin/policies/viewed/p?algorithm=concurrency&algorithm=concurrency", 400),
        ("/admin/policies/draft?app=viewed&name=no%20name", 400),
        ("/admin/policies/draft?app=viewed&name=p", 400),
        ("/admin/policies/draft?app=nowhere&name=p", 404),
        ("/admin/policies/viewed/nothing", 404),
        ("/admin/policies?app=nowhere", 404),
    ] {
        assert_eq!(owner.page(address).await.0, status, "{address}");
    }
}

/// The lines of an answer, as `action` and `subject`.
fn lines(log: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    log["lines"].as_array().unwrap().iter().map(|line| (text(&line["action"]), text(&line["subject"]))).collect()
}

/// The audit log is read by actor, action, subject and time, in pages. No other filter is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_filtered_and_read_in_pages() {
    let system = System::shared_with(&UNLIMITED).await;
    let owner = owner(&system, "logged").await;
    let root = Person::new(&system, "logged-root", AccountRole::Admin).await;
    for limit in [5, 6, 7] {
        assert_eq!(owner.put("policies/p", a_minute("logged", limit)).await.status, 200);
    }
    assert_eq!(root.put("policies/p", a_minute("logged", 8)).await.status, 200);
    let get = async |query: &str| root.get(&format!("audit-log?{query}")).await;
    let owners = get("actor=logged-owner&action=policy%20set").await.body;
    assert_eq!(lines(&owners), vec![("policy set".to_owned(), "policy p of logged".to_owned()); 3]);
    assert_eq!(owners["lines"][0]["details"]["after"]["limit"], 7, "the newest first");
    // With the one of the test's beginning.
    assert_eq!(lines(&get("subject=policy%20p%20of%20logged").await.body).len(), 5);
    assert!(lines(&get("subject=policy%20p").await.body).is_empty(), "to the letter");
    // Pages: the last line of one leads to the next. No line is read twice or left out.
    let ids = |log: &Value| -> Vec<i64> {
        log["lines"].as_array().unwrap().iter().map(|line| line["id"].as_i64().unwrap()).collect()
    };
    let own = ids(&get("subject=policy%20p%20of%20logged").await.body);
    for filter in ["", "subject=policy%20p%20of%20logged&"] {
        let (mut read, mut before) = (Vec::new(), own[0] + 1);
        while before > own[4] {
            let page = ids(&get(&format!("{filter}limit=2&before={before}")).await.body);
            before = *page.last().unwrap();
            read.extend(page);
        }
        assert!(read.is_sorted_by(|newer, older| newer > older), "{read:?}");
        read.retain(|id| own.contains(id));
        assert_eq!(read, own, "{filter}");
    }
    // Times: the range includes its start and excludes its end.
    let at: i64 = owners["lines"][0]["at_ms"].as_i64().unwrap();
    assert!(lines(&get(&format!("actor=logged-owner&action=policy%20set&to_ms={at}")).await.body).len() < 3);
    assert_eq!(lines(&get(&format!("action=policy%20set&actor=logged-root&from_ms={at}")).await.body).len(), 1);
    let none = format!("from_ms={}", at + 3_600_000);
    assert!(lines(&get(&none).await.body).is_empty());
    let long = format!("subject={}", "x".repeat(1001));
    let wrong = "actor= action=a%00b actor=a%0ab from_ms=x from_ms=-1 to_ms=9223372036854775807 before=0 before=x limit=0 limit=1001";
    for wrong in wrong.split(' ').chain(["actor=a&actor=b", &long]) {
        assert_eq!(get(wrong).await.code(), "400 invalid-request", "{wrong:.40}");
    }
    // The page has the same filters, and each text leads to the lines that have it.
    let (status, text) = root.page("/admin/audit-log?actor=logged-owner&action=policy+set&from=2026-01-01T00:00").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("/admin/audit-log?subject=policy+p+of+logged") && text.contains("value=\"logged-owner\""),
        "{text}"
    );
    assert!(!text.contains("signed in</a>"), "{text}");
    assert_eq!(root.page("/admin/audit-log?from=yesterday").await.0, 400);
}

/// A policy of a hundred applications has a longer subject than an index can hold, and can still be changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_a_hundred_applications_is_logged_and_found() {
    let system = System::shared_with(&UNLIMITED).await;
    let root = Person::new(&system, "wide", AccountRole::Admin).await;
    let apps: Vec<String> = (0..100).map(|n| format!("{n:02}-{}", "x".repeat(61))).collect();
    let made = "INSERT INTO apps (name, token_hash, created_by) SELECT name, sha256(name::bytea), 'test' FROM unnest($1::text[]) AS name";
    sqlx::query(made).bind(&apps).execute(&system.sql).await.unwrap();
    let terms = json!({ "apps": apps, "algorithm": "fixed-window", "limit": 5, "window_ms": 60_000 });
    assert_eq!(root.put("policies/wide", terms).await.status, 200);
    let log = root.get("audit-log?action=policy%20set&actor=wide").await.body;
    assert!(log["lines"][0]["subject"].as_str().unwrap().len() > 6_000, "{log}");
    assert_eq!(root.page("/admin/audit-log").await.0, 200);
}
