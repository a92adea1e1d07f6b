//! The pages of the admin API's lists.

use serde_json::Value;

use seckill_domain::account::AccountRole;
use seckill_harness::{System, terms};

use crate::backoffice::admin_api::{Person, UNLIMITED};

/// Each list of the admin API is followed to its end by `next_before`, and shows each entry once.
#[tokio::test(flavor = "multi_thread")]
async fn lists_are_followed_to_their_ends() {
    let system = System::start_with(&UNLIMITED).await;
    let root = Person::new(&system, "root", AccountRole::Admin).await;
    for _ in 0..5 {
        system.create_sale(terms(1)).await;
    }
    system
        .execute("INSERT INTO alarms (kind, subject, cleared_at) SELECT 'drift', 'sale ' || i, CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, 7) i")
        .await;
    for (path, entries, total) in [
        ("sales", "sales", "SELECT count(*) FROM sales"),
        ("alarms", "alarms", "SELECT count(*) FROM alarms"),
        ("audit-log?actor=test", "lines", "SELECT count(*) FROM audit_log WHERE actor = 'test'"),
    ] {
        let total = system.number(total).await as usize;
        assert!(total >= 5, "{path}");
        for limit in [1, 2, total, total + 1] {
            let (mut ids, mut before) = (Vec::new(), String::new());
            loop {
                let mark = if path.contains('?') { '&' } else { '?' };
                let page = root.get(&format!("{path}{mark}limit={limit}{before}")).await.body;
                let page_ids = page[entries].as_array().unwrap_or_else(|| panic!("{path}: {page}")).iter();
                ids.extend(page_ids.map(|entry| entry["id"].as_i64().unwrap()));
                match &page["next_before"] {
                    Value::Null => break,
                    next => before = format!("&before={next}"),
                }
            }
            let all = ids.len();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!((all, ids.len()), (total, total), "{path} by {limit}");
        }
    }
}
