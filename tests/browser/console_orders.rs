//! A manager's work with orders, money and queues in the console.

use seckill_harness::eventually;

use crate::console::{console, form, shows};
use crate::day::IMPATIENT;
use crate::page::shown;

/// An alarm leads to its runbook. The parked message is sent again when the cause is gone, and the alarm clears.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_message_is_sent_again() {
    let (shop, page) = console(&IMPATIENT).await;
    let sale = shop.sale(&["--stock", "5"]).await;
    let order = shop.park(&sale).await;
    page.sign_in_at(&shop, "max", "/admin/alarms").await;
    page.click("article.alarm summary").await;
    page.wait(&shown("article.alarm details .prose")).await;
    page.screenshot("console-alarm").await;
    page.leave("article.alarm a[href='/admin/runbooks/parked']").await;
    page.wait(&shown("main h1")).await;

    page.leave("nav.sections a[href='/admin/outbox']").await;
    page.wait(&format!("{} && {}", shows("this one never"), shows("eve"))).await;
    page.screenshot("console-parked").await;
    shop.repair().await;
    page.leave("[aria-labelledby=parked-title] tbody tr form button").await;
    page.wait(&shows("No messages are parked")).await;
    shop.until(&order, "eve", "pending_payment").await;
    // The page of alarms refreshes itself.
    page.leave("nav.sections a[href='/admin/alarms']").await;
    page.wait(&shows("Nothing is wrong")).await;
    page.wait("document.querySelector('[aria-labelledby=cleared-title] tbody')").await;
    shop.system.settled(&sale).await;
    page.close().await;
    shop.close().await;
}

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
    page.close().await;
    shop.close().await;
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
    page.close().await;
    shop.close().await;
}
