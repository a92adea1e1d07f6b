//! The whole purchase without a mouse.

use serde_json::Value;

use crate::buyer::{GREY, LIVE, PAYABLE, SOLVED, order};
use crate::input::ENTER;
use crate::shop::Shop;

/// Tab and Enter alone: sign in, answer the challenge, buy, pay. Each focused element shows its focus.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_by_keyboard_alone() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5", "--captcha", "image"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.tab_to("#sign-in [name=user]").await;
    page.press("kim".chars()).await;
    page.press([ENTER]).await;
    page.signed_in_as("kim").await;
    let first = page.challenge(&Value::Null).await;
    assert_eq!(first["kind"], "image");
    assert!(page.is_true(GREY).await, "nothing is bought without a pass");
    page.tab_to("#challenge-answer").await;
    page.press(['-', ENTER]).await;
    // A wrong answer spends the challenge: another picture comes.
    let second = page.challenge(&first["challenge_id"]).await;
    page.wait("document.getElementById('challenge-status').innerText !== ''").await;
    page.evaluate("document.getElementById('challenge-answer').value = ''").await;
    if !page.is_true("document.activeElement.id === 'challenge-answer'").await {
        page.tab_to("#challenge-answer").await;
    }
    page.press(second["answer_for_tests"].as_str().unwrap().chars()).await;
    page.press([ENTER]).await;
    page.wait(SOLVED).await;
    page.wait(LIVE).await;
    // The page may have put the focus there already.
    if !page.is_true("document.activeElement.id === 'buy'").await {
        page.tab_to("#buy").await;
    }
    page.press([ENTER]).await;
    page.wait(&order("pending_payment")).await;
    page.wait(PAYABLE).await;
    page.tab_to("#pay").await;
    page.press([ENTER]).await;
    page.wait(&order("paid")).await;
    // The focus survives the removal of the button.
    page.wait("document.activeElement !== document.body").await;
    shop.close_after_one(page, &sale).await;
}
