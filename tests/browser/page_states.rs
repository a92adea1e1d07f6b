//! frontend-static/page-state.js as a table: every state of the sale, of the buyer and of the order, and every event. It needs no server's
//! state: the browser only runs the functions.

use serde_json::{Value, json};

use crate::shop::Shop;

/// Runs all worlds, and returns the broken rules, with the first world that broke each.
const TABLE: &str = include_str!("page_states.js");

#[tokio::test(flavor = "multi_thread")]
async fn no_state_contradicts_itself_whatever_came_before() {
    let (shop, page) = Shop::with_page(&[]).await;
    let sale = shop.sale(&["--stock", "1"]).await;
    page.visit(&shop.page_of(&sale)).await;
    let found = page.evaluate(TABLE).await;
    assert_eq!(found["broken"], json!([]), "of {} worlds", found["worlds"]);
    let worlds = found["worlds"].as_f64().unwrap();
    assert!(worlds > 10_000.0, "{worlds} worlds");
    // Every text that the functions name is there, and every state was reached.
    for what in ["phases", "labels", "messages"] {
        let seen = found[what].as_array().unwrap();
        assert!(seen.len() >= 7 && !seen.contains(&Value::Null), "{what}: {seen:?}");
    }
    shop.close(page).await;
}
