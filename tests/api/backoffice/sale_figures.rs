//! What a sale has sold: in the list, on its page and in its report.

use serde_json::{Value, json};

use crate::backoffice::console_frame::people;
use seckill_domain::sale::NewSale;
use seckill_harness::{Sale, System, terms};

/// Writes paid, waiting, ended and refunded orders of two units each, without what makes them.
pub async fn fill(system: &System, sale: &Sale, statuses: &[(&str, i32)]) {
    for (status, orders) in statuses {
        let insert = "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, reason, expires_at, group_id)
                      SELECT gen_random_uuid(), $1, $2 || n, 2, 200, 'CNY', $2,
                             CASE $2 WHEN 'cancelled' THEN 'expired' WHEN 'rejected' THEN 'over-limit' END, now(), gen_random_uuid()
                      FROM generate_series(1, $3) AS n";
        let insert = format!("SET session_replication_role = replica; {insert}")
            .replace("$1", &sale.id.to_string())
            .replace("$2", &format!("'{status}'"))
            .replace("$3", &orders.to_string());
        system.execute(insert).await;
    }
}

/// The list, the sale and its pages say the same, and the units add up.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_shows_what_it_has_sold() {
    let mut system = System::without_workers(&[]).await;
    let [root, _, vic] = people(&system).await;
    // Sold, waiting, paid, refunded, revenue and conversion.
    for (statuses, expected) in [
        (&[][..], json!([0, 0, 0, 0, 0, null])),
        (&[("pending_payment", 3)], json!([6, 6, 0, 0, 0, 0.0])),
        (&[("paid", 3), ("cancelled", 1)], json!([6, 0, 6, 0, 600, 0.75])),
        (&[("paid", 1), ("refunding", 1), ("refunded", 2)], json!([4, 0, 4, 4, 400, 1.0])),
        (&[("rejected", 5)], json!([0, 0, 0, 0, 0, null])),
        (&[("paid", 40), ("pending_payment", 9), ("cancelled", 50), ("refunded", 1)], json!([98, 18, 80, 2, 8000, 0.41])),
    ] {
        let sale = system.create_sale(NewSale { product: "Lamp".into(), ..terms(100) }).await;
        fill(&system, &sale, statuses).await;
        let left = 100 - expected[0].as_i64().unwrap();
        system.execute(format!("UPDATE sales SET stock = {left} WHERE id = {}", sale.id)).await;
        let figures = |sale: &Value| {
            let names = ["sold_units", "waiting_units", "paid_units", "refunded_units", "revenue_cents", "conversion"];
            names.iter().map(|name| sale["result"][name].clone()).collect::<Value>()
        };
        let one = vic.get(&format!("sales/{}", sale.id)).await.body["sale"].clone();
        assert_eq!(figures(&one), expected, "{statuses:?}: {one}");
        let list = vic.get("sales?limit=1").await.body;
        assert_eq!(figures(&list["sales"][0]), expected, "{statuses:?}: {list}");
        for page in ["", "/report"] {
            let (status, page) = root.page(&format!("/admin/sales/{}{page}", sale.id)).await;
            let sum = format!("100 units in all: {} sold, {left} left.", expected[0]);
            assert!(status == 200 && page.contains(&sum), "{statuses:?}: {page}");
        }
    }
    system.stop().await;
}
