//! The network fails in the middle of a purchase, and comes back.

use seckill_harness::eventually;

use crate::buyer::{LIVE, order, says};
use crate::shop::Shop;

/// The page's message while the outcome is unknown.
pub const HONEST: &str = "no answer|connection|offline|network";

/// The page has received the buyer's orders.
const ORDERS_READ: &str = "performance.getEntriesByType('resource').some(({ name, responseStatus }) =>
    new URL(name).pathname === '/api/v1/orders' && responseStatus === 200)";

/// The purchase is certain, and its answer is lost. The page claims nothing while the network is away. When it comes back, there is one
/// order, and it is paid. (`accessibility` clicks without a network.)
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_is_asked_for_again() {
    let (shop, page, sale) = Shop::with_buyer().await;
    // The page asks for the buyer's orders once, at the sign-in. A late answer would include an order that was made meanwhile.
    page.wait(ORDERS_READ).await;
    // The first answer is held back until the network is cut, and is then lost.
    let lost = "(() => {
        const real = window.fetch;
        window.fetch = (url, ...more) => {
            const answer = real(url, ...more);
            if (!String(url).endsWith('/purchases')) return answer;
            window.fetch = real;
            return answer.then(() => new Promise((_, lose) => {
                window.loseAnswer = () => lose(new TypeError('the network was cut'));
            }));
        };
    })()";
    page.evaluate(lost).await;
    page.click("#buy").await;
    shop.one_purchase(&sale).await;
    page.wait("Boolean(window.loseAnswer)").await;
    page.offline(true).await;
    page.evaluate("window.loseAnswer()").await;
    page.wait(&says(HONEST)).await;
    assert!(page.is_true("!document.querySelector('#orders li')").await, "the page claims what it cannot know");
    page.offline(false).await;
    // The page retries by itself. If it has given up, it has told the buyer to click again.
    eventually(|| async {
        if page.is_true(&order("pending_payment")).await {
            return Ok(());
        }
        if page.is_true(&format!("{LIVE} && !document.querySelector('#orders li')")).await {
            page.click("#buy").await;
        }
        Err("there is no order".to_owned())
    })
    .await;
    page.pay().await;
    shop.close_after_one(page, &sale).await;
}
