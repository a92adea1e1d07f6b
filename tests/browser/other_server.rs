//! The published bundle on another file server, with the API at another origin.

use crate::buyer::order;
use crate::program::Server;
use crate::shop::Shop;
use seckill_harness::folder::Folder;

/// Python serves the files, the service allows that origin, and a purchase works: sign-in, captcha, order and payment.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_works_from_pages_that_another_server_has() {
    let bundle = Folder::new("bundle");
    let mut python = Server::command("python3");
    python.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", &bundle.file("")]);
    let files = Server::start(&mut python).await;
    let origin = format!("http://127.0.0.1:{}", files.port);
    let (shop, page) = Shop::with_page(&[("SECKILL_HTTP__CORS_ORIGINS", origin.as_str())]).await;
    let sale = shop.sale(&["--stock", "5", "--captcha", "image"]).await;
    shop.command(&["publish", "--out", &bundle.file(""), "--api", &shop.system.url("")]).await;

    page.visit(&format!("{origin}/")).await;
    let link = format!("a[href^=\"/sales/{}\"]", sale.id);
    page.click(&link).await;
    page.wait(&format!("document.querySelector('main[data-sale=\"{}\"]')", sale.id)).await;
    page.sign_in("ann").await;
    let challenge = page.challenge(&serde_json::Value::Null).await;
    page.fill("#challenge-answer", challenge["answer_for_tests"].as_str().unwrap()).await;
    page.click("#challenge-submit").await;
    page.buy().await;
    page.pay().await;
    page.visit(&format!("{origin}/orders/")).await;
    page.wait(&order("paid")).await;
    assert!(page.is_true(&format!("location.origin === {origin:?}")).await);
    shop.close_after_one(page, &sale).await;
}
