//! Amounts in every currency of ISO 4217: pages, console, data for search engines, orders and the bank show the same.

use futures_util::{StreamExt, stream};
use reqwest::Client;
use seckill_domain::currency::Currency;
use seckill_domain::sale::NewSale;
use seckill_harness::{Sale, eventually, terms, until};
use serde_json::{Value, json};

use crate::console::console;
use crate::shop::Shop;

const MINOR_UNITS: i64 = 12_345;
const CONCURRENCY: usize = 16;
/// One address sends all requests.
const SETTINGS: [(&str, &str); 3] = [
    ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
    ("SECKILL_CHANNELS__SANDBOX__RATE", "200"),
    ("SECKILL_CHANNELS__SANDBOX__JITTER_MS", "1000"),
];

/// What the page's own function shows, by currency, without the symbol and the signs between groups.
const BY_THE_PAGE: &str = "(async (amounts) => {
    const { money } = await import(document.querySelector('link[rel=modulepreload][href*=front]').href);
    return amounts.map(([units, currency]) => money(units, currency).replace(/[^0-9.]/g, ''));
})";
/// The prices on the console's pages of these sales.
const BY_THE_CONSOLE: &str = "(async (ids) => {
    const shown = [];
    for (const id of ids) {
        const page = new DOMParser().parseFromString(await (await fetch(`/admin/sales/${id}`)).text(), 'text/html');
        shown.push([...page.querySelectorAll('dt')].find((term) => term.textContent === 'Price').nextElementSibling.textContent);
    }
    return shown;
})";

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("no {begin} in {text}"));
    rest.split_once(end).unwrap().0
}

/// Buys a unit and begins to pay it. Returns the order.
async fn order(shop: &Shop, sale: &Sale) -> Value {
    let system = &shop.system;
    let bought = eventually(|| async {
        let answer = system.buy(sale, "ann").idempotent("once").send().await;
        if answer.status == 202 { Ok(answer.order_id()) } else { Err(answer.code()) }
    })
    .await;
    let pay = format!("/api/v1/orders/{bought}/payments");
    eventually(|| async {
        let request = Client::new().post(system.url(&pay)).bearer_auth(system.token("ann", 0));
        let status = request.json(&json!({ "channel": "sandbox" })).send().await.unwrap().status();
        if status == 202 { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    system.get(&format!("/api/v1/orders/{bought}"), Some("ann")).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn every_currency_has_one_amount_everywhere() {
    let (shop, page) = console(&SETTINGS).await;
    let system = &shop.system;
    let currencies: Vec<Currency> = Currency::all().collect();
    let sales: Vec<Sale> = stream::iter(&currencies)
        .map(|currency| system.create_sale(NewSale { currency: *currency, price_cents: MINOR_UNITS, ..terms(1) }))
        .buffered(CONCURRENCY)
        .collect()
        .await;
    let amounts: Vec<String> = currencies.iter().map(|currency| currency.amount(MINOR_UNITS)).collect();

    // The page as it comes, and its data for search engines.
    for ((sale, currency), amount) in sales.iter().zip(&currencies).zip(&amounts) {
        let html = reqwest::get(shop.page_of(sale)).await.unwrap().text().await.unwrap();
        assert_eq!(between(&html, "id=\"price\"", "</p>").split_once('>').unwrap().1, format!("{currency} {amount}"));
        let data: Value =
            serde_json::from_str(between(&html, "<script type=\"application/ld+json\">", "</script>")).unwrap();
        let offer = &data["offers"];
        assert_eq!((&offer["price"], &offer["priceCurrency"]), (&json!(amount), &json!(currency)));
    }

    // The page with its script.
    page.visit(&shop.page_of(&sales[0])).await;
    let asked: Vec<Value> = currencies.iter().map(|currency| json!([MINOR_UNITS, currency])).collect();
    let shown: Vec<String> =
        serde_json::from_value(page.evaluate(&format!("{BY_THE_PAGE}({})", json!(asked))).await).unwrap();
    assert_eq!(shown, amounts);
    let drawn = page.evaluate("document.getElementById('price').textContent").await;
    assert!(drawn.as_str().unwrap().contains(&amounts[0]), "{drawn}");

    // The console.
    page.sign_in_at(&shop, "vic", "/admin").await;
    let ids: Vec<i64> = sales.iter().map(|sale| sale.id.get()).collect();
    let shown: Vec<String> =
        serde_json::from_value(page.evaluate(&format!("{BY_THE_CONSOLE}({})", json!(ids))).await).unwrap();
    for ((shown, currency), amount) in shown.iter().zip(&currencies).zip(&amounts) {
        assert_eq!(shown.replace('\u{202f}', ""), format!("{currency} {amount}"));
    }

    // Orders, and what the bank has taken for them.
    let orders: Vec<Value> = stream::iter(&sales).map(|sale| order(&shop, sale)).buffered(CONCURRENCY).collect().await;
    let paid = "SELECT count(*) FROM orders WHERE status = 'paid'";
    until(i64::try_from(orders.len()).unwrap(), || system.number(paid)).await;
    let books = format!("{}/v1/ledger?limit=1000", system.config.channels["sandbox"].url);
    let books: Value = reqwest::get(books).await.unwrap().json().await.unwrap();
    let taken = |order: &Value| {
        books["entries"].as_array().unwrap().iter().find(|entry| entry["order_id"] == order["order_id"])
    };
    for (order, currency) in orders.iter().zip(&currencies) {
        for of in [order, taken(order).unwrap()] {
            assert_eq!((&of["amount_cents"], &of["currency"]), (&json!(MINOR_UNITS), &json!(currency)), "{of}");
        }
    }
    shop.close(page).await;
}
