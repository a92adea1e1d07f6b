//! axe-core on every page and in every state, in both colour schemes: no serious findings.

use serde_json::Value;

use crate::buyer::{LIVE, SOLVED, order, says};
use crate::chromium::Page;
use crate::network_cut::HONEST;
use crate::page::{READY, shown};
use crate::shop::Shop;

/// Installed here by `./dev test`. AXE_CORE names another place.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.dev/tools/axe/node_modules/axe-core/axe.min.js");
/// Its serious findings, a text for each element.
const SERIOUS: &str = "axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations
    .filter((one) => one.impact === 'serious' || one.impact === 'critical')
    .flatMap((one) => one.nodes.map((node) =>
        [`${one.id} (${one.impact}): ${one.help}`, node.html, node.failureSummary].join('\\n    '))))";

/// The checked states, and their findings.
pub struct Audit {
    axe: String,
    states: usize,
    findings: Vec<String>,
}

impl Audit {
    pub fn new() -> Self {
        let file = std::env::var("AXE_CORE").unwrap_or_else(|_| INSTALLED.to_owned());
        let axe = std::fs::read_to_string(&file);
        let axe = axe.unwrap_or_else(|error| panic!("{file}, which ./dev test installs: {error}"));
        Self { axe, states: 0, findings: Vec::new() }
    }

    /// Checks the page's present state, and takes a picture of it.
    pub async fn look(&mut self, page: &Page, what: &str) {
        for colours in ["light", "dark"] {
            page.prefer(colours).await;
            // A colour in the middle of a transition is not part of the design.
            page.wait("document.getAnimations().every((one) => !(one instanceof CSSTransition))").await;
            if !page.is_true("window.axe").await {
                page.evaluate(&self.axe).await;
            }
            let found = page.evaluate(SERIOUS).await;
            let found = found.as_array().unwrap().iter().filter_map(Value::as_str);
            let told: Vec<_> = found.map(|text| format!("{what}, {colours}: {text}")).collect();
            self.findings.extend(told);
            self.states += 1;
            page.screenshot(&format!("{}-{colours}", what.replace([' ', ',', ':'], "-"))).await;
        }
    }

    /// Fails if there are findings, with all of them.
    pub fn passes(&self) {
        assert!(self.findings.is_empty(), "in {} looks:\n{}", self.states, self.findings.join("\n"));
    }
}

/// The states of a purchase, of the challenges and of the other pages, one after the other. All findings are reported at the end.
#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_serious_on_any_page_and_in_any_state() {
    let mut audit = Audit::new();
    let (shop, page) = Shop::with_page(&[]).await;
    let later = shop.sale(&["--stock", "5", "--starts-in", "3600", "--ends-in", "7200", "--wave", "60:2"]).await;
    let one = shop.sale(&["--stock", "1"]).await;

    page.visit(&shop.system.url("/")).await;
    page.wait("document.querySelectorAll('a[href^=\"/sales/\"]').length === 2").await;
    audit.look(&page, "front page").await;
    page.visit(&shop.page_of(&later)).await;
    page.wait(&shown("#sign-in")).await;
    audit.look(&page, "before the start, signed out").await;
    page.sign_in("ann").await;
    audit.look(&page, "before the start").await;
    for kind in ["image", "slider", "work"] {
        let sale = shop.sale(&["--stock", "5", "--captcha", kind]).await;
        page.visit(&shop.page_of(&sale)).await;
        page.challenge(&Value::Null).await;
        if kind == "work" {
            page.wait(SOLVED).await;
        } else {
            page.wait("document.getElementById('challenge-image').naturalWidth > 0").await;
        }
        audit.look(&page, &format!("challenge: {kind}")).await;
        if kind == "image" {
            page.fill("#challenge-answer", "-").await;
            page.click("#challenge-submit").await;
            page.wait("document.getElementById('challenge-status').innerText !== ''").await;
            audit.look(&page, "challenge: a wrong answer").await;
        }
    }
    page.visit(&shop.page_of(&one)).await;
    page.wait(LIVE).await;
    audit.look(&page, "open").await;
    page.buy().await;
    audit.look(&page, "to be paid").await;
    page.pay().await;
    audit.look(&page, "paid").await;
    page.visit(&shop.system.url("/orders")).await;
    page.wait(&order("paid")).await;
    audit.look(&page, "own orders").await;
    page.click("#sign-out").await;
    page.wait(&shown("#sign-in")).await;
    audit.look(&page, "own orders, signed out").await;
    page.visit(&shop.page_of(&one)).await;
    page.sign_in("eve").await;
    page.wait(&says("sold out")).await;
    audit.look(&page, "sold out").await;
    let offline = shop.sale(&["--stock", "5"]).await;
    page.visit(&shop.page_of(&offline)).await;
    page.wait(LIVE).await;
    page.offline(true).await;
    page.click("#buy").await;
    page.wait(&says(HONEST)).await;
    audit.look(&page, "without a network").await;
    assert_eq!(shop.purchases(&offline).await, 0);
    page.offline(false).await;
    page.wait(&order("pending_payment")).await;
    page.client.goto(&shop.system.url("/no-such-page")).await.unwrap();
    page.wait(READY).await;
    audit.look(&page, "missing page").await;
    page.click("main a[href=\"/\"]").await;
    page.wait("location.pathname === '/'").await;
    page.be_a_phone().await;
    page.visit(&shop.page_of(&later)).await;
    page.speak("zh").await;
    audit.look(&page, "a phone, in Chinese").await;
    audit.passes();
    shop.close(page).await;
}
