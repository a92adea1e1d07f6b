//! The ids of buyers are texts of the shop's issuer: they may have separators, spaces, quotes, formulas and markup in them.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use seckill_domain::account::AccountRole;
use seckill_domain::sale::NewSale;
use seckill_domain::shards::ShardCount;
use serde_json::{Value, json};

use crate::backoffice::admin_api::Person;
use crate::backoffice::admin_sessions::seckill;
use crate::redis::own_redis::OwnRedis;
use seckill_harness::folder::Folder;
use seckill_harness::{Sale, System, terms};

/// The last has 128 bytes.
const IDS: [&str; 30] = [
    "auth0|5f7c",
    "auth0|5f7d",
    "7|8|9",
    "|",
    "a@b.de",
    "urn:x:1",
    "https://id.example/users/1?x=1&y=2#z",
    "日本",
    "{}",
    "{1}",
    ":",
    "a b",
    " a b ",
    "a b  ",
    "+",
    "*",
    "%",
    "%d%s",
    "%41",
    "#",
    "n",
    "../",
    "O'Hara",
    "\"quoted\", twice",
    "'=1",
    "=1+1",
    "<script>alert(1)</script>",
    "e\u{301}\u{302}",
    "\u{e9}\u{302}",
    "🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀",
];

async fn buy(system: &System, sale: &Sale, user: &str, key: &str) -> (String, Value) {
    let answer = system.buy(sale, user).idempotent(key).answered().await;
    (answer.code(), answer.body["order_id"].clone())
}

/// Each buyer buys one of as many units, in shards that lend to each other. After a loss of Redis's memory all hold what they held.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_of_any_name_buys_reads_cancels_and_is_found() {
    assert_eq!(IDS[29].len(), 128);
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[("REDIS_URL", &redis.url())]).await;
    let shards = ShardCount::parse(8).unwrap();
    let sale = system.create_sale(NewSale { shards, ..terms(30) }).await;
    let mut orders = Vec::new();
    for user in IDS {
        let (code, order) = buy(&system, &sale, user, "k").await;
        assert_eq!(code, "202", "{user}");
        orders.push(order);
    }
    for forgotten in [false, true] {
        system.settled(&sale).await;
        for (user, order) in IDS.iter().zip(&orders) {
            assert_eq!(buy(&system, &sale, user, "k").await, ("202".into(), order.clone()), "{user}");
            let other = buy(&system, &sale, user, "other").await;
            assert_eq!(other, ("409 already-purchased".into(), order.clone()), "{user}");
        }
        if !forgotten {
            redis.ask(&["FLUSHALL"]).await.unwrap();
        }
    }
    let max = Person::new(&system, "max", AccountRole::Manager).await;
    let vic = Person::new(&system, "vic", AccountRole::Viewer).await;
    for (user, order) in IDS.iter().zip(&orders) {
        assert_is_found(&system, [&max, &vic], user, order.as_str().unwrap()).await;
    }
    assert_files_name_each_buyer(&system, &max).await;
    for (user, order) in IDS.iter().zip(&orders) {
        let cancelled = system.post(&format!("/api/v1/orders/{}/cancel", order.as_str().unwrap()), user).await;
        assert_eq!((cancelled.0, &cancelled.1["status"]), (200, &json!("cancelled")), "{user}");
    }
    system.settled(&sale).await;
    assert_eq!(system.available(&sale).await, Some(30));
    system.finish().await;
}

/// By the buyer, in the console, and on the command line.
async fn assert_is_found(system: &System, [max, vic]: [&Person; 2], user: &str, order: &str) {
    let (_, own) = system.get("/api/v1/orders", Some(user)).await;
    assert_eq!((own.as_array().unwrap().len(), &own[0]["order_id"]), (1, &json!(order)), "{user}");
    let query = format!("user={}", utf8_percent_encode(user, NON_ALPHANUMERIC));
    let found = max.get(&format!("orders?{query}")).await.body;
    let found = (found["orders"].as_array().unwrap().len(), &found["orders"][0]["user"]);
    assert_eq!(found, (1, &json!(user)));
    let hidden = vic.get(&format!("orders?{query}")).await.body;
    assert_eq!((&hidden["orders"][0]["order_id"], &hidden["orders"][0]["user"]), (&json!(order), &json!("")));
    let escaped = user.replace('&', "&#38;").replace('<', "&#60;").replace('>', "&#62;");
    let escaped = escaped.replace('"', "&#34;").replace('\'', "&#39;");
    // The link to the buyer's orders leads to these orders alone.
    let (_, page) = max.page(&format!("/admin/orders/{order}")).await;
    assert!(page.contains(&format!("<bdi>{escaped}</bdi>")), "{user}: {page}");
    let (_, link) = page.split_once("href=\"/admin/orders?").unwrap();
    let (link, _) = link.split_once('"').unwrap();
    let (status, list) = max.page(&format!("/admin/orders?{link}")).await;
    assert_eq!((status, list.matches("<bdi>").count()), (200, 1), "{user}: {link}");
    assert!(list.contains(&format!("<bdi>{escaped}</bdi>")), "{user}: {list}");
    let printed = seckill(system, &["orders", &format!("--user={user}"), "--format", "json"], "").unwrap();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((printed.as_array().unwrap().len(), &printed[0]["user"]), (1, &json!(user)));
}

async fn assert_files_name_each_buyer(system: &System, max: &Person) {
    let file = max.request("GET", "orders.csv", None).send().await.unwrap().text().await.unwrap();
    let printed = seckill(system, &["orders", "--format", "csv"], "").unwrap();
    let mut expected = IDS.map(str::to_owned);
    expected.sort();
    // A spreadsheet shows a cell with an apostrophe as the text after it.
    let as_text = |cell: &str| cell.strip_prefix('\'').unwrap_or(cell).to_owned();
    for text in [file, printed] {
        let records = csv::Reader::from_reader(text.as_bytes()).into_records().map(Result::unwrap);
        let mut users: Vec<String> = records.map(|cells| cells[2].to_owned()).collect();
        assert!(users.iter().all(|user| !user.starts_with(['=', '+', '-', '@'])), "{users:?}");
        users = users.iter().map(|user| as_text(user)).collect();
        users.sort();
        assert_eq!(users, expected);
    }
}

/// A file has a line for each: the buyer, a space, the token, which has no space.
#[tokio::test(flavor = "multi_thread")]
async fn development_mode_issues_tokens_for_any_name() {
    let system = System::shared().await;
    let reads = async |token: &str| {
        let request = reqwest::Client::new().get(system.url("/api/v1/orders")).bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    };
    let http = reqwest::Client::new();
    for user in IDS {
        let request = http.post(system.url("/api/v1/dev/token")).json(&json!({ "user": user }));
        let issued: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(reads(issued["token"].as_str().unwrap()).await, 200, "{user}");
    }
    for wrong in ["", "a\n", "\u{85}", &"x".repeat(129), &"é".repeat(65)] {
        let request = http.post(system.url("/api/v1/dev/token")).json(&json!({ "user": wrong }));
        assert_eq!(request.send().await.unwrap().status(), 400, "{wrong:?}");
    }
    let folder = Folder::new("tokens");
    let file = folder.file("tokens");
    let arguments = ["token", "--count", "2", "--prefix", "urn:a b|", "--out", &file];
    seckill(&system, &arguments, "").unwrap();
    let lines = std::fs::read_to_string(&file).unwrap();
    for (line, expected) in lines.lines().zip(["urn:a b|1", "urn:a b|2"]) {
        let (user, token) = line.rsplit_once(' ').unwrap();
        assert_eq!((user, reads(token).await), (expected, 200));
    }
}
