//! The rights of each role at each route, and the requests that another site can cause (docs/protocol.md, Abuse: A10, A11).

use std::collections::{BTreeMap, BTreeSet};

use reqwest::header::{ACCEPT, CONTENT_TYPE, ORIGIN};
use reqwest::redirect::Policy as Redirects;
use reqwest::{Client, RequestBuilder};
use seckill_backoffice::console::{Access, pages};
use seckill_domain::account::AccountRole;
use seckill_domain::policy::{Name, Role};
use seckill_flow::policy_changes;

use Who::{Admins, Anyone, OperatingShop, Operators, OwningShop, SeeingShop, SignedIn};

use crate::backoffice::admin_api::{Person, account, granted, send};
use crate::document::api_document::write_decisions;
use crate::flow::permits_and_policies::{a_day, policy, set};
use crate::orders::payments_and_callbacks;
use crate::pages::served_pages as buyers_pages;
use seckill_harness::{System, eventually, terms};
use serde_json::Value;

const API: &str = "/api/v1/admin/";

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// Signed in or not.
    Anyone,
    SignedIn,
    /// Managers and admins.
    Operators,
    Admins,
    /// Accounts that see the application `shop`.
    SeeingShop,
    /// Accounts that may change the policies of `shop`.
    OwningShop,
    /// As `OwningShop`, on a page that viewers do not use.
    OperatingShop,
}

/// The people of these tests. Each has a password and a session; `owner` and `seer` were granted the application `shop`.
const PEOPLE: [(&str, AccountRole, Option<Role>); 5] = [
    ("seer", AccountRole::Viewer, Some(Role::Viewer)),
    ("viewer", AccountRole::Viewer, None),
    ("owner", AccountRole::Manager, Some(Role::Owner)),
    ("manager", AccountRole::Manager, None),
    ("root", AccountRole::Admin, None),
];

impl Who {
    /// The status for a person without the right: 404, as for a missing object, or 403.
    fn refuses(self, name: &str) -> Option<u16> {
        match (self, name) {
            (Anyone | SignedIn, _) | (_, "root") | (Operators, "owner" | "manager") => None,
            (SeeingShop, "owner" | "seer") | (OwningShop | OperatingShop, "owner") => None,
            (SeeingShop | OwningShop, "viewer" | "manager") | (OperatingShop, "manager") => Some(404),
            _ => Some(403),
        }
    }

    /// The access of a page with this rule in the console's table.
    fn access(self) -> Access {
        match self {
            Anyone | SignedIn | SeeingShop | OwningShop => Access::Viewers,
            Operators | OperatingShop => Access::Operators,
            Admins => Access::Admins,
        }
    }
}

/// A route, its users, and a request that succeeds for at least one of them.
pub struct Rule {
    pub route: &'static str,
    who: Who,
    /// The values of the route's parameters, and a query. What begins with `$` is looked up in the tables (`LOOKED_UP`).
    values: &'static str,
    /// JSON, for methods that have a body, but for a picture.
    pub body: &'static str,
}

const fn rule(route: &'static str, who: Who, values: &'static str, body: &'static str) -> Rule {
    Rule { route, who, values, body }
}

/// The only route with a body that takes no JSON.
const PICTURE: &str = "PUT /api/v1/admin/products/{name}/picture";

/// The ids that the tables give to the rows of `staffed`.
const LOOKED_UP: [(&str, &str); 7] = [
    ("$alarm", "SELECT id::text FROM alarms WHERE kind = 'drift' ORDER BY id LIMIT 1"),
    ("$order", "SELECT id::text FROM orders ORDER BY created_at DESC LIMIT 1"),
    ("$callback", "SELECT id::text FROM callbacks_set_aside LIMIT 1"),
    ("$refund", "SELECT id::text FROM refunds ORDER BY id LIMIT 1"),
    (
        "$message",
        "SELECT id::text FROM outbox WHERE kind = 'group_expire' AND due_at > now() + interval '12 hours' LIMIT 1",
    ),
    ("$item", "SELECT id::text FROM outflow_items WHERE channel = 'letters' LIMIT 1"),
    ("$draft", "SELECT id::text FROM sale_drafts ORDER BY updated_at, id LIMIT 1"),
];

pub const WINDOW: &str = r#"{"apps": ["shop"], "algorithm": "fixed-window", "limit": 5, "window_ms": 60000}"#;

/// The rule of every route. They are tried from the top, starting with the fewest rights.
pub const RULES: &[Rule] = &[
    rule("GET /api/v1/admin/session", SignedIn, "", ""),
    rule("GET /api/v1/admin/overview", SignedIn, "", ""),
    rule("GET /api/v1/admin/accounts", Admins, "", ""),
    rule(
        "POST /api/v1/admin/accounts",
        Admins,
        "",
        r#"{"name": "fresh", "role": "viewer", "password": "a password of the tests"}"#,
    ),
    rule("PUT /api/v1/admin/accounts/{name}", Admins, "spare", r#"{"role": "manager"}"#),
    rule("GET /api/v1/admin/policies", SignedIn, "", ""),
    rule("PUT /api/v1/admin/policies/{name}", OwningShop, "p", WINDOW),
    rule("POST /api/v1/admin/policies/{name}/preview", OwningShop, "p", WINDOW),
    rule("DELETE /api/v1/admin/policies/{name}", OwningShop, "gone?app=shop", ""),
    rule("GET /api/v1/admin/apps", SignedIn, "", ""),
    rule("POST /api/v1/admin/apps", Admins, "", r#"{"name": "fresh"}"#),
    rule("POST /api/v1/admin/apps/{name}/tokens", Admins, "shop", r#"{"overlap_ms": 0}"#),
    rule("PUT /api/v1/admin/grants", Admins, "", r#"{"app": "shop", "account": "spare", "role": "viewer"}"#),
    rule("GET /api/v1/admin/audit-log", Admins, "?actor=root&limit=5", ""),
    rule("GET /api/v1/admin/alarms", SignedIn, "", ""),
    rule("PUT /api/v1/admin/alarms/{id}/acknowledgement", Operators, "$alarm", r#"{"note": "known"}"#),
    rule("PUT /api/v1/admin/alarms/{id}/mute", Operators, "$alarm", r#"{"minutes": 60, "note": "known"}"#),
    rule("DELETE /api/v1/admin/alarms/{id}/mute", Operators, "$alarm", ""),
    rule("GET /api/v1/admin/sales", SignedIn, "", ""),
    rule("POST /api/v1/admin/sales", Operators, "", r#"{"product": "Planned", "price_cents": 100, "stock": 5}"#),
    rule("GET /api/v1/admin/drafts", Operators, "", ""),
    rule("POST /api/v1/admin/drafts", Operators, "", r#"{"product": "Planned", "form": []}"#),
    rule("GET /api/v1/admin/drafts/{id}", Operators, "$draft", ""),
    rule("PUT /api/v1/admin/drafts/{id}", Operators, "$draft", r#"{"product": "Changed", "form": []}"#),
    rule("DELETE /api/v1/admin/drafts/{id}", Operators, "$draft", ""),
    rule("GET /api/v1/admin/sales/{id}", SignedIn, "1", ""),
    rule("PATCH /api/v1/admin/sales/{id}", Operators, "1", r#"{"show_stock": true}"#),
    rule("GET /api/v1/admin/sales/{id}/lapsed-holds", Operators, "1", ""),
    rule("GET /api/v1/admin/sales/{id}/activity", Operators, "1?buyer=ann", ""),
    rule("PUT /api/v1/admin/sales/{id}/blocks", Operators, "1?buyer=mallory", r#"{"note": "a bot"}"#),
    rule("GET /api/v1/admin/sales/{id}/blocks", Operators, "1", ""),
    rule("DELETE /api/v1/admin/sales/{id}/blocks", Operators, "1?buyer=mallory", ""),
    rule("GET /api/v1/admin/sales/{id}/live", SignedIn, "1", ""),
    rule("PUT /api/v1/admin/sales/{id}/status", Operators, "1", r#"{"status": "paused"}"#),
    rule("POST /api/v1/admin/sales/{id}/stock", Operators, "1", r#"{"units": 1}"#),
    rule("DELETE /api/v1/admin/sales/{id}", Operators, "2", ""),
    rule("PUT /api/v1/admin/products/{name}/name", Operators, "Named", r#"{"name": "Renamed"}"#),
    rule("DELETE /api/v1/admin/products/{name}", Operators, "Removed", ""),
    rule("PUT /api/v1/admin/products/{name}", Operators, "Phone", r#"{"description": "New"}"#),
    rule(PICTURE, Operators, "Phone", "a picture"),
    rule("DELETE /api/v1/admin/products/{name}/picture", Operators, "Phone", ""),
    rule("GET /api/v1/admin/orders", SignedIn, "", ""),
    rule("GET /api/v1/admin/orders.csv", Operators, "", ""),
    rule("GET /api/v1/admin/orders/{id}", SignedIn, "$order", ""),
    rule("POST /api/v1/admin/orders/{id}/refunds", Operators, "$order", r#"{"reason": "broken"}"#),
    rule("POST /api/v1/admin/buyers/erasures", Operators, "", r#"{"user": "a buyer of nothing"}"#),
    rule("GET /api/v1/admin/payments", Operators, "", ""),
    rule("GET /api/v1/admin/payments/conflicts", Operators, "", ""),
    rule("POST /api/v1/admin/payments/conflicts/{id}/settle", Operators, "$callback", "{}"),
    rule("GET /api/v1/admin/refunds", Operators, "", ""),
    rule("POST /api/v1/admin/refunds/{id}/retry", Operators, "$refund", "{}"),
    rule("GET /api/v1/admin/outbox", Operators, "", ""),
    rule("POST /api/v1/admin/outbox/{id}/retry", Operators, "$message", "{}"),
    rule("POST /api/v1/admin/outbox/retry", Operators, "", r#"{"kind": "group_placed"}"#),
    rule("GET /api/v1/admin/outflows", Operators, "", ""),
    rule("PUT /api/v1/admin/outflows/{name}", Operators, "letters", r#"{"paused": true}"#),
    rule("GET /api/v1/admin/outflow-items", Operators, "", ""),
    rule("POST /api/v1/admin/outflow-items/{id}/retry", Operators, "$item", "{}"),
    rule("POST /api/v1/admin/outflows/{name}/retry", Operators, "letters", "{}"),
    rule("GET /admin", SignedIn, "", ""),
    rule("GET /admin/sales", SignedIn, "", ""),
    rule("GET /admin/sales/new", Operators, "", ""),
    rule("GET /admin/sales/{id}/edit", Operators, "1", ""),
    rule("GET /admin/sales/{id}", SignedIn, "1", ""),
    rule("GET /admin/sales/{id}/live", SignedIn, "1", ""),
    rule("GET /admin/sales/{id}/report", SignedIn, "1", ""),
    rule("GET /admin/sales/{id}/activity", Operators, "1?address=203.0.113.9", ""),
    rule("GET /admin/products", Operators, "?name=Phone", ""),
    rule("GET /admin/orders", SignedIn, "", ""),
    rule("GET /admin/orders/{id}", SignedIn, "$order", ""),
    rule("GET /admin/payments", Operators, "", ""),
    rule("GET /admin/refunds", Operators, "", ""),
    rule("GET /admin/outflows", Operators, "", ""),
    rule("GET /admin/outbox", Operators, "", ""),
    rule("GET /admin/policies", SignedIn, "", ""),
    rule("GET /admin/policies/new", Operators, "", ""),
    rule("GET /admin/policies/draft", OperatingShop, "?app=shop&name=new", ""),
    rule("GET /admin/policies/{app}/{name}", SeeingShop, "shop/p", ""),
    rule("GET /admin/apps", Admins, "", ""),
    rule("GET /admin/alarms", SignedIn, "", ""),
    rule("GET /admin/runbooks", SignedIn, "", ""),
    rule("GET /admin/runbooks/{name}", SignedIn, "parked", ""),
    rule("GET /admin/accounts", Admins, "", ""),
    rule("GET /admin/audit-log", Admins, "", ""),
    // What ends the person's own session stands last.
    rule("POST /api/v1/admin/session", Anyone, "", r#"{"name": "spare", "password": "a password of the tests"}"#),
    rule("DELETE /api/v1/admin/session", SignedIn, "", ""),
    rule("DELETE /api/v1/admin/sessions", SignedIn, "", ""),
];

impl Rule {
    fn method(&self) -> &'static str {
        self.route.split(' ').next().unwrap()
    }

    pub fn address(&self) -> String {
        let (values, query) = self.values.find('?').map_or((self.values, ""), |at| self.values.split_at(at));
        let mut values = values.split('/');
        let parts = self.route.split(' ').nth(1).unwrap().split('/');
        let filled = parts.map(|part| if part.starts_with('{') { values.next().unwrap() } else { part });
        filled.collect::<Vec<_>>().join("/") + query
    }

    pub fn is_page(&self) -> bool {
        !self.address().starts_with(API)
    }

    /// Whether a request changes something, and so must come from a page of ours.
    fn changes(&self) -> bool {
        self.method() != "GET"
    }

    async fn url(&self, system: &System) -> String {
        system.url(&looked_up(system, self.address()).await)
    }

    /// The query of a request that succeeds.
    pub fn query(&self) -> Option<&str> {
        self.values.split_once('?').map(|(_, query)| query)
    }

    /// The values of the route's parameters.
    pub async fn value(&self, system: &System) -> String {
        looked_up(system, self.values.split('?').next().unwrap().to_owned()).await
    }

    /// The console's request, without authentication.
    async fn request(&self, system: &System) -> RequestBuilder {
        let browser = Client::builder().redirect(Redirects::none()).build().unwrap();
        let request = browser.request(self.method().parse().unwrap(), self.url(system).await);
        match self {
            _ if self.is_page() => request.header(ACCEPT, "text/html"),
            Self { route: PICTURE, .. } => {
                request.header(CONTENT_TYPE, "image/png").body(buyers_pages::png(20, 20, [1, 2, 3]))
            }
            Self { body: "", .. } => request,
            _ => request.header(CONTENT_TYPE, "application/json").body(self.body),
        }
    }

    /// Status and text of the answer, repeated while the service is too busy. Without a person, the request is not signed in.
    pub async fn answer(&self, system: &System, person: Option<&Person>) -> (u16, String) {
        eventually(|| async {
            let request = self.request(system).await;
            let request = person.map_or(request.try_clone().unwrap(), |person| person.authenticated(request));
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            // A stream has no end.
            let is_stream = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
            let text = if is_stream { String::new() } else { answer.text().await.unwrap() };
            if status == 503 { Err(format!("{}: {text}", self.route)) } else { Ok((status, text)) }
        })
        .await
    }
}

async fn looked_up(system: &System, mut text: String) -> String {
    for (name, sql) in LOOKED_UP {
        if text.contains(name) {
            text = text.replace(name, &system.value::<String>(sql).await);
        }
    }
    text
}

/// A system with the people, their application, and the objects that the rules name.
pub async fn staffed() -> (System, BTreeMap<&'static str, Person>) {
    let mut system = System::start_with(&[("SECKILL_ADMIN__LOGIN_LIMIT", "10000")]).await;
    let (kept, spare) = (system.create_sale(terms(5)).await, system.create_sale(terms(5)).await);
    assert_eq!((kept.id.get(), spare.id.get()), (1, 2));
    write_decisions(&system, &kept).await;
    let sold = system.create_sale(terms(1)).await;
    let order = payments_and_callbacks::order(&system, &sold, "ann").await;
    payments_and_callbacks::paid(&system, order, "ann").await;
    // From here on without workers, so that nothing changes by itself.
    system.stop().await;
    system.execute("DELETE FROM alarms").await;
    system.execute("INSERT INTO alarms (kind, subject) VALUES ('drift', 'sale 1')").await;
    system.execute("INSERT INTO products (name) VALUES ('Named'), ('Removed')").await;
    system.serve(false).await;
    let name = |text| Name::parse(text, "name").unwrap();
    policy_changes::create_app(&system.stores.ledger, &name("shop"), "test").await.unwrap();
    for named in ["p", "gone"] {
        set(&system, policy("shop", named, a_day(5))).await;
    }
    // Each person may remove one.
    let drafts =
        "INSERT INTO sale_drafts (product, form, updated_by) SELECT '', '[]', 'test' FROM generate_series(1, 20)";
    system.execute(drafts).await;
    account(&system, "spare", AccountRole::Viewer).await;
    let mut people = BTreeMap::new();
    for (name, role, grant) in PEOPLE {
        account(&system, name, role).await;
        if let Some(role) = grant {
            granted(&system, name, &[("shop", role)]).await;
        }
        people.insert(name, Person::sign_in(&system, name).await);
    }
    (system, people)
}

/// The routes of the admin API and of the console.
fn routes() -> BTreeSet<String> {
    let document = seckill::api::api_document(true, utoipa::openapi::OpenApi::default(), &[]).unwrap();
    let document: Value = serde_json::from_slice(&document.json.plain).unwrap();
    let paths = document["paths"].as_object().unwrap().iter().filter(|(path, _)| path.starts_with(API));
    let routes = paths.flat_map(|(path, item)| {
        item.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    routes.chain(pages().into_iter().map(|(path, _)| format!("GET {path}"))).collect()
}

/// A new route needs a rule here, and the console's table must agree with it.
#[test]
fn every_route_has_a_rule() {
    let ruled: BTreeSet<String> = RULES.iter().map(|rule| rule.route.to_owned()).collect();
    assert_eq!(ruled.len(), RULES.len(), "a route has two rules");
    assert_eq!(routes(), ruled, "the routes of the tables, and the routes that have a rule");
    let of_table: BTreeMap<String, Access> =
        pages().into_iter().map(|(path, access)| (format!("GET {path}"), access)).collect();
    let of_rules: BTreeMap<String, Access> =
        RULES.iter().filter(|rule| rule.is_page()).map(|rule| (rule.route.to_owned(), rule.who.access())).collect();
    assert_eq!(of_table, of_rules);
}

/// A10: every role on every route, the users of an application, and requests without a session.
#[tokio::test(flavor = "multi_thread")]
async fn every_role_is_held_to_the_rule_of_every_route() {
    let (system, mut people) = staffed().await;
    for rule in RULES {
        let (status, text) = rule.answer(&system, None).await;
        let expected = match (rule.who, rule.is_page()) {
            (Anyone, _) => 200,
            (_, true) => 303,
            (_, false) => 401,
        };
        assert_eq!(status, expected, "signed out: {}: {text}", rule.route);
        let mut succeeded = false;
        for (name, ..) in PEOPLE {
            let (status, text) = rule.answer(&system, Some(&people[name])).await;
            let what = format!("{name}: {}: {status} {text}", rule.route);
            match rule.who.refuses(name) {
                // A thing deleted or created by one person cannot be deleted or created by the next.
                None => assert!(status < 300 || matches!(status, 404 | 409), "{what}"),
                Some(refusal) => assert!(status == refusal && !text.contains("forged-request"), "{what}"),
            }
            succeeded |= status < 300;
        }
        assert!(succeeded, "nobody succeeds: {}", rule.route);
        if rule.changes() && rule.route.contains("/session") {
            for (name, ..) in PEOPLE {
                people.insert(name, Person::sign_in(&system, name).await);
            }
        }
    }
    system.finish().await;
}

/// No address for viewers shows who buys, or from where. Reading further pages about a buyer's actions leaves a line in the audit log.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_learn_no_buyer_and_whoever_reads_on_is_logged() {
    const BUYER: &str = "somebody-7f3a";
    const ADDRESS: &str = "10.77.5.1";
    let (system, people) = staffed().await;
    let order = "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, created_at, expires_at, group_id)
                 VALUES (gen_random_uuid(), 1, $1, 1, 100, 'CNY', 'pending_payment', now(), now() + interval '1 hour', gen_random_uuid())";
    sqlx::query(order).bind(BUYER).execute(&system.sql).await.unwrap();
    let lapsed = "INSERT INTO lapsed_holds (order_id, sale_id, user_id, address, quantity)
                  VALUES (gen_random_uuid(), 1, $1, $2, 1)";
    sqlx::query(lapsed).bind(BUYER).bind(ADDRESS).execute(&system.sql).await.unwrap();

    let (mut told, searched) = (BTreeSet::new(), format!("/api/v1/admin/orders?user={BUYER}"));
    let mut addresses = vec![searched.clone(), "/api/v1/admin/sales/1/lapsed-holds?by=address".to_owned()];
    addresses.extend(RULES.iter().filter(|rule| !rule.changes()).map(Rule::address));
    for address in &addresses {
        let route = Box::leak(format!("GET {address}").into_boxed_str());
        let rule = Rule { route, who: SignedIn, values: "", body: "" };
        for (name, role, _) in PEOPLE {
            let (status, text) = rule.answer(&system, Some(&people[name])).await;
            let tells = text.contains(BUYER) || text.contains(ADDRESS);
            assert!(!tells || role != AccountRole::Viewer, "{name}: {address}: {text}");
            assert!(status < 500, "{name}: {address}: {text}");
            if tells {
                told.insert(address.as_str());
            }
        }
    }
    let all = [
        "/admin/orders",
        "/admin/orders/$order",
        "/admin/sales/1",
        "/api/v1/admin/orders",
        "/api/v1/admin/orders.csv",
        "/api/v1/admin/orders/$order",
        &searched,
        "/api/v1/admin/sales/1/lapsed-holds",
        "/api/v1/admin/sales/1/lapsed-holds?by=address",
    ];
    assert_eq!(told, all.into(), "where managers and admins see the buyer");
    // A viewer who knows a buyer's id finds the buyer's orders.
    let found = people["viewer"].get(&format!("orders?user={BUYER}")).await.body;
    assert_eq!(found["orders"].as_array().unwrap().len(), 1, "{found}");

    let lines = async || -> Vec<String> {
        let lines = "SELECT actor || ' ' || subject FROM audit_log WHERE action = 'read list' ORDER BY id";
        sqlx::query_scalar(lines).fetch_all(&system.sql).await.unwrap()
    };
    assert_eq!(lines().await, Vec::<String>::new(), "first pages");
    for name in ["viewer", "manager"] {
        let next = people[name].get("orders?limit=1").await.body["next_before"].clone();
        let second = format!("orders?limit=1&before={}", next.as_str().unwrap());
        assert_eq!(people[name].get(&second).await.status, 200);
    }
    assert_eq!(lines().await, ["manager orders"]);
    let next = people["root"].get("orders?limit=1").await.body["next_before"].clone();
    let page = format!("/admin/orders?before={}", next.as_str().unwrap());
    assert_eq!(people["root"].page(&page).await.0, 200);
    for list in ["payments", "refunds", "payments/conflicts", "outbox", "outflow-items", "sales/1/lapsed-holds"] {
        assert_eq!(people["root"].get(&format!("{list}?limit=101")).await.status, 200, "{list}");
    }
    let read = ["orders", "payments", "refunds", "callbacks", "outbox", "outflow items", "lapsed holds"];
    assert_eq!(lines().await.join(", "), format!("manager orders, root {}", read.join(", root ")));
    system.finish().await;
}

/// A hash of each table's rows, without the tables that record visits.
async fn contents(system: &System) -> BTreeMap<String, String> {
    let tables = "SELECT table_name::text FROM information_schema.tables
                  WHERE table_schema = 'public' AND table_type = 'BASE TABLE'";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&system.sql).await.unwrap();
    // Heartbeats, and marks of every request, with or without a change.
    let others = "sessions instances worker_processes audit_counts audit_log sign_in_addresses outflow_depths";
    let mut contents = BTreeMap::new();
    for table in tables.into_iter().filter(|table| others.split(' ').all(|other| other != table)) {
        let rows = format!("SELECT coalesce(md5(string_agg(t::text, '|' ORDER BY t::text)), '') FROM \"{table}\" AS t");
        let hash = system.value(sqlx::AssertSqlSafe(rows)).await;
        contents.insert(table, hash);
    }
    // Of the audit log, only lines about changes. An export changes nothing, and is logged.
    let changes = "SELECT count(*)::text FROM audit_log WHERE action NOT IN ('refused', 'signed in', 'export orders')";
    contents.insert("changes".to_owned(), system.value(changes).await);
    contents
}

/// A11: our pages alone know the session's token and send JSON from our origin. No page and no read changes anything.
#[tokio::test(flavor = "multi_thread")]
async fn no_route_is_changed_by_what_another_site_could_send() {
    let (system, people) = staffed().await;
    let before = contents(&system).await;
    forge(&system, &people["root"]).await;
    assert_eq!(contents(&system).await, before, "a forged request has changed something");
    read(&system, &people).await;
    assert_eq!(contents(&system).await, before, "reading has changed something");
    system.finish().await;
}

/// Sends every change as another site could. Each is refused, and ends no session.
async fn forge(system: &System, root: &Person) {
    let other = Person::sign_in(system, "root").await;
    let others_token = other.get("session").await.body["csrf_token"].as_str().unwrap().to_owned();
    for rule in RULES.iter().filter(|rule| rule.changes()) {
        let url = rule.url(system).await;
        let typed = |kind: Option<&str>| {
            let browser = Client::new();
            let request = browser.request(rule.method().parse().unwrap(), &url).body(rule.body);
            let request = root.authenticated(request);
            kind.map_or(request.try_clone().unwrap(), |kind| request.header(CONTENT_TYPE, kind))
        };
        let mut forged = vec![
            ("foreign origin", root.authenticated(rule.request(system).await).header(ORIGIN, "https://evil.example")),
            ("no origin that can be named", root.authenticated(rule.request(system).await).header(ORIGIN, "null")),
            ("form", typed(Some("application/x-www-form-urlencoded"))),
            ("form with files", typed(Some("multipart/form-data; boundary=x"))),
            ("text", typed(Some("text/plain"))),
        ];
        if rule.who != Anyone {
            // Signing in has no session yet, and so no token.
            forged.push(("no token", root.forged().authenticated(rule.request(system).await)));
            let request = root.forged().authenticated(rule.request(system).await);
            forged.push(("the token of another session", request.header("x-csrf-token", &others_token)));
            let request = root.forged().authenticated(rule.request(system).await);
            forged.push(("an invented token", request.header("x-csrf-token", "0".repeat(64))));
        }
        if !rule.body.is_empty() {
            forged.push(("no type", typed(None)));
        }
        for (what, request) in forged {
            assert_eq!(send(request).await.code(), "403 forged-request", "{what}: {}", rule.route);
        }
    }
    for person in [root, &other] {
        assert_eq!(person.get("session").await.status, 200, "a forged request has ended a session");
    }
}

/// Each person reads every address. A page takes no other method.
async fn read(system: &System, people: &BTreeMap<&str, Person>) {
    for rule in RULES.iter().filter(|rule| !rule.changes()) {
        for person in people.values() {
            rule.answer(system, Some(person)).await;
        }
        if rule.is_page() {
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                let request = Client::new().request(method.parse().unwrap(), rule.url(system).await);
                let answer = people["root"].authenticated(request).send().await.unwrap();
                assert_eq!(answer.status(), 405, "{method} {}", rule.address());
            }
        }
    }
}
