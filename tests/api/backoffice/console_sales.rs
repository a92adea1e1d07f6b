//! Sales and products in the console: planned, changed and watched, by role; and the cost and contents of the live page's streams.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Client, Response};
use seckill_domain::account::AccountRole;
use seckill_domain::ids::SaleId;
use seckill_domain::sale::{NewSale, Wave};
use seckill_harness::nginx::Nginx;
use seckill_harness::{PATIENCE, Sale, System, eventually, terms, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::backoffice::admin_api::{Person, UNLIMITED, send};
use crate::backoffice::admin_sessions::seckill;
use crate::backoffice::console_frame::people;
use crate::orders::payments_and_callbacks::bought;
use crate::pages::served_pages::png;

async fn sale(system: &System, id: i64) -> Sale {
    let keys = sqlx::query_as("SELECT purchase_key, waiting_key FROM sales WHERE id = $1");
    let (key, waiting_key) = keys.bind(id).fetch_one(&system.sql).await.unwrap();
    Sale { id: SaleId::from_db(id), key, waiting_key }
}

/// The actors and actions in the log of a sale, the oldest first.
async fn log_of(system: &System, sale: i64) -> String {
    let lines = "SELECT string_agg(actor || ' ' || action, ', ' ORDER BY id) FROM audit_log
                 WHERE subject = $1 AND actor NOT IN ('reconciler', 'refill supervisor')";
    sqlx::query_scalar(lines).bind(format!("sale {sale}")).fetch_one(&system.sql).await.unwrap()
}

/// The button that removes a sale.
pub fn removal(sale: i64) -> String {
    format!("data-api=\"/api/v1/admin/sales/{sale}\" data-method=\"DELETE\"")
}

fn plan(product: &str, more: Value) -> Option<Value> {
    let mut plan = json!({ "product": product, "price_cents": 100, "stock": 2 });
    plan.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Some(plan)
}

/// A sale's whole life without the command line. Managers run it, viewers watch it, and the audit log records every action.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_planned_paused_given_stock_and_closed() {
    let system = System::shared_with(&UNLIMITED).await;
    let [root, max, vic] = people(&system).await;
    // A planned sale is published: its page exists, and it opens by itself.
    let planned = max.call("POST", "sales", plan("Phone", json!({ "currency": "KWD" }))).await;
    assert_eq!(planned.status, 201, "{}", planned.body);
    let id = planned.body["sale_id"].as_i64().unwrap();
    // The answer says whether all instances have the sale after 3 s, which may be too short on a busy machine.
    assert!(planned.body["everywhere"].is_boolean(), "{}", planned.body);
    system.is_followed().await;
    assert_eq!(planned.body["page"], format!("/sales/{id}"));
    assert_eq!(reqwest::get(system.url(&format!("/sales/{id}"))).await.unwrap().status(), 200);
    assert_eq!(system.get(&format!("/api/v1/sales/{id}"), None).await.1["currency"], "KWD");
    let bought_in = sale(&system, id).await;
    bought(&system, &bought_in, "ann").await;

    let address = |part: &str| format!("sales/{id}{part}");
    let set = |status: &str| Some(json!({ "status": status }));
    let stands = || async {
        system.is_followed().await;
        system.get(&format!("/api/v1/sales/{id}"), None).await.1["status"].clone()
    };
    assert_eq!(max.call("PUT", &address("/status"), set("paused")).await.status, 200);
    assert_eq!(stands().await, "paused");
    assert_ne!(system.buy(&bought_in, "ben").send().await.status, 202);
    assert_eq!(max.call("PUT", &address("/status"), set("open")).await.status, 200);
    assert_eq!(max.post(&address("/stock"), json!({ "units": 3 })).await.status, 200);
    for user in ["ben", "cem", "dan", "eve"] {
        bought(&system, &bought_in, user).await;
    }
    system.settled(&bought_in).await;

    let details = vic.get(&address("")).await.body;
    assert_eq!((&details["sale"]["stock"], &details["sale"]["total_stock"]), (&json!(0), &json!(5)));
    assert_eq!((&details["waves"][0]["units"], &details["waves"][0]["planned"]), (&json!(3), &json!(false)));
    assert_eq!(max.delete(&address("")).await.code(), "409 conflict", "it has orders");
    assert_eq!(root.call("PUT", &address("/status"), set("closed")).await.status, 200);
    assert_eq!(stands().await, "ended");
    for (method, path, body) in
        [("PUT", address("/status"), set("open")), ("POST", address("/stock"), Some(json!({ "units": 1 })))]
    {
        assert_eq!(root.call(method, &path, body).await.code(), "409 conflict", "closed is final");
    }
    let log = "max sale planned, max sale paused, max sale open, max add stock, root sale closed";
    assert_eq!(log_of(&system, id).await, log);
}

/// A planned sale starts and ends exactly at the requested moments, with its waves. A sale without purchases can be removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_sale_keeps_its_times_and_can_be_removed() {
    let system = System::shared_with(&UNLIMITED).await;
    let [root, ..] = people(&system).await;
    let now_ms = system.stores.ledger.now_ms().await.unwrap();
    let (starts_at_ms, ends_at_ms) = (now_ms / 1000 * 1000 + 600_123, now_ms / 1000 * 1000 + 1_200_456);
    let terms = json!({
        "starts_at_ms": starts_at_ms, "ends_at_ms": ends_at_ms, "stock": 10, "per_user": 2, "keep_refunded": true, "shards": 4,
        "waves": [{ "after_s": 60, "units": 4 }],
    });
    let planned = root.call("POST", "sales", plan("Phone", terms)).await;
    let id = planned.body["sale_id"].as_i64().unwrap();
    let details = root.get(&format!("sales/{id}")).await.body;
    let shown = &details["sale"];
    assert_eq!((&shown["starts_at_ms"], &shown["ends_at_ms"]), (&json!(starts_at_ms), &json!(ends_at_ms)));
    assert_eq!((&shown["status"], &shown["stock"], &shown["per_user"]), (&json!("scheduled"), &json!(6), &json!(2)));
    assert_eq!(shown["shards"], json!(4));
    let wave = &details["waves"][0];
    assert_eq!((&details["keep_refunded"], &wave["due_at_ms"]), (&json!(true), &json!(starts_at_ms + 60_000)));
    assert!(wave["released_at_ms"].is_null() && wave["planned"] == json!(true), "{wave}");

    assert!(root.page(&format!("/admin/sales/{id}")).await.1.contains(&removal(id)), "the page offers it");
    assert_eq!(root.delete(&format!("sales/{id}")).await.status, 200);
    for path in [format!("sales/{id}"), format!("sales/{id}/live"), format!("sales/{id}/lapsed-holds")] {
        assert_eq!(root.get(&path).await.code(), "404 not-found", "{path}");
    }
    assert_eq!(root.delete(&format!("sales/{id}")).await.code(), "404 not-found");
    system.is_followed().await;
    assert_eq!(system.get(&format!("/api/v1/sales/{id}"), None).await.0, 404);
}

/// The answer names an invalid term, and nothing is created or changed. `sale_form` has the names of all terms.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_terms_are_refused_and_change_nothing() {
    let system = System::shared_with(&UNLIMITED).await;
    let [root, ..] = people(&system).await;
    let there = system.create_sale(NewSale { product: "Refused".into(), ..terms(5) }).await;
    let now_ms = system.stores.ledger.now_ms().await.unwrap();
    let many = vec![json!({ "after_s": 1, "units": 1 }); 101];
    // Names that only this test uses.
    let names = ["Refused", "a\u{7}b"].map(str::to_owned);
    let there_are = async || {
        let rows = "SELECT count(DISTINCT products.id), count(sales.id), sum(total_stock)::bigint
                    FROM products LEFT JOIN sales ON product_id = products.id WHERE name = ANY($1)";
        sqlx::query_as::<_, (i64, i64, i64)>(rows).bind(&names[..]).fetch_one(&system.sql).await.unwrap()
    };
    assert_eq!(there_are().await, (1, 1, 5));
    for (more, code, word) in [
        (json!({ "product": "a\u{7}b" }), "400 invalid-request", "product"),
        (json!({ "price_cents": 1.5 }), "400 invalid-request", "1.5"),
        (json!({ "price_cents": "1" }), "400 invalid-request", "string"),
        (json!({ "currency": "ZZZ" }), "400 invalid-request", "ISO 4217"),
        (json!({ "currency": "cny" }), "400 invalid-request", "ISO 4217"),
        (json!({ "stock": -2 }), "400 invalid-request", "stock"),
        (json!({ "stock": 1_000_000_000_001_i64 }), "400 invalid-request", "stock"),
        (json!({ "per_user": 10_001 }), "400 invalid-request", "per_user"),
        (json!({ "captcha": "riddle" }), "400 invalid-request", "riddle"),
        (json!({ "shards": 0 }), "400 invalid-request", "shards"),
        (json!({ "shards": 65 }), "400 invalid-request", "shards"),
        (json!({ "waves": [{ "after_s": 1, "units": 0 }] }), "400 invalid-request", "units"),
        (json!({ "waves": [{ "after_s": -1, "units": 1 }] }), "400 invalid-request", "-1"),
        (json!({ "waves": many, "stock": 1000 }), "400 invalid-request", "waves"),
        (json!({ "surprise": 1 }), "400 invalid-request", "surprise"),
        (json!({ "waves": [{ "after_s": 1, "units": 1 }], "stock": -1 }), "409 unworkable-terms", "waves"),
        (json!({ "ends_at_ms": now_ms - 1 }), "409 unworkable-terms", "future"),
    ] {
        let answer = root.call("POST", "sales", plan("Refused", more.clone())).await;
        assert_eq!(answer.code(), code, "{more}: {}", answer.body);
        assert!(answer.body["detail"].as_str().unwrap().contains(word), "{more}: {}", answer.body);
    }
    let id = there.id;
    for (method, path, body, code) in [
        ("POST", format!("sales/{id}/stock"), json!({ "units": 0 }), "400 invalid-request"),
        ("POST", format!("sales/{id}/stock"), json!({ "units": -5 }), "400 invalid-request"),
        ("POST", format!("sales/{id}/stock"), json!({}), "400 invalid-request"),
        ("POST", "sales/999999/stock".into(), json!({ "units": 1 }), "404 not-found"),
        ("PUT", format!("sales/{id}/status"), json!({ "status": "ended" }), "400 invalid-request"),
        ("PUT", "sales/x/status".into(), json!({ "status": "open" }), "400 invalid-request"),
        ("PUT", "products/Refused".into(), json!({ "description": "x".repeat(5001) }), "400 invalid-request"),
        ("PUT", "products/Refused".into(), json!({ "picture_alt": "a phone" }), "409 conflict"),
        ("PUT", "products/a%07b".into(), json!({}), "400 invalid-request"),
    ] {
        let answer = root.call(method, &path, Some(body)).await;
        assert_eq!(answer.code(), code, "{method} {path}: {}", answer.body);
    }
    for query in ["limit=0", "limit=1001", "before=x", "status=closed", "q=a%07", "q=a&q=b"] {
        assert_eq!(root.get(&format!("sales?{query}")).await.code(), "400 invalid-request", "{query}");
    }
    assert_eq!(root.get(&format!("sales/{id}/lapsed-holds?by=colour")).await.code(), "400 invalid-request");
    assert_eq!(there_are().await, (1, 1, 5));
}

/// The list is searched by name and status, and read page by page. Lapsed holds are counted by buyer and by address.
#[tokio::test(flavor = "multi_thread")]
async fn sales_are_found_and_lapsed_holds_counted() {
    let system = System::shared_with(&UNLIMITED).await;
    let [_, max, vic] = people(&system).await;
    let mut ids = Vec::new();
    for (product, starts_in_ms) in
        [("Found red phone", 0), ("Found blue phone", 0), ("Found 100% kettle_", 600_000), ("Found red phone", 600_000)]
    {
        let new = NewSale { product: product.into(), starts_in_ms, ..terms(5) };
        ids.push(system.create_sale(new).await.id.get());
    }
    // Other tests have sales too.
    let found = async |query: &str| -> Vec<usize> {
        let sales = vic.get(&format!("sales?{query}")).await.body["sales"].clone();
        let ids_of = sales.as_array().unwrap().iter().map(|sale| sale["id"].as_i64().unwrap());
        ids_of.filter_map(|id| ids.iter().position(|known| *known == id)).collect()
    };
    for (query, expected) in [
        ("", vec![3, 2, 1, 0]),
        ("q=PHONE", vec![3, 1, 0]),
        ("q=%25", vec![2]),
        ("q=_", vec![2]),
        ("status=scheduled", vec![3, 2]),
        ("q=red&status=open", vec![0]),
        ("q=found&limit=2", vec![3, 2]),
    ] {
        assert_eq!(found(query).await, expected, "{query}");
    }
    assert_eq!(found(&format!("q=found&limit=2&before={}", ids[2])).await, [1, 0]);

    for (user, address) in [("ann", "10.0.0.1"), ("ann", "10.0.0.2"), ("ben", "10.0.0.1")] {
        let insert = "INSERT INTO lapsed_holds (order_id, sale_id, user_id, address, quantity) VALUES (gen_random_uuid(), $1, $2, $3, 1)";
        sqlx::query(insert).bind(ids[0]).bind(user).bind(address).execute(&system.sql).await.unwrap();
    }
    let lapsed = async |by: &str| {
        let answer = max.get(&format!("sales/{}/lapsed-holds?{by}", ids[0])).await.body;
        let (lapsed, first) = (answer["lapsed"].as_array().unwrap(), &answer["lapsed"][0]);
        json!([first["name"], first["holds"], first["buyers"], lapsed.len()])
    };
    assert_eq!(lapsed("").await, json!(["ann", 2, 1, 2]));
    assert_eq!(lapsed("by=address").await, json!(["10.0.0.1", 2, 2, 2]));
    assert_eq!(lapsed("by=buyer&limit=1").await[3], 1);
}

/// A picture is re-encoded under a product's name, which may contain any letters. Only pictures are kept.
#[tokio::test(flavor = "multi_thread")]
async fn products_and_their_pictures_are_set_by_those_who_run_sales() {
    let system = System::shared_with(&UNLIMITED).await;
    let [_, max, _] = people(&system).await;
    let (name, encoded) = ("50% off / new", "50%25%20off%20%2F%20new");
    let path = format!("products/{encoded}");
    let set = max.put(&path, json!({ "description": "Rings.\nLoud." })).await;
    // The other instances may need longer than the answer's 3 s.
    assert!(set.status == 200 && set.body["everywhere"].is_boolean(), "{}", set.body);
    system.is_followed().await;

    // A process encodes one picture at a time, so the pictures of other tests may keep it busy.
    let upload = async |file: Vec<u8>| {
        eventually(|| async {
            let request = max.request("PUT", &format!("{path}/picture"), None);
            let answer = send(request.header(CONTENT_TYPE, "image/png").body(file.clone())).await;
            if answer.status == 503 { Err(answer.code()) } else { Ok(answer) }
        })
        .await
    };
    let picture = png(600, 400, [200, 30, 30]);
    for file in [b"<svg></svg>".to_vec(), picture[..200].to_vec(), Vec::new()] {
        assert_eq!(upload(file).await.code(), "400 invalid-request");
    }
    let set = upload(picture).await;
    assert_eq!(set.status, 200, "{}", set.body);
    let product = system.get(&format!("/api/v1/products/{}", set.body["product_id"]), None).await.1;
    assert_eq!((&product["name"], &product["description"]), (&json!(name), &json!("Rings.\nLoud.")));
    let hash = set.body["picture"].as_str().unwrap();
    let small = reqwest::get(system.url(&format!("/pictures/{hash}-480.jpg"))).await.unwrap();
    assert_eq!((small.status().as_u16(), &small.headers()[CONTENT_TYPE]), (200, &"image/jpeg".parse().unwrap()));
    assert_eq!(max.put(&path, json!({ "picture_alt": "A red phone" })).await.status, 200);
    let page = max.page(&format!("/admin/products?name={encoded}")).await.1;
    let form = format!("data-api=\"/api/v1/admin/{path}");
    assert!(page.contains(&format!("{form}\"")) && page.contains(&format!("{form}/picture\"")), "{page}");
    // No other test in the shared system sends pictures.
    let kept = "SELECT (SELECT count(*) FROM pictures), picture_alt,
                       (SELECT count(*) FROM audit_log
                        WHERE actor = 'max' AND action = 'product set' AND subject = 'product ' || products.id)
                FROM products WHERE name = $1";
    let kept: (i64, String, i64) = sqlx::query_as(kept).bind(name).fetch_one(&system.sql).await.unwrap();
    assert_eq!(kept, (1, "A red phone".to_owned(), 3));

    // Renamed: the page of its sale shows the new name. A product with a sale stays.
    let sale = system.create_sale(NewSale { product: name.into(), ..terms(5) }).await;
    let other = system.create_sale(NewSale { product: "Taken name".into(), ..terms(5) }).await;
    let rename = async |from: &str, to: &str| max.put(&format!("products/{from}/name"), json!({ "name": to })).await;
    for (from, to, code) in [
        (encoded, "Taken name", "409 conflict"),
        ("Missing", "Whatever", "404 not-found"),
        (encoded, "", "400 invalid-request"),
        (encoded, "a\u{202e}b", "400 invalid-request"),
    ] {
        assert_eq!(rename(from, to).await.code(), code, "{from} {to}");
    }
    assert_eq!(rename(encoded, " New  name ").await.status, 200);
    system.is_followed().await;
    let (_, sold) = system.get(&format!("/api/v1/sales/{}", sale.id), None).await;
    assert_eq!(sold["product"]["name"], "New name", "{sold}");
    assert_eq!(max.delete("products/New%20name").await.code(), "409 conflict");
    assert_eq!(max.delete("products/New%20name/picture").await.status, 200);
    assert_eq!(max.delete("products/New%20name/picture").await.code(), "409 conflict");
    assert_eq!(max.delete("products/Missing/picture").await.code(), "404 not-found");
    assert_eq!(max.delete(&format!("sales/{}", sale.id)).await.status, 200);
    // By the command line.
    let product = |words: &[&str]| seckill(&system, &[&["product"], words].concat(), "");
    let listed = product(&["list", "--format", "csv"]).unwrap();
    assert!(listed.contains(",New name,,\"Rings.\nLoud.\"\r\n") && listed.contains(",Taken name,"), "{listed}");
    assert!(product(&["rename", "New name", "Taken name"]).unwrap_err().contains("another product's"));
    assert!(product(&["remove-picture", "New name"]).unwrap_err().contains("has no picture"));
    product(&["rename", "New name", "Newest"]).unwrap();
    product(&["remove", "Newest"]).unwrap();
    assert!(product(&["remove", "Newest"]).unwrap_err().contains("there is no product"));
    assert!(product(&["remove", "Taken name"]).unwrap_err().contains("has sales"));
    assert_eq!(max.delete(&format!("sales/{}", other.id)).await.status, 200);
    assert_eq!(max.delete("products/Taken%20name").await.status, 200);
}

/// A file announced as too long, or without its length, is refused before it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn too_long_a_picture_is_refused_unread() {
    let system = System::shared_with(&UNLIMITED).await;
    let [_, max, _] = people(&system).await;
    let probe = max.request("PUT", "products/Phone/picture", None).build().unwrap();
    let field = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}\r\n", value.to_str().unwrap());
    let credentials: String = probe.headers().iter().map(field).collect();
    let head = "PUT /api/v1/admin/products/Phone/picture HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n";
    for (length, expected) in
        [("Content-Length: 10485761", "HTTP/1.1 413"), ("Transfer-Encoding: chunked", "HTTP/1.1 400")]
    {
        let mut wire = tokio::net::TcpStream::connect(system.instances[0].address).await.unwrap();
        wire.write_all(format!("{head}{credentials}{length}\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The service closes the connection later, so that the answer is not lost with it.
        while !answer.ends_with(b"}") {
            assert!(wire.read_buf(&mut answer).await.unwrap() > 0, "closed");
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(expected) && answer.contains("\r\nconnection: close\r\n"), "{length}: {answer}");
    }
}

/// A picture that arrives together with its head is read whole, directly and through nginx.
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_may_come_at_once() {
    let system = System::shared_with(&UNLIMITED).await;
    let [_, max, _] = people(&system).await;
    assert_eq!(max.put("products/Whole", json!({ "description": "x" })).await.status, 200);
    let proxy = Nginx::edge(&[system.instances[0].address], Path::new("/nonexistent"), &[]).await;
    for length in [50_000, 388_000, 1_900_000] {
        for address in [system.instances[0].address, proxy.address] {
            let request = max.at(address).request("PUT", "products/Whole/picture", None);
            let request = request.header(CONTENT_TYPE, "image/png").body(vec![b'x'; length]);
            for _ in 0..20 {
                // The service reads the whole body, and finds that it is no picture. Pictures of other tests may keep it busy.
                until(400, || async { request.try_clone().unwrap().send().await.unwrap().status() }).await;
            }
        }
    }
}

/// A stream of figures, read event by event.
struct Live {
    response: Response,
    text: String,
}

impl Live {
    async fn request(system: &System, person: &Person, sale: &Sale, last_event_id: Option<i64>) -> Response {
        let request = Client::new().get(system.url(&format!("/api/v1/admin/sales/{}/live", sale.id)));
        let request =
            last_event_id.into_iter().fold(request, |request, id| request.header("Last-Event-ID", id.to_string()));
        person.authenticated(request).send().await.unwrap()
    }

    async fn open(system: &System, person: &Person, sale: &Sale, last_event_id: Option<i64>) -> Self {
        let response = Self::request(system, person, sale, last_event_id).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The next event: its id, and the raw figures. `None` at the end of the stream.
    async fn next(&mut self) -> Option<(i64, String)> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("no event came")
    }

    async fn read(&mut self) -> Option<(i64, String)> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                if let Some(data) = field("data") {
                    assert_eq!(field("event"), Some("figures"));
                    return Some((field("id")?.parse().unwrap(), data.to_owned()));
                }
                continue;
            }
            let chunk = self.response.chunk().await.ok()??;
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }

    /// The figures of the next event that satisfies the condition.
    async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> (i64, Value) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (id, text) = self.next().await.expect("the stream ended");
            let figures: Value = serde_json::from_str(&text).unwrap();
            if wanted(&figures) {
                return (id, figures);
            }
            assert!(Instant::now() < deadline, "{figures:#}");
        }
    }

    /// Reads to the end of the stream.
    async fn end(mut self) {
        while self.next().await.is_some() {}
    }
}

/// At rest, Redis's stock is PostgreSQL's. A reader who reconnects continues. The browser's sale day adds the figures up.
#[tokio::test(flavor = "multi_thread")]
async fn the_live_figures_agree_at_rest() {
    let system = System::shared_with(&UNLIMITED).await;
    let vic = Person::new(&system, "adding", AccountRole::Viewer).await;
    let waves = vec![Wave { after_ms: 1_800_000, units: 4 }];
    let sale = system.create_sale(NewSale { waves, ..terms(10) }).await;
    let mut live = Live::open(&system, &vic, &sale, None).await;
    let (first, _) = live.until(|figures| figures["redis"]["available"] == 6).await;
    for user in ["ann", "ben"] {
        bought(&system, &sale, user).await;
    }
    system.settled(&sale).await;
    let rests = |figures: &Value| {
        figures["drift"] == json!({ "difference_units": 0, "at_rest": true })
            && figures["ledger"]["stock"] == 4
            && figures["instance"].is_object()
    };
    let (last, figures) = live.until(rests).await;
    assert!(last > first);
    let (ledger, redis) = (&figures["ledger"], &figures["redis"]);
    assert_eq!((&ledger["held_back_units"], &ledger["status"]), (&json!(4), &json!("open")));
    assert_eq!((&redis["winners"], &redis["available"], &redis["unconfirmed"]), (&json!(2), &json!(4), &json!(0)));
    // The workers' queues are in the figures, because this system has declared them.
    let queues = |figures: &Value| {
        let queues = figures["queues"].as_array().cloned().unwrap_or_default();
        let names = ["groups-placed", "groups-expire", "dead"];
        names.iter().all(|name| queues.iter().any(|queue| queue["queue"] == *name))
    };
    let (seen, _) = live.until(queues).await;

    let mut again = Live::open(&system, &vic, &sale, Some(seen)).await;
    assert!(again.next().await.unwrap().0 > seen);
}

/// All streams get the same samples, which two samplers could not produce. The sampler ends with the last stream.
#[tokio::test(flavor = "multi_thread")]
async fn ten_streams_have_one_sampler_and_the_last_one_ends_it() {
    let mut system = System::without_workers(&[]).await;
    let vic = Person::new(&system, "vic", AccountRole::Viewer).await;
    let sale = system.create_sale(terms(5)).await;
    let vin = Person::new(&system, "vin", AccountRole::Viewer).await;
    let mut streams = Vec::new();
    for n in 0..10 {
        streams.push(Live::open(&system, if n < 5 { &vic } else { &vin }, &sale, None).await);
    }
    let mut samples = BTreeMap::<i64, (String, usize)>::new();
    for stream in &mut streams {
        for _ in 0..3 {
            let (id, figures) = stream.next().await.unwrap();
            let (known, times) = samples.entry(id).or_insert_with(|| (figures.clone(), 0));
            assert_eq!(*known, figures, "two samplers");
            *times += 1;
        }
    }
    // Each stream begins with the recent samples, which are the same for all.
    assert!(samples.len() == 3 && samples.values().all(|(_, times)| *times == 10), "{samples:#?}");
    drop(streams);
    let last = *samples.keys().max().unwrap();
    eventually(|| async {
        // The service notices at its next event that a reader has gone. An earlier reader keeps the sampler running.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let response = Live::request(&system, &vic, &sale, None).await;
        if response.status() != 200 {
            return Err(response.status().to_string());
        }
        let (id, figures) = Live { response, text: String::new() }.next().await.unwrap();
        let figures: Value = serde_json::from_str(&figures).unwrap();
        let is_anew = id > last && figures["instance"].is_null();
        is_anew.then_some(()).ok_or("the sampler goes on".to_owned())
    })
    .await;
    system.stop().await;
}

/// A stream needs an account and an existing sale. Accounts and instances have a maximum. A stream ends with its session, without the
/// streams of other sessions, and with the service.
#[tokio::test(flavor = "multi_thread")]
async fn streams_are_for_people_who_are_signed_in_bounded_and_end_with_the_service() {
    let shutdown_timeout_ms = 60_000;
    let setting = shutdown_timeout_ms.to_string();
    let mut system = System::without_workers(&[("SECKILL_HTTP__SHUTDOWN_TIMEOUT_MS", &setting)]).await;
    let vic = Person::new(&system, "vic", AccountRole::Viewer).await;
    let sale = system.create_sale(terms(5)).await;
    let missing = Sale { id: SaleId::from_db(999_999), key: String::new(), waiting_key: String::new() };
    assert_eq!(Live::request(&system, &Person::signed_out(&system), &sale, None).await.status(), 401);
    assert_eq!(Live::request(&system, &vic, &missing, None).await.status(), 404);
    assert_eq!(vic.get("sales/x/live").await.code(), "400 invalid-request");
    let mut open = Vec::new();
    let mut people = vec![vic];
    for n in 1..9 {
        people.push(Person::new(&system, &format!("vic{n}"), AccountRole::Viewer).await);
    }
    // Eight accounts each have their maximum of streams, together the instance's. On a busy machine one may be refused earlier.
    for (n, person) in people.iter().enumerate() {
        while open.len() < (8 * (n + 1)).min(64) {
            let stream = eventually(|| async {
                let response = Live::request(&system, person, &sale, None).await;
                if response.status() == 200 { Ok(response) } else { Err(response.status().to_string()) }
            });
            open.push(stream.await);
        }
        let refused = Live::request(&system, person, &sale, None).await;
        assert_eq!(refused.status(), 503, "{} streams", open.len());
    }
    let (leaving, vic) = (&people[0], &people[7]);
    // A closed stream makes room.
    drop(open.pop());
    let mut going_on = eventually(|| async {
        let response = Live::request(&system, vic, &sale, None).await;
        let is_open = response.status() == 200;
        is_open.then(|| Live { response, text: String::new() }).ok_or_else(|| "no room".to_owned())
    })
    .await;
    assert_eq!(leaving.delete("session").await.status, 200);
    for response in open.drain(..8) {
        Live { response, text: String::new() }.end().await;
    }
    assert_eq!(Live::request(&system, leaving, &sale, None).await.status(), 401);
    // Its last event may have been sent earlier.
    for _ in 0..3 {
        assert!(going_on.next().await.is_some());
    }
    let began = Instant::now();
    let watching = open.into_iter().map(|response| Live { response, text: String::new() }.end());
    tokio::join!(system.stop(), join_all(watching), going_on.end());
    assert!(began.elapsed() < Duration::from_millis(shutdown_timeout_ms), "{:?}", began.elapsed());
}
