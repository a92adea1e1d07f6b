//! From the win to the payment: what is seen first, what a declined payment says, and what does not move under the pointer.

use seckill_harness::eventually;
use serde_json::{Value, json};

use crate::accessibility::Audit;
use crate::buyer::{GREY, LIVE, PAYABLE, order, says};
use crate::chromium::Page;
use crate::page::text;
use crate::shop::Shop;

impl Shop {
    async fn switch(&self, switches: Value) {
        let bank = &self.system.config.channels["sandbox"].url;
        let answer =
            reqwest::Client::new().put(format!("{bank}/v1/admin/switches")).json(&switches).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }

    /// Decides the only payment in flight.
    async fn decide(&self, status: &str) {
        let live = "SELECT id FROM payments WHERE status = 'waiting'";
        let payment: sqlx::types::Uuid = eventually(|| async {
            sqlx::query_scalar(live).fetch_one(&self.system.sql).await.map_err(|error| error.to_string())
        })
        .await;
        let bank = &self.system.config.channels["sandbox"].url;
        let decide = format!("{bank}/v1/admin/payments/{payment}");
        let answer = reqwest::Client::new().post(decide).json(&json!({ "status": status })).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }

    async fn picture(&self, product: &str) {
        let file = self.folder.file("picture.png");
        let picture = image::RgbImage::from_fn(1200, 900, |x, y| image::Rgb([(x / 5) as u8, (y / 4) as u8, 120]));
        picture.save(&file).unwrap();
        self.command(&["product", "set", "--name", product, "--picture", &file, "--alt", "A coloured square"]).await;
    }
}

impl Page {
    /// A small desk.
    async fn be_a_desk(&self) {
        let size = json!({ "width": 1280, "height": 757, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Left, top, right and bottom of an element in the window.
    async fn place(&self, selector: &str) -> [f64; 4] {
        let place = format!(
            "(({{ left, top, right, bottom }}) => [left, top, right, bottom])(document.querySelector({selector:?}).getBoundingClientRect())"
        );
        serde_json::from_value(self.evaluate(&place).await).unwrap()
    }

    async fn assert_on_first_screen(&self, selector: &str, what: &str) {
        let [left, top, right, bottom] = self.place(selector).await;
        let (width, height) = (self.number("innerWidth").await, self.number("innerHeight").await);
        assert_eq!(self.number("scrollY").await, 0.0);
        assert!(
            left >= 0.0 && top >= 0.0 && right <= width && bottom <= height,
            "{what}: {selector} at {left} {top} {right} {bottom}"
        );
    }

    /// Pictures on a phone and on a desk, light and dark, in both languages.
    async fn look(&self, what: &str) {
        for (language, colours) in [("zh", "dark"), ("en", "light")] {
            self.speak(language).await;
            self.prefer(colours).await;
            self.be_a_desk().await;
            self.screenshot(&format!("sale-{what}-desk-{language}-{colours}")).await;
            self.be_a_phone().await;
            self.assert_fits(what).await;
            self.screenshot(&format!("sale-{what}-phone-{language}-{colours}")).await;
        }
    }

    async fn reads(&self, selector: &str, pattern: &str) {
        self.wait(&format!("/{pattern}/i.test({})", text(selector))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_won_sees_first_how_to_pay_and_why_a_payment_failed() {
    let mut audit = Audit::new();
    let (shop, page) = Shop::with_page(&[]).await;
    shop.picture("Lamp").await;
    let later = shop.sale_of("Lamp", "12900", &["--stock", "5", "--starts-in", "7200", "--ends-in", "9000"]).await;
    let sale = shop.sale_of("Lamp", "12900", &["--stock", "5"]).await;
    page.be_a_phone().await;
    page.visit(&shop.page_of(&later)).await;
    page.sign_in("ann").await;
    page.look("before").await;
    page.visit(&shop.page_of(&sale)).await;
    page.wait(LIVE).await;
    page.assert_on_first_screen("#buy", "a phone").await;
    page.look("open").await;
    page.be_a_desk().await;
    page.assert_on_first_screen("#buy", "a desk").await;

    // The bank decides by hand.
    shop.switch(json!({ "confirm_ms": 86_400_000, "decline_reason": "insufficient-funds" })).await;
    page.click("#buy").await;
    page.wait(PAYABLE).await;
    for (name, size) in [("a desk", true), ("a phone", false)] {
        if size {
            page.be_a_desk().await;
        } else {
            page.be_a_phone().await;
        }
        page.assert_on_first_screen("#pay", name).await;
        page.assert_on_first_screen("#timer", name).await;
    }
    assert!(
        page.is_true("document.getElementById('buy').hidden").await,
        "the way to pay is in the place of the button"
    );
    page.reads("#pay", r"^Pay CN¥129\.00$").await;
    page.reads("#phase", "time left to pay").await;
    assert!(
        !page.is_true(&says("yours!")).await
            && !page.is_true("document.querySelector('#steps li:nth-child(3).done')").await
    );
    assert!(page.is_true("document.querySelector('#steps li:nth-child(2).now')").await);
    page.look("won").await;
    audit.look(&page, "won").await;

    page.click("#pay").await;
    page.reads("#pay", "paying").await;
    page.look("paying").await;
    shop.decide("failed").await;
    page.reads("#message", "not enough money").await;
    page.reads("#pay", r"^Try again: pay CN¥129\.00$").await;
    page.look("declined").await;
    audit.look(&page, "declined").await;
    // It is said again to whoever comes back.
    page.reload().await;
    page.reads("#message", "not enough money").await;

    page.wait(PAYABLE).await;
    page.click("#pay").await;
    page.reads("#pay", "paying").await;
    assert!(!page.is_true(&says("not enough money")).await, "the reason of an earlier payment");
    shop.decide("succeeded").await;
    page.wait(&order("paid")).await;
    page.reads("#message", "yours").await;
    page.wait("document.querySelector('#steps li:nth-child(3).done')").await;
    assert!(page.is_true(&format!("{GREY} && document.getElementById('pay-now').hidden")).await);
    page.look("paid").await;
    audit.look(&page, "paid").await;

    for (what, status) in [("paused", "pause"), ("closed", "close")] {
        shop.command(&["sale", status, &later.id.to_string()]).await;
        page.visit(&shop.page_of(&later)).await;
        page.look(what).await;
        audit.look(&page, what).await;
    }
    let gone = shop.sale_of("Lamp", "12900", &["--stock", "1"]).await;
    assert_eq!(shop.system.buy(&gone, "bob").send().await.code(), "202");
    page.visit(&shop.page_of(&gone)).await;
    page.wait(&says("sold out")).await;
    page.look("sold-out").await;
    audit.passes();
    shop.close(page).await;
}

/// The first press of a final action changes the button's text, and nothing moves.
#[tokio::test(flavor = "multi_thread")]
async fn a_button_that_asks_again_stays_where_it_is() {
    let (shop, page, sale) = Shop::with_buyer().await;
    page.buy().await;
    for (size, url) in [("phone", shop.page_of(&sale)), ("desk", shop.system.url("/orders"))] {
        if size == "phone" {
            page.be_a_phone().await;
        } else {
            page.be_a_desk().await;
        }
        page.visit(&url).await;
        page.wait(&order("pending_payment")).await;
        page.evaluate("document.querySelector('#orders li .cancel').scrollIntoView({ block: 'center' })").await;
        let before = page.place("#orders li .cancel").await;
        page.click("#orders li .cancel").await;
        page.reads("#orders li .cancel", "press again").await;
        assert_eq!(page.place("#orders li .cancel").await, before, "{url} on a {size}");
    }
    page.click("#orders li .cancel").await;
    page.wait(&order("cancelled")).await;
    shop.close(page).await;
}

/// Where several units are allowed, one order has the chosen number.
#[tokio::test(flavor = "multi_thread")]
async fn several_units_are_one_order_with_their_total() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale_of("Lamp", "12900", &["--stock", "9", "--per-user", "3"]).await;
    page.be_a_phone().await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    page.wait(LIVE).await;
    for _ in 0..5 {
        page.click("#several").await;
    }
    page.click("#fewer").await;
    page.reads("#quantity", "^2$").await;
    page.reads("#total", r"2 × CN¥129\.00 = CN¥258\.00").await;
    page.click("#buy").await;
    page.wait(PAYABLE).await;
    page.reads("#pay", r"CN¥258\.00").await;
    page.pay().await;
    let bought: (i64, i64) = sqlx::query_as("SELECT count(*), sum(quantity)::bigint FROM orders WHERE sale_id = $1")
        .bind(sale.id.get())
        .fetch_one(&shop.system.sql)
        .await
        .unwrap();
    assert_eq!(bought, (1, 2));
    // One is left, which is no choice.
    page.wait("document.getElementById('choice').hidden").await;
    shop.close(page).await;
}

/// Who has asked for too many pictures can go on without one.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_pictures_leave_the_way_without_them() {
    let (shop, page) = Shop::with_page(&[("SECKILL_CAPTCHA__BUYER_LIMIT", "3")]).await;
    let sale = shop.sale(&["--stock", "5", "--captcha", "image"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    let mut last = Value::Null;
    for _ in 0..3 {
        let challenge = page.challenge(&last).await;
        last = challenge["challenge_id"].clone();
        page.click("#challenge-reload").await;
    }
    page.reads("#challenge-status", r"many pictures.*\d\d:\d\d").await;
    page.wait("document.getElementById('challenge-other').checkVisibility()").await;
    page.click("#challenge-other").await;
    page.wait(crate::buyer::SOLVED).await;
    page.buy().await;
    shop.close_after_one(page, &sale).await;
}
