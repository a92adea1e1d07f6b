//! Commits without a gap share the row of their sale's epoch, so that it is never free. A change of the row still goes through (rule 11).

use futures_util::future::join_all;
use seckill_harness::{Sale, System, terms, until};
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tokio_util::task::AbortOnDropHandle;

use crate::redis::own_redis::OwnRedis;
use crate::sales::sales_apart::sells;

const EPOCH: &str = "SELECT epoch FROM sale_epochs WHERE sale_id = $1";

/// Eight transactions at a time that share the row of the sale's epoch, each for 4 to 16 ms, until dropped.
async fn share_epoch(system: &System, sale: &Sale, lock: &str) -> Vec<AbortOnDropHandle<()>> {
    let connections = join_all((0..8).map(|_| PgConnection::connect(&system.config.database.url))).await;
    let commit = format!(
        "BEGIN; SELECT epoch FROM sale_epochs WHERE sale_id = {} {lock}; SELECT pg_sleep(0.004 + random() * 0.012); COMMIT",
        sale.id
    );
    let loops = connections.into_iter().map(|connection| {
        let (mut connection, commit) = (connection.unwrap(), commit.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            while raw_sql(AssertSqlSafe(commit.clone())).execute(&mut connection).await.is_ok() {}
        }))
    });
    loops.collect()
}

/// The sale comes back under one new epoch, and other sales continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_refill_succeeds_at_once_while_commits_follow_each_other_without_a_gap() {
    let redis = OwnRedis::start().await;
    let system = System::start_with(&[("REDIS_URL", &redis.url())]).await;
    let (sale, other) = (system.create_sale(terms(1000)).await, system.create_sale(terms(1000)).await);
    for lock in ["FOR SHARE", "FOR KEY SHARE"] {
        sells(&system, &sale).await;
        let (before, others) = (system.count(EPOCH, &sale).await, system.count(EPOCH, &other).await);
        let commits = share_epoch(&system, &sale, lock).await;
        redis.ask(&["FLUSHALL"]).await.unwrap();
        sells(&system, &sale).await;
        sells(&system, &other).await;
        assert_eq!(system.count(EPOCH, &sale).await, before + 1, "{lock}");
        assert_eq!(system.count(EPOCH, &other).await, others + 1, "{lock}");
        drop(commits);
    }
    system.settled(&sale).await;
    system.finish().await;
}

/// Writing to the row of the epoch orders a refill. Three parties do so: the reconciler, fulfilment, and people who follow a runbook.
#[tokio::test(flavor = "multi_thread")]
async fn a_refill_can_be_ordered_while_commits_follow_each_other_without_a_gap() {
    let system = System::start().await;
    let sale = system.create_sale(terms(1000)).await;
    sells(&system, &sale).await;
    let before = system.count(EPOCH, &sale).await;
    let commits = share_epoch(&system, &sale, "FOR KEY SHARE").await;
    let order = "SET lock_timeout = '500ms'; SET statement_timeout = '1s'; UPDATE sale_epochs SET run_id = NULL";
    let mut sql = PgConnection::connect(&system.config.database.url).await.unwrap();
    raw_sql(order).execute(&mut sql).await.unwrap();
    until(before + 1, || system.count(EPOCH, &sale)).await;
    drop(commits);
    sells(&system, &sale).await;
    system.settled(&sale).await;
    system.finish().await;
}
