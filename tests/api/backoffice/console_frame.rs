//! The console: security headers, signing in, the overview, and the administration of accounts.

use std::cell::Cell;

use reqwest::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION, ORIGIN, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use seckill_domain::account::{AccountName, AccountRole};
use seckill_domain::sale::NewSale;
use seckill_postgres::LedgerError;
use seckill_postgres::accounts::{AccountChange, AccountOutcome};
use serde_json::{Value, json};

use crate::backoffice::admin_api::{PASSWORD, Person, UNLIMITED, account};
use crate::backoffice::admin_sessions::seckill;
use crate::network::broken_network::wired_with;
use crate::orders::payments_and_callbacks::bought;
use seckill_harness::folder::Folder;
use seckill_harness::nginx::Nginx;
use seckill_harness::{System, eventually, terms, until};

const OTHER_PASSWORD: &str = "another password of the tests";

/// A browser that shows redirections instead of following them.
fn browser() -> Client {
    Client::builder().redirect(Policy::none()).build().unwrap()
}

pub fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
}

/// Asserts that no cache may keep the answer, and that its policy allows only the console's own files and calls.
fn assert_guarded(response: &Response) {
    assert_eq!(header(response, CACHE_CONTROL.as_str()), "no-store");
    let policy = header(response, CONTENT_SECURITY_POLICY.as_str());
    for part in
        ["default-src 'none'", "script-src 'self';", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(header(response, "x-content-type-options"), "nosniff");
    assert_eq!(header(response, "referrer-policy"), "same-origin");
}

/// An admin, a manager and a viewer, whose sessions the tests of a system share.
pub async fn people(system: &System) -> [Person; 3] {
    let root = Person::shared(system, "root", AccountRole::Admin).await;
    let max = Person::shared(system, "max", AccountRole::Manager).await;
    [root, max, Person::shared(system, "vic", AccountRole::Viewer).await]
}

/// The overview shows current and planned sales, and the alarms that the account may see. Operators also see the queues and the processes.
#[tokio::test(flavor = "multi_thread")]
async fn the_overview_shows_sales_alarms_queues_and_processes() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, vic] = people(&system).await;
    let later = system.create_sale(NewSale { starts_in_ms: 600_000, ..terms(7) }).await;
    let sale = system.create_sale(terms(50)).await;
    let over = system.create_sale(NewSale { starts_in_ms: -2_000, ends_in_ms: -1_000, ..terms(5) }).await;
    // No worker takes the message.
    bought(&system, &sale, "ann").await;
    for (kind, subject) in
        [("parked", "group_placed"), ("refusals", "p of secret-app"), ("drift", "sale 7"), ("of-a-newer-version", "x")]
    {
        let raised = "INSERT INTO alarms (kind, subject) VALUES ($1, $2)";
        sqlx::query(raised).bind(kind).bind(subject).execute(&system.sql).await.unwrap();
    }
    let workers = ["relay".to_owned(), "fulfil".to_owned()];
    system.stores.ledger.report_workers(uuid::Uuid::new_v4(), &workers).await.unwrap();

    // The overview leaves out what Redis does not answer within half a second.
    let seen = eventually(|| async {
        let seen = max.get("overview").await.body;
        let is_whole = seen["sales"][0]["available"].is_number() && seen["work"].is_object();
        if is_whole { Ok(seen) } else { Err(seen.to_string()) }
    })
    .await;
    let sales: Vec<_> = seen["sales"].as_array().unwrap().iter().map(|sale| &sale["id"]).collect();
    assert_eq!(sales, [&json!(sale.id), &json!(later.id)], "not {}", over.id);
    let first = &seen["sales"][0];
    assert_eq!((&first["phase"], &first["stock"], &first["available"]), (&json!("open"), &json!(50), &json!(49)));
    assert_eq!(seen["sales"][1]["phase"], "scheduled");
    let kinds = |seen: &Value| -> Vec<String> {
        let alarms = seen["alarms"].as_array().unwrap().iter();
        alarms.map(|alarm| alarm["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&seen), ["drift", "parked"]);
    assert_eq!(seen["drift"], json!(["sale 7"]));
    assert_eq!(seen["alarms"][1]["runbook"], "docs/runbooks/parked.md");
    let waits: Vec<_> =
        seen["work"]["backlog"].as_array().unwrap().iter().map(|row| [&row["kind"], &row["pending"]]).collect();
    assert_eq!(waits, [[&json!("group_placed"), &json!(1)]]);
    let process = &seen["work"]["workers"][0];
    assert_eq!((&process["workers"], &process["alive"]), (&json!(workers), &json!(true)));
    assert_eq!(seen["work"]["instances"].as_array().unwrap().len(), 1);

    let viewer = vic.get("overview").await.body;
    assert_eq!((viewer["sales"].as_array().unwrap().len(), &viewer["work"]), (2, &Value::Null));
    assert_eq!(kinds(&viewer), ["drift", "parked"]);
    assert_eq!(kinds(&root.get("overview").await.body), ["drift", "refusals", "parked"]);
    assert_eq!(kinds(&root.get("alarms").await.body), ["of-a-newer-version", "drift", "refusals", "parked"]);
    assert_eq!(kinds(&vic.get("alarms").await.body), ["drift", "parked"]);
    for (person, knows_the_app) in [(&root, true), (&max, false), (&vic, false)] {
        for path in ["/admin", "/admin/alarms"] {
            assert_eq!(person.page(path).await.1.contains("secret-app"), knows_the_app, "{path}");
        }
    }
    system.stop().await;
}

/// While PostgreSQL is away, a page says so and when to retry. The session stays.
#[tokio::test(flavor = "multi_thread")]
async fn pages_say_that_postgres_is_away() {
    let (system, wire) = wired_with("DATABASE_URL", &[]).await;
    let root = Person::new(&system, "root", AccountRole::Admin).await;
    wire.cut();
    let page = eventually(|| async {
        let request = root.authenticated(browser().get(system.url("/admin")).header(ACCEPT, "text/html"));
        let page = request.send().await.unwrap();
        if page.status() == 503 { Ok(page) } else { Err(page.status().to_string()) }
    })
    .await;
    assert_eq!(header(&page, RETRY_AFTER.as_str()), "1");
    assert_guarded(&page);
    assert!(page.text().await.unwrap().contains("Please try again shortly"));
    wire.mend();
    until(200, || async { root.page("/admin").await.0 }).await;
    system.finish().await;
}

/// Lost rights and a new password apply from the next request on, and each change of an account is in the audit log.
#[tokio::test(flavor = "multi_thread")]
async fn admins_look_after_accounts() {
    let system = System::shared_with(&UNLIMITED).await;
    let [root, ..] = people(&system).await;
    let new = json!({ "name": "new", "role": "viewer", "password": PASSWORD });
    let made = root.post("accounts", new.clone()).await;
    assert_eq!((made.status, &made.body), (201, &json!({ "name": "new", "role": "viewer" })));
    assert_eq!(root.post("accounts", new).await.code(), "409 conflict");
    let [short, plain, long] = [11, 20, 257].map(|length| "z".repeat(length));
    for wrong in [
        json!({ "name": "a b", "role": "viewer", "password": PASSWORD }),
        json!({ "name": "x", "role": "owner", "password": PASSWORD }),
        json!({ "name": "x", "role": "viewer", "password": short }),
        json!({ "name": "x", "role": "viewer", "password": plain }),
        json!({ "name": "x", "role": "viewer", "password": long }),
        json!({ "name": "x", "role": "viewer" }),
        json!({ "name": "x", "role": "viewer", "password": PASSWORD, "surprise": 1 }),
    ] {
        assert_eq!(root.post("accounts", wrong.clone()).await.code(), "400 invalid-request", "{wrong}");
    }
    for (path, wrong) in
        [("accounts/new", json!({ "role": "owner" })), ("accounts/new", json!([])), ("accounts/a%20b", json!({}))]
    {
        assert_eq!(root.put(path, wrong).await.code(), "400 invalid-request", "{path}");
    }
    assert_eq!(root.put("accounts/nobody", json!({ "disabled": true })).await.code(), "404 not-found");

    // A new role applies from the next request on, in the open session.
    let new = Person::sign_in(&system, "new").await;
    assert_eq!(new.get("accounts").await.code(), "403 forbidden");
    assert_eq!(root.put("accounts/new", json!({ "role": "admin" })).await.status, 200);
    assert_eq!(new.get("accounts").await.status, 200);
    assert_eq!(root.put("accounts/new", json!({ "role": "manager" })).await.status, 200);
    assert_eq!(new.get("accounts").await.code(), "403 forbidden");
    // `admin_sessions` has the sessions that a new password or disabling ends.
    let password = json!({ "password": OTHER_PASSWORD });
    assert_eq!(root.put("accounts/new", password).await.status, 200);
    assert_eq!(new.get("session").await.code(), "401 signed-out");
    let visitor = Person::signed_out(&system);
    let sign_in = || visitor.post("session", json!({ "name": "new", "password": OTHER_PASSWORD }));
    assert_eq!(sign_in().await.status, 200);
    assert_eq!(root.put("accounts/new", json!({ "disabled": true })).await.status, 200);
    let listed = async || {
        let listed = root.get("accounts").await.body;
        listed["accounts"].as_array().unwrap().iter().find(|account| account["name"] == "new").unwrap().clone()
    };
    let disabled = listed().await;
    assert_eq!((&disabled["disabled"], &disabled["sessions"]), (&json!(true), &json!(0)), "{disabled}");
    assert_eq!(root.put("accounts/new", json!({ "disabled": false })).await.status, 200);
    assert_eq!(sign_in().await.status, 200);
    // A session counts until it has been idle too long, which is before it ends.
    for (idle, sessions) in [("0 minutes", 1), ("31 minutes", 0)] {
        let seen = "UPDATE sessions SET seen_at = now() - $1::text::interval WHERE account = 'new'";
        sqlx::query(seen).bind(idle).execute(&system.sql).await.unwrap();
        assert_eq!(listed().await["sessions"], sessions, "{idle}");
    }
    // An empty change is no change.
    assert_eq!(root.put("accounts/new", json!({ "role": null, "disabled": false })).await.status, 200);

    let about_new = "SELECT array_agg(action ORDER BY id) FROM audit_log
                     WHERE subject = 'account new' AND actor = 'root'";
    let about_new: Vec<String> = system.value(about_new).await;
    let all = "account created, role changed, role changed, password changed, account disabled, account enabled";
    assert_eq!(about_new.join(", "), all);
    let details = "SELECT details FROM audit_log WHERE action = 'role changed' AND subject = 'account new' ORDER BY id";
    let details: Value = system.value(details).await;
    assert_eq!(details, json!({ "before": "viewer", "after": "admin" }));
}

/// The last admin who can sign in can be neither disabled nor demoted, even when two admins disable each other at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_admin_is_always_left() {
    let mut system = System::without_workers(&[]).await;
    for name in ["ann", "bob"] {
        account(&system, name, AccountRole::Admin).await;
    }
    let (ann, bob) = (Person::sign_in(&system, "ann").await, Person::sign_in(&system, "bob").await);
    let demotion = AccountChange { role: Some(AccountRole::Viewer), ..AccountChange::default() };
    let [name_of_ann, name_of_bob] = ["ann", "bob"].map(|name| AccountName::parse(name, "name").unwrap());
    let (ledger, mut tried) = (&system.stores.ledger, 0);
    let outcomes = loop {
        // Both changes are in flight before either is made: a third transaction holds the accounts' rows.
        let mut held = system.sql.begin().await.unwrap();
        sqlx::query("SELECT FROM accounts FOR UPDATE").execute(&mut *held).await.unwrap();
        let has_ended = Cell::new(false);
        let change = async |name: &AccountName, actor: &str| {
            let outcome = ledger.accounts.change_account(name, &demotion, true, actor).await;
            has_ended.set(true);
            outcome
        };
        let release = async {
            let waits = "SELECT count(*) >= 2 FROM pg_stat_activity
                         WHERE datname = current_database() AND wait_event_type = 'Lock'";
            until(true, || async { system.value::<bool>(waits).await || has_ended.get() }).await;
            held.commit().await.unwrap();
        };
        let (one, other, ()) = tokio::join!(change(&name_of_bob, "ann"), change(&name_of_ann, "bob"), release);
        tried += 1;
        match (one, other) {
            // On a busy machine one may have waited longer for the lock than a transaction may. Then both changes are made again.
            (Err(LedgerError::Locked), _) | (_, Err(LedgerError::Locked)) if tried < 20 => {
                system.execute("UPDATE accounts SET role = 'admin'").await;
            }
            (one, other) => break [one.unwrap(), other.unwrap()],
        }
    };
    assert!(
        outcomes.contains(&AccountOutcome::Changed) && outcomes.contains(&AccountOutcome::LastAdmin),
        "{outcomes:?}"
    );
    let admins = "SELECT name FROM accounts WHERE role = 'admin' AND disabled_at IS NULL";
    let left: Vec<String> = sqlx::query_scalar(admins).fetch_all(&system.sql).await.unwrap();
    let [left] = &left[..] else { panic!("{left:?}") };
    let person = if left == "ann" { &ann } else { &bob };
    for change in
        [json!({ "role": "manager" }), json!({ "disabled": true }), json!({ "role": "viewer", "disabled": true })]
    {
        let refused = person.put(&format!("accounts/{left}"), change.clone()).await;
        assert_eq!(refused.code(), "409 conflict", "{change}");
        let why = if change["role"].is_null() { "last admin" } else { "own account" };
        assert!(refused.body["detail"].as_str().unwrap().contains(why), "{}", refused.body);
    }
    // A refused change is not made in part. A change that leaves the account an admin is allowed.
    let both = json!({ "role": "viewer", "password": OTHER_PASSWORD });
    assert_eq!(person.put(&format!("accounts/{left}"), both).await.code(), "409 conflict");
    Person::sign_in(&system, left).await;
    let same = json!({ "role": "admin", "disabled": false });
    assert_eq!(person.put(&format!("accounts/{left}"), same).await.status, 200);
    // By the command line: the last admin stays one, and another admin is made first.
    let other = if left == "ann" { "bob" } else { "ann" };
    let role = |name: &str, role: &str| seckill(&system, &["admin", "role", name, role], "");
    assert!(role(left, "viewer").unwrap_err().contains("last admin"));
    assert!(role("nobody", "viewer").unwrap_err().contains("there is no account nobody"));
    assert!(role(other, "owner").is_err());
    role(other, "admin").unwrap();
    role(left, "viewer").unwrap();
    let roles: Vec<(String, String)> =
        sqlx::query_as("SELECT name, role FROM accounts ORDER BY role").fetch_all(&system.sql).await.unwrap();
    assert_eq!(roles, [(other.to_owned(), "admin".to_owned()), (left.to_owned(), "viewer".to_owned())]);
    system.stop().await;
}

/// The edge passes the console to the service and caches nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_console_works_behind_the_edge() {
    let system = System::shared_with(&UNLIMITED).await;
    let site = Folder::new("site");
    let edge = Nginx::edge(&[system.instances[0].address], site.path(), &[]).await;
    // A person who is not signed in does not learn which pages exist.
    let sent = browser().get(edge.url("/admin/no/page")).header(ACCEPT, "text/html").send().await.unwrap();
    assert_eq!(header(&sent, LOCATION.as_str()), "/admin/sign-in?then=%2Fadmin%2Fno%2Fpage");
    let root = Person::shared(&system, "root", AccountRole::Admin).await.at(edge.address);
    let page = root.authenticated(browser().get(edge.url("/admin"))).send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert_guarded(&page);
    let page = page.text().await.unwrap();
    let script = page.split('"').find(|word| word.starts_with("/admin/assets/") && word.ends_with(".js")).unwrap();
    let script = browser().get(edge.url(script)).send().await.unwrap();
    assert_eq!(header(&script, CACHE_CONTROL.as_str()), "public, max-age=31536000, immutable");
    // A page of ours behind the edge can change something; its address is the edge's.
    let new = Some(json!({ "name": "edged", "role": "viewer", "password": PASSWORD }));
    let made = eventually(|| async {
        let made = root.request("POST", "accounts", new.clone()).header(ORIGIN, edge.url("")).send().await.unwrap();
        // On a busy machine a password may take too long to hash.
        if made.status() == 503 { Err("503".to_owned()) } else { Ok(made) }
    })
    .await;
    assert_eq!(made.status(), 201);
    // A path that only begins like the console's is a published file, or 404.
    assert_eq!(browser().get(edge.url("/administrator")).send().await.unwrap().status(), 404);
}
