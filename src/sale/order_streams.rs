//! Following an order: a buyer hears of every change of its status, in order, none left out and none twice.
//!
//! All streams of an instance are fed by one look: it asks once for what is new of the orders that somebody follows.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{SaleError, Step};
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::{Order, OrderStatus};
use crate::ledger::Ledger;
use crate::ledger::orders::read::OrderStep;

/// Streams of one order: a phone, a computer. Beyond, the oldest ends: a page that was loaded again is heard of as gone
/// only when the next heartbeat fails, and must not keep the new one out.
const STREAMS_OF_ORDER_MAX: usize = 4;
/// Steps that wait for a slow reader: more than an order can have.
const FEED_MAX: usize = 8;
/// A rush's orders are made in many small groups: one look is for several of them, and half of the time there is none.
const LOOK_REST: Duration = Duration::from_millis(20);
/// Orders that are asked for in one statement.
const BATCH_MAX: usize = 2_000;

/// Everybody at this instance who follows an order.
#[derive(Clone)]
pub struct OrderStreams {
    ledger: Ledger,
    streams_max: usize,
    places: Arc<Mutex<Subscribers>>,
    closing: CancellationToken,
}

#[derive(Default)]
struct Subscribers {
    taken: usize,
    last: u64,
    of: HashMap<OrderId, Vec<Subscriber>>,
}

/// Where steps are handed in for one stream.
struct Subscriber {
    number: u64,
    seen: i64,
    /// Gone when the reader was too slow, or made room: he comes again, and says what he has seen.
    feed: Option<mpsc::Sender<OrderStep>>,
}

/// What came of the wish to follow an order.
pub enum Subscribed {
    Stream(Stream),
    /// No such order, or another's.
    Unknown,
    /// He has seen the last there is to see.
    Over,
    /// This instance has all the streams that it may have.
    Full,
}

impl OrderStreams {
    pub fn new(ledger: Ledger, streams_max: usize) -> Self {
        Self { ledger, streams_max, places: Arc::default(), closing: CancellationToken::new() }
    }

    /// Ends every stream, and those that are still to come.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Follows an order of this buyer's: from how it stands now, or from behind the step that he has seen.
    pub async fn follow(&self, user: &UserId, order: OrderId, seen: Option<i64>) -> Result<Subscribed, SaleError> {
        let Some(mut steps) = self.history(order).await? else { return Ok(Subscribed::Unknown) };
        let Some(newest) = steps.pop().filter(|step| step.of.user_id == user.as_str()) else {
            return Ok(Subscribed::Unknown);
        };
        let newest_id = newest.id;
        let first = match seen {
            Some(seen) if seen == newest.id && newest.of.order.status.is_final() => return Ok(Subscribed::Over),
            Some(seen) if (0..=newest.id).contains(&seen) => {
                steps.into_iter().chain([newest]).filter(|step| step.id > seen).collect()
            }
            // What he has seen is not of this order.
            _ => VecDeque::from([newest]),
        };
        let mut places = self.places();
        if places.taken >= self.streams_max {
            return Ok(Subscribed::Full);
        }
        let (feed, steps) = mpsc::channel(FEED_MAX);
        let number = places.take(order, newest_id, feed);
        drop(places);
        Ok(Subscribed::Stream(Stream { followers: self.clone(), order, number, first, steps, over: false }))
    }

    /// An order's steps so far. A purchase that is not an order yet has one: that it was accepted.
    async fn history(&self, order: OrderId) -> Result<Option<Vec<OrderStep>>, SaleError> {
        let steps = self.ledger.steps_since(&[(order, 0)]).await?;
        if !steps.is_empty() {
            return Ok(Some(steps));
        }
        match self.ledger.order(order).await? {
            None => Ok(None),
            Some(of) if of.order.status == OrderStatus::Accepted => Ok(Some(vec![OrderStep { id: 0, of }])),
            // It has become an order meanwhile.
            Some(_) => Ok(Some(self.ledger.steps_since(&[(order, 0)]).await?)),
        }
    }

    /// Looks once for what is new of all orders that are followed here, and hands it in.
    pub async fn look(&self) -> Result<Step, SaleError> {
        let seen: Vec<(OrderId, i64)> = {
            let places = self.places();
            metrics::gauge!("seckill_order_streams").set(places.taken as f64);
            let least =
                |of: &Vec<Subscriber>| of.iter().filter(|place| place.feed.is_some()).map(|place| place.seen).min();
            places.of.iter().filter_map(|(order, of)| Some((*order, least(of)?))).collect()
        };
        let began = Instant::now();
        for some in seen.chunks(BATCH_MAX) {
            let steps = self.ledger.steps_since(some).await?;
            let mut places = self.places();
            steps.iter().for_each(|step| places.hand_in(step));
        }
        if !seen.is_empty() {
            sleep(began.elapsed().max(LOOK_REST)).await;
        }
        Ok(Step::Idle)
    }

    fn leave(&self, order: OrderId, number: u64) {
        let mut places = self.places();
        places.taken -= 1;
        if let Some(of) = places.of.get_mut(&order) {
            of.retain(|place| place.number != number);
            if of.is_empty() {
                places.of.remove(&order);
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, Subscribers> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscribers {
    fn take(&mut self, order: OrderId, seen: i64, feed: mpsc::Sender<OrderStep>) -> u64 {
        self.taken += 1;
        self.last += 1;
        let of = self.of.entry(order).or_default();
        let mut fed: Vec<&mut Subscriber> = of.iter_mut().filter(|place| place.feed.is_some()).collect();
        if fed.len() >= STREAMS_OF_ORDER_MAX
            && let Some(oldest) = fed.first_mut()
        {
            oldest.feed = None;
        }
        of.push(Subscriber { number: self.last, seen, feed: Some(feed) });
        self.last
    }

    fn hand_in(&mut self, step: &OrderStep) {
        for place in self.of.get_mut(&step.of.order.order_id).into_iter().flatten() {
            if place.seen >= step.id {
                continue;
            }
            place.seen = step.id;
            if place.feed.as_ref().is_some_and(|feed| feed.try_send(step.clone()).is_err()) {
                place.feed = None;
            }
        }
    }
}

/// One reader's steps of one order.
pub struct Stream {
    followers: OrderStreams,
    order: OrderId,
    number: u64,
    first: VecDeque<OrderStep>,
    steps: mpsc::Receiver<OrderStep>,
    over: bool,
}

impl Stream {
    /// The next step's number, and the order as it is then; none after a final one, when the reader lagged or made room, or when the service is being stopped. What was not
    /// waited for to the end is not lost.
    pub async fn next(&mut self) -> Option<(i64, Order)> {
        if self.over {
            return None;
        }
        let next = match self.first.pop_front() {
            Some(step) => Some(step),
            None => self.followers.closing.run_until_cancelled(self.steps.recv()).await.flatten(),
        };
        self.over = next.as_ref().is_none_or(|step| step.of.order.status.is_final());
        next.map(|step| (step.id, step.of.order))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.followers.leave(self.order, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SaleId;
    use crate::ledger::orders::read::OwnedOrder;

    fn step(id: i64) -> OrderStep {
        let order = Order {
            order_id: OrderId(uuid::Uuid::nil()),
            sale_id: SaleId::from_db(1),
            quantity: 1,
            amount_cents: 100,
            status: OrderStatus::PendingPayment,
            reason: None,
            expires_at_ms: 0,
            created_at_ms: 0,
        };
        OrderStep { id, of: OwnedOrder { order, user_id: "ann".to_owned() } }
    }

    fn heard(steps: &mut mpsc::Receiver<OrderStep>) -> Vec<i64> {
        std::iter::from_fn(|| steps.try_recv().ok()).map(|step| step.id).collect()
    }

    #[test]
    fn who_came_later_is_not_told_what_he_has_seen() {
        let mut places = Subscribers::default();
        let order = step(0).of.order.order_id;
        let [(early, mut by_early), (late, mut by_late)] = [mpsc::channel(FEED_MAX), mpsc::channel(FEED_MAX)];
        places.take(order, 0, early);
        places.take(order, 5, late);
        for id in [5, 5, 7] {
            places.hand_in(&step(id));
        }
        assert_eq!((heard(&mut by_early), heard(&mut by_late)), (vec![5, 7], vec![7]));
    }

    #[test]
    fn who_does_not_read_is_let_go_with_what_he_has() {
        let mut places = Subscribers::default();
        let (feed, mut steps) = mpsc::channel(FEED_MAX);
        places.take(step(0).of.order.order_id, 0, feed);
        (1..100).for_each(|id| places.hand_in(&step(id)));
        assert_eq!(heard(&mut steps), (1..).take(FEED_MAX).collect::<Vec<_>>());
        assert!(steps.is_closed(), "the stream ends behind it");
    }
}
