//! A sale from its plan to its end, by a manager in the console, without the command line.

use std::ops::Range;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use seckill_domain::ids::SaleId;
use seckill_harness::{Sale, eventually};
use tokio::time::sleep;

use crate::buyer::{GREY, LIVE, says};
use crate::chromium::Page;
use crate::console::{console, form, phase, shows};
use crate::input::{ENTER, TAB};
use crate::shop::Shop;

/// The sale's first stock, and the later addition.
const STOCK: i64 = 200;
const MORE: i64 = 100;
const CONCURRENCY: usize = 64;
/// One address sends all requests of a crowd.
const SETTINGS: [(&str, &str); 1] = [("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1")];

/// Local time in 45 s in the form of the fields: the date, and the time. A slow machine needs some of these seconds for the form.
const SOON: &str = "(() => {
    const at = window.soon = new Date(Math.ceil(Date.now() / 1000) * 1000 + 45000);
    const two = (number) => String(number).padStart(2, '0');
    return [
        two(at.getMonth() + 1) + two(at.getDate()) + at.getFullYear(),
        two(at.getHours() % 12 || 12) + two(at.getMinutes()) + two(at.getSeconds()) + (at.getHours() < 12 ? 'a' : 'p'),
    ];
})()";
fn tile(name: &str, figure: i64) -> String {
    format!("Number(document.getElementById('tile-{name}').textContent.replaceAll(',', '')) === {figure}")
}

fn set_status(sale: &Sale, status: &str) -> String {
    format!("{}:has([name=status][value={status}]) button", form(&format!("sales/{}/status", sale.id)))
}

/// Plans the sale by keyboard alone, and shows its page. It begins in 45 s.
async fn plan(shop: &Shop, page: &Page) -> Sale {
    let form = form("sales");
    page.leave("nav.tabs a[href='/admin/sales/new']").await;
    let stock = STOCK.to_string();
    for (field, text) in [("product", "Celadon teapot"), ("price_cents", "19.00"), ("stock", stock.as_str())] {
        page.tab_to(&format!("{form} [name={field}]")).await;
        page.press(text.chars()).await;
    }
    let start = format!("{form} [name=starts_at_ms]");
    page.tab_to(&start).await;
    let soon: [String; 2] = serde_json::from_value(page.evaluate(SOON).await).unwrap();
    page.press(soon[0].chars()).await;
    page.press([TAB]).await;
    page.press(soon[1].chars()).await;
    let typed = page.number(&format!("Date.parse(document.querySelector({start:?}).value)")).await;
    assert_eq!(typed, page.number("soon.getTime()").await, "{soon:?} was typed");
    page.tab_to(&format!("{form} .button")).await;
    page.note_document().await;
    page.press([ENTER]).await;
    page.tab_to("dialog button[value=yes]").await;
    page.press([ENTER]).await;
    page.next_document().await;
    page.wait("/^\\/admin\\/sales\\/\\d+$/.test(location.pathname)").await;
    let id = page.number("Number(location.pathname.split('/').at(-1))").await;
    shop.sale_with(SaleId::from_db(id as i64)).await
}

/// Buyers who all come at once. Each gets a unit or "sold out". Returns the number of buyers with a unit.
async fn rush(shop: &Shop, sale: &Sale, buyers: Range<usize>) -> i64 {
    let answers = stream::iter(buyers).map(|n| async move {
        let user = format!("u{n}");
        // While a commit takes long, others are refused for a moment. A repeat under the same key buys no second unit.
        eventually(|| async {
            let answer = shop.system.buy(sale, &user).idempotent(&user).send().await;
            if answer.status != 503 {
                return Ok(answer.code());
            }
            sleep(Duration::from_millis(200)).await;
            Err(answer.code())
        })
        .await
    });
    let answers: Vec<String> = answers.buffer_unordered(CONCURRENCY).collect().await;
    let others: Vec<_> = answers.iter().filter(|code| !["202", "409 sold-out"].contains(&code.as_str())).collect();
    assert!(others.is_empty(), "{others:?}");
    i64::try_from(answers.iter().filter(|code| *code == "202").count()).unwrap()
}

async fn watch(page: &Page) {
    page.leave("main a[href$='/live']").await;
    page.wait("document.getElementById('connection').classList.contains('good')").await;
}

/// A manager plans, pauses, enlarges, resumes and closes a sale. A buyer's open page follows each step.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_from_its_plan_to_its_end() {
    let (shop, page) = console(&SETTINGS).await;
    page.sign_in_at(&shop, "max", "/admin/sales").await;
    let sale = plan(&shop, &page).await;
    page.wait(&format!("{} || {}", phase("scheduled"), phase("open"))).await;

    // It is published: a buyer waits there for the start.
    let buyer = Page::open().await;
    buyer.visit(&shop.page_of(&sale)).await;
    buyer.sign_in("bea").await;
    buyer.evaluate("window.sameDocument = true").await;
    buyer.wait(LIVE).await;
    // The page of the sale refreshes itself.
    page.wait(&phase("open")).await;

    watch(&page).await;
    let mut winners = 0;
    for buyers in [0..40, 40..120] {
        winners += rush(&shop, &sale, buyers).await;
        page.wait(&tile("winners", winners)).await;
    }
    assert_eq!(winners, 120);
    page.wait(&tile("unpaid", winners)).await;
    // Lines, not only points: the charts move. The lines of the legend have another shape.
    page.wait("document.querySelectorAll('.charts svg[role=img] path.line[d*=L]').length > 6").await;
    page.wait(&shows(&format!("{winners} won, less 0 that came back, make {winners} sold."))).await;
    page.screenshot("console-live-rush").await;

    // Paused, by keyboard: the buyer sees it, and a purchase is refused.
    page.leave("main .back a").await;
    page.tab_to(&set_status(&sale, "paused")).await;
    page.note_document().await;
    page.press([ENTER]).await;
    page.next_document().await;
    page.wait(&phase("paused")).await;
    buyer.wait(&format!("{GREY} && {}", says("paused"))).await;
    let refused = shop.system.buy(&sale, "zoe").send().await;
    assert_ne!(refused.status, 202, "sold while the sale was paused");
    assert_eq!(shop.purchases(&sale).await, winners);

    // More stock, and the sale continues.
    let stock = form(&format!("sales/{}/stock", sale.id));
    page.type_over(&format!("{stock} [name=units]"), &MORE.to_string()).await;
    page.send(&stock).await;
    page.wait(&shows(&format!("left of {}", STOCK + MORE))).await;
    page.leave(&set_status(&sale, "open")).await;
    page.wait(&phase("open")).await;
    buyer.wait(LIVE).await;
    assert!(buyer.is_true("window.sameDocument").await, "the buyer's page follows without a reload");

    watch(&page).await;
    buyer.buy().await;
    buyer.pay().await;
    winners += 1 + rush(&shop, &sale, 200..600).await;
    assert_eq!(winners, STOCK + MORE);
    for (name, figure) in [
        ("winners", winners),
        ("available", 0),
        ("stock", 0),
        ("won", winners),
        ("returned", 0),
        ("sold", winners),
        ("left", 0),
        ("unpaid", winners - 1),
        ("paid", 1),
    ] {
        page.wait(&tile(name, figure)).await;
    }
    page.wait(&shows(&format!("{winners} units in all: {winners} sold, 0 left."))).await;
    page.wait("document.getElementById('operator-charts').textContent.includes('sold-out')").await;
    page.wait("document.getElementById('tile-drift').textContent === 'none'").await;
    // Paused and resumed from here. The page follows, also without a reload.
    page.leave("#pause button").await;
    page.wait("document.getElementById('tile-status').textContent === 'paused'").await;
    page.leave("#resume button").await;
    page.wait("document.getElementById('tile-status').textContent === 'open'").await;
    for colours in ["dark", "light"] {
        page.prefer(colours).await;
        page.screenshot(&format!("console-live-sold-out-{colours}")).await;
    }

    // Closed for good, after a confirmation. The orders stay.
    page.leave("main .back a").await;
    page.leave_after_question(&set_status(&sale, "closed")).await;
    page.wait(&phase("ended")).await;
    assert!(!page.is_true("document.querySelector('main [data-api]')").await, "a closed sale can be changed");
    buyer.click("#sign-out").await;
    buyer.reload().await;
    buyer.wait(&says("ended")).await;
    shop.system.settled(&sale).await;
    assert_eq!((shop.system.orders(&sale).await, shop.system.stock(&sale).await), (STOCK + MORE, 0));
    buyer.close().await;
    shop.close(page).await;
}
