//! Streams of an order's status: a buyer receives every change once, in order. One query feeds all streams of an instance.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{SaleError, Step};
use seckill_domain::ids::{OrderId, UserId};
use seckill_domain::order::OrderStatus;
use seckill_postgres::Orders;
use seckill_postgres::orders::read::OrderStep;

/// Streams of one order at an instance. One more ends the oldest: a reloaded page leaves a dead stream until its next heartbeat.
const STREAMS_OF_ORDER_MAX: usize = 4;
/// Queued steps of a slow reader: more than an order can have.
const FEED_MAX: usize = 8;
/// The shortest and the longest pause between two queries. Each asks for all followed orders, and winners wait for this work. So one query
/// serves several small groups of a rush.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A pause is this many times longer than the queries before it.
const PAUSE_FACTOR: u32 = 15;
const BATCH_MAX: usize = 2_000;
/// Steps that are fed at once, and the pause before the next steps: purchases wait while a thread sends them.
const FEED_AT_ONCE: usize = 64;
const FEED_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct OrderStreams {
    orders: Orders,
    streams_max: usize,
    subscribers: Arc<Mutex<Subscribers>>,
    closing: CancellationToken,
}

#[derive(Default)]
struct Subscribers {
    count: usize,
    last_number: u64,
    by_order: HashMap<OrderId, Vec<Subscriber>>,
}

struct Subscriber {
    number: u64,
    seen: i64,
    /// `None` when the reader was too slow, or the oldest of too many. The client connects again with its last step.
    feed: Option<mpsc::Sender<OrderStep>>,
}

/// An order that a client asks to follow.
pub(crate) enum FoundOrder {
    Unfollowed(UnfollowedOrder),
    /// The order does not exist, or belongs to another buyer.
    Unknown,
    /// The client has seen the order's final step.
    Over,
}

pub(crate) struct UnfollowedOrder {
    order: OrderId,
    newest_id: i64,
    first: VecDeque<OrderStep>,
}

impl OrderStreams {
    pub fn new(orders: Orders, streams_max: usize) -> Self {
        Self { orders, streams_max, subscribers: Arc::default(), closing: CancellationToken::new() }
    }

    /// Ends every stream, also later ones.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Finds an order of this buyer. Its stream will begin after the step that the client has `seen`, or with the current status.
    pub(crate) async fn find(&self, user: &UserId, order: OrderId, seen: Option<i64>) -> Result<FoundOrder, SaleError> {
        let Some(mut steps) = self.history(user, order).await? else { return Ok(FoundOrder::Unknown) };
        let Some(newest) = steps.pop().filter(|step| step.of.user_id == user.as_str()) else {
            return Ok(FoundOrder::Unknown);
        };
        let newest_id = newest.id;
        let mut first: VecDeque<OrderStep> = match seen {
            Some(seen) if seen == newest.id && newest.of.order.status.is_final() => return Ok(FoundOrder::Over),
            Some(seen) if (0..=newest.id).contains(&seen) => {
                steps.into_iter().chain([newest]).filter(|step| step.id > seen).collect()
            }
            // The step that the client has seen is not of this order.
            _ => VecDeque::from([OrderStep { is_payment: false, ..newest }]),
        };
        self.orders.add_money(first.iter_mut()).await?;
        Ok(FoundOrder::Unfollowed(UnfollowedOrder { order, newest_id, first }))
    }

    /// `None`: this instance has too many streams.
    pub(crate) fn follow(&self, UnfollowedOrder { order, newest_id, first }: UnfollowedOrder) -> Option<Stream> {
        let mut subscribers = self.subscribers.lock();
        if subscribers.count >= self.streams_max {
            return None;
        }
        let (feed, steps) = mpsc::channel(FEED_MAX);
        let number = subscribers.add(order, newest_id, feed);
        drop(subscribers);
        Some(Stream { streams: self.clone(), order, number, first, steps, over: false })
    }

    /// An order's steps so far. A purchase without an order, and an order whose steps were cleared, have the current status as only step.
    async fn history(&self, user: &UserId, order: OrderId) -> Result<Option<Vec<OrderStep>>, SaleError> {
        let mut steps = self.orders.steps_since(&[(order, 0)]).await?;
        // Failed payments outlive the steps.
        let is_cleared = |steps: &[OrderStep]| steps.iter().all(|step| step.is_payment);
        if is_cleared(&steps) {
            let Some(of) = self.orders.order_of(order, user.as_str()).await? else { return Ok(None) };
            if of.order.status != OrderStatus::Accepted {
                // The order was made between the two queries, or its steps were cleared.
                steps = self.orders.steps_since(&[(order, 0)]).await?;
            }
            if is_cleared(&steps) {
                let id = steps.last().map_or(0, |step| step.id);
                steps = vec![OrderStep { id, of, is_payment: false }];
            }
        }
        Ok(Some(steps))
    }

    pub async fn feed_new_steps(&self) -> Result<Step, SaleError> {
        let seen = {
            let subscribers = self.subscribers.lock();
            metrics::gauge!("seckill_order_streams").set(subscribers.count as f64);
            subscribers.least_seen()
        };
        let mut asked_for = Duration::ZERO;
        for some in seen.chunks(BATCH_MAX) {
            let asked = Instant::now();
            let mut steps = self.orders.steps_since(some).await?;
            // An order has no money at its first step. In a rush, most steps are such.
            let is_first = |step: &OrderStep| !step.is_payment && step.of.order.status == OrderStatus::PendingPayment;
            self.orders.add_money(steps.iter_mut().filter(|step| !is_first(step))).await?;
            asked_for += asked.elapsed();
            for (n, steps) in steps.chunks(FEED_AT_ONCE).enumerate() {
                if n > 0 {
                    sleep(FEED_PAUSE).await;
                }
                let mut subscribers = self.subscribers.lock();
                steps.iter().for_each(|step| subscribers.feed(step));
            }
        }
        if !seen.is_empty() {
            sleep((asked_for * PAUSE_FACTOR).clamp(PAUSE_MIN, PAUSE_MAX)).await;
        }
        Ok(Step::Idle)
    }
}

impl Subscribers {
    fn add(&mut self, order: OrderId, seen: i64, feed: mpsc::Sender<OrderStep>) -> u64 {
        self.count += 1;
        self.last_number += 1;
        let of_order = self.by_order.entry(order).or_default();
        let mut fed: Vec<&mut Subscriber> = of_order.iter_mut().filter(|one| one.feed.is_some()).collect();
        if fed.len() >= STREAMS_OF_ORDER_MAX
            && let Some(oldest) = fed.first_mut()
        {
            oldest.feed = None;
        }
        of_order.push(Subscriber { number: self.last_number, seen, feed: Some(feed) });
        self.last_number
    }

    fn remove(&mut self, order: OrderId, number: u64) {
        self.count -= 1;
        if let Some(of_order) = self.by_order.get_mut(&order) {
            of_order.retain(|subscriber| subscriber.number != number);
            if of_order.is_empty() {
                self.by_order.remove(&order);
            }
        }
    }

    /// Each followed order, with the last step of its stream that is furthest behind.
    fn least_seen(&self) -> Vec<(OrderId, i64)> {
        let least = |(order, of_order): (&OrderId, &Vec<Subscriber>)| {
            Some((*order, of_order.iter().filter(|one| one.feed.is_some()).map(|one| one.seen).min()?))
        };
        self.by_order.iter().filter_map(least).collect()
    }

    fn feed(&mut self, step: &OrderStep) {
        for subscriber in self.by_order.get_mut(&step.of.order.order_id).into_iter().flatten() {
            if subscriber.seen >= step.id {
                continue;
            }
            subscriber.seen = step.id;
            if subscriber.feed.as_ref().is_some_and(|feed| feed.try_send(step.clone()).is_err()) {
                subscriber.feed = None;
            }
        }
    }
}

pub(crate) struct Stream {
    streams: OrderStreams,
    order: OrderId,
    number: u64,
    first: VecDeque<OrderStep>,
    steps: mpsc::Receiver<OrderStep>,
    over: bool,
}

impl Stream {
    /// Waits for the next step. `None` after a final step, when the reader was too slow or the oldest
    /// of too many, and when the service stops. Dropping the future loses no step.
    pub(crate) async fn next(&mut self) -> Option<OrderStep> {
        if self.over {
            return None;
        }
        let next = match self.first.pop_front() {
            Some(step) => Some(step),
            None => self.streams.closing.run_until_cancelled(self.steps.recv()).await.flatten(),
        };
        self.over = next.as_ref().is_none_or(|step| step.of.order.status.is_final());
        next
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.subscribers.lock().remove(self.order, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seckill_domain::ids::SaleId;
    use seckill_domain::order::Order;
    use seckill_postgres::orders::read::OwnedOrder;

    fn step(id: i64) -> OrderStep {
        let order = Order {
            order_id: OrderId(uuid::Uuid::nil()),
            sale_id: SaleId::from_db(1),
            quantity: 1,
            amount_cents: 100,
            currency: "CNY".parse().unwrap(),
            refunded_cents: 0,
            payment: None,
            status: OrderStatus::PendingPayment,
            reason: None,
            expires_at_ms: 0,
            created_at_ms: 0,
        };
        OrderStep { id, of: OwnedOrder { order, user_id: "ann".to_owned() }, is_payment: false }
    }

    #[test]
    fn a_slow_reader_receives_what_fits_and_then_the_end() {
        let mut subscribers = Subscribers::default();
        let (feed, mut steps) = mpsc::channel(FEED_MAX);
        subscribers.add(step(0).of.order.order_id, 0, feed);
        (1..100).for_each(|id| subscribers.feed(&step(id)));
        let received = std::iter::from_fn(|| steps.try_recv().ok()).map(|step| step.id);
        assert!(received.eq((1..).take(FEED_MAX)));
        assert!(steps.is_closed());
    }
}
