//! Drafts of sales: bounded in number, seen by no buyer, and published once.

use futures_util::future::join_all;
use seckill_harness::System;
use seckill_postgres::sales::drafts::DRAFTS_MAX;
use serde_json::{Value, json};

use crate::backoffice::admin_api::Person;
use crate::backoffice::console_frame::people;

fn form(product: &str) -> Value {
    json!({ "product": product, "form": [{ "name": "price_cents", "text": "19,9" }, { "name": "unlimited", "text": "true" }] })
}

/// A draft that two people publish at once becomes one sale, and its name is not taken before.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_becomes_one_sale() {
    let system = System::start().await;
    let [root, max, _] = people(&system).await;
    let draft = max.post("drafts", form("Draft of Max")).await;
    assert_eq!(draft.status, 201, "{}", draft.body);
    let path = format!("drafts/{}", draft.body["draft_id"].as_str().unwrap());
    assert_eq!(root.put(&path, form("Draft of both")).await.status, 200);
    let listed = max.get("drafts").await.body["drafts"][0].take();
    assert_eq!((&listed["product"], &listed["updated_by"]), (&json!("Draft of both"), &json!("root")));
    assert_eq!(max.get(&path).await.body["form"], form("")["form"]);
    let sales = "SELECT (SELECT count(*) FROM sales) + (SELECT count(*) FROM products)";
    assert_eq!(system.number(sales).await, 0, "buyers see nothing of a draft");

    let plan = json!({ "product": "Teapot", "price_cents": 1990, "stock": 5, "draft_id": draft.body["draft_id"] });
    let publish = |person: &Person| person.request("POST", "sales", Some(plan.clone())).send();
    let mut answers: Vec<u16> = join_all([publish(&root), publish(&max)])
        .await
        .into_iter()
        .map(|answer| answer.unwrap().status().as_u16())
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, [201, 409]);
    assert_eq!((system.number("SELECT count(*) FROM sales").await, max.get(&path).await.status), (1, 404));
    for gone in [root.put(&path, form("")).await, root.delete(&path).await] {
        assert_eq!(gone.code(), "404 not-found");
    }
    system.finish().await;
}

/// A form that is too long, and one draft more than are kept, are refused. A removed draft makes room.
#[tokio::test(flavor = "multi_thread")]
async fn drafts_are_bounded() {
    let system = System::start().await;
    let [_, max, _] = people(&system).await;
    let field = |name: &str, text: &str| json!({ "name": name, "text": text });
    for (product, fields) in [
        ("", vec![field("a", ""); 41]),
        ("", vec![field("A", "")]),
        ("", vec![field(&"a".repeat(41), "")]),
        ("", vec![field("a", &"ü".repeat(4001))]),
        ("", vec![field("a", "\0")]),
        ("a\u{202e}b", vec![]),
    ] {
        let refused = max.post("drafts", json!({ "product": product, "form": fields })).await;
        assert_eq!(refused.code(), "400 invalid-request", "{product} {fields:?}");
        assert_eq!(refused.body["field"], if product.is_empty() { "form" } else { "product" });
    }
    let others =
        "INSERT INTO sale_drafts (product, form, updated_by) SELECT 'Other', '[]', 'test' FROM generate_series(2, $1)";
    sqlx::query(others).bind(i32::try_from(DRAFTS_MAX).unwrap()).execute(&system.sql).await.unwrap();
    // Of those that come at once, one has room.
    let tries = join_all((0..5).map(|_| max.post("drafts", form("Last")))).await;
    let made: Vec<_> = tries.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!((made.len(), system.number("SELECT count(*) FROM sale_drafts").await), (1, DRAFTS_MAX));
    assert!(tries.iter().all(|answer| answer.status == 201 || answer.code() == "409 conflict"));
    let last = made[0].body["draft_id"].as_str().unwrap();
    assert_eq!(max.delete(&format!("drafts/{last}")).await.status, 200);
    assert_eq!(max.post("drafts", form("Room again")).await.status, 201);
    system.finish().await;
}
