//! The page of a buyer's own orders.

use std::cell::Cell;
use std::time::{Duration, Instant};

use seckill_harness::eventually;

use crate::buyer::order;
use crate::chromium::Page;
use crate::page::shown;
use crate::shop::Shop;

/// Presses a button twice in a row, because its effect is final. A slow browser has forgotten the first press when the second comes: then
/// both are repeated.
async fn press_twice(page: &Page, button: &str, done: &str) {
    let pressed = Cell::new(None::<Instant>);
    eventually(|| async {
        if page.is_true(done).await {
            return Ok(());
        }
        // The button disappears when the request is in flight.
        let is_due = pressed.get().is_none_or(|at| at.elapsed() > Duration::from_secs(20));
        if is_due && page.is_true(&shown(button)).await {
            page.click(button).await;
            page.click(button).await;
            pressed.set(Some(Instant::now()));
        }
        Err(format!("{button} has no effect"))
    })
    .await;
}

/// One order is paid and refunded, one is cancelled. Another buyer's orders are not there.
#[tokio::test(flavor = "multi_thread")]
async fn orders_of_all_sales_are_paid_and_cancelled_on_one_page() {
    let (shop, page) = Shop::with_page(&[]).await;
    let first = shop.sale_of("Phone", "100", &["--stock", "5"]).await;
    let second = shop.sale_of("Lamp", "2500", &["--stock", "5"]).await;
    for (sale, user) in [(&first, "ann"), (&second, "ann"), (&first, "bob")] {
        assert_eq!(shop.system.buy(sale, user).send().await.code(), "202");
    }
    shop.system.settled(&first).await;
    shop.system.settled(&second).await;
    page.visit(&shop.system.url("/orders")).await;
    page.sign_in("ann").await;
    page.wait("document.querySelectorAll('#orders li.pending_payment').length === 2").await;
    for name in ["Phone", "Lamp"] {
        page.wait(&format!("document.getElementById('orders').innerText.includes({name:?})")).await;
    }
    let link = format!("#orders a[href*='/sales/{}']", second.id);
    page.wait(&format!("document.querySelector({link:?})")).await;
    // The test presses the button of the first order, whichever it is.
    page.wait(&shown("#orders li.pending_payment .pay[aria-disabled=false]")).await;
    page.click("#orders li.pending_payment .pay").await;
    page.wait(&order("paid")).await;
    // A final action needs two presses.
    press_twice(&page, "#orders li.pending_payment .cancel", &order("cancelled")).await;
    press_twice(&page, "#orders li.paid .refund", &order("refunded")).await;
    assert_eq!(page.number("document.querySelectorAll('#orders li').length").await, 2.0);
    page.reload().await;
    page.wait(&format!("{} && {}", order("cancelled"), order("refunded"))).await;
    page.click("#sign-out").await;
    page.wait(&format!("!document.querySelector('#orders li') && {}", shown("#sign-in"))).await;
    shop.system.settled(&first).await;
    shop.system.settled(&second).await;
    shop.close(page).await;
}

/// A shop without any channel: an order that costs nothing is confirmed, and refunded.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_costs_nothing_is_confirmed_without_a_channel() {
    let (shop, page) = Shop::with_page(&[("SECKILL_CHANNELS__SANDBOX__URL", "")]).await;
    let sale = shop.sale_of("Sticker", "0", &["--stock", "5"]).await;
    assert_eq!(shop.system.buy(&sale, "ann").send().await.code(), "202");
    shop.system.settled(&sale).await;
    page.visit(&shop.system.url("/orders")).await;
    page.sign_in("ann").await;
    page.wait(&shown("#orders li.pending_payment .pay[aria-disabled=false]")).await;
    assert_eq!(page.evaluate("document.querySelector('#orders .pay').textContent").await, "Confirm: nothing to pay");
    assert!(page.is_true("document.querySelector('#orders label').hidden").await);
    page.click("#orders li.pending_payment .pay").await;
    page.wait(&order("paid")).await;
    press_twice(&page, "#orders li.paid .refund", &order("refunded")).await;
    shop.close(page).await;
}
