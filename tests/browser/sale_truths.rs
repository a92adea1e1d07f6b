//! What a page says is true within two seconds of any change. Each fault was seen on an earlier page.

use std::time::{Duration, Instant};

use seckill_harness::{Sale, until};

use crate::buyer::{GREY, LIVE, order, says};
use crate::chromium::Page;
use crate::page::text;
use crate::purchases::move_start;
use crate::shop::Shop;

/// How late a page may be, with an allowance for a busy machine. The earlier page was late by up to 20 s.
const LATE_MAX: Duration = Duration::from_secs(5);

fn label(pattern: &str) -> String {
    format!("/{pattern}/i.test({})", text("#label"))
}

fn message(pattern: &str) -> String {
    format!("/{pattern}/i.test({})", text("#message"))
}

/// Waits for the label, and asserts that it came in time.
async fn in_time(page: &Page, pattern: &str) {
    let began = Instant::now();
    page.wait(&label(pattern)).await;
    assert!(began.elapsed() < LATE_MAX, "{pattern} after {:?}", began.elapsed());
}

async fn set(shop: &Shop, sale: &Sale, what: &str) {
    shop.command(&["sale", what, &sale.id.to_string()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_a_close_and_the_last_unit_are_shown_at_once_and_end_the_messages_before_them() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "1", "--starts-in", "3600", "--ends-in", "7200"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    move_start(&shop, &page, &sale, 5.0).await;
    page.wait(&message("less than 10 seconds")).await;
    page.wait(LIVE).await;
    page.wait(&message("buy now")).await;

    set(&shop, &sale, "pause").await;
    in_time(&page, "paused").await;
    assert!(page.is_true(&format!("{GREY} && !{}", says("buy now|starts in"))).await);
    // Whoever comes now sees it at once.
    page.reload().await;
    assert!(page.is_true(&label("paused")).await, "a page that was loaded during the pause");
    set(&shop, &sale, "resume").await;
    in_time(&page, "buy").await;
    page.wait(&message("buy now")).await;

    let bought = shop.system.buy(&sale, "bob").send().await;
    assert_eq!(bought.code(), "202");
    in_time(&page, "sold out").await;
    assert!(page.is_true(&format!("{GREY} && !{}", message("buy now|starts in"))).await);
    let cancel = format!("/api/v1/orders/{}/cancel", bought.order_id());
    until(200, || async { shop.system.post(&cancel, "bob").await.0 }).await;
    page.wait(&format!("{LIVE} && {}", message("come back"))).await;

    set(&shop, &sale, "close").await;
    in_time(&page, "ended").await;
    assert!(page.is_true(&format!("{GREY} && !{}", says("buy now|is open|come back"))).await);
    page.reload().await;
    assert!(page.is_true(&label("ended")).await, "a page that was loaded after the close");
    shop.close(page).await;
}

/// The stock is gone before a page has seen that the sale is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_sold_out_at_once_starts_in_no_seconds() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "1", "--starts-in", "3600", "--ends-in", "7200"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    // The page does not hear of the start until the unit is gone.
    move_start(&shop, &page, &sale, 5.0).await;
    page.wait(&message("less than 10 seconds")).await;
    page.evaluate("window.realFetch = window.fetch; window.fetch = () => Promise.reject(new TypeError('away'))").await;
    until(202, || async { shop.system.buy(&sale, "bob").idempotent("one").send().await.status }).await;
    page.evaluate("window.fetch = window.realFetch").await;
    page.wait(&label("sold out")).await;
    assert!(page.is_true(&format!("!{}", says("starts in|buy now"))).await);
    shop.close(page).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_level_ends_with_the_session() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5", "--min-level", "3"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    page.wait(&label("level 3")).await;
    page.click("#buy").await;
    page.wait(&message("level 3 and above")).await;
    page.click("#sign-out").await;
    page.wait(&label("sign in")).await;
    page.wait(&format!("!{}", message("level"))).await;
    shop.close(page).await;
}

/// The button lights up about a tenth of a second after the start: the best of some pages, on a busy machine.
#[tokio::test(flavor = "multi_thread")]
async fn the_button_lights_up_a_tenth_of_a_second_after_the_start() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5", "--starts-in", "3600", "--ends-in", "7200"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    let watch = "(window.lit = null, new MutationObserver(() => {
        if (document.getElementById('buy').getAttribute('aria-disabled') === 'false') window.lit ??= Date.now();
    }).observe(document.getElementById('buy'), { attributes: true }))";
    page.evaluate(watch).await;
    let mut late = Vec::new();
    for _ in 0..3 {
        move_start(&shop, &page, &sale, 4.0).await;
        page.wait(GREY).await;
        page.evaluate("window.lit = null").await;
        page.wait("window.lit !== null").await;
        let starts_at = "SELECT (extract(epoch FROM starts_at) * 1000)::bigint FROM sales WHERE id = $1";
        let starts_at_ms: i64 =
            sqlx::query_scalar(starts_at).bind(sale.id.get()).fetch_one(&shop.system.sql).await.unwrap();
        late.push(page.number("window.lit").await - starts_at_ms as f64);
    }
    late.sort_by(f64::total_cmp);
    // The earlier page took 260 to 580 ms.
    assert!((0.0..250.0).contains(&late[0]), "{late:?} ms after the start");
    shop.close(page).await;
}

/// The page shows other terms by itself. Its buyer stays signed in.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_with_old_terms_loads_itself_again() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    page.wait(LIVE).await;
    shop.command(&["product", "set", "--name", "Phone", "--description", "It rings."]).await;
    page.wait("document.querySelector('.description')?.textContent === 'It rings.'").await;
    page.signed_in_as("ann").await;
    page.evaluate("window.sameDocument = true").await;
    // With the right terms, it stays as it is.
    let asked = page.number("performance.getEntriesByType('resource').length").await;
    page.wait(&format!("performance.getEntriesByType('resource').length > {asked} + 2")).await;
    assert!(page.is_true("window.sameDocument").await);
    shop.close(page).await;
}

/// A price that was changed during a pause is shown before anybody can buy at it.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_buys_at_a_price_that_the_page_does_not_show() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    page.wait(LIVE).await;
    set(&shop, &sale, "pause").await;
    page.wait(GREY).await;
    let watch = format!("setInterval(() => {{ if ({LIVE}) sessionStorage.setItem('old', '1'); }}, 5)");
    page.evaluate(&watch).await;
    shop.command(&["sale", "set", &sale.id.to_string(), "--price-cents", "900"]).await;
    set(&shop, &sale, "resume").await;
    page.wait(&format!("document.getElementById('price').dataset.cents === '900' && {LIVE}")).await;
    assert!(page.is_true("sessionStorage.getItem('old') === null").await, "it could be bought at the old price");
    page.click("#buy").await;
    page.wait(&order("pending_payment")).await;
    assert_eq!(shop.system.count("SELECT amount_cents FROM orders WHERE sale_id = $1", &sale).await, 900);
    shop.close(page).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_and_a_sign_out_hold_in_all_tabs() {
    let (shop, page, sale) = Shop::with_buyer().await;
    let first = page.client.window().await.unwrap();
    let second = page.client.new_window(true).await.unwrap().handle;
    page.client.switch_to_window(second).await.unwrap();
    page.visit(&shop.page_of(&sale)).await;
    page.signed_in_as("ann").await;
    page.click("#sign-out").await;
    page.client.switch_to_window(first).await.unwrap();
    page.wait(&format!("document.getElementById('account').hidden && {}", label("sign in"))).await;
    shop.close(page).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reminder_is_a_calendar_file() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop
        .sale_of(
            "手机, \"1;2\" \\ x".repeat(8).as_str(),
            "100",
            &["--stock", "5", "--starts-in", "3600", "--ends-in", "7200"],
        )
        .await;
    page.visit(&shop.page_of(&sale)).await;
    page.click("#remind").await;
    page.wait("document.getElementById('remind').href.startsWith('blob:') && document.getElementById('remind').download.endsWith('.ics')").await;
    let file = "(async () => {
        const { calendar } = await import(document.querySelector('link[rel=modulepreload][href*=reminder]').href);
        const name = document.getElementById('product').textContent;
        return calendar({ id: 'a@b', name, url: 'https://shop.example/', startsAtMs: 1767225600123, endsAtMs: 1767229200000, nowMs: 0 });
    })()";
    let file = page.evaluate(file).await;
    let lines: Vec<&str> = file.as_str().unwrap().split_terminator("\r\n").collect();
    assert!(lines.iter().all(|line| line.len() <= 75 && !line.contains(['\r', '\n'])), "{lines:#?}");
    let whole = lines.join("\r\n").replace("\r\n ", "");
    let name = "手机, \"1;2\" \\ x".repeat(8).replace('\\', "\\\\").replace(';', "\\;").replace(',', "\\,");
    for line in [
        "BEGIN:VCALENDAR",
        "DTSTART:20260101T000000Z",
        "DTEND:20260101T010000Z",
        &format!("SUMMARY:{name}"),
        "TRIGGER:-PT10M",
    ] {
        assert!(whole.split("\r\n").any(|one| one == line), "{line} is not in {whole}");
    }
    shop.close(page).await;
}

/// Where the shop shows how far a sale is sold, its state says so.
#[tokio::test(flavor = "multi_thread")]
async fn how_far_it_is_sold_is_a_bar_with_a_text() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5"]).await;
    page.visit(&shop.page_of(&sale)).await;
    assert!(page.is_true("document.getElementById('sold').hidden").await, "a shop that does not say it");
    let told = "(() => {
        const real = window.fetch;
        window.fetch = async (url, ...more) => {
            const answer = await real(url, ...more);
            if (!String(url).includes('/state.js')) return answer;
            const script = await answer.text();
            return new Response(script.replace(/}[^}]*$/, ',\"sold_percent\":37};'));
        };
    })()";
    page.evaluate(told).await;
    page.wait(&format!("{} === '37 % sold'", text("#sold-text"))).await;
    page.wait("document.getElementById('sold-bar').value === 37").await;
    page.speak("zh").await;
    page.wait(&format!("{} === '已售 37%'", text("#sold-text"))).await;
    shop.close(page).await;
}
