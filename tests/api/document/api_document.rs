//! The API document, compared with the live service.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use crate::backoffice::admin_api::{self, Person};
use crate::backoffice::console_rights::RULES;
use crate::buying::challenges::{EASY, guarded, solved};
use crate::buying::purchase_limits::answered;
use crate::flow::permits_and_policies;
use crate::orders::payments_and_callbacks::{self, Callback};
use crate::pages::served_pages as pages;
use seckill_domain::account::AccountRole;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::ids::Units;
use seckill_domain::outflow::Pace;
use seckill_domain::policy::Name;
use seckill_domain::sale::{NewSale, SaleStatus};
use seckill_domain::sale_blocks::Shopper;
use seckill_flow::policy_changes;
use seckill_harness::api_document::Document;
use seckill_harness::{Answer, Sale, System, eventually, terms};

/// Answers that are the same for all callers, which caches may keep.
const KEPT: [&str; 6] = ["/", "/sales/{id}", "/orders", "/docs", "/api/openapi.json", "/api/v1/payments/channels"];

const PURCHASES: &str = "/api/v1/sales/{id}/purchases";

async fn served(system: &System) -> Document {
    let (status, document) = system.get("/api/openapi.json", None).await;
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));
    Document(document)
}

/// Asserts that the document lists the answer: status, content type, headers, and a body that fits the schema.
fn assert_lists(document: &Document, method: &str, path: &str, answer: &Answer) {
    let what = format!("{method} {path}: {} {:?}", answer.code(), answer.headers);
    let listed = &document.operation(method, path)["responses"][answer.status.to_string()];
    assert!(listed.is_object(), "not in the document: {what}");
    for name in listed["headers"].as_object().into_iter().flat_map(|headers| headers.keys()) {
        assert!(answer.headers.contains_key(name.as_str()), "without {name}: {what}");
    }
    let Some(content_type) = answer.headers.get(CONTENT_TYPE) else {
        assert!(answer.body == "" && listed["content"].is_null(), "a body without a type: {what}");
        return;
    };
    let content_type = content_type.to_str().unwrap();
    let content = &listed["content"][content_type];
    assert!(content.is_object(), "another content type is listed: {what}");
    // The body's schema, together with the components that it refers to.
    let schema = json!({ "allOf": [content["schema"]], "components": document.0["components"] });
    let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
    let errors: Vec<_> = validator.iter_errors(&answer.body).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{what}: {errors:?} in {}", answer.body);
}

async fn read(mut response: Response) -> Answer {
    // The stream of a live page has no end.
    if response.url().path().ends_with("/live") && response.status() == 200 {
        let text = String::from_utf8(response.chunk().await.unwrap().unwrap().to_vec()).unwrap();
        return Answer { status: 200, body: Value::String(text), headers: response.headers().clone() };
    }
    Answer::of(response).await
}

/// No cache keeps an answer that depends on its caller.
fn assert_not_kept(path: &str, answer: &Answer) {
    let cached: Vec<_> = answer.headers.get_all(CACHE_CONTROL).iter().collect();
    assert_eq!(cached.len(), 1, "{path}: {cached:?}");
    if !KEPT.contains(&path) || answer.status < 300 {
        assert_eq!(cached[0] == "no-store", !KEPT.contains(&path), "{path}: {cached:?}");
    }
}

/// HEAD gets the status and the fields of GET, and no body.
async fn assert_same_head(http: &Client, get: &RequestBuilder, answer: &Answer, path: &str) {
    let fields = |headers: &HeaderMap| -> BTreeSet<String> {
        headers.keys().map(|name| name.as_str().to_owned()).filter(|name| name != "transfer-encoding").collect()
    };
    let expected = (answer.status, fields(&answer.headers));
    eventually(|| async {
        let mut head = get.try_clone().unwrap().build().unwrap();
        *head.method_mut() = Method::HEAD;
        let headed = http.execute(head).await.unwrap();
        let found = (headed.status().as_u16(), fields(headed.headers()));
        assert_eq!(headed.bytes().await.unwrap(), "", "{path}");
        (found == expected).then_some(()).ok_or(format!("HEAD {path}: {found:?} instead of {expected:?}"))
    })
    .await;
}

const CALLBACKS: &str = "/api/v1/payments/callbacks/{channel}";
/// The prefix of the addresses for gateways.
const AUTHORIZE: &str = "/api/v1/flow/authorize";
const UNKNOWN_ORDER: &str = "00000000-0000-0000-0000-000000000000";

fn filled(path: &str, value: &str) -> String {
    ["{id}", "{name}", "{channel}", "{path}"].iter().fold(path.to_owned(), |path, part| path.replace(part, value))
}

/// Writes decisions for operators: a refused refund, a parked item, a parked message, and a callback that contradicts our books.
pub async fn write_decisions(system: &System, sale: &Sale) {
    let other = system.create_sale(terms(1)).await;
    let order = payments_and_callbacks::order(system, &other, "ann").await;
    payments_and_callbacks::paid(system, order, "ann").await;
    let asked = payments_and_callbacks::post(system, order, "refunds", "ann", json!({ "reason": "" })).await;
    assert_eq!(asked.code(), "202");
    let ledger = &system.stores.ledger;
    ledger
        .outflows
        .create_outflow("letters", Pace::parse(10, 15).unwrap(), "http://127.0.0.1:9", 9, "test")
        .await
        .unwrap();
    ledger.payments.set_aside("sandbox", "msg_1", "test", "{}").await.unwrap();
    let refused = "UPDATE refunds SET status = 'failed', ended_at = now();
                   INSERT INTO outflow_items (id, channel, key, payload, status, last_error)
                   VALUES (gen_random_uuid(), 'letters', 'k', '{}', 'parked', 'test')";
    system.execute(refused).await;
    // The expiry of an order that does not exist, tomorrow.
    let message = "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, due_at, status, last_error)
                   VALUES ('group_expire', gen_random_uuid(), $1, 1, 0, now() + interval '1 day', 'parked', 'test')";
    system.change(message, sale).await;
}

/// Calls every operation correctly and incorrectly.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_one_that_the_document_lists() {
    let system = System::start_with(&[&EASY[..], &[("SECKILL_ADMIN__LOGIN_LIMIT", "1000")]].concat()).await;
    let document = served(&system).await;
    // The sales 1 and 2 of `console_rights`, which has requests of the admin API.
    for _ in 0..2 {
        system.create_sale(terms(5)).await;
    }
    let sale = system.create_sale(terms(50)).await;
    let guarded = system.create_sale(guarded(CaptchaKind::Work, 50, 1)).await;
    let picture = pages::png(20, 20, [1, 2, 3]);
    let http = Client::new();
    let order = payments_and_callbacks::bought(&system, &sale, "ann").await.to_string();
    system.settled(&sale).await;
    let mut apps = BTreeMap::new();
    for app in ["ann", "bob", "shop"] {
        let name = Name::parse(app, "name").unwrap();
        apps.insert(app, policy_changes::create_app(&system.stores.ledger, &name, "test").await.unwrap());
    }
    let (mut to_pay, mut to_refund) = (Vec::new(), Vec::new());
    for kept in [&mut to_pay, &mut to_refund] {
        let sale = system.create_sale(terms(1)).await;
        kept.push(payments_and_callbacks::order(&system, &sale, "ann").await);
    }
    let payment = payments_and_callbacks::paid(&system, to_refund[0], "ann").await;
    write_decisions(&system, &sale).await;
    system
        .execute(
            "INSERT INTO products (name) VALUES ('Named'), ('Removed');
             INSERT INTO pictures (hash, small_width, small_height, small, large_width, large_height, large)
             VALUES (repeat('a', 32), 1, 1, 'x', 1, 1, 'x');
             UPDATE products SET picture = repeat('a', 32) WHERE name = 'Phone';
             INSERT INTO alarms (kind, subject, seen_at) VALUES ('drift', 'sale 1', 'infinity');
             INSERT INTO alarm_mutes (kind, subject, until, muted_by, note) VALUES ('drift', 'sale 1', now() + interval '1 day', 'test', 'x');
             INSERT INTO sale_blocks (sale_id, kind, name, note, blocked_by) VALUES (1, 'buyer', 'mallory', 'x', 'test')",
        )
        .await;
    for (name, role) in [("ann", AccountRole::Admin), ("bob", AccountRole::Viewer), ("spare", AccountRole::Viewer)] {
        admin_api::account(&system, name, role).await;
    }
    let mut people = BTreeMap::new();
    for (method, path, _) in document.operations() {
        // Made here, because the service accepts it for a few minutes only.
        let callback = Callback::of("payment.succeeded", payment, ("order_id", to_refund[0]), 100);
        let route = format!("{method} {path}");
        let rule = RULES.iter().find(|rule| rule.route == route);
        let known = match (path, rule) {
            _ if path.ends_with("/payments") => to_pay[0].to_string(),
            _ if path.ends_with("/refunds") => to_refund[0].to_string(),
            ("/api/v1/admin/orders/{id}", _) => order.clone(),
            _ if path.starts_with("/api/v1/orders") => order.clone(),
            (CALLBACKS, _) => "sandbox".into(),
            _ if path.starts_with("/api/v1/products/") => {
                system.count("SELECT product_id FROM sales WHERE id = $1", &sale).await.to_string()
            }
            _ if path.ends_with("/challenges") || path.ends_with("/passes") => guarded.id.to_string(),
            (_, Some(rule)) => rule.value(&system).await,
            _ => sale.id.to_string(),
        };
        let unknown = if known.parse::<Uuid>().is_ok() { UNKNOWN_ORDER } else { "999999" };
        let for_apps = path.starts_with("/api/v1/flow/");
        let body = match path {
            _ if path.ends_with("/acquire") => json!({ "app": "ann", "policy": "p" }),
            _ if path.ends_with("/release") => json!({ "app": "ann", "policy": "p", "lease": format!("{order}.0") }),
            CALLBACKS => serde_json::from_str(&callback.body()).unwrap(),
            _ if path.ends_with("/challenges") => json!({}),
            _ if path.ends_with("/passes") => solved(&system, &guarded, "ann").await,
            _ if path.ends_with("/payments") => json!({ "channel": "sandbox" }),
            _ if path.ends_with("/refunds") => json!({ "reason": "too small" }),
            PURCHASES => json!({ "key": sale.key, "quantity": 1 }),
            _ => json!({ "user": "ann", "level": 3 }),
        };
        let body = match rule {
            Some(rule) if !path.ends_with("/refunds") => rule.body.to_owned(),
            _ => body.to_string(),
        };
        let for_people = path.starts_with("/api/v1/admin/");
        if for_people && people.is_empty() {
            for name in ["ann", "bob"] {
                people.insert(name, Person::sign_in(&system, name).await);
            }
        }
        let mut succeeded = false;
        for (id, user, body) in [
            (known.as_str(), Some("ann"), body.as_str()),
            (&known, Some("bob"), &body),
            (&known, None, &body),
            (unknown, Some("ann"), &body),
            ("x", Some("ann"), &body),
            ("0", Some("ann"), "{"),
            // Repeated: an order is not cancelled twice.
            (&known, Some("ann"), &body),
        ] {
            let mut address = filled(path, id);
            if let Some(query) = rule.and_then(|rule| rule.query()) {
                address = format!("{address}?{query}");
            }
            if (method.as_str(), for_people) == ("DELETE", true) && path.ends_with("policies/{name}") {
                let policy = permits_and_policies::policy("shop", &known, permits_and_policies::a_day(5));
                permits_and_policies::set(&system, policy).await;
            }
            let mut request = http.request(method.parse().unwrap(), system.url(&address));
            let sends_picture = path.ends_with("/picture") && method == "PUT";
            if for_people {
                let kind = if sends_picture { "image/png" } else { "application/json" };
                request = request.header(CONTENT_TYPE, kind);
            }
            if path == CALLBACKS && user.is_some() {
                for (name, value) in callback.headers() {
                    request = request.header(name, value);
                }
            } else if let Some(user) = user {
                request = match (for_apps, people.get(user)) {
                    (true, _) => request.bearer_auth(&apps[user]),
                    (false, Some(person)) if for_people => person.authenticated(request),
                    (false, _) => request.bearer_auth(system.token(user, 0)),
                };
            }
            if ["POST", "PUT", "PATCH"].contains(&method.as_str()) {
                let body = if sends_picture && body != "{" { picture.clone() } else { body.to_owned().into() };
                request = request.body(body);
            }
            if path.starts_with(AUTHORIZE) {
                request = request.header("x-seckill-policy", "p").header("x-seckill-app", "ann");
            }
            // The console's pool may be busy for a moment, which is a valid answer too.
            let answer = eventually(|| async {
                let answer = read(request.try_clone().unwrap().send().await.unwrap()).await;
                assert_lists(&document, &method, path, &answer);
                assert_not_kept(path, &answer);
                if for_people && answer.status == 503 { Err(answer.code()) } else { Ok(answer) }
            })
            .await;
            succeeded |= answer.status < 300;
            if method == "GET" {
                assert_same_head(&http, &request, &answer, path).await;
            }
        }
        assert!(succeeded, "no call succeeded: {method} {path}");
        // These addresses end sessions.
        if path.contains("/admin/session") || path.contains("/admin/accounts") {
            people.clear();
        }
        // A gateway may use any method.
        if path.starts_with(AUTHORIZE) {
            continue;
        }
        // No other address supports this method. The header names the supported ones.
        let unsupported = http.request("PROPFIND".parse().unwrap(), system.url(&filled(path, &known)));
        let unsupported = read(unsupported.send().await.unwrap()).await;
        assert_eq!(unsupported.code(), "405 method-not-allowed", "{path}");
        assert_not_kept(path, &unsupported);
        let allowed: BTreeSet<&str> = unsupported.headers["allow"].to_str().unwrap().split(", ").collect();
        let listed = document.operations().filter(|(_, other, _)| *other == path);
        let mut listed: BTreeSet<String> = listed.map(|(method, ..)| method).collect();
        if listed.contains("GET") {
            listed.insert("HEAD".to_owned());
        }
        assert_eq!(allowed, listed.iter().map(String::as_str).collect(), "{path}");
    }
    system.finish().await;
}

/// A purchase can fail with every problem that the document lists, and with no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_is_refused_for_the_reasons_that_are_documented() {
    let system = System::shared().await;
    let document = served(&system).await;
    let open = |terms| system.create_sale(terms);
    let sale = open(terms(5)).await;
    let later = open(NewSale { starts_in_ms: 600_000, ..terms(5) }).await;
    let over = open(NewSale { starts_in_ms: -2_000, ends_in_ms: -1_000, ..terms(5) }).await;
    let members = open(NewSale { min_level: 3, ..terms(5) }).await;
    let asks = open(guarded(CaptchaKind::Work, 5, 1)).await;
    let empty = open(terms(0)).await;
    let (paused, blocks) = (open(terms(5)).await, open(terms(5)).await);
    let ann = Shopper::parse(Some("ann"), None).unwrap();
    system.stores.set_block(blocks.id, &ann, Some("a bot"), "test").await.unwrap();
    assert!(system.stores.set_sale_status(paused.id, SaleStatus::Paused, "test").await.unwrap());

    let two = open(NewSale { per_user: Units::parse(2).unwrap(), ..terms(5) }).await;
    let both = json!({ "key": two.key, "quantity": 2 });
    assert_eq!(answered(system.buy(&two, "ann").idempotent("k").body(both)).await.code(), "202");

    let bought = answered(system.buy(&sale, "ann").idempotent("k")).await;
    assert_eq!(bought.code(), "202");
    assert_lists(&document, "POST", PURCHASES, &bought);

    let (mut without_token, mut unknown_sale) = (system.buy(&sale, "ann"), system.buy(&sale, "ann"));
    without_token.token = None;
    unknown_sale.path = "999999".into();
    let limited = || system.buy(&sale, "eve").idempotent("k");
    let over_limit = eventually(|| async {
        let answer = limited().send().await;
        if answer.status == 429 { Ok(answer) } else { Err(answer.code()) }
    });
    let (over_limit, too_slow) = tokio::join!(over_limit, too_slow(&system, &sale));
    let mut refused = vec![over_limit, too_slow];
    let other_units = json!({ "key": two.key, "quantity": 1 });
    for click in [
        system.buy(&sale, "ann").body("{}"),
        without_token,
        system.buy(&later, "ann"),
        system.buy(&over, "ann"),
        system.buy(&sale, "bob").body(json!({ "key": "guessed" })),
        system.buy(&members, "ann"),
        system.buy(&blocks, "ann"),
        system.buy(&asks, "ann"),
        unknown_sale,
        system.buy(&empty, "ann"),
        system.buy(&sale, "ann"),
        // One byte too long. The service reads all of it, so the connection does not break before the answer.
        system.buy(&sale, "bob").body("x".repeat(system.config.http.body_max_bytes + 1)),
        system.buy(&two, "ann").idempotent("k").body(other_units),
    ] {
        refused.push(answered(click).await);
    }
    refused.push(system.buy(&paused, "ann").send().await);
    for answer in &refused {
        assert_lists(&document, "POST", PURCHASES, answer);
    }
    let seen: BTreeSet<String> = refused.iter().map(Answer::code).collect();
    assert_eq!(seen, Document::problems(document.operation("POST", PURCHASES)));
}

/// The answer to a purchase with a body that never arrives.
async fn too_slow(system: &System, sale: &Sale) -> Answer {
    let mut wire = tokio::net::TcpStream::connect(system.instances[0].address).await.unwrap();
    let path = PURCHASES.replace("{id}", &sale.id.to_string());
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{");
    wire.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    wire.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let (first, fields) = head.split_once("\r\n").unwrap();
    let headers: HeaderMap = fields
        .lines()
        .filter_map(|field| field.split_once(": "))
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap()))
        .collect();
    let status = first.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, body: serde_json::from_str(body).unwrap(), headers }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_has_a_page() {
    let system = System::shared().await;
    let page = reqwest::get(system.url("/docs")).await.unwrap();
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'self';") && !policy.contains("script-src"), "{policy}");
    let page = page.text().await.unwrap();
    let files: Vec<&str> = page.split('"').filter(|word| word.starts_with('/')).collect();
    assert!(files.len() >= 4, "{page}");
    for file in files {
        assert_eq!(reqwest::get(system.url(file)).await.unwrap().status(), 200, "{file}");
    }
    assert_eq!(reqwest::get(system.url("/docs/index.html")).await.unwrap().status(), 404);
    // The other pages stay strict.
    let front = reqwest::get(system.url("/")).await.unwrap();
    assert!(!front.headers()["content-security-policy"].to_str().unwrap().contains("unsafe"));
}
