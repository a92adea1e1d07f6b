//! What a buyer or an address did in a sale, and blocking them there.

use serde_json::json;

use crate::backoffice::admin_api::UNLIMITED;
use crate::backoffice::admin_sessions::seckill;
use crate::backoffice::console_frame::people;
use seckill_domain::sale::NewSale;
use seckill_harness::{System, terms};

/// A blocked buyer or address buys no more in this sale. Earlier orders stay, and repeats get their answer, also when it is sold out.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_buyer_or_address_buys_no_more_in_this_sale() {
    let system = System::start_with(&UNLIMITED).await;
    let [_, max, vic] = people(&system).await;
    let two = NewSale { per_user: seckill_domain::ids::Units::parse(2).unwrap(), ..terms(4) };
    let (sale, other) = (system.create_sale(two).await, system.create_sale(terms(4)).await);
    let first = system.buy(&sale, "eve").idempotent("one").send().await;
    assert_eq!(first.status, 202, "{}", first.body);
    system.settled(&sale).await;
    let blocks = format!("sales/{}/blocks", sale.id);
    let note = json!({ "note": "a bot" });
    for (query, body, code) in [
        ("?buyer=eve", json!({ "note": "" }), "400 invalid-request"),
        ("", note.clone(), "400 invalid-request"),
        ("?buyer=eve&address=203.0.113.9", note.clone(), "400 invalid-request"),
        ("?address=eve", note.clone(), "400 invalid-request"),
        ("?buyer=a%07b", note.clone(), "400 invalid-request"),
    ] {
        assert_eq!(max.put(&format!("{blocks}{query}"), body).await.code(), code, "{query}");
    }
    assert_eq!(max.put("sales/999999/blocks?buyer=eve", note.clone()).await.code(), "404 not-found");
    assert_eq!(vic.put(&format!("{blocks}?buyer=eve"), note.clone()).await.code(), "403 forbidden");
    let set = max.put(&format!("{blocks}?buyer=eve"), note.clone()).await;
    assert_eq!(set.status, 200, "{}", set.body);
    system.is_followed().await;

    let available = system.available(&sale).await;
    assert_eq!(system.buy(&sale, "eve").idempotent("two").send().await.code(), "403 not-allowed");
    assert_eq!(system.available(&sale).await, available, "a blocked buyer takes no unit");
    let again = system.buy(&sale, "eve").idempotent("one").send().await;
    assert_eq!((again.status, again.order_id()), (202, first.order_id()));
    assert_eq!(system.buy(&other, "eve").send().await.status, 202, "blocked in one sale only");
    assert_eq!(system.buy(&sale, "Eve").send().await.status, 202);
    // The answer is the same when nothing is left.
    assert_eq!(system.buy(&sale, "ann").send().await.status, 202);
    assert_eq!(system.buy(&sale, "bob").send().await.status, 202);
    assert_eq!(system.buy(&sale, "cat").send().await.code(), "409 sold-out");
    assert_eq!(system.buy(&sale, "eve").idempotent("three").send().await.code(), "403 not-allowed");

    // All buyers of the test have one address.
    let activity = async |query: &str| {
        let shown = max.get(&format!("sales/{}/activity?{query}", sale.id)).await;
        assert_eq!(shown.status, 200, "{query}: {}", shown.body);
        shown.body
    };
    system.settled(&sale).await;
    let eve = activity("buyer=eve").await;
    let address = eve["purchases"][0]["address"].as_str().unwrap().to_owned();
    assert_eq!((&eve["purchases"][0]["status"], &eve["block"]["note"]), (&json!("pending_payment"), &json!("a bot")));
    assert_eq!(activity("buyer=nobody").await, json!({ "purchases": [], "more": false, "block": null }));
    system
        .execute(format!(
            "INSERT INTO lapsed_holds SELECT id, sale_id, user_id, '{address}', 1 FROM orders WHERE user_id = 'Eve'"
        ))
        .await;
    let at_address = activity(&format!("address={address}")).await;
    let mut found: Vec<(&str, bool)> = at_address["purchases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["user"].as_str().unwrap(), of["lapsed_at_ms"].is_i64()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, [("Eve", true), ("ann", false), ("bob", false), ("eve", false)]);
    let page = max.page(&format!("/admin/sales/{}/activity?address={address}", sale.id)).await;
    assert!(page.0 == 200 && page.1.contains("Block in this sale") && page.1.contains(">eve<"), "{}", page.1);
    assert_eq!(vic.page(&format!("/admin/sales/{}/activity?buyer=eve", sale.id)).await.0, 403);
    assert!(max.page(&format!("/admin/sales/{}", sale.id)).await.1.contains("activity?buyer=eve"));
    assert!(!vic.page(&format!("/admin/sales/{}", sale.id)).await.1.contains("activity"));

    // The address is blocked for all of its buyers; then nobody is blocked.
    assert_eq!(max.put(&format!("{blocks}?address={address}"), note.clone()).await.status, 200);
    system.is_followed().await;
    assert_eq!(system.buy(&sale, "dan").send().await.code(), "403 not-allowed");
    let listed = max.get(&blocks).await.body;
    assert_eq!(listed["blocks"].as_array().unwrap().len(), 2, "{listed}");
    for query in ["buyer=eve".to_owned(), format!("address={address}")] {
        assert_eq!(max.delete(&format!("{blocks}?{query}")).await.status, 200, "{query}");
        assert_eq!(max.delete(&format!("{blocks}?{query}")).await.code(), "404 not-found", "{query}");
    }
    system.is_followed().await;
    assert_eq!(system.buy(&sale, "dan").send().await.code(), "409 sold-out");
    let many = format!(
        "INSERT INTO sale_blocks (sale_id, kind, name, note, blocked_by) SELECT {}, 'buyer', 'b' || n, 'x', 'test' FROM generate_series(1, 1000) n",
        sale.id
    );
    system.execute(many).await;
    assert_eq!(max.put(&format!("{blocks}?buyer=eve"), note.clone()).await.code(), "409 conflict");
    assert_eq!(max.put(&format!("{blocks}?buyer=b7"), note).await.status, 200, "its note is replaced");
    // What buyers read names nobody.
    for path in [format!("/api/v1/sales/{}", sale.id), "/api/v1/sales".to_owned()] {
        let (_, public) = system.get(&path, None).await;
        assert!(!public.to_string().contains("b7"), "{public}");
    }
    let lines =
        "SELECT string_agg(action, ', ' ORDER BY id) FROM audit_log WHERE actor = 'max' AND action LIKE '%blocked'";
    let all = "buyer blocked, address blocked, buyer unblocked, address unblocked, buyer blocked";
    assert_eq!(system.value::<String>(lines).await, all);
    // An erased buyer is in no block and no line.
    system.execute(format!("UPDATE sales SET status = 'closed' WHERE id IN ({}, {})", sale.id, other.id)).await;
    seckill(&system, &["buyer", "erase", "--user", "b7"], "").unwrap();
    let left = "SELECT (SELECT count(*) FROM sale_blocks WHERE name = 'b7') + (SELECT count(*) FROM audit_log WHERE details::text LIKE '%\"b7\"%')";
    assert_eq!(system.value::<i64>(left).await, 0);
    system.finish().await;
}
