//! Challenges, each solved as a person solves it. In development builds only, the right answer comes with the challenge. (`keyboard`
//! answers a picture.)

use seckill_harness::Sale;
use serde_json::Value;

use crate::buyer::{GREY, LIVE, SOLVED};
use crate::chromium::Page;
use crate::input::{ENTER, LEFT, RIGHT, go_to, press, release};
use crate::purchases::move_start;
use crate::shop::Shop;

/// The place of the puzzle piece, in pixels of the picture.
const PIECE_X: &str = "(() => {
    const place = (id) => document.getElementById(id).getBoundingClientRect();
    const [piece, picture] = [place('challenge-piece'), place('challenge-image')];
    return (piece.left - picture.left) * window.seckillChallenge.width / picture.width;
})()";
const SCALE: &str =
    "document.getElementById('challenge-image').getBoundingClientRect().width / window.seckillChallenge.width";
/// The piece is in its gap within this distance, in pixels of the picture. The service allows more.
const NEAR: f64 = 1.5;
/// How many times slower than its trail a piece is dragged. A browser without a processor for half a second reports one long step. It must
/// not be most of the way: no hand makes such a step.
const SLOWER: f64 = 6.0;

/// A shop with a page on which Ann must solve a challenge of this kind.
async fn before_a_challenge(kind: &str) -> (Shop, Page, Sale) {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "5", "--captcha", kind]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    (shop, page, sale)
}

/// The solved challenge activates the button, and its pass buys one unit.
async fn buy_with_pass(shop: Shop, page: Page, sale: Sale) {
    page.wait(SOLVED).await;
    page.buy().await;
    shop.close_after_one(page, &sale).await;
}

/// Drags the piece along the challenge's trail, only slower, and then to its place, for any shape of the handle.
async fn drag(page: &Page, challenge: &Value) {
    let target = challenge["answer_for_tests"]["x"].as_f64().unwrap();
    let trail: Vec<[f64; 3]> = serde_json::from_value(challenge["answer_for_tests"]["trail"].clone()).unwrap();
    let (middle, y) = page.middle("#challenge-slider").await;
    let width = page.number("document.getElementById('challenge-slider').getBoundingClientRect().width").await;
    let scale = page.number(SCALE).await;
    // A handle is taken in the middle, a whole bar at the handle's first position.
    let x = if width > 120.0 { middle - width / 2.0 + 12.0 } else { middle };
    let mut moves = vec![go_to(x, y, 50), press()];
    let mut at = (x, y);
    for pair in trail.windows(2) {
        let [before, after] = [pair[0], pair[1]];
        at = (x + (after[1] - trail[0][1]) * scale, y + (after[2] - trail[0][2]) * scale);
        moves.push(go_to(at.0, at.1, ((after[0] - before[0]) * SLOWER).max(1.0) as u64));
    }
    page.mouse(moves).await;
    for _ in 0..10 {
        let missing = target - page.number(PIECE_X).await;
        if missing.abs() <= NEAR {
            break;
        }
        at.0 += missing * scale;
        page.mouse(vec![go_to(at.0, at.1, 60)]).await;
    }
    assert!((target - page.number(PIECE_X).await).abs() <= NEAR, "the piece does not follow the mouse");
}

/// A piece dragged as by a hand gives the pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_slider_is_dragged_by_the_mouse() {
    let (shop, page, sale) = before_a_challenge("slider").await;
    let challenge = page.challenge(&Value::Null).await;
    assert_eq!(challenge["kind"], "slider");
    page.wait("document.getElementById('challenge-image').naturalWidth > 0").await;
    drag(&page, &challenge).await;
    // Releasing the button submits the answer.
    page.mouse(vec![release()]).await;
    buy_with_pass(shop, page, sale).await;
}

/// The same slider needs no mouse: arrow keys move the piece, Enter submits the answer, and a screen reader announces its position.
#[tokio::test(flavor = "multi_thread")]
async fn a_slider_is_moved_by_the_arrow_keys() {
    let (shop, page, sale) = before_a_challenge("slider").await;
    let challenge = page.challenge(&Value::Null).await;
    page.wait("document.getElementById('challenge-image').naturalWidth > 0").await;
    let target = challenge["answer_for_tests"]["x"].as_f64().unwrap();
    page.tab_to("#challenge-slider").await;
    let start = page.number(PIECE_X).await;
    page.press([RIGHT]).await;
    let step = page.number(PIECE_X).await - start;
    assert!(step > 0.0, "an arrow key moves the piece");
    // Long distances in bundles, and the last pixels one by one.
    for _ in 0..50 {
        let missing = target - page.number(PIECE_X).await;
        if missing.abs() <= step.max(NEAR) / 2.0 + 0.5 {
            break;
        }
        let key = if missing > 0.0 { RIGHT } else { LEFT };
        let presses = (missing.abs() / step).floor().clamp(1.0, 40.0) as usize;
        page.press(std::iter::repeat_n(key, presses)).await;
    }
    let value = page.evaluate("document.getElementById('challenge-slider').getAttribute('aria-valuenow')").await;
    assert!(value.is_string(), "a screen reader says where the piece is");
    page.press([ENTER]).await;
    buy_with_pass(shop, page, sale).await;
}

/// A buyer who cannot see the picture chooses another kind, and then needs to do nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_see_lets_the_page_work() {
    let (shop, page, sale) = before_a_challenge("image").await;
    let picture = page.challenge(&Value::Null).await;
    page.click("#challenge-other").await;
    let work = page.challenge(&picture["challenge_id"]).await;
    assert_eq!(work["kind"], "work");
    buy_with_pass(shop, page, sale).await;
}

/// The page asks for the challenge as soon as the sale gives any, which is before the start. The pass is kept until the start.
#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_is_solved_before_the_start() {
    let opens = [("SECKILL_CAPTCHA__OPENS_BEFORE_MS", "500000")];
    let (shop, page) = Shop::with_page(&opens).await;
    let sale = shop.sale(&["--stock", "5", "--captcha", "work", "--starts-in", "3600", "--ends-in", "7200"]).await;
    page.visit(&shop.page_of(&sale)).await;
    page.sign_in("ann").await;
    // The sale gives challenges in five seconds, and starts long after that.
    move_start(&shop, &page, &sale, 505.0).await;
    page.wait(SOLVED).await;
    assert!(page.is_true(GREY).await, "the sale has not started");
    move_start(&shop, &page, &sale, 5.0).await;
    page.wait(LIVE).await;
    buy_with_pass(shop, page, sale).await;
}
