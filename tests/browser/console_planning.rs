//! A sale is planned, and its product described, in the console.

use seckill_harness::{until, wait_until};
use serde_json::json;

use crate::console::{console, form, phase, shows};

/// Waves are planned as rows of the form. A product gets its description, and buyers read it; a file that is no picture is refused. A sale
/// without purchases is removed: its page for buyers is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_with_waves_is_planned_described_and_removed() {
    let (shop, page) = console(&[]).await;
    page.sign_in_at(&shop, "max", "/admin/sales/new").await;
    let new = form("sales");
    for (field, text) in [("product", "Lamp"), ("price_cents", "2500"), ("stock", "30")] {
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
    page.leave(&format!("{new} .button")).await;
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
