//! One purchase, from the wait for the start to the payment, with its interruptions.

use seckill_domain::ids::Shard;
use seckill_harness::{Sale, redis_at, until};

use crate::buyer::{COUNTDOWN_S, GREY, LIVE, order, says};
use crate::chromium::Page;
use crate::shop::Shop;

/// Moves the start of a sale to this number of seconds from now, in PostgreSQL and in Redis. Then the buyer comes back to the page, which
/// loads the new start. So the start waits for the steps of a test, however slow the machine is.
pub async fn move_start(shop: &Shop, page: &Page, sale: &Sale, seconds: f64) {
    let system = &shop.system;
    let moved = "UPDATE sales SET starts_at = now() + make_interval(secs => $2) WHERE id = $1
                 RETURNING (extract(epoch FROM starts_at) * 1000)::bigint";
    let moved = sqlx::query_scalar(moved).bind(sale.id.get()).bind(seconds);
    let starts_at_ms: i64 = moved.fetch_one(&system.sql).await.unwrap();
    let key = format!("{}{{{}}}:sale", system.config.redis.prefix, system.shards(sale).await.tag(Shard::FIRST));
    let mut connection = redis_at(&system.config.redis.url).await.unwrap();
    let mut set = redis::cmd("HSET");
    set.arg(key).arg("starts_at_ms").arg(starts_at_ms);
    set.query_async::<()>(&mut connection).await.unwrap();
    system.is_followed().await;
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))").await;
}

/// Records the Idempotency-Key of each purchase request of the page. An unanswered request is repeated under the same key.
const COUNT_PURCHASES: &str = "(() => {
    const ask = window.fetch;
    window.purchases = new Set();
    window.fetch = (address, options) => {
        if (String(address).endsWith('/purchases')) {
            window.purchases.add(new Headers(options.headers).get('Idempotency-Key'));
        }
        return ask(address, options);
    };
})()";

/// At the start the grey button becomes active by itself. One click buys, and the page shows the payment.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_waits_for_the_start_buys_and_pays() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5", "--starts-in", "3600", "--ends-in", "7200"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    page.evaluate("window.sameDocument = true").await;
    page.wait(GREY).await;
    let left = page.number(COUNTDOWN_S).await;
    assert!(left > 0.0 && left <= 3600.0, "{left} s");
    page.wait(&format!("{COUNTDOWN_S} < {left}")).await;
    page.click("#buy").await;
    move_start(&shop, &page, &sale, 5.0).await;
    page.wait(LIVE).await;
    assert!(page.is_true("window.sameDocument").await, "the button lights up without a reload");
    assert_eq!(page.requests("/purchases").await, 0.0, "a click on a grey button asks for nothing");
    page.evaluate(COUNT_PURCHASES).await;
    page.click("#buy").await;
    page.wait(&order("pending_payment")).await;
    // The wait is shown step by step, and the time to pay counts down.
    assert!(page.is_true("document.querySelectorAll('#steps > li').length >= 3").await);
    assert!(page.is_true(r"/\d\d:\d\d/.test(document.querySelector('#orders li').innerText)").await);
    page.pay().await;
    page.wait(GREY).await;
    assert_eq!(page.number("window.purchases.size").await, 1.0);
    shop.close_after_one(page, &sale).await;
}

/// A double click makes one purchase, even if two are allowed. The button is disabled for ten seconds, and then active again.
#[tokio::test(flavor = "multi_thread")]
async fn a_double_click_makes_one_order() {
    let (shop, page, sale) = Shop::with_buyer().await;
    page.evaluate(COUNT_PURCHASES).await;
    let clicked_ms = page.number("performance.now()").await;
    page.double_click("#buy").await;
    page.wait(&order("pending_payment")).await;
    assert!(page.is_true(GREY).await || page.number("performance.now()").await - clicked_ms > 10_000.0);
    page.wait(LIVE).await;
    let rested_ms = page.number("performance.now()").await - clicked_ms;
    assert!(rested_ms >= 9_900.0, "the button has rested for {rested_ms} ms");
    assert_eq!(page.number("window.purchases.size").await, 1.0);
    shop.close_after_one(page, &sale).await;
}

/// "Sold out" appears, and disappears when another buyer's unit returns: the button becomes active by itself, and buys.
#[tokio::test(flavor = "multi_thread")]
async fn sold_out_and_back_again() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "1"]).await;
    let bought = shop.system.buy(&sale, "bob").send().await;
    assert_eq!(bought.code(), "202");
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("auth0|日本 é").await;
    page.wait(&says("sold out")).await;
    page.evaluate("window.sameDocument = true").await;
    let cancel = format!("/api/v1/orders/{}/cancel", bought.order_id());
    until(200, || async { shop.system.post(&cancel, "bob").await.0 }).await;
    page.wait(&format!("{LIVE} && !{}", says("sold out"))).await;
    assert!(page.is_true("window.sameDocument").await, "the button lights up without a reload");
    page.buy().await;
    page.pay().await;
    shop.system.settled(&sale).await;
    assert_eq!(shop.system.stock(&sale).await, 0);
    shop.close(page).await;
}

/// The page repeats the same purchase without a click, and there is one order.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_in_the_middle_of_a_purchase_resumes_it() {
    let (shop, page, sale) = Shop::with_buyer().await;
    // The answer never reaches the page.
    let lost = "(() => {
        const real = window.fetch;
        window.fetch = (url, ...more) => {
            const answer = real(url, ...more);
            return String(url).endsWith('/purchases') ? answer.then(() => new Promise(() => {})) : answer;
        };
    })()";
    page.evaluate(lost).await;
    page.click("#buy").await;
    shop.one_purchase(&sale).await;
    page.reload().await;
    page.wait(&order("pending_payment")).await;
    page.signed_in_as("ann").await;
    page.pay().await;
    shop.close_after_one(page, &sale).await;
}
