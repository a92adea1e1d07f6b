//! The cost of a view of the sale page: requests and bytes.

use serde_json::{Value, json};

use crate::buyer::LIVE;
use crate::chromium::Page;
use crate::shop::Shop;

/// The most requests of a view, until the button can be used.
const REQUESTS_MAX: f64 = 30.0;
/// The most bytes of a first view, including headers.
const BYTES_MAX: f64 = 150_000.0;

/// Runs before any script of the page. It records when the button can first be used.
const NOTES: &str = "
    window.notes = { usable: null };
    new MutationObserver(() => {
        const live = document.getElementById('buy')?.getAttribute('aria-disabled') === 'false';
        if (live && notes.usable === null) notes.usable = performance.now();
    }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ['aria-disabled'] });
";
/// The figures of the view. Requests that began after the button could be used are left out.
const FIGURES: &str = "(() => {
    const [page] = performance.getEntriesByType('navigation');
    const all = [page, ...performance.getEntriesByType('resource')].filter((one) => one.startTime <= notes.usable);
    return {
        requests: all.length,
        bytes: all.reduce((bytes, one) => bytes + one.transferSize, 0),
        elsewhere: all.map((one) => new URL(one.name))
            .filter((url) => url.protocol !== 'data:' && url.origin !== location.origin).map(String),
    };
})()";

async fn view(page: &Page, url: &str) -> Value {
    page.client.goto("about:blank").await.unwrap();
    page.visit(url).await;
    page.wait(&format!("{LIVE} && notes.usable !== null")).await;
    page.evaluate(FIGURES).await
}

/// A view costs few requests and few bytes, all of them from the shop itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_the_sale_page_is_cheap() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "50"]).await;
    let url = shop.page_of(&sale);
    page.visit(&url).await;
    page.sign_in("ann").await;
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({ "source": NOTES })).await;
    page.devtools("Network.enable", json!({})).await;
    page.devtools("Network.clearBrowserCache", json!({})).await;
    let first = view(&page, &url).await;
    let second = view(&page, &url).await;
    let views = [first, second];
    for view in &views {
        assert_eq!(view["elsewhere"], json!([]), "requests to others: {view:#}");
        assert!(view["requests"].as_f64().unwrap() <= REQUESTS_MAX, "{view:#}");
        assert!(view["bytes"].as_f64().unwrap() <= BYTES_MAX, "{view:#}");
    }
    // Hashed assets come from the browser's cache.
    assert!(views[1]["bytes"].as_f64() < views[0]["bytes"].as_f64(), "{:#}", views[1]);
    shop.close(page).await;
}
