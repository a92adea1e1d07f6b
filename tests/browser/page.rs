//! Common to all pages: addresses, elements, languages, sizes and colours.

use fantoccini::Locator;
use fantoccini::elements::Element;
use seckill_harness::eventually;
use serde_json::json;

use crate::chromium::Page;

/// The script of the page has started, and has drawn its data.
pub const READY: &str = "document.documentElement.dataset.ready === '1'";

pub fn shown(selector: &str) -> String {
    format!("document.querySelector({selector:?})?.checkVisibility()")
}

/// The text of an element, as it is seen or read aloud.
pub fn text(selector: &str) -> String {
    format!("(document.querySelector({selector:?})?.innerText ?? '')")
}

impl Page {
    /// Opens an address, and waits until the page is ready.
    pub async fn visit(&self, url: &str) {
        self.client.goto(url).await.unwrap();
        self.wait(READY).await;
    }

    /// Loads the page again, and waits until it is ready.
    pub async fn reload(&self) {
        self.client.refresh().await.unwrap();
        self.wait(READY).await;
    }

    pub async fn element(&self, selector: &str) -> Result<Element, String> {
        self.client.find(Locator::Css(selector)).await.map_err(|error| error.to_string())
    }

    /// Clicks an element when it is clickable: before, it is redrawn, hidden or covered.
    pub async fn click(&self, selector: &str) {
        eventually(|| async {
            let element = self.element(selector).await?;
            element.click().await.map_err(|error| format!("{selector}: {error}"))
        })
        .await;
    }

    /// Types into an empty field.
    pub async fn fill(&self, selector: &str, text: &str) {
        eventually(|| async {
            let element = self.element(selector).await?;
            element.send_keys(text).await.map_err(|error| format!("{selector}: {error}"))
        })
        .await;
    }

    /// A phone: 360 by 740 pixels, one of the smallest in use.
    pub async fn be_a_phone(&self) {
        let size = json!({ "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Shows pages in the colours of a system set to `light` or `dark`.
    pub async fn prefer(&self, colours: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": colours }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
        self.wait(&format!("matchMedia('(prefers-color-scheme: {colours})').matches")).await;
    }

    /// Switches the language, and waits until the page uses it.
    pub async fn speak(&self, language: &str) {
        if !self.is_true(&format!("document.documentElement.lang.startsWith({language:?})")).await {
            self.click("#language").await;
        }
        self.wait(&format!("document.documentElement.lang.startsWith({language:?})")).await;
    }

    /// Nothing of the page is wider than the screen.
    pub async fn assert_fits(&self, what: &str) {
        // A part of the page that scrolls by itself may hide content beyond its edge.
        let beyond = "(() => {
            const width = document.documentElement.clientWidth;
            const scrolls = (one) => one && one !== document.body
                && (getComputedStyle(one).overflowX !== 'visible' || scrolls(one.parentElement));
            return [...document.body.querySelectorAll('*')]
                .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > width + 0.5)
                .filter((one) => !scrolls(one.parentElement))
                .map((one) => `${one.tagName}#${one.id}.${one.className}: ${one.getBoundingClientRect().right}`);
        })()";
        assert_eq!(self.evaluate(beyond).await, json!([]), "{what}: beyond the edge");
        let (width, scroll) = ("document.documentElement.clientWidth", "document.documentElement.scrollWidth");
        assert!(self.number(scroll).await <= self.number(width).await, "{what} scrolls sideways");
    }

    /// The number of this page's requests with this ending, answered or not.
    pub async fn requests(&self, ending: &str) -> f64 {
        let named = format!("performance.getEntriesByType('resource').filter((one) => one.name.endsWith({ending:?}))");
        self.number(&format!("{named}.length")).await
    }

    /// Cuts the network off, or connects it again.
    pub async fn offline(&self, offline: bool) {
        let unlimited = json!({ "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.devtools("Network.enable", json!({})).await;
        self.devtools("Network.emulateNetworkConditions", unlimited).await;
    }
}
