//! A manager's work with orders, money and queues in the console.

use seckill_harness::eventually;

use crate::console::{console, form, shows};

/// A manager finds a buyer's order, exports the list as a file, and refunds the order with a reason.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_found_exported_and_refunded() {
    let (shop, page) = console(&[]).await;
    let sale = shop.sale(&["--stock", "5"]).await;
    for user in ["ann", "bob"] {
        let order = shop.order_of(&sale, user).await;
        shop.pay(&order, user).await;
    }
    page.sign_in_at(&shop, "max", "/admin/orders").await;
    let search = "form[action='/admin/orders']";
    page.type_over(&format!("{search} [name=user]"), "ann").await;
    page.leave(&format!("{search} button")).await;
    let rows = "[...document.querySelectorAll('main tbody tr')]";
    page.wait(&format!("{rows}.length === 1 && {rows}[0].innerText.includes('ann')")).await;
    let export = "fetch(document.querySelector('a[download]').href).then((answer) => answer.text())";
    let export = page.evaluate(export).await;
    let lines: Vec<_> = export.as_str().unwrap().lines().collect();
    assert!(lines.len() == 2 && lines[0].contains(',') && lines[1].contains("ann"), "{lines:?}");
    page.screenshot("console-orders-of-a-buyer").await;

    page.leave("main tbody th a").await;
    let refund = "form[data-api$='/refunds']";
    page.type_over(&format!("{refund} [name=reason]"), "arrived broken").await;
    page.leave_after_question(&format!("{refund} button")).await;
    let status = "document.querySelector('dl.facts .badge').textContent";
    eventually(|| async {
        page.note_document().await;
        page.client.refresh().await.map_err(|error| error.to_string())?;
        page.next_document().await;
        let status = page.try_evaluate(status).await?;
        (status == "refunded").then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
    page.wait(&shows("arrived broken")).await;
    assert!(!page.is_true(&format!("document.querySelector({refund:?})")).await, "a refunded order can be refunded");
    page.screenshot("console-order-refunded").await;
    shop.system.settled(&sale).await;
    shop.close(page).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outflow_is_paused_and_resumed() {
    let (shop, page) = console(&[]).await;
    shop.command(&["outflow", "create", "letters", "--rate", "1", "--target", "http://127.0.0.1:9/"]).await;
    page.sign_in_at(&shop, "max", "/admin/outflows").await;
    let row = "document.getElementById('change-letters').closest('tr').innerText";
    let state = |text: &str| format!("{row}.includes({text:?})");
    page.wait(&state("sending")).await;
    let pause = format!("{}:has([name=paused]) button", form("outflows/letters"));
    page.click("#change-letters summary").await;
    page.leave_after_question(&pause).await;
    page.wait(&state("paused")).await;
    let paused = "SELECT paused FROM outflow_channels WHERE name = 'letters'";
    assert!(sqlx::query_scalar::<_, bool>(paused).fetch_one(&shop.system.sql).await.unwrap());
    page.click("#change-letters summary").await;
    page.leave(&pause).await;
    page.wait(&state("sending")).await;
    shop.close(page).await;
}
