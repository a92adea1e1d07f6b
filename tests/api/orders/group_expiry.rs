//! The orders of a group expire by one message, and one row releases their holds (protocol, rules 8 and 9).

use seckill_domain::sale::NewSale;

use seckill_harness::{Sale, System, terms, until};

use crate::buying::purchase_groups::{buy_together, buyers};
use crate::orders::expiry_and_retries::FEW_ATTEMPTS;
use crate::orders::payments_and_callbacks::{Callback, pay, status};

const CANCELLED: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled'";

async fn rows(system: &System, sale: &Sale, kind: &str) -> i64 {
    let sql = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND kind = $2";
    sqlx::query_scalar(sql).bind(sale.id.get()).bind(kind).fetch_one(&system.sql).await.unwrap()
}

async fn cancelled(system: &System, sale: &Sale, orders: i64) {
    until(orders, || system.count(CANCELLED, sale)).await;
}

/// A system with a sweeper that comes too late to act, and a sale of ten units.
async fn unswept(settings: &[(&str, &str)]) -> (System, Sale) {
    let never = [("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "3600000")];
    let system = System::without_workers(&[&never[..], settings].concat()).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(10) }).await;
    (system, sale)
}

/// One row and one message end a group, with a delay of the time to pay, and one release gives all its units back.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_expires_and_is_released_as_one() {
    let (mut system, other) = unswept(&[]).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 2_500, ..terms(10) }).await;
    buy_together(&system, &sale, &buyers(4)).await;
    buy_together(&system, &other, &buyers(3)).await;
    system.serve(true).await;
    cancelled(&system, &sale, 4).await;
    let early = "SELECT count(*) FROM orders WHERE sale_id = $1 AND updated_at < expires_at";
    assert_eq!(system.count(early, &sale).await, 0, "nobody is cancelled before his time");
    system.settled(&sale).await;
    for (kind, expected) in [("group_expire", 1), ("hold_release", 1)] {
        assert_eq!(rows(&system, &sale, kind).await, expected, "{kind}");
    }
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (10, Some(10)));
    system.settled(&other).await;
    assert_eq!((system.count(CANCELLED, &other).await, rows(&system, &other, "group_expire").await), (0, 1));
    system.finish().await;
}

/// While an order has a payment in flight, its group goes round again. When the payment fails, the order is due at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_goes_round_again_while_one_waits_for_its_payment() {
    let (mut system, sale) = unswept(&[]).await;
    let purchases = buy_together(&system, &sale, &buyers(3)).await;
    system.serve(true).await;
    system.settled(&sale).await;
    let order = purchases[1].order.0;
    let payment = pay(&system, order, "u1").await;
    system.let_deadlines_pass(&sale).await;
    cancelled(&system, &sale, 2).await;
    let open = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND kind = 'group_expire' AND status <> 'processed'";
    assert_eq!((system.stock(&sale).await, system.count(open, &sale).await), (9, 1));
    assert_eq!(status(&system, order, "u1").await, "pending_payment");
    assert_eq!(Callback::of("payment.failed", payment, ("order_id", order), 100).send(&system).await, 200);
    cancelled(&system, &sale, 3).await;
    assert_eq!(rows(&system, &sale, "group_expire").await, 2);
    system.settled(&sale).await;
    assert_eq!((system.stock(&sale).await, system.available(&sale).await), (10, Some(10)));
    system.finish().await;
}

/// An order that cannot be cancelled does not delay its group: the expiry is split, and that order is parked alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_cancelled_parks_alone() {
    let (mut system, sale) = unswept(&FEW_ATTEMPTS).await;
    buy_together(&system, &sale, &buyers(5)).await;
    system.serve(true).await;
    system.settled(&sale).await;
    system.refuse("UPDATE ON orders", "NEW.user_id = 'u2' AND NEW.status = 'cancelled'").await;
    system.let_deadlines_pass(&sale).await;
    until((9, 1), || async {
        (system.stock(&sale).await, system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().len())
    })
    .await;
    let parked = system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().remove(0);
    assert_eq!((parked.kind.as_str(), parked.user_id.as_str(), parked.attempts), ("group_expire", "u2", 2));
    system.allow("orders").await;
    system.stores.ledger.outbox.unpark_step(None, "test").await.unwrap();
    system.left(&sale, 10).await;
    system.settled(&sale).await;
    system.finish().await;
}
