//! What a sale has sold: in the list, on its page and in its report.

use serde_json::{Value, json};

use uuid::Uuid;

use crate::backoffice::admin_sessions::seckill;
use crate::backoffice::console_frame::people;
use seckill_domain::sale::NewSale;
use seckill_harness::{Sale, System, terms};

/// Writes paid, waiting, ended and refunded orders of two units each with their money, without what makes them.
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
    for insert in [
        "INSERT INTO payments (id, order_id, channel, amount_cents, currency, status, pays, ended_at)
         SELECT gen_random_uuid(), id, 'sandbox', 200, 'CNY', 'succeeded', true, '2026-11-11 11:11:11Z' FROM orders
         WHERE sale_id = $1 AND status IN ('paid', 'refunding', 'refunded')",
        "INSERT INTO refunds (id, payment_id, order_id, channel, amount_cents, currency, cause, asked_by, reason, status, key, queued, ended_at)
         SELECT gen_random_uuid(), p.id, o.id, 'sandbox', 200, 'CNY', 'asked', 'ann', '', CASE o.status WHEN 'refunded' THEN 'succeeded' ELSE 'requested' END,
                gen_random_uuid(), true, CASE o.status WHEN 'refunded' THEN timestamptz '2026-11-12 12:12:12Z' END
         FROM orders o JOIN payments p ON p.order_id = o.id WHERE o.sale_id = $1 AND o.status IN ('refunding', 'refunded')",
    ] {
        let insert = format!("SET session_replication_role = replica; {insert}");
        system.execute(insert.replace("$1", &sale.id.to_string())).await;
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
        (
            &[("paid", 40), ("pending_payment", 9), ("cancelled", 50), ("refunded", 1)],
            json!([98, 18, 80, 2, 8000, 0.41]),
        ),
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

/// The report's file has a line for each order of the sale, with its money. A viewer gets the orders without money.
#[tokio::test(flavor = "multi_thread")]
async fn the_report_is_a_file_with_the_money_of_each_order() {
    let mut system = System::without_workers(&[]).await;
    let [root, max, vic] = people(&system).await;
    let sale = system.create_sale(NewSale { product: "=Lamp, \"red\"".into(), ..terms(100) }).await;
    fill(&system, &sale, &[("paid", 3), ("refunding", 1), ("refunded", 2), ("pending_payment", 2), ("cancelled", 1)])
        .await;
    let page = root.page(&format!("/admin/sales/{}/report", sale.id)).await.1;
    let link = format!("/api/v1/admin/orders.csv?sale={}", sale.id);
    assert!(page.contains(&format!("href=\"{link}\"")), "{page}");
    let viewed = vic.page(&format!("/admin/sales/{}/report", sale.id)).await;
    assert!(viewed.0 == 200 && !viewed.1.contains("orders.csv"), "{}", viewed.1);
    let file = max.request("GET", &format!("orders.csv?sale={}", sale.id), None).send().await.unwrap();
    assert_eq!(
        file.headers()["content-disposition"],
        format!("attachment; filename=\"sale-{}-orders.csv\"", sale.id).as_str()
    );
    let file = file.text().await.unwrap();
    let mut reader = csv::Reader::from_reader(file.as_bytes());
    let columns = reader.headers().unwrap().clone();
    let lines: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let cell = |line: &csv::StringRecord, name: &str| {
        line[columns.iter().position(|column| column == name).unwrap()].to_owned()
    };
    let mut found: Vec<[String; 7]> = lines
        .iter()
        .map(|line| {
            ["status", "reason", "channel", "paid_at", "refunded_cents", "refunded_at", "product"]
                .map(|name| cell(line, name))
        })
        .collect();
    found.sort();
    found.dedup();
    let (paid_at, refunded_at, product) = ("2026-11-11T11:11:11.000Z", "2026-11-12T12:12:12.000Z", "'=Lamp, \"red\"");
    let expected = [
        ["cancelled", "expired", "", "", "", "", product],
        ["paid", "", "sandbox", paid_at, "", "", product],
        ["pending_payment", "", "", "", "", "", product],
        ["refunded", "", "sandbox", paid_at, "200", refunded_at, product],
        ["refunding", "", "sandbox", paid_at, "", "", product],
    ];
    assert_eq!((lines.len(), found), (9, expected.map(|line| line.map(str::to_owned)).to_vec()));
    let order = cell(&lines[0], "order_id");
    let shown = seckill(&system, &["order", "show", &order, "--format", "json"], "").unwrap();
    let whole: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&whole["order"]["order_id"], &whole["order"]["product"]), (&json!(order), &json!("=Lamp, \"red\"")));
    assert!(seckill(&system, &["order", "show", &order], "").unwrap().contains(&order));
    assert!(
        seckill(&system, &["order", "show", &Uuid::nil().to_string()], "").unwrap_err().contains("there is no order")
    );
    for (person, channel) in [(&root, json!("sandbox")), (&vic, Value::Null)] {
        let listed = person.get(&format!("orders?sale={}&status=paid", sale.id)).await.body["orders"][0].clone();
        assert_eq!((&listed["channel"], listed["product"].as_str().unwrap()), (&channel, "=Lamp, \"red\""));
        let whole = person.get(&format!("orders/{}", listed["order_id"].as_str().unwrap())).await.body;
        assert_eq!((&whole["order"]["channel"], &whole["order"]["number"]), (&channel, &listed["number"]), "{whole}");
    }
    system.stop().await;
}

/// Orders are found by product, time and the number that buyers see, together and with the other conditions.
#[tokio::test(flavor = "multi_thread")]
async fn orders_are_found_by_product_time_and_number() {
    let mut system = System::without_workers(&[]).await;
    let [root, _, vic] = people(&system).await;
    let mut sales = Vec::new();
    for product in ["Red lamp", "Blue LAMP", "Kettle"] {
        let sale = system.create_sale(NewSale { product: product.into(), ..terms(100) }).await;
        fill(&system, &sale, &[("paid", 3), ("cancelled", 2)]).await;
        sales.push(sale.id);
    }
    // The kettles were bought in the first second of a day, one order each 100 ms.
    system
        .execute(format!(
            "UPDATE orders o SET created_at = timestamptz '2026-11-11 00:00:00Z' + n * interval '100 ms'
             FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM orders WHERE sale_id = {}) AS numbered WHERE o.id = numbered.id",
            sales[2]
        ))
        .await;
    let day = 1_794_355_200_000_i64;
    let kettle = root.get("orders?product=kettle&limit=1").await.body["orders"][0].clone();
    let (id, number) = (kettle["order_id"].as_str().unwrap(), kettle["number"].as_str().unwrap());
    assert_eq!(kettle["created_at_ms"], day + 400);
    for (query, found) in [
        ("product=lamp".to_owned(), 10),
        ("product=LAMP&limit=4".to_owned(), 4),
        ("product=red".to_owned(), 5),
        ("product=lamp&status=cancelled".to_owned(), 4),
        ("product=lamp&user=paid1".to_owned(), 2),
        ("product=%25".to_owned(), 0),
        (format!("product=lamp&sale={}", sales[0]), 5),
        (format!("product=lamp&sale={}", sales[2]), 0),
        (format!("to_ms={}", day + 1_000), 5),
        (format!("from_ms={day}&to_ms={}", day + 100), 1),
        (format!("from_ms={day}&to_ms={day}"), 0),
        (format!("from_ms={}&to_ms={}&product=kettle", day + 100, day + 400), 3),
        (format!("from_ms={}&to_ms={}&sale={}", day + 100, day + 400, sales[0]), 0),
        (format!("from_ms={}", day + 1_000), 10),
        (format!("number={number}&product=kettle"), 1),
        (format!("number=%23{}&sale={}", number.to_uppercase(), sales[2]), 1),
        (format!("number={number}&from_ms={day}"), 1),
        (format!("number={number}&from_ms={}", day + 401), 0),
        (format!("number={number}&user={}", kettle["user"].as_str().unwrap()), 1),
        (format!("number={number}&sale={}", sales[0]), 0),
        (format!("number={number}&order={id}&product=kettle"), 1),
        (format!("number=00000000&order={id}&product=kettle"), 0),
    ] {
        let page = root.get(&format!("orders?{query}")).await;
        assert_eq!((page.status, page.body["orders"].as_array().map(Vec::len)), (200, Some(found)), "{query}");
    }
    // Page by page, through several sales.
    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = vic.get(&format!("orders?product=lamp&limit=3{before}")).await.body;
        seen.extend(page["orders"].as_array().unwrap().iter().map(|order| order["order_id"].to_string()));
        let Some(next) = page["next_before"].as_str() else { break };
        before = format!("&before={next}");
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((count, seen.len()), (10, 10));
    let many = format!(
        "SET session_replication_role = replica;
         INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at, pay_within_ms,
                            purchase_key, waiting_key)
         SELECT product_id, price_cents, currency, 5, 5, 1, 0, starts_at, ends_at, pay_within_ms, 'a' || i, 'b' || i
         FROM sales, generate_series(1, 100) i WHERE id = {}",
        sales[0]
    );
    system.execute(many).await;
    for wrong in [
        &format!("number={number}"),
        &format!("number={number}&status=paid"),
        "number=xyz",
        "number=0a0bc0d&sale=1",
        "from_ms=x",
        "to_ms=-1",
        "product=a%07b",
        "product=lamp",
    ] {
        assert_eq!(root.get(&format!("orders?{wrong}")).await.code(), "400 invalid-request", "{wrong}");
        let page = root.page(&format!("/admin/orders?{wrong}")).await;
        assert!(page.0 == 200 && page.1.contains("role=\"alert\""), "{wrong}: {}", page.1);
    }
    system.stop().await;
}
