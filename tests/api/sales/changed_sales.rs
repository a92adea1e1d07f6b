//! Rule 19: a sale's terms are changed while it is planned, sold, and refilled.

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use seckill_buying::sale_work::manage::WAIT_MAX;
use seckill_domain::account::AccountRole;
use seckill_domain::captcha::CaptchaKind;
use seckill_domain::ids::Shard;
use seckill_domain::sale::{NewSale, SaleStatus, Wave};
use seckill_domain::sale_change::{SaleChange, SaleEnd, SaleStart};
use seckill_domain::stock::Stock;
use seckill_harness::{Answer, Sale, System, terms, until};
use serde_json::{Value, json};

use crate::backoffice::admin_api::{Person, UNLIMITED};
use crate::backoffice::admin_sessions::seckill;
use crate::flow::callers_apart::redis;
use crate::sales::shards::answered;

const HOUR_MS: i64 = 3_600_000;

async fn patch(manager: &Person, sale: &Sale, body: Value) -> Answer {
    manager.call("PATCH", &format!("sales/{}", sale.id), Some(body)).await
}

async fn shown(manager: &Person, sale: &Sale) -> Value {
    manager.get(&format!("sales/{}", sale.id)).await.body
}

/// The sale with its present keys.
async fn with_keys(system: &System, sale: &Sale) -> Sale {
    let keys = sqlx::query_as("SELECT purchase_key, waiting_key FROM sales WHERE id = $1").bind(sale.id.get());
    let (key, waiting_key) = keys.fetch_one(&system.sql).await.unwrap();
    Sale { id: sale.id, key, waiting_key }
}

async fn stand(system: &System, sale: &Sale) -> (i64, i64) {
    let epoch = system.count("SELECT epoch FROM sale_epochs WHERE sale_id = $1", sale).await;
    let lines = "SELECT count(*) FROM audit_log WHERE action = 'sale changed' AND subject = 'sale ' || $1::bigint";
    (epoch, system.count(lines, sale).await)
}

/// Changes the sale as the command line does.
async fn change(system: &System, sale: &Sale, change: SaleChange) {
    system.stores.change_sale(sale.id, &change, WAIT_MAX, "test").await.unwrap().unwrap();
    system.is_followed().await;
}

fn planned(stock: i64) -> NewSale {
    NewSale { starts_in_ms: HOUR_MS, ends_in_ms: 2 * HOUR_MS, ..terms(stock) }
}

async fn set_status(system: &System, sale: &Sale, status: SaleStatus) {
    assert!(system.stores.set_sale_status(sale.id, status, "test").await.unwrap());
}

/// Every field, what is shown of it, and whether it belongs to what a buyer agrees to.
fn fields(from_ms: i64) -> Vec<(&'static str, Value, bool)> {
    vec![
        ("product", json!("Lamp"), true),
        ("price_cents", json!(129), true),
        ("currency", json!("JPY"), true),
        ("per_user", json!(3), true),
        ("min_level", json!(2), true),
        ("captcha", json!("work"), true),
        ("pay_within_s", json!(60), true),
        ("starts_at_ms", json!(from_ms + HOUR_MS / 2), false),
        ("ends_at_ms", json!(from_ms + 3 * HOUR_MS), false),
        ("stock", json!(7), false),
        ("show_stock", json!(true), false),
        ("keep_refunded", json!(true), false),
        ("waves", json!([{ "after_s": 7200, "units": 2 }]), false),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_purchase_everything_changes_but_not_under_a_buyers_eyes() {
    let system = System::shared_with(&UNLIMITED).await;
    let manager = Person::shared(&system, "changing", AccountRole::Manager).await;
    let from_ms = system.stores.ledger.now_ms().await.unwrap();
    for (field, value, is_agreed) in fields(from_ms) {
        let sale = system.create_sale(planned(5)).await;
        let before = stand(&system, &sale).await;
        let body = json!({ field: value });
        assert_eq!(patch(&manager, &sale, body.clone()).await.status, 200, "{field}");
        let details = shown(&manager, &sale).await;
        let is = match field {
            "stock" => details["sale"]["total_stock"] == value && details["sale"]["stock"] == value,
            "keep_refunded" => details["keep_refunded"] == value,
            "waves" => details["waves"][0]["units"] == 2 && details["sale"]["stock"] == 3,
            field => details["sale"][field] == value,
        };
        assert!(is, "{field}: {details}");
        let present = with_keys(&system, &sale).await;
        assert_eq!(
            (present.key != sale.key, present.waiting_key != sale.waiting_key),
            (is_agreed, is_agreed),
            "{field}"
        );
        let after = stand(&system, &sale).await;
        assert_eq!((after.0 > before.0, after.1), (!["show_stock", "keep_refunded"].contains(&field), 1), "{field}");
        // A repeat changes nothing.
        assert_eq!(patch(&manager, &sale, body.clone()).await.status, 200, "{field}");
        assert_eq!(stand(&system, &sale).await, after, "{field}");
        system.settled(&sale).await;

        let open = system.create_sale(terms(5)).await;
        let wanted = if is_agreed { "409 conflict" } else { "200" };
        assert_eq!(patch(&manager, &open, body.clone()).await.code(), wanted, "{field}");
        if is_agreed {
            set_status(&system, &open, SaleStatus::Paused).await;
            assert_eq!(patch(&manager, &open, body.clone()).await.status, 200, "{field}");
        }
        let closed = system.create_sale(terms(5)).await;
        set_status(&system, &closed, SaleStatus::Closed).await;
        assert_eq!(patch(&manager, &closed, body).await.code(), "409 conflict", "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_with_the_old_terms_buys_nothing() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(terms(5)).await;
    set_status(&system, &sale, SaleStatus::Paused).await;
    change(&system, &sale, SaleChange { price_cents: Some(999), ..SaleChange::default() }).await;
    set_status(&system, &sale, SaleStatus::Open).await;
    assert_eq!(answered(&system, &sale, "ann").await.code(), "403 wrong-key");
    let present = with_keys(&system, &sale).await;
    assert_eq!(answered(&system, &present, "ann").await.status, 202);
    until(1, || system.orders(&sale)).await;
    assert_eq!(system.count("SELECT amount_cents FROM orders WHERE sale_id = $1", &sale).await, 999);
    system.settled(&sale).await;
}

/// As if this instance had not heard of a change of the price yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_knows_other_terms_sells_nothing() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(terms(5)).await;
    set_status(&system, &sale, SaleStatus::Paused).await;
    let mut sales = vec![sale];
    for price_cents in [999, 100] {
        let sale = sales.last().unwrap();
        change(&system, sale, SaleChange { price_cents: Some(price_cents), ..SaleChange::default() }).await;
        sales.push(with_keys(&system, sale).await);
    }
    let sale = sales.pop().unwrap();
    set_status(&system, &sale, SaleStatus::Open).await;
    let of = system.shards(&sale).await;
    let key = format!("{}{{{}}}:sale", system.config.redis.prefix, of.tag(Shard::FIRST));
    for (there, status) in [("1", 503), ("3", 503), ("0", 503), ("2", 202)] {
        let _: i64 = redis(&system, &["HSET", &key, "terms_version", there]).await;
        let answer = system.buy(&sale, "ann").idempotent("k").send().await;
        assert_eq!(answer.status, status, "{there}: {}", answer.body);
    }
    system.settled(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_purchase_its_terms_stay_and_the_rest_changes() {
    let system = System::shared_with(&UNLIMITED).await;
    let manager = Person::shared(&system, "changing", AccountRole::Manager).await;
    let sale = system.create_sale(terms(5)).await;
    assert_eq!(answered(&system, &sale, "ann").await.status, 202);
    set_status(&system, &sale, SaleStatus::Paused).await;
    let from_ms = system.stores.ledger.now_ms().await.unwrap();
    for (field, value, is_agreed) in fields(from_ms) {
        let wanted = if is_agreed || field == "starts_at_ms" { "409 conflict" } else { "200" };
        let answer = patch(&manager, &sale, json!({ field: value })).await;
        assert_eq!(answer.code(), wanted, "{field}: {}", answer.body);
    }
    for (body, wanted) in [
        (json!({ "stock": -1 }), "409 conflict"),
        (json!({ "ends_at_ms": from_ms }), "409 unworkable-terms"),
        (json!({ "ends_at_ms": from_ms - 2 * HOUR_MS }), "409 unworkable-terms"),
        (json!({ "waves": [{ "after_s": 0, "units": 1 }] }), "409 unworkable-terms"),
        (json!({ "waves": [{ "after_s": 7200, "units": 100 }] }), "409 unworkable-terms"),
        (json!({ "shards": 2 }), "400 invalid-request"),
        (json!({ "price": 2 }), "400 invalid-request"),
        (json!({ "stock": -2 }), "400 invalid-request"),
        (json!({}), "200"),
    ] {
        let answer = patch(&manager, &sale, body.clone()).await;
        assert_eq!(answer.code(), wanted, "{body}: {}", answer.body);
    }
    for columns in ["price_cents = 1", "currency = 'JPY'", "product_id = product_id + 1"] {
        let sql = format!("UPDATE sales SET {columns} WHERE id = {}", sale.id);
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&system.sql).await.unwrap_err();
        let constraint = refused.as_database_error().and_then(|error| error.constraint()).map(str::to_owned);
        assert_eq!(constraint.as_deref(), Some("sales_terms_fixed"), "{columns}");
    }
    set_status(&system, &sale, SaleStatus::Open).await;
    system.settled(&sale).await;
    let unknown = Sale { id: seckill_domain::ids::SaleId::from_db(999_999_999), ..sale };
    assert_eq!(patch(&manager, &unknown, json!({ "stock": 1 })).await.status, 404);
    let viewer = Person::shared(&system, "looking", AccountRole::Viewer).await;
    assert_eq!(patch(&viewer, &unknown, json!({ "stock": 1 })).await.status, 403);
}

/// Orders, accepted purchases and waves count, and the new stock is sold to the last unit.
#[tokio::test(flavor = "multi_thread")]
async fn the_stock_is_never_below_what_is_sold() {
    let mut system = System::prepare(&UNLIMITED).await;
    system.serve(false).await;
    let manager = Person::new(&system, "manager", AccountRole::Manager).await;
    let waves = vec![Wave { after_ms: HOUR_MS, units: 4 }];
    let sale = system.create_sale(NewSale { waves, ends_in_ms: 2 * HOUR_MS, ..terms(10) }).await;
    for user in ["a", "b", "c"] {
        assert_eq!(answered(&system, &sale, user).await.status, 202);
    }
    // Without workers, all three are accepted.
    let answer = patch(&manager, &sale, json!({ "stock": 6 })).await;
    assert_eq!(answer.code(), "409 conflict");
    assert!(answer.body["detail"].as_str().unwrap().contains("at least 7"), "{}", answer.body);
    assert_eq!(patch(&manager, &sale, json!({ "stock": 7 })).await.status, 200);
    assert_eq!(answered(&system, &sale, "d").await.code(), "409 sold-out");
    assert_eq!(patch(&manager, &sale, json!({ "stock": 8 })).await.status, 200);
    until(202, || async { answered(&system, &sale, "d").await.status }).await;
    system.serve(true).await;
    until(4, || system.orders(&sale)).await;
    // The same with orders; and what waves hold back can be put on sale at once.
    assert_eq!(patch(&manager, &sale, json!({ "stock": 7 })).await.code(), "409 conflict");
    assert_eq!(patch(&manager, &sale, json!({ "stock": 5, "waves": [] })).await.status, 200);
    until(202, || async { answered(&system, &sale, "e").await.status }).await;
    assert_eq!(answered(&system, &sale, "f").await.code(), "409 sold-out");
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (0, 5));
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_sale_sells_in_its_new_window_and_takes_its_waves_along() {
    let system = System::shared_with(&UNLIMITED).await;
    let waves = vec![Wave { after_ms: 60_000, units: 2 }];
    let mut sale = system.create_sale(NewSale { waves, ..terms(5) }).await;
    let due = "SELECT (extract(epoch FROM due_at - starts_at) * 1000)::bigint FROM sale_waves w JOIN sales s ON s.id = sale_id WHERE s.id = $1";
    let moved = |starts, ends| SaleChange { starts: Some(starts), ends: Some(ends), ..SaleChange::default() };
    change(&system, &sale, moved(SaleStart::InMs(HOUR_MS), SaleEnd::AfterStartMs(HOUR_MS))).await;
    assert_eq!(answered(&system, &sale, "ann").await.code(), "403 not-started");
    assert_eq!(system.count(due, &sale).await, 60_000);
    change(&system, &sale, moved(SaleStart::InMs(0), SaleEnd::AfterStartMs(HOUR_MS))).await;
    // The key that was known before the move buys nothing.
    assert_eq!(answered(&system, &sale, "ann").await.code(), "403 wrong-key");
    let state = system.get(&format!("/api/v1/sales/{}/state", sale.id), None).await.1;
    state["key"].as_str().unwrap().clone_into(&mut sale.key);
    assert_eq!(answered(&system, &sale, "ann").await.status, 202);
    assert_eq!(system.count(due, &sale).await, 60_000);
    // Shortened: the end comes at once.
    change(&system, &sale, SaleChange { ends: Some(SaleEnd::AfterStartMs(2 * HOUR_MS)), ..SaleChange::default() })
        .await;
    assert_eq!(answered(&system, &sale, "ben").await.status, 202);
    let now_ms = system.stores.ledger.now_ms().await.unwrap();
    change(&system, &sale, SaleChange { ends: Some(SaleEnd::AtMs(now_ms + 1_500)), ..SaleChange::default() }).await;
    let open = async || system.get(&format!("/api/v1/sales/{}/state", sale.id), None).await.1["open"].clone();
    until(json!(false), open).await;
    assert_eq!(answered(&system, &sale, "eve").await.code(), "403 ended");
    until(2, || system.orders(&sale)).await;
}

/// Changes, refills and purchases at once: each change is whole, and the stock adds up.
#[tokio::test(flavor = "multi_thread")]
async fn changes_at_once_during_refills_and_a_rush_add_up() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(NewSale { ends_in_ms: HOUR_MS, ..terms(40) }).await;
    let buyers = join_all((0..60).map(|n| {
        let (system, sale) = (&system, &sale);
        async move { answered(system, sale, &format!("u{n}")).await.status }
    }));
    let changes = join_all((0..6).map(|n| {
        let stock = Some(Stock::Units(41 + n));
        let ends = Some(SaleEnd::AfterStartMs(HOUR_MS + 1_000 * i64::try_from(n).unwrap()));
        let change = SaleChange { stock, ends, ..SaleChange::default() };
        let (system, sale) = (&system, &sale);
        async move {
            // A sale that is busy is tried again.
            until(true, || async {
                system.stores.change_sale(sale.id, &change, WAIT_MAX, "test").await.is_ok_and(|done| done.is_ok())
            })
            .await;
        }
    }));
    let refills = async {
        for _ in 0..5 {
            system.change("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1", &sale).await;
            system.stores.gate.refill_wanted.add(sale.id);
            tokio::task::yield_now().await;
        }
    };
    let (answers, ..) = tokio::join!(buyers, changes, refills);
    system.settled(&sale).await;
    let total = system.count("SELECT total_stock FROM sales WHERE id = $1", &sale).await;
    let ends = "SELECT (extract(epoch FROM ends_at - starts_at))::bigint FROM sales WHERE id = $1";
    assert_eq!(system.count(ends, &sale).await - 3600, total - 41, "stock and end are of one change");
    let won = answers.iter().filter(|status| **status == 202).count();
    assert!((40..=46).contains(&won), "{won}");
    assert_eq!(system.orders(&sale).await + system.stock(&sale).await, total);
    assert_eq!(system.orders(&sale).await, i64::try_from(won).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_one_sale_disturbs_no_other() {
    let system = System::shared_with(&UNLIMITED).await;
    let (changed, other) = (system.create_sale(terms(50)).await, system.create_sale(terms(50_000)).await);
    assert_eq!(answered(&system, &changed, "first").await.status, 202);
    let changes = async {
        for total in [60, 70, 50, 80, 55] {
            change(&system, &changed, SaleChange { stock: Some(Stock::Units(total)), ..SaleChange::default() }).await;
        }
    };
    let mut changes = std::pin::pin!(changes);
    let mut bought = 0;
    loop {
        let user = format!("u{bought}");
        let click = system.buy(&other, &user).send();
        tokio::select! {
            biased;
            answer = click => { assert_eq!(answer.status, 202, "{}", answer.body); bought += 1; }
            () = &mut changes => break,
        }
    }
    assert!(bought > 5, "{bought}");
    system.all_settled([&changed, &other]).await;
}

/// A transaction keeps the sale locked: the change is refused, nothing has changed, and the sale goes on selling.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_sale_is_busy_and_stays_as_it_is() {
    let system = System::shared_with(&UNLIMITED).await;
    let manager = Person::shared(&system, "changing", AccountRole::Manager).await;
    for table in ["sale_epochs", "sales"] {
        let sale = system.create_sale(terms(5)).await;
        assert_eq!(answered(&system, &sale, "ann").await.status, 202);
        system.settled(&sale).await;
        let mut lock = system.sql.begin().await.unwrap();
        let id = if table == "sales" { "id" } else { "sale_id" };
        let sql = format!("SELECT FROM {table} WHERE {id} = {} FOR UPDATE", sale.id);
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *lock).await.unwrap();
        let request = manager.request("PATCH", &format!("sales/{}", sale.id), Some(json!({ "stock": 9 })));
        let answer = crate::backoffice::admin_api::send(request).await;
        assert_eq!(answer.status, 503, "{table}: {}", answer.body);
        if table == "sale_epochs" {
            // Redis has nothing of this one: it waits for no purchase.
            assert_eq!(patch(&manager, &sale, json!({ "show_stock": true })).await.status, 200);
        }
        lock.rollback().await.unwrap();
        assert_eq!(system.count("SELECT total_stock FROM sales WHERE id = $1", &sale).await, 5);
        assert_eq!(answered(&system, &sale, "ben").await.status, 202);
        system.settled(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_is_added_once_for_each_key() {
    let system = System::shared_with(&UNLIMITED).await;
    let manager = Person::shared(&system, "changing", AccountRole::Manager).await;
    let (sale, other) = (system.create_sale(terms(5)).await, system.create_sale(terms(5)).await);
    let add = async |sale: &Sale, units: i64, key: &str| {
        let request = manager.request("POST", &format!("sales/{}/stock", sale.id), Some(json!({ "units": units })));
        crate::backoffice::admin_api::send(request.header("idempotency-key", key)).await.code()
    };
    let total = "SELECT total_stock FROM sales WHERE id = $1";
    assert_eq!(join_all((0..4).map(|_| add(&sale, 3, "k1"))).await, ["200"; 4]);
    assert_eq!(system.count(total, &sale).await, 8);
    assert_eq!(add(&sale, 4, "k1").await, "422 idempotency-mismatch");
    assert_eq!(add(&sale, 3, "k2").await, "200");
    assert_eq!(add(&other, 4, "k1").await, "200");
    assert_eq!(add(&sale, 3, "a key").await, "400 invalid-request");
    assert_eq!((system.count(total, &sale).await, system.count(total, &other).await), (11, 9));
    set_status(&system, &sale, SaleStatus::Closed).await;
    assert_eq!(add(&sale, 3, "k1").await, "200", "a repeat has the same answer");
    assert_eq!(add(&sale, 3, "k3").await, "409 conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_see_how_far_a_sale_is_sold_if_the_shop_shows_it() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(NewSale { show_stock: true, ..terms(3) }).await;
    let hidden = system.create_sale(terms(3)).await;
    let percent = async |sale: &Sale| {
        let (status, state) = system.get(&format!("/api/v1/sales/{}/state", sale.id), None).await;
        assert_eq!(status, 200);
        state.get("sold_percent").cloned()
    };
    for (user, expected) in [("", 0), ("a", 33), ("b", 66), ("c", 100)] {
        if !user.is_empty() {
            assert_eq!(answered(&system, &sale, user).await.status, 202);
        }
        until(Some(json!(expected)), || percent(&sale)).await;
    }
    change(&system, &sale, SaleChange { stock: Some(Stock::Units(4)), ..SaleChange::default() }).await;
    until(Some(json!(75)), || percent(&sale)).await;
    assert_eq!(percent(&hidden).await, None);
    change(&system, &sale, SaleChange { show_stock: Some(false), ..SaleChange::default() }).await;
    until(None::<Value>, || percent(&sale)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_sets_duplicates_and_takes_times_with_their_zone() {
    let system = System::shared_with(&UNLIMITED).await;
    let run = |words: &str| seckill(&system, &words.split(' ').collect::<Vec<_>>(), "");
    let created = |words: &str| serde_json::from_str::<Value>(&run(words).unwrap()).unwrap()["sale_id"].to_string();
    let show = |id: &str| {
        let rows: Value = serde_json::from_str(&run(&format!("sale show {id} --format json")).unwrap()).unwrap();
        rows[0].clone()
    };
    let new = "sale create --product Lamp --price-cents 12900 --stock 10 --per-user 2 --wave 60:4 --show-stock";
    let id = created(&format!("{new} --starts-at 2031-12-01T20:00:00+08:00 --ends-in 7200"));
    let row = show(&id);
    let time = |row: &Value, name: &str| row[name].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    assert_eq!(
        [time(&row, "starts_at"), time(&row, "ends_at")],
        [at("2031-12-01T12:00:00Z"), at("2031-12-01T14:00:00Z")]
    );
    assert_eq!(row["show_stock"], true);
    // A planned sale's end counts from its start, by default, too.
    let later = show(&created(&format!("{new} --starts-in 7200")));
    assert_eq!((time(&later, "ends_at") - time(&later, "starts_at")).num_seconds(), 3600);

    run(&format!("sale set {id} --price-cents 9900 --stock 20 --ends-at 2031-12-01T23:00:00+08:00 --show-stock=false"))
        .unwrap();
    let row = show(&id);
    assert_eq!((&row["price_cents"], &row["total_stock"], &row["stock"]), (&json!(9900), &json!(20), &json!(16)));
    assert_eq!((time(&row, "ends_at"), &row["show_stock"]), (at("2031-12-01T15:00:00Z"), &json!(false)));
    run(&format!("sale set {id} --no-waves")).unwrap();
    assert_eq!(show(&id)["stock"], 20);

    let copy = show(&created(&format!("sale duplicate {id} --starts-at 2032-01-01T00:00:00Z --stock 7")));
    for same in ["product", "price_cents", "currency", "per_user", "min_level", "captcha", "shards", "pay_within_s"] {
        assert_eq!(copy[same], row[same], "{same}");
    }
    assert_eq!((&copy["total_stock"], time(&copy, "ends_at")), (&json!(7), at("2032-01-01T03:00:00Z")));

    for (words, why) in [
        (format!("sale set {id} --starts-at 2031-12-01T20:00:00"), "its zone"),
        (format!("sale set {id} --starts-at tomorrow"), "its zone"),
        (format!("sale set {id} --starts-at 2031-12-01T20:00:00Z --starts-in 5"), "cannot be used with"),
        (format!("sale set {id} --shards 2"), "never"),
        (format!("sale set {id} --ends-in -5"), "later than"),
        ("sale set 999999999 --stock 5".to_owned(), "no sale"),
        ("sale duplicate 999999999".to_owned(), "no sale"),
        ("sale create --product Lamp --stock 5".to_owned(), "--price-cents"),
    ] {
        let error = run(&words).unwrap_err();
        assert!(error.contains(why), "{words}: {error}");
    }
    for expected in [25, 25, 30] {
        let key = if expected == 25 { "one" } else { "two" };
        run(&format!("sale add-stock {id} 5 --idempotency-key {key}")).unwrap();
        assert_eq!(show(&id)["total_stock"], expected);
    }
    let error = run(&format!("sale add-stock {id} 6 --idempotency-key one")).unwrap_err();
    assert!(error.contains("another number"), "{error}");
}

/// A captcha that is asked later binds all later purchases.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_begins_to_ask_for_a_pass_asks_everybody() {
    let system = System::shared_with(&UNLIMITED).await;
    let sale = system.create_sale(terms(5)).await;
    set_status(&system, &sale, SaleStatus::Paused).await;
    change(&system, &sale, SaleChange { captcha: Some(CaptchaKind::Work), ..SaleChange::default() }).await;
    set_status(&system, &sale, SaleStatus::Open).await;
    let present = with_keys(&system, &sale).await;
    assert_eq!(answered(&system, &present, "ann").await.code(), "403 pass-invalid");
    set_status(&system, &sale, SaleStatus::Paused).await;
    change(&system, &sale, SaleChange { captcha: Some(CaptchaKind::None), ..SaleChange::default() }).await;
    set_status(&system, &sale, SaleStatus::Open).await;
    let present = with_keys(&system, &sale).await;
    assert_eq!(answered(&system, &present, "ann").await.status, 202);
    system.settled(&sale).await;
}
