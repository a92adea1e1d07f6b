//! Texts that people type and others read: one spelling for one look, and nothing hidden.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use uuid::Uuid;

use seckill_domain::account::AccountRole;
use seckill_harness::{System, http_client, terms};

use crate::backoffice::admin_api::{Person, UNLIMITED};
use crate::backoffice::console_rights::WINDOW;
use crate::pages::served_pages::seckill;

fn product(name: &str) -> String {
    format!("products/{}", utf8_percent_encode(name, NON_ALPHANUMERIC))
}

fn plan(product: &str) -> Value {
    json!({ "product": product, "price_cents": 1, "stock": 1 })
}

/// Names that look the same are one name, over the API and the command line, in lists and in searches.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_look_the_same_are_one_name() {
    let system = System::shared_with(&UNLIMITED).await;
    let max = Person::shared(&system, "max", AccountRole::Manager).await;
    let run = Uuid::new_v4().simple().to_string();
    let kept = format!("Crème Ångström {run}");
    let first = max.put(&product(&kept), json!({})).await.body["product_id"].clone();
    for same in [
        format!("Cre\u{300}me A\u{30A}ngstro\u{308}m {run}"),
        format!(" Crème\u{00A0}\u{2003} \u{212B}ngström {run}\u{3000}"),
    ] {
        let answer = max.put(&product(&same), json!({})).await;
        assert_eq!((answer.status, &answer.body["product_id"]), (200, &first), "{same:?}");
        let set = seckill(&system, &["product", "set", "--name", &same]).unwrap();
        assert_eq!(set["product_id"], first, "{same:?}");
        let planned = max.post("sales", plan(&same)).await;
        let sale = max.get(&format!("sales/{}", planned.body["sale_id"])).await;
        assert_eq!((&sale.body["sale"]["product"], &sale.body["sale"]["product_id"]), (&json!(kept), &first));
        let found = max.get(&format!("sales?q={}", utf8_percent_encode(&same, NON_ALPHANUMERIC))).await;
        assert_eq!(found.body["sales"][0]["product"], kept, "{same:?}");
    }
}

/// Every text refuses what nobody sees and what moves its neighbours, and says which character that is.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_characters_are_refused_by_their_code() {
    let system = System::shared_with(&UNLIMITED).await;
    let max = Person::shared(&system, "max", AccountRole::Manager).await;
    let root = Person::shared(&system, "root", AccountRole::Admin).await;
    let sale = system.create_sale(terms(1)).await;
    let order = system.buy(&sale, "ann").send().await.order_id();
    root.post("apps", json!({ "name": "typed" })).await;
    for (hidden, code) in [
        ("\u{202D}", "U+202D"),
        ("\u{2067}", "U+2067"),
        ("\u{2062}", "U+2062"),
        ("\u{1160}", "U+1160"),
        ("\u{1B}", "U+001B"),
    ] {
        let text = format!("re{hidden}d");
        let mut policy: Value = serde_json::from_str(WINDOW).unwrap();
        (policy["apps"], policy["key"]) = (json!(["typed"]), json!(text));
        for (method, path, body) in [
            ("PUT", product(&text), json!({})),
            ("PUT", product("red"), json!({ "description": text })),
            ("PUT", product("red"), json!({ "picture_alt": text })),
            ("POST", "sales".to_owned(), plan(&text)),
            ("POST", format!("orders/{order}/refunds"), json!({ "reason": text })),
            ("PUT", "policies/typed".to_owned(), policy),
        ] {
            let answer = root.call(method, &path, Some(body)).await;
            assert_eq!(answer.code(), "400 invalid-request", "{path} {code}");
            assert!(answer.body["detail"].as_str().unwrap().contains(code), "{path}: {}", answer.body);
        }
        let reason = json!({ "reason": text }).to_string();
        let buyers = http_client()
            .post(system.url(&format!("/api/v1/orders/{order}/refunds")))
            .bearer_auth(system.token("ann", 0));
        let answer = buyers.header("content-type", "application/json").body(reason).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{code}");
        let refused = seckill(&system, &["product", "set", "--name", &text]).unwrap_err();
        assert!(refused.contains(code) && refused.lines().count() == 1, "{refused}");
    }
    for blank in [" ", "\u{00A0}\u{2009}", "\u{3000}"] {
        assert_eq!(max.post("sales", plan(blank)).await.code(), "400 invalid-request", "{blank:?}");
    }
}
