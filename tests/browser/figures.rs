//! The cost of a view of the sale page: requests, bytes, and the time until the button can be used.

use std::io::Write;

use serde_json::{Value, json};

use crate::buyer::LIVE;
use crate::chromium::{Page, SCREENSHOTS};
use crate::shop::Shop;

/// The most requests of a view, until the button can be used.
const REQUESTS_MAX: f64 = 30.0;
/// The most bytes of a first view, including headers.
const BYTES_MAX: f64 = 150_000.0;

/// Runs before any script of the page. It records when the button can first be used, and the visible changes.
const NOTES: &str = "
    window.notes = { usable: null, largest: 0, shifted: 0 };
    new MutationObserver(() => {
        const live = document.getElementById('buy')?.getAttribute('aria-disabled') === 'false';
        if (live && notes.usable === null) notes.usable = performance.now();
    }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ['aria-disabled'] });
    const watch = (type, note) =>
        new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type, buffered: true });
    watch('largest-contentful-paint', (entry) => { notes.largest = entry.startTime; });
    watch('layout-shift', (entry) => { if (!entry.hadRecentInput) notes.shifted += entry.value; });
";
/// The figures of the view. Requests that began after the button could be used are left out.
const FIGURES: &str = "(() => {
    const [page] = performance.getEntriesByType('navigation');
    const all = [page, ...performance.getEntriesByType('resource')].filter((one) => one.startTime <= notes.usable);
    const sum = (field) => all.reduce((bytes, one) => bytes + one[field], 0);
    return {
        requests: all.length,
        from_cache: all.filter((one) => one.transferSize === 0).length,
        bytes: sum('transferSize'),
        first_paint_ms: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0,
        largest_paint_ms: notes.largest,
        usable_ms: notes.usable,
        layout_shift: notes.shifted,
        elsewhere: all.map((one) => new URL(one.name))
            .filter((url) => url.protocol !== 'data:' && url.origin !== location.origin).map(String),
    };
})()";

/// Metrics of the DevTools protocol, and their names here.
const METRICS: [(&str, &str); 3] =
    [("ScriptDuration", "script_s"), ("TaskDuration", "main_thread_s"), ("JSHeapUsedSize", "heap_bytes")];

/// One view of the page, with the figures of the DevTools protocol.
async fn view(page: &Page, url: &str, what: &str) -> Value {
    page.client.goto("about:blank").await.unwrap();
    page.visit(url).await;
    page.wait(&format!("{LIVE} && notes.usable !== null")).await;
    let mut figures = page.evaluate(FIGURES).await;
    let metrics = page.devtools("Performance.getMetrics", json!({})).await;
    for (name, field) in METRICS {
        let metric = metrics["metrics"].as_array().unwrap().iter().find(|metric| metric["name"] == name);
        figures[field] = metric.map_or(Value::Null, |metric| metric["value"].clone());
    }
    figures["view"] = what.into();
    figures
}

fn table(views: &[Value]) -> String {
    let columns = [
        ("requests", "requests", 0),
        ("cached", "from_cache", 0),
        ("bytes", "bytes", 0),
        ("first paint ms", "first_paint_ms", 0),
        ("largest paint ms", "largest_paint_ms", 0),
        ("usable ms", "usable_ms", 0),
        ("layout shift", "layout_shift", 3),
        ("script s", "script_s", 3),
    ];
    let mut text = format!("{:28}", "the sale page");
    for (head, ..) in columns {
        text += &format!(" {head:>16}");
    }
    for view in views {
        text += &format!("\n{:28}", view["view"].as_str().unwrap());
        for (_, field, decimals) in columns {
            text += &format!(" {:>16.decimals$}", view[field].as_f64().unwrap_or(f64::NAN));
        }
    }
    text
}

/// A view costs few requests and few bytes, all of them from the shop itself. The times are printed and not checked.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_the_sale_page_is_cheap() {
    let shop = Shop::open().await;
    let page = Page::open().await;
    let sale = shop.sale(&["--stock", "50"]).await;
    let url = shop.page_of(&sale);
    page.visit(&url).await;
    page.sign_in("ann").await;
    page.devtools("Performance.enable", json!({})).await;
    page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({ "source": NOTES })).await;
    page.devtools("Network.enable", json!({})).await;
    let forget = async || page.devtools("Network.clearBrowserCache", json!({})).await;

    forget().await;
    let first = view(&page, &url, "first view").await;
    let second = view(&page, &url, "second view").await;
    // Lighthouse's model of a phone: slow 4G, and a processor at a quarter of the speed.
    page.be_a_phone().await;
    page.devtools("Emulation.setCPUThrottlingRate", json!({ "rate": 4 })).await;
    let slow = json!({ "offline": false, "latency": 150, "downloadThroughput": 204_800, "uploadThroughput": 96_000 });
    page.network_like(slow).await;
    forget().await;
    let phone = view(&page, &url, "first view, phone, slow 4G").await;
    let again = view(&page, &url, "second view, phone, slow 4G").await;

    let views = [first, second, phone, again];
    // Not by print!, which is hidden in a passing test.
    writeln!(std::io::stdout(), "{}", table(&views)).unwrap();
    std::fs::create_dir_all(SCREENSHOTS).unwrap();
    std::fs::write(format!("{SCREENSHOTS}/figures.json"), serde_json::to_string_pretty(&views).unwrap()).unwrap();
    for view in &views {
        assert_eq!(view["elsewhere"], json!([]), "requests to others: {view:#}");
        assert!(view["requests"].as_f64().unwrap() <= REQUESTS_MAX, "{view:#}");
        assert!(view["bytes"].as_f64().unwrap() <= BYTES_MAX, "{view:#}");
    }
    // Hashed assets come from the browser's cache.
    assert!(views[1]["bytes"].as_f64() < views[0]["bytes"].as_f64(), "{:#}", views[1]);
    page.close().await;
    shop.close().await;
}
