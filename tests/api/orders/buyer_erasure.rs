//! Erasing a buyer on request: by command and by the admin API.

use futures_util::future::join_all;
use redis::AsyncCommands;
use serde_json::json;
use sqlx::AssertSqlSafe;
use tokio::process::Command;

use crate::backoffice::console_frame::people;
use crate::orders::payments_and_callbacks::{Callback, becomes, bought, order, paid, post, refund_key};
use seckill_harness::{System, eventually, redis_at, terms};

const BUYER: &str = "erase-me-1734";

/// The tables with the buyer's id, in any column.
async fn tables_with(system: &System, id: &str) -> Vec<String> {
    let names = "SELECT table_name::text FROM information_schema.tables
                 WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY 1";
    let mut found = Vec::new();
    for name in sqlx::query_scalar::<_, String>(names).fetch_all(&system.sql).await.unwrap() {
        let rows = format!("SELECT count(*) FROM \"{name}\" AS t WHERE t::text LIKE '%{id}%'");
        if sqlx::query_scalar::<_, i64>(AssertSqlSafe(rows)).fetch_one(&system.sql).await.unwrap() > 0 {
            found.push(name);
        }
    }
    found
}

/// The Redis keys without an expiry whose name or value has the id.
async fn keys_with(system: &System, id: &str) -> Vec<String> {
    let mut redis = redis_at(&system.config.redis.url).await.unwrap();
    let keys: Vec<String> = redis.keys(format!("{}*", system.config.redis.prefix)).await.unwrap();
    let mut found = Vec::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut redis).await.unwrap();
        let value: redis::Value = match kind.as_str() {
            "hash" => redis.hgetall(&key).await,
            "list" => redis.lrange(&key, 0, -1).await,
            "set" => redis.smembers(&key).await,
            "zset" => redis.zrange(&key, 0, -1).await,
            _ => redis.get(&key).await,
        }
        .unwrap();
        let expires: i64 = redis.pttl(&key).await.unwrap();
        if expires == -1 && (key.contains(id) || format!("{value:?}").contains(id)) {
            found.push(key);
        }
    }
    found
}

async fn erase(system: &System, user: &str) -> (bool, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_seckill"));
    program.args(["buyer", "erase", "--user", user]).env_clear().envs(&system.environment).env("RUST_LOG", "error");
    let done = program.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.success(), text(&done.stdout), text(&done.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_buyer_is_in_no_table_and_no_key_and_the_books_hold() {
    let system = System::start().await;
    let [root, _, vic] = people(&system).await;
    let (refunded, cancelled) = (system.create_sale(terms(100)).await, system.create_sale(terms(100)).await);
    let close = async |id| {
        let closed = root.put(&format!("sales/{id}/status"), json!({ "status": "closed" })).await;
        assert_eq!(closed.status, 200, "{}", closed.body);
    };
    // Others buy at the same time, and share groups with the buyer.
    let others: Vec<String> = (0..30).map(|n| format!("other-{n}")).collect();
    let (crowd, ours) = tokio::join!(
        join_all(others.iter().map(|other| bought(&system, &refunded, other))),
        order(&system, &refunded, BUYER)
    );
    let payment = paid(&system, ours, BUYER).await;
    let refund = post(&system, ours, "refunds", BUYER, json!({ "reason": "my name is Erna" })).await;
    assert_eq!(refund.status, 202, "{}", refund.body);
    let unpaid = order(&system, &cancelled, BUYER).await;
    system
        .execute(format!("INSERT INTO lapsed_holds VALUES ('{unpaid}', {}, '{BUYER}', '203.0.113.9', 1)", cancelled.id))
        .await;
    assert_eq!(root.get(&format!("orders.csv?user={BUYER}")).await.status, 200);

    // Refused, with the reasons, while the sales run and the orders can change.
    let (done, _, why) = erase(&system, BUYER).await;
    assert!(!done && why.contains(&format!("sale {} runs until", refunded.id)), "{why}");
    assert!(why.contains(&format!("sale {} runs until", cancelled.id)), "{why}");
    close(refunded.id).await;
    close(cancelled.id).await;
    let refused = root.post("buyers/erasures", json!({ "user": BUYER })).await;
    assert_eq!(refused.code(), "409 conflict");
    assert!(refused.body.to_string().contains("refunding"), "{}", refused.body);
    let key = refund_key(&system, payment).await;
    assert_eq!(Callback::of("refund.succeeded", key, ("payment_key", payment), 100).send(&system).await, 200);
    becomes(&system, ours, BUYER, "refunded").await;
    assert_eq!(post(&system, unpaid, "cancel", BUYER, json!({})).await.status, 200);
    system.settled(&refunded).await;
    system.settled(&cancelled).await;
    for table in ["orders", "purchase_groups", "sale_buyers", "lapsed_holds", "refunds", "audit_log"] {
        assert!(tables_with(&system, BUYER).await.contains(&table.to_owned()), "{table} has no row of the buyer");
    }
    assert!(!keys_with(&system, BUYER).await.is_empty());

    let books = "SELECT jsonb_agg(j ORDER BY id)::text FROM journal j";
    let books = async || sqlx::query_scalar::<_, Option<String>>(books).fetch_one(&system.sql).await.unwrap();
    let before = books().await;
    assert_eq!(vic.post("buyers/erasures", json!({ "user": BUYER })).await.code(), "403 forbidden");
    // A group that was split stays beside the groups of one that replaced it.
    let split = "INSERT INTO purchase_groups (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses,
                                              was_split, settled_at)
                 VALUES (gen_random_uuid(), $1, 1, 0, 2, 2, ARRAY[gen_random_uuid(), gen_random_uuid()], ARRAY['other', $2],
                         '{1,1}', '{203.0.113.8,203.0.113.9}', true, now())";
    sqlx::query(split).bind(refunded.id.get()).bind(BUYER).execute(&system.sql).await.unwrap();
    // A sale that somebody else holds is left as it is, and others sell.
    let beside = system.create_sale(terms(5)).await;
    let mut holder = system.sql.begin().await.unwrap();
    let hold = "SELECT FROM sale_epochs WHERE sale_id = $1 FOR SHARE";
    sqlx::query(hold).bind(refunded.id.get()).execute(&mut *holder).await.unwrap();
    let (held, sold) = tokio::join!(erase(&system, BUYER), bought(&system, &beside, "other-0"));
    assert!(!held.0 && held.2.contains("locked"), "{}", held.2);
    becomes(&system, sold, "other-0", "pending_payment").await;
    holder.rollback().await.unwrap();
    assert!(tables_with(&system, BUYER).await.contains(&"orders".to_owned()));
    let epochs = async || system.count("SELECT epoch FROM sale_epochs WHERE sale_id = $1", &refunded).await;
    let epoch = epochs().await;
    let (done, report, why) = erase(&system, BUYER).await;
    assert!(done, "{why}");
    assert!(epochs().await > epoch, "a refill that has read the id could go on");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let counts = ["orders", "purchase_groups", "sale_buyers", "lapsed_holds", "refunds", "audit_log"]
        .map(|t| report[t].as_u64());
    assert_eq!(counts, [2, 3, 2, 1, 1, 1].map(Some), "{report}");
    let pseudonym = report["pseudonym"].as_str().unwrap();
    assert_eq!(tables_with(&system, BUYER).await, Vec::<String>::new());
    assert_eq!(tables_with(&system, "Erna").await, Vec::<String>::new());
    let removed =
        "DELETE FROM purchase_groups WHERE was_split AND user_ids[1] = 'other' AND addresses = '{203.0.113.8,NULL}'";
    assert_eq!(system.execute(removed).await, 1, "the other member's address stays");
    eventually(|| async {
        let left = keys_with(&system, BUYER).await;
        left.is_empty().then_some(()).ok_or_else(|| format!("{left:?}"))
    })
    .await;
    system.settled(&refunded).await;
    system.settled(&cancelled).await;
    assert_eq!(books().await, before);
    // The others keep their orders, and the pseudonym's are found by operators.
    for (other, order) in others.iter().zip(crowd) {
        becomes(&system, order, other, "pending_payment").await;
    }
    let found = root.get(&format!("orders?user={pseudonym}")).await;
    assert_eq!(found.body["orders"].as_array().unwrap().len(), 2, "{}", found.body);
    // A repetition finds nothing, and says so.
    let again = root.post("buyers/erasures", json!({ "user": BUYER })).await;
    assert_eq!((again.status, &again.body["orders"]), (200, &json!(0)), "{}", again.body);
    system.finish().await;
}
