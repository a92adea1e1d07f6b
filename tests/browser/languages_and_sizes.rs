//! English and Chinese, light and dark, a desktop and a phone, with pictures of each.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use seckill_harness::eventually;
use serde_json::{Value, json};

use crate::buyer::{LIVE, order};
use crate::chromium::Page;
use crate::page::READY;
use crate::shop::Shop;

/// The picture of the product: a cup of tea.
const DRAWING: &str = r##"<!doctype html><body style="margin:0"><svg viewBox="0 0 1200 900" style="display:block;width:100%">
<defs><linearGradient id="wall" x2="0" y2="1"><stop stop-color="#f4efe6"/><stop offset="1" stop-color="#d9cdb8"/></linearGradient>
<linearGradient id="glaze"><stop stop-color="#86b39b"/><stop offset=".4" stop-color="#cfe6d8"/>
<stop offset="1" stop-color="#6b9883"/></linearGradient></defs>
<rect width="1200" height="900" fill="url(#wall)"/><ellipse cx="600" cy="716" rx="350" ry="44" opacity=".13"/>
<path d="M330 340C340 570 430 690 510 706L690 706C770 690 860 570 870 340Z" fill="url(#glaze)"/>
<ellipse cx="600" cy="340" rx="270" ry="62" fill="#b7d6c5"/><ellipse cx="600" cy="350" rx="240" ry="48" fill="#9c6b3b"/>
<path d="M540 250q-34-48 0-96t0-96M650 260q-34-48 0-96t0-96" fill="none" stroke="#fff" stroke-width="14" opacity=".7"/></svg>"##;
/// Chinese letters.
const CHINESE: &str = r"/[\u4e00-\u9fff]/";

/// Gives a product its picture, which the browser draws, and its description.
async fn dress(shop: &Shop, page: &Page, product: &str, description: &str, alt: &str) {
    page.client.goto(&format!("data:text/html;base64,{}", STANDARD.encode(DRAWING))).await.unwrap();
    let file = shop.folder.path("cup.png");
    page.picture(Path::new(&file)).await;
    let set = ["product", "set", "--name", product, "--description", description, "--picture", &file, "--alt", alt];
    shop.command(&set).await;
}

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
    let shop = Shop::open().await;
    let page = Page::open().await;
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
    page.close().await;
    shop.close().await;
}

/// Pages with a picture, in both languages and both colour schemes. Chinese needs a font of the machine: without one a page shows empty
/// boxes, which a person sees in the pictures.
#[tokio::test(flavor = "multi_thread")]
async fn pictures_of_the_pages() {
    let shop = Shop::open().await;
    let page = Page::open().await;
    let open = ["--stock", "50", "--per-user", "2"];
    let english = shop.sale_of("Celadon teacup", "1900", &open).await;
    let chinese = shop.sale_of("青瓷茶杯", "1900", &open).await;
    shop.sale_of("Celadon teacup", "900", &["--stock", "20", "--starts-in", "5400", "--ends-in", "9000"]).await;
    let description = "Thrown by hand and fired twice, for 180 ml of tea.";
    dress(&shop, &page, "Celadon teacup", description, "A green teacup, filled and steaming").await;
    let description = "手工拉坯，两次烧成，容量 180 毫升。";
    dress(&shop, &page, "青瓷茶杯", description, "一只盛着热茶的青瓷杯").await;
    // Pages follow the catalogue shortly afterwards.
    let picture = "document.querySelector('main img[alt]:not([id^=challenge])')";
    for (language, sale) in [("en", &english), ("zh", &chinese)] {
        page.visit(&shop.page_of(sale)).await;
        eventually(|| async {
            page.reload().await;
            let there = page.is_true(&format!("{picture} && {picture}.alt !== ''")).await;
            if there { Ok(()) } else { Err("the page has no picture".to_owned()) }
        })
        .await;
        page.wait(&format!("{picture}.complete && {picture}.naturalWidth > 0")).await;
        if language == "en" {
            page.sign_in("ann").await;
        }
        page.speak(language).await;
        page.wait(LIVE).await;
        for colours in ["dark", "light"] {
            page.prefer(colours).await;
            page.screenshot(&format!("sale-{language}-{colours}")).await;
        }
        page.buy().await;
        page.screenshot(&format!("bought-{language}")).await;
        page.visit(&shop.system.url("/")).await;
        page.wait("document.querySelector('a[href^=\"/sales/\"]')").await;
        page.screenshot(&format!("front-{language}")).await;
        page.visit(&shop.system.url("/orders")).await;
        page.wait(&order("pending_payment")).await;
        page.screenshot(&format!("orders-{language}")).await;
    }
    page.be_a_phone().await;
    page.visit(&shop.page_of(&chinese)).await;
    page.wait(&order("pending_payment")).await;
    page.prefer("dark").await;
    page.screenshot("phone-zh-dark").await;
    page.close().await;
    shop.close().await;
}

/// 360 pixels wide, in both languages: nothing is cut off or scrolls horizontally, and the button is as large as a thumb.
#[tokio::test(flavor = "multi_thread")]
async fn a_phone_shows_everything() {
    let shop = Shop::open().await;
    let page = Page::open().await;
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
    page.close().await;
    shop.close().await;
}
