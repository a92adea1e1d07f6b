//! The alarm drill. For each alert of deploy/prometheus/rules.yaml, a test causes its condition on real servers and processes. Debian's
//! Prometheus must show that the alert fires, and that it clears when the cause is gone. Only the durations are shorter (`short_rules`).
//!
//! A world is a system of its own, in which several causes run side by side. The table names for each alert its world and its cause. An
//! alert without a row fails the test below, and an unused row fails its world.

mod crowd;
mod drill;
mod lost_servers;
mod messages;
mod money;
mod programs;
mod prometheus;
mod sales;
mod scene;
mod short_rules;
mod two_masters;

use std::collections::BTreeSet;

use World::{Crowd, LostServers, Money, Sales, TwoMasters};

use crate::dashboards::rules;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    Crowd,
    LostServers,
    Money,
    Sales,
    TwoMasters,
}

/// Each alert, its world and its cause, in the order of rules.yaml.
const ROWS: [(&str, World, &str); 44] = [
    ("SeckillApiBudgetBurns14x", LostServers, "every purchase is answered 503 while PostgreSQL is away"),
    ("SeckillApiBudgetBurns6x", LostServers, "every purchase is answered 503 while PostgreSQL is away"),
    ("SeckillApiBudgetBurns3x", LostServers, "every purchase is answered 503 while PostgreSQL is away"),
    ("SeckillApiBudgetBurns1x", LostServers, "every purchase is answered 503 while PostgreSQL is away"),
    ("SeckillPurchasesShed", Crowd, "more buyers come than a slow Redis can answer"),
    ("SeckillRequestsShed", Crowd, "more buyers list their orders than the line holds"),
    ("SeckillPurchasesWait", Crowd, "purchases wait for a slow Redis"),
    ("SeckillCommitsSlow", Crowd, "PostgreSQL takes 0.4 s to commit purchases"),
    ("SeckillRedisSlow", Crowd, "the network to Redis takes 0.6 s there and back"),
    ("SeckillParked", Sales, "an order cannot be inserted, as often as is tried"),
    ("SeckillOutboxOld", LostServers, "a purchase waits while RabbitMQ is away"),
    ("SeckillDrift", Sales, "a stock figure is written into Redis by hand"),
    ("SeckillKeysLost", Sales, "a key of a sale is deleted"),
    ("SeckillDeadChannel", Money, "a receiver refuses an outflow item"),
    ("SeckillRefusals", Sales, "an application asks much more often than its policy allows"),
    ("SeckillLimiterDown", LostServers, "Redis is away from the worker"),
    ("SeckillLimiterSlow", Crowd, "the network to Redis takes 0.6 s there and back"),
    ("SeckillLimiterBroken", Sales, "the key of a limiter is written from outside"),
    ("SeckillTooManyKeys", TwoMasters, "an application asks with a new key while its Redis is full"),
    ("SeckillRedisMemory", TwoMasters, "the limiters' Redis may use less memory than it uses"),
    ("SeckillReceiverAway", Money, "the bank has died"),
    ("SeckillSetAside", Money, "the bank reports another amount than the payment's"),
    ("SeckillRefundFailed", Money, "the bank declines a refund"),
    ("SeckillMoneyStuck", Money, "payments of 20 minutes ago wait for a bank that has died"),
    ("SeckillWorkersLost", LostServers, "the only worker is killed"),
    ("SeckillOrdersRejected", Sales, "Redis sells a unit more than PostgreSQL has"),
    ("SeckillTwoMasters", TwoMasters, "one of two instances uses another Redis server"),
    ("SeckillRefillFails", Sales, "a transaction that does not end holds the epoch of a sale that Redis has lost"),
    ("SeckillRefillsRepeat", TwoMasters, "two instances take sales from each other, again and again"),
    ("SeckillHoldsStay", Sales, "a hold cannot be committed"),
    ("SeckillQueueStands", TwoMasters, "no worker consumes the queue of purchases"),
    ("SeckillDeadLetters", Sales, "a message is published that no worker can read"),
    ("SeckillNoDeadLetterQueue", Sales, "the dead-letter queue is deleted"),
    ("SeckillMessagesUnroutable", Sales, "a delay queue is deleted that the worker has declared before"),
    ("SeckillInstanceLost", LostServers, "the only worker is killed"),
    ("SeckillPostgresLost", LostServers, "PostgreSQL is away from the instance that serves"),
    ("SeckillRedisLost", LostServers, "Redis is away"),
    ("SeckillBrokerLost", LostServers, "RabbitMQ is away from the worker"),
    ("SeckillStepFails", TwoMasters, "a table is gone that one step of the worker needs"),
    ("SeckillChannelFails", Money, "the bank has died"),
    ("SeckillPaymentsLate", Money, "payments of 20 minutes ago wait for a bank that has died"),
    ("SeckillChannelNotConfigured", Money, "the worker's settings lack the channel of a payment"),
    ("SeckillCallbacksNotBelieved", Money, "callbacks come whose signature is of another body"),
    ("SeckillOutflowStands", Money, "an outflow with items is paused"),
];

/// A new alert needs a row, and a row names an existing alert.
#[test]
fn every_alert_has_its_row() {
    let alerts = rules();
    let alerts: Vec<&str> = alerts.iter().filter_map(|rule| rule["alert"].as_str()).collect();
    let rows = ROWS.map(|(alert, ..)| alert);
    assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len(), "an alert has two rows");
    assert_eq!(rows.to_vec(), alerts);
}
