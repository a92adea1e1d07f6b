//! A sale is planned, and its product described, in the console.

use seckill_harness::{until, wait_until};
use serde_json::{Value, json};

use crate::console::{console, form, phase, shows, told};

/// Waves are planned as rows of the form. A product gets its description, and buyers read it; a file that is no picture is refused. A sale
/// without purchases is removed: its page for buyers is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_with_waves_is_planned_described_and_removed() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "max", "/admin/sales/new").await;
    let new = form("sales");
    for (field, text) in [("product", "Lamp"), ("price_cents", "25.00"), ("stock", "30")] {
        page.type_over(&format!("{new} [name={field}]"), text).await;
    }
    for _ in 0..2 {
        page.click("#add-wave").await;
    }
    for (row, minutes, units) in [(1, "5", "10"), (2, "10", "4")] {
        page.type_over(&format!("#waves li:nth-child({row}) .after"), minutes).await;
        page.type_over(&format!("#waves li:nth-child({row}) .units"), units).await;
    }
    page.click("#waves li:nth-child(2) .remove").await;
    page.leave_after_question(&format!("{new} .button")).await;
    page.wait(&phase("open")).await;
    let rows = "[...document.querySelectorAll('[aria-labelledby=waves-title] tbody tr')]";
    let units = page.evaluate(&format!("{rows}.map((row) => row.children[1].textContent)")).await;
    assert_eq!(units, json!(["10"]));
    let path = page.evaluate("location.pathname.replace('/admin', '')").await;
    let path = path.as_str().unwrap();
    let for_buyers = shop.system.url(path);
    let status = async || reqwest::get(&for_buyers).await.unwrap().status();
    assert_eq!(status().await, 200);

    page.open_console(&shop, "/admin/products").await;
    page.leave("main a[href='/admin/products?name=Lamp']").await;
    let product = form("products/Lamp");
    page.type_over(&format!("{product} [name=description]"), "It shines.").await;
    page.send(&product).await;
    page.wait("document.querySelector('textarea[name=description]').value === 'It shines.'").await;
    let picture = form("products/Lamp/picture");
    let file = shop.folder.file("no-picture.png");
    std::fs::write(&file, "This is no picture.").unwrap();
    page.fill(&format!("{picture} [name=picture]"), &file).await;
    page.click(&format!("{picture} button")).await;
    page.wait(&format!("document.querySelector({:?}).className === 'bad'", format!("{picture} output"))).await;
    let read = async || reqwest::get(&for_buyers).await.unwrap().text().await.unwrap();
    wait_until(read, |page| page.contains("It shines.")).await;

    page.open_console(&shop, &format!("/admin{path}")).await;
    page.leave_after_question("form[data-method=DELETE][data-api^='/api/v1/admin/sales/'] button").await;
    page.wait("location.pathname === '/admin/sales'").await;
    page.wait(&shows("No sale fits")).await;
    until(404, status).await;
    shop.close(page).await;
}

/// The wall-clock times around the next changes of the clock, as a field has them, and the moments that they may mean.
const CHANGES: &str = "(() => {
    const step = 30 * 60_000;
    const offset = (at) => -new Date(at).getTimezoneOffset() * 60_000;
    const wall = (ms) => new Date(ms).toISOString().slice(0, 19);
    const found = {};
    for (let at = Math.ceil(Date.now() / step) * step + 48 * step; !found.skipped || !found.repeated; at += step) {
        const [before, after] = [offset(at - 1), offset(at)];
        const middle = at + (before + after) / 2;
        if (after > before) found.skipped ??= wall(middle);
        if (after < before) found.repeated ??= { text: wall(middle), first: middle - before, second: middle - after };
    }
    return found;
})()";

/// Times have their zone. A time that a change of the clock leaves out is refused, and of a repeated one each can be chosen.
#[tokio::test(flavor = "multi_thread")]
async fn times_have_their_zone_also_when_the_clock_changes() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "max", "/admin").await;
    let new = form("sales");
    let starts = async || {
        shop.system
            .number("SELECT (extract(epoch FROM starts_at) * 1000)::bigint FROM sales ORDER BY id DESC LIMIT 1")
            .await
    };
    // The second one's clock changes by half an hour.
    for (zone, shown, choice) in [("America/New_York", "E[SD]T", "first"), ("Australia/Lord_Howe", "GMT.1", "second")] {
        page.devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": zone })).await;
        page.open_console(&shop, "/admin/sales/new").await;
        let changes = page.evaluate(CHANGES).await;
        let field = format!("document.querySelector({:?})", format!("{new} [name=starts_at_ms]"));
        page.wait(&format!("{field}.closest('label').innerText.includes('{zone}, UTC')")).await;
        for (name, text) in [("product", "Clock"), ("price_cents", "25"), ("stock", "30")] {
            page.type_over(&format!("{new} [name={name}]"), text).await;
        }
        let pattern = zone.replace('/', ".");
        let type_start = async |text: &Value| {
            let put = format!("{field}.value = {text}; {field}.dispatchEvent(new Event('input', {{ bubbles: true }}))");
            page.evaluate(&put).await;
        };
        type_start(&changes["skipped"]).await;
        page.click(&format!("{new} .button")).await;
        page.wait(&told(&new, &format!("{pattern} .*skip this time"))).await;
        let repeated = &changes["repeated"];
        type_start(&repeated["text"]).await;
        page.click(&format!("{new} .button")).await;
        page.wait(&told(&new, &format!("{pattern} .*twice"))).await;
        page.click(&format!("{new} option[value='{}']", repeated[choice])).await;
        page.leave_after_question(&format!("{new} .button")).await;
        page.wait(&phase("scheduled")).await;
        assert_eq!(json!(starts().await), repeated[choice], "{zone}");
        page.wait(&format!("/{shown}/.test(document.querySelector('main time').innerText)")).await;
    }
    shop.close(page).await;
}
