//! English and Chinese, a desktop and a phone.

use serde_json::{Value, json};

use crate::buyer::LIVE;
use crate::chromium::Page;
use crate::page::READY;
use crate::shop::Shop;

/// Chinese letters.
const CHINESE: &str = r"/[\u4e00-\u9fff]/";

/// Finds a text that stayed English although the page has a Chinese one.
async fn assert_all_chinese(page: &Page, what: &str) {
    let left = "[...document.querySelectorAll('[data-en]')]
        .filter((one) => one.dataset.en !== one.dataset.zh && one.textContent.trim() === one.dataset.en.trim())
        .map((one) => one.textContent)";
    assert_eq!(page.evaluate(left).await, json!([]), "{what}");
    assert!(page.is_true("document.documentElement.lang === 'zh-CN'").await, "{what}");
}

/// A button changes the language on all pages, also after a reload. A browser that prefers Chinese gets it by default.
#[tokio::test(flavor = "multi_thread")]
async fn the_language_is_chosen_and_kept() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5"]).await;
    let pages = [shop.page_of(&sale), shop.system.url("/"), shop.system.url("/orders")];
    page.visit(&pages[0]).await;
    assert_eq!(page.evaluate("document.documentElement.lang").await, "en");
    page.sign_in("ann").await;
    page.speak("zh").await;
    page.wait(&format!("{LIVE} && {CHINESE}.test(document.getElementById('label').textContent)")).await;
    assert_all_chinese(&page, "after the click").await;
    page.reload().await;
    assert_all_chinese(&page, "after a reload").await;
    for url in &pages {
        page.visit(url).await;
        assert_all_chinese(&page, url).await;
    }
    page.speak("en").await;
    page.reload().await;
    assert_eq!(page.evaluate("document.documentElement.lang").await, "en");

    let other = Page::open().await;
    let agent = other.evaluate("navigator.userAgent").await;
    other.devtools("Emulation.setUserAgentOverride", json!({ "userAgent": agent, "acceptLanguage": "zh-CN,zh" })).await;
    other.visit(&pages[0]).await;
    assert_all_chinese(&other, "a Chinese browser").await;
    other.close().await;
    shop.close(page).await;
}

/// 360 pixels wide, in both languages: nothing is cut off or scrolls horizontally, and the button is as large as a thumb.
#[tokio::test(flavor = "multi_thread")]
async fn a_phone_shows_everything() {
    let (shop, page) = Shop::with_page(&[]).await;
    page.be_a_phone().await;
    let later = shop.sale(&["--stock", "5", "--starts-in", "172800", "--ends-in", "200000", "--min-level", "3"]).await;
    let waves = shop.sale(&["--stock", "9", "--per-user", "2", "--wave", "1800:2", "--wave", "2400:2"]).await;
    let image = shop.sale(&["--stock", "5", "--captcha", "image"]).await;
    let slider = shop.sale(&["--stock", "5", "--captcha", "slider"]).await;
    let long = "A-name-without-a-single-space-that-no-shop-would-give-to-a-product-but-one-day-some-shop-will";
    let wide = shop.sale_of(long, "99999999999", &["--stock", "5"]).await;
    for language in ["en", "zh"] {
        let seen = |what: &str| format!("phone-{what}-{language}");
        let look = async |what: &str| {
            page.speak(language).await;
            page.assert_fits(&seen(what)).await;
            page.screenshot(&seen(what)).await;
        };
        for (what, path) in [("front", "/"), ("missing", "/no-such-page"), ("orders", "/orders")] {
            page.client.goto(&shop.system.url(path)).await.unwrap();
            page.wait(READY).await;
            look(what).await;
        }
        page.visit(&shop.page_of(&later)).await;
        look("later").await;
        if language == "en" {
            page.sign_in("ann").await;
        }
        for (what, sale) in [("image", &image), ("slider", &slider)] {
            page.visit(&shop.page_of(sale)).await;
            page.challenge(&Value::Null).await;
            page.wait("document.getElementById('challenge-image').naturalWidth > 0").await;
            look(what).await;
        }
        page.visit(&shop.page_of(&wide)).await;
        look("long-name").await;
        page.visit(&shop.page_of(&waves)).await;
        page.wait(LIVE).await;
        assert!(page.number("document.getElementById('buy').getBoundingClientRect().height").await >= 44.0);
        look("open").await;
        page.buy().await;
        look("bought").await;
    }
    shop.close(page).await;
}
