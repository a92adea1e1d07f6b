//! Every answer to a purchase comes in the order of answers (docs/protocol.md), and refusals leave the stock unchanged.

use serde_json::json;

use seckill_domain::ids::Units;
use seckill_domain::sale::NewSale;
use seckill_harness::{System, eventually, terms};

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_becomes_an_order_that_its_buyer_can_follow() {
    let (system, sale) = System::selling(terms(5)).await;
    let answer = system.buy(&sale, "ann").idempotent("k1").send().await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("accepted")), "{answer:?}");
    let order = answer.order_id();
    assert_eq!(answer.headers["location"], format!("/api/v1/orders/{order}"));
    // Listed immediately, as an accepted purchase or as an order.
    let (status, listed) = system.get(&format!("/api/v1/orders?sale_id={}", sale.id), Some("ann")).await;
    assert_eq!((status, listed[0]["order_id"].as_str()), (200, Some(order.as_str())));
    system.settled(&sale).await;
    let (status, shown) = system.get(&format!("/api/v1/orders/{order}"), Some("ann")).await;
    assert_eq!((status, shown["status"].as_str()), (200, Some("pending_payment")));
    assert_eq!((shown["quantity"].as_i64(), shown["amount_cents"].as_i64()), (Some(1), Some(100)));
    assert!(shown["expires_at_ms"].as_i64() >= answer.body["expires_at_ms"].as_i64());
    assert_eq!(system.get(&format!("/api/v1/orders/{order}"), Some("bob")).await.0, 404, "another's order");
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (4, Some(4)));

    // The same key again: the same order, with its current status.
    let again = system.buy(&sale, "ann").idempotent("k1").send().await;
    assert_eq!(
        (again.status, again.order_id(), &again.body["status"]),
        (202, order.clone(), &json!("pending_payment"))
    );
    let other = system.buy(&sale, "ann").send().await;
    assert_eq!((other.code(), other.order_id()), ("409 already-purchased".into(), order));
}

/// In development mode, everyone can get any buyer's token. So no page of another site may reach the service by a name of its own.
#[tokio::test(flavor = "multi_thread")]
async fn development_mode_answers_to_no_name_of_others() {
    let (system, sale) = System::selling(terms(5)).await;
    let client = reqwest::Client::new();
    let purchases = format!("/api/v1/sales/{}/purchases", sale.id);
    for (method, path) in
        [("GET", "/api/v1/time"), ("POST", "/api/v1/dev/token"), ("POST", &purchases), ("GET", "/"), ("GET", "/admin")]
    {
        let asked = |host: &str| {
            let request = client.request(method.parse().unwrap(), system.url(path)).header("host", host);
            let request = request.bearer_auth(system.token("ann", 0));
            let request = if path == purchases { request.json(&json!({ "key": sale.key })) } else { request };
            if path.ends_with("token") { request.json(&json!({ "user": "ann", "level": 0 })) } else { request }
        };
        for foreign in ["shop.example", "shop.example:8080"] {
            let refused = asked(foreign).send().await.unwrap();
            assert_eq!(refused.status(), 421, "{path}");
            assert_eq!(refused.headers()["content-type"], "application/problem+json");
            assert_eq!(refused.json::<serde_json::Value>().await.unwrap()["code"], "misdirected");
        }
        for own in ["localhost:8080", "127.0.0.1", "[::1]:8080", "serve-1:8080"] {
            let answered = eventually(|| async {
                let status = asked(own).send().await.unwrap().status();
                if status == 503 { Err("busy".to_owned()) } else { Ok(status) }
            });
            assert!(answered.await.as_u16() < 410, "{own}{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_purchases_are_refused_and_change_nothing() {
    let (system, sale) = System::selling(NewSale { per_user: Units::parse(2).unwrap(), ..terms(5) }).await;
    let with = |body: serde_json::Value| system.buy(&sale, "ann").body(body);

    for quantity in [json!(0), json!(-1), json!(1_u64 << 31), json!(1_u64 << 63), json!(1.5), json!("1e3"), json!(3)] {
        let answer = with(json!({ "key": sale.key, "quantity": quantity })).send().await;
        assert_eq!(answer.code(), "400 invalid-request", "{quantity}");
    }
    for body in ["", "{", "[]", "null", "{\"key\":1}", "{}", "{\"key\":\"\"}", "{\"key\":\"k\",\"qty\":1}"] {
        assert_eq!(system.buy(&sale, "ann").body(body).send().await.code(), "400 invalid-request", "{body}");
    }
    for number in ["1e-1", "1e10", "1e400", "1.0000001", "-0.0"] {
        let exponent = format!("{{\"key\":\"{}\",\"quantity\":{number}}}", sale.key);
        assert_eq!(system.buy(&sale, "ann").body(exponent).send().await.code(), "400 invalid-request", "{number}");
    }
    let deep = "[".repeat(5_000);
    assert_eq!(system.buy(&sale, "ann").body(deep).send().await.code(), "400 invalid-request");
    let huge = system.buy(&sale, "ann").body("x".repeat(10 << 20)).try_send().await;
    // The service may close the connection before it has received the whole body.
    assert!(huge.is_err() || huge.is_ok_and(|answer| answer.status == 413));

    for path in ["0", "-1", "x", "1e3", "%27%3B--", "1%00", "9223372036854775808", &"1".repeat(4_000)] {
        let mut click = system.buy(&sale, "ann");
        click.path = path.to_owned();
        assert_eq!(click.send().await.code(), "400 invalid-request", "{path}");
    }
    let mut unknown = system.buy(&sale, "ann");
    unknown.path = "999999".into();
    assert_eq!(unknown.send().await.code(), "404 unknown-sale");
    for key in ["two words", "", &"k".repeat(201)] {
        assert_eq!(system.buy(&sale, "ann").idempotent(key).send().await.code(), "400 invalid-request", "{key:?}");
    }
    // Only these are counted, and a buyer has five a minute.
    let guesses = ["guess", &sale.waiting_key, "' OR 1=1", "{42}", "return redis.call('FLUSHALL')"];
    for (n, key) in guesses.iter().enumerate() {
        let guess = system.buy(&sale, &format!("guesser-{n}")).body(json!({ "key": key })).send().await;
        assert_eq!(guess.code(), "403 wrong-key", "{key}");
    }
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (5, Some(5)));
    assert_eq!(system.orders(&sale).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_valid_token_buys() {
    let (system, sale) = System::selling(terms(5)).await;
    let good = system.token("ann", 0);
    let (head, rest) = good.split_once('.').unwrap();
    let (claims, signature) = rest.split_once('.').unwrap();
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"; // {"alg":"none","typ":"JWT"}
    let forged = [
        None,
        Some(String::new()),
        Some("nonsense".to_owned()),
        Some(format!("{none}.{claims}.")),
        Some(format!("{none}.{claims}.{signature}")),
        Some(format!("{head}.{claims}.{}", signature.chars().rev().collect::<String>())),
        Some(format!("{head}.{}.{signature}", &claims[1..])),
    ];
    for token in forged {
        let mut click = system.buy(&sale, "ann");
        click.token.clone_from(&token);
        assert_eq!(click.send().await.code(), "401 unauthenticated", "{token:?}");
    }
    assert_eq!(system.get("/api/v1/orders", None).await.0, 401);
    assert_eq!(system.available(&sale).await, Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_the_level_and_a_pause_are_enforced() {
    let system = System::shared().await;
    let later = system.create_sale(NewSale { starts_in_ms: 600_000, ..terms(5) }).await;
    let answer = system.buy(&later, "ann").send().await;
    assert_eq!(answer.code(), "403 not-started");
    let (_, state) = system.get(&format!("/api/v1/sales/{}/state", later.id), None).await;
    assert_eq!((state["open"].as_bool(), state["key"].as_str()), (Some(false), Some(later.waiting_key.as_str())));

    let over = system.create_sale(NewSale { starts_in_ms: -2_000, ends_in_ms: -1_000, ..terms(5) }).await;
    assert_eq!(system.buy(&over, "ann").send().await.code(), "403 ended");

    let members = system.create_sale(NewSale { min_level: 3, ..terms(5) }).await;
    assert_eq!(system.buy(&members, "ann").send().await.code(), "403 level-too-low");
    let mut member = system.buy(&members, "bob");
    member.token = Some(system.token("bob", 3));
    assert_eq!(member.send().await.code(), "202");

    use seckill_domain::sale::SaleStatus::{Closed, Open, Paused};
    let sale = system.create_sale(terms(5)).await;
    let order = system.buy(&sale, "ann").idempotent("k").send().await.order_id();
    for (status, code) in [(Paused, "503 temporarily-unavailable"), (Open, "202"), (Closed, "403 ended")] {
        assert!(system.stores.set_sale_status(sale.id, status, "test").await.unwrap());
        assert_eq!(system.buy(&sale, &format!("bob-{status}")).send().await.code(), code);
        // A buyer who holds a ticket gets it again, whatever the sale's status.
        let repeat = system.buy(&sale, "ann").idempotent("k").send().await;
        assert_eq!((repeat.code(), repeat.order_id()), ("202".into(), order.clone()));
    }
    assert!(!system.stores.set_sale_status(sale.id, Open, "test").await.unwrap(), "a closed sale cannot be opened");
    system.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_purchase() {
    let (system, sale) = System::selling(NewSale { per_user: Units::parse(3).unwrap(), ..terms(50) }).await;
    let two = json!({ "key": sale.key, "quantity": 2 });
    // The second one waits for a row that the first is writing, and gets 503 if that takes long.
    let buy_two = async || system.buy(&sale, "ann").idempotent("k").body(&two).answered().await;
    let (one, same) = tokio::join!(buy_two(), buy_two());
    assert_eq!((one.code(), same.code(), one.order_id()), ("202".into(), "202".into(), same.order_id()));
    let mismatch = system.buy(&sale, "ann").idempotent("k").send().await;
    assert_eq!(mismatch.code(), "422 idempotency-mismatch");
    // The same text from another buyer is another key.
    let other = system.buy(&sale, "bob").idempotent("k").send().await;
    assert_ne!(other.order_id(), one.order_id());
    system.settled(&sale).await;
    assert_eq!(system.stock(&sale).await, 47);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_methods_are_problems_too_and_the_time_is_now() {
    let system = System::shared().await;
    let (status, body) = system.get("/api/v1/sales/999999/purchases", None).await;
    assert_eq!((status, body["code"].as_str()), (405, Some("method-not-allowed")));
    let (status, body) = system.get("/api/v1/orders?sale_id=1&sale_id=2", Some("ann")).await;
    assert_eq!((status, body["code"].as_str()), (400, Some("invalid-request")));
    let before = chrono::Utc::now().timestamp_millis();
    let (_, time) = system.get("/api/v1/time", None).await;
    let (now, after) = (time["now_ms"].as_i64().unwrap(), chrono::Utc::now().timestamp_millis());
    assert!((before - 2_000..=after + 2_000).contains(&now), "{now} is not between {before} and {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_of_many_orders_sees_all_of_them_by_pages() {
    let system = System::without_workers(&[("SECKILL_PURCHASE__BUYER_LIMIT", "-1")]).await;
    let sale = system.create_sale(NewSale { per_user: Units::parse(1000).unwrap(), ..terms(1000) }).await;
    let mut bought = std::collections::BTreeSet::new();
    for n in 0..230 {
        let address = format!("10.4.0.{n}");
        let click = system.buy(&sale, "ann").idempotent(&address).from(&address);
        bought.insert(click.answered().await.order_id());
    }
    assert_eq!(system.buy(&sale, "ben").send().await.code(), "202");
    // Some of them are orders by now, and the others are still accepted.
    let some: Vec<uuid::Uuid> = bought.iter().take(120).map(|id| id.parse().unwrap()).collect();
    for some in some.chunks(40) {
        let some: Vec<_> = some.iter().map(|id| seckill_domain::ids::OrderId(*id)).collect();
        crate::buying::purchase_groups::settle_ones(&system.stores.ledger, &some).await.unwrap();
    }
    let (mut page, mut seen, mut sizes) = (Some(format!("/api/v1/orders?sale_id={}", sale.id)), Vec::new(), Vec::new());
    while let Some(path) = page {
        let request = reqwest::Client::new().get(system.url(&path)).bearer_auth(system.token("ann", 0));
        let answer = request.send().await.unwrap();
        let link = answer.headers().get("link").map(|link| link.to_str().unwrap().to_owned());
        page = link.map(|link| link.trim_start_matches('<').split('>').next().unwrap().to_owned());
        let orders: Vec<serde_json::Value> = answer.json().await.unwrap();
        sizes.push(orders.len());
        seen.extend(orders.iter().map(|order| order["order_id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(sizes, [100, 100, 30]);
    assert_eq!(seen.iter().cloned().collect::<std::collections::BTreeSet<_>>(), bought);
    let bens: String = system.get("/api/v1/orders", Some("ben")).await.1[0]["order_id"].as_str().unwrap().into();
    for (after, status) in [("x", 400), ("1", 400), (&uuid::Uuid::nil().to_string(), 404), (&bens, 404)] {
        assert_eq!(system.get(&format!("/api/v1/orders?after={after}"), Some("ann")).await.0, status, "{after}");
    }
    system.finish().await;
}
