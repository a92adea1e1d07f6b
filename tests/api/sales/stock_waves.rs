//! Later stock: waves, each once, also over refills; and added stock.

use futures_util::future::join_all;
use seckill_domain::sale::{NewSale, Wave};
use seckill_postgres::sales::waves::StockAdded;

use seckill_harness::{Sale, System, terms, until};

use crate::sales::shards::answered;

async fn buyers(system: &System, sale: &Sale, prefix: &str, n: usize) -> usize {
    let users: Vec<String> = (0..n).map(|n| format!("{prefix}{n}")).collect();
    let answers = join_all(users.iter().map(|user| answered(system, sale, user))).await;
    answers.iter().filter(|answer| answer.status == 202).count()
}

/// As if Redis had lost the sale, at any moment.
async fn force_refill(system: &System, sale: &Sale) {
    let forgotten = sqlx::query("UPDATE sale_epochs SET run_id = NULL WHERE sale_id = $1");
    forgotten.bind(sale.id.get()).execute(&system.sql).await.unwrap();
}

/// Rule 14: each wave is released once, although the sale is refilled repeatedly.
#[tokio::test(flavor = "multi_thread")]
async fn three_waves_over_refills_are_each_released_once() {
    let system = System::shared().await;
    let wave = |after_ms, units| Wave { after_ms, units };
    let due = "UPDATE sale_waves SET due_at = now() WHERE sale_id = $1 AND units = $2";
    let sale = system
        .create_sale(NewSale {
            ends_in_ms: 86_400_000,
            waves: vec![wave(3_600_000, 20), wave(7_200_000, 30)],
            ..terms(60)
        })
        .await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (10, Some(10)));
    assert_eq!(buyers(&system, &sale, "first", 15).await, 10);
    for (units, released) in [(20, 30), (30, 60)] {
        sqlx::query(due).bind(sale.id.get()).bind(units).execute(&system.sql).await.unwrap();
        force_refill(&system, &sale).await;
        until(released, || async {
            force_refill(&system, &sale).await;
            system.stock(&sale).await + system.orders(&sale).await
        })
        .await;
        force_refill(&system, &sale).await;
        // A buyer during the refill gets 503.
        until(0, || system.count("SELECT count(*) FROM sale_epochs WHERE sale_id = $1 AND run_id IS NULL", &sale))
            .await;
        system.settled(&sale).await;
    }
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (50, Some(50)));
    assert_eq!(buyers(&system, &sale, "then", 70).await, 50);
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (0, 60));
}

#[tokio::test(flavor = "multi_thread")]
async fn added_stock_is_sold_to_those_who_were_told_sold_out() {
    let (system, sale) = System::selling(terms(2)).await;
    assert_eq!(buyers(&system, &sale, "early", 2).await, 2);
    assert_eq!(buyers(&system, &sale, "late", 3).await, 0);
    let total = "SELECT total_stock FROM sales WHERE id = $1";
    assert_eq!(system.stores.add_stock(sale.id, 3, None, "test").await.unwrap(), StockAdded::Now);
    assert_eq!(system.count(total, &sale).await, 5);
    until(Some(3), || system.available(&sale)).await;
    // An instance that remembers "sold out" counts no request against the buyer's five a minute.
    for user in ["late0", "late1", "late2"] {
        until(202, || async { answered(&system, &sale, user).await.status }).await;
    }
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.orders(&sale).await), (0, 5));
    let unlimited = system.create_sale(terms(-1)).await;
    assert_eq!(system.stores.add_stock(unlimited.id, 3, None, "test").await.unwrap(), StockAdded::Impossible);
}

#[test]
fn waves_are_part_of_the_stock() {
    let waves = |units| NewSale { waves: vec![Wave { after_ms: 0, units }], ..terms(10) };
    assert!(waves(10).check().is_ok());
    assert!(waves(11).check().is_err());
    assert!(NewSale { waves: vec![Wave { after_ms: 0, units: 1 }], ..terms(-1) }.check().is_err());
}

/// A sale with waves that cannot be released does not delay the waves of another sale.
#[tokio::test(flavor = "multi_thread")]
async fn an_odd_error_of_one_sale_keeps_the_waves_of_no_other() {
    let system = System::start().await;
    let planned = NewSale { waves: vec![Wave { after_ms: 3_600_000, units: 20 }], ends_in_ms: 86_400_000, ..terms(30) };
    let sick = system.create_sale(planned.clone()).await;
    let well = join_all((0..3).map(|_| system.create_sale(planned.clone()))).await;
    system.refuse("UPDATE OF stock ON sales", &format!("NEW.id = {}", sick.id)).await;
    system.execute("UPDATE sale_waves SET due_at = now()").await;
    for sale in &well {
        system.left(sale, 30).await;
    }
    assert_eq!(system.stock(&sick).await, 10);
    system.allow("sales").await;
    system.left(&sick, 30).await;
    system.finish().await;
}

/// A sale is removed with everything that belongs to it: messages, and keys of Redis.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_sale_that_was_removed() {
    let mut system = System::prepare(&[]).await;
    // Without workers, the added units stay in flight.
    system.serve(false).await;
    let sale = system.create_sale(terms(10)).await;
    assert_eq!(system.stores.add_stock(sale.id, 5, None, "test").await.unwrap(), StockAdded::Now);
    let releases = "SELECT count(*) FROM outbox WHERE sale_id = $1";
    assert_eq!(system.count(releases, &sale).await, 1);
    let of = system.shards(&sale).await;
    assert!(system.stores.remove_sale(sale.id, "test").await.unwrap());
    assert_eq!(system.count(releases, &sale).await, 0);
    assert!(system.stores.gate.sale_view(of).await.unwrap().is_none());
    system.finish().await;
}
