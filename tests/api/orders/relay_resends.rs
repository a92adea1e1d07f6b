//! The relay and its broker: unconfirmed messages are sent again.

use seckill::app::{self, Worker};
use seckill_config::Config;
use seckill_rabbitmq::{Broker, DeadLetters, Destination, Outgoing, Publisher, Receipt};
use tokio_util::sync::{CancellationToken, DropGuard};

use seckill_harness::folder::Folder;
use seckill_harness::own_rabbitmq::{OwnRabbitmq, free_port, listens};
use seckill_harness::{Environment, System, environment, eventually, secret, terms, until, wait_until};

/// Deleted queues are declared again, and queues that stand with another bound serve as well.
#[tokio::test(flavor = "multi_thread")]
async fn queues_are_declared_again_or_taken_as_they_are() {
    let mut system = System::start().await;
    let sale = system.create_sale(terms(5)).await;
    assert_eq!(system.buy(&sale, "ann").send().await.code(), "202");
    system.settled(&sale).await;
    let broker = Broker::new(&system.config);
    eventually(|| async { broker.demolish().await.map_err(|error| error.to_string()) }).await;
    assert_eq!(system.buy(&sale, "bob").send().await.code(), "202");
    until(2, || system.orders(&sale)).await;
    system.settled(&sale).await;
    system.stop().await;
    system.config.amqp.queue_max_length = 5_000;
    system.serve(true).await;
    assert_eq!(system.buy(&sale, "cat").send().await.code(), "202");
    system.settled(&sale).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_that_is_gone_is_noticed() {
    let system = System::prepare(&[]).await;
    let broker = seckill_rabbitmq::Broker::new(&system.config);
    let publisher = seckill_rabbitmq::Publisher::new(broker.clone());
    let max = system.config.amqp.queue_max_length;
    let dead_letters = || async { publisher.dead_letters().await.map_err(|error| error.to_string()) };
    // A broker that does not answer for a moment looks like one without the queue.
    let found = eventually(|| async { dead_letters().await?.ok_or_else(|| "no such queue".to_owned()) }).await;
    assert_eq!(found, DeadLetters { messages: 0, max });
    eventually(|| async { broker.demolish().await.map_err(|error| error.to_string()) }).await;
    assert_eq!(eventually(dead_letters).await, None);
}

/// Publishes until the broker has confirmed every message. It may refuse the first messages of a queue that it has just declared.
pub async fn published(publisher: &Publisher, messages: &[Outgoing]) {
    eventually(|| async {
        let receipts = publisher.publish(messages).await.map_err(|error| error.to_string())?;
        let confirmed = receipts.iter().all(|receipt| *receipt == Receipt::Confirmed);
        confirmed.then_some(()).ok_or_else(|| format!("{receipts:?}"))
    })
    .await;
}

/// A connection to the system's broker, with a channel, and the full name of a queue.
async fn broker_queue(system: &System, queue: &str) -> (lapin::Connection, lapin::Channel, lapin::types::ShortString) {
    let connection = lapin::Connection::connect(&system.config.amqp.url, Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel, format!("{}{queue}", system.config.amqp.prefix).into())
}

/// The number of messages in a queue, including marks.
pub async fn depth(system: &System, queue: &str) -> u32 {
    let (connection, channel, name) = broker_queue(system, queue).await;
    let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
    let found = channel.queue_declare(name, options, Default::default()).await;
    let depth = found.map_or(0, |queue| queue.message_count());
    connection.close(200, "".into()).await.unwrap();
    depth
}

pub async fn delete(system: &System, queue: &str) {
    let (connection, channel, name) = broker_queue(system, queue).await;
    channel.queue_delete(name, Default::default()).await.unwrap();
    connection.close(200, "".into()).await.unwrap();
}

/// Runs these workers until the guard is dropped.
pub fn work(system: &System, only: &[Worker]) -> DropGuard {
    let (config, only, stop) = (system.config.clone(), only.to_vec(), CancellationToken::new());
    tokio::spawn(app::work(config, Some(only), stop.clone()));
    stop.drop_guard()
}

/// F27: the consumer is away for much longer than the resend time of a lost message.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_slow_consumer_nothing_is_sent_twice() {
    let mut system = System::without_workers(&[
        ("SECKILL_OUTBOX__RESEND_AFTER_MS", "100"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "50"),
        // The sweeper would cancel the orders itself while their messages wait.
        ("SECKILL_RECONCILE__SWEEP_GRACE_MS", "3600000"),
    ])
    .await;
    let mut sales = Vec::new();
    for _ in 0..5 {
        sales.push(system.create_sale(terms(5)).await);
    }
    let sent = |kind: &'static str| {
        let sql = "SELECT order_id, sent_at FROM outbox WHERE kind = $1 AND status = 'sent' ORDER BY order_id";
        let rows = sqlx::query_as::<_, (uuid::Uuid, chrono::DateTime<chrono::Utc>)>(sql).bind(kind);
        let sql = system.sql.clone();
        async move { rows.fetch_all(&sql).await.unwrap() }
    };
    // The queue's messages have arrived, and then this many marks were sent: that is how long the consumer was away.
    let held_up = |queue: &'static str| {
        let system = &system;
        async move {
            wait_until(|| depth(system, queue), |&depth| depth >= 15).await;
        }
    };
    let away = work(&system, &[Worker::Relay, Worker::Sweep]);
    for sale in &sales {
        assert_eq!(system.buy(sale, "ann").send().await.code(), "202");
    }
    let all_sent = |kind: &'static str| {
        let sent = &sent;
        async move { wait_until(|| sent(kind), |rows| rows.len() == 5).await }
    };
    let before = all_sent("group_placed").await;
    held_up("groups-placed").await;
    assert_eq!(sent("group_placed").await, before);

    let fulfilled = work(&system, &[Worker::Fulfil]);
    until(5, || system.number("SELECT count(*) FROM orders")).await;
    for sale in &sales {
        system.let_deadlines_pass(sale).await;
    }
    let before = all_sent("group_expire").await;
    held_up("groups-expire").await;
    assert_eq!(sent("group_expire").await, before);
    drop((away, fulfilled));
    system.serve(true).await;
    for sale in &sales {
        system.left(sale, 5).await;
        system.settled(sale).await;
    }
    system.finish().await;
}

/// A private broker, and a system's settings for it.
pub(crate) async fn own_broker(folder: &Folder, set: &[(&str, &str)]) -> (OwnRabbitmq, Environment) {
    let (port, password) = (free_port(), secret());
    let settings = [
        format!("listeners.tcp.1 = 127.0.0.1:{port}"),
        "default_user = seckill".to_owned(),
        format!("default_pass = {password}"),
        "vm_memory_high_watermark.absolute = 1GB".to_owned(),
        "disk_free_limit.absolute = 10MB".to_owned(),
    ];
    let own = OwnRabbitmq::start(folder.path(), &settings, "");
    listens(port).await;
    let url = format!("amqp://seckill:{password}@127.0.0.1:{port}/%2f");
    let all: Vec<_> = [("AMQP_URL", url.as_str())].into_iter().chain(set.iter().copied()).collect();
    (own, environment(&all).await)
}

async fn connected(broker: &Broker) -> Publisher {
    let publisher = Publisher::new(broker.clone());
    eventually(|| async { publisher.connect().await.map_err(|error| error.to_string()) }).await;
    publisher
}

/// One message for each of three queues, in this order.
fn one_each() -> [Outgoing; 3] {
    [Destination::GroupsExpire { remaining_ms: 900_000 }, to_bank(), Destination::GroupsPlaced].map(message)
}

/// Suspends or resumes the processes of the first two queues of `one_each`.
fn two_of_them(own: &OwnRabbitmq, what: &str, prefix: &str) {
    for queue in ["delay-groups-800000", "payment-requested.sandbox"] {
        own.control(&["eval", &format!("ok = sys:{what}('%2F_{prefix}{queue}').")]);
    }
}

fn message(to: Destination) -> Outgoing {
    Outgoing { to, id: uuid::Uuid::now_v7(), body: b"x".to_vec(), trace: None }
}

fn to_bank() -> Destination {
    Destination::PaymentRequested { channel: "sandbox".to_owned() }
}

/// Two queues are silent, and the queues next to them work.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_answer_holds_up_no_other() {
    let folder = Folder::new("broker");
    let (own, environment) = own_broker(&folder, &[("SECKILL_AMQP__CONFIRM_TIMEOUT_MS", "120000")]).await;
    let prefix = &environment["SECKILL_AMQP__PREFIX"];
    let broker = Broker::new(&Config::read(&environment).unwrap());
    let all = one_each();
    let publisher = connected(&broker).await;
    published(&publisher, &all).await;

    let two_silent = [Receipt::Unanswered, Receipt::Unanswered, Receipt::Confirmed];
    two_of_them(&own, "suspend", prefix);
    assert_eq!(publisher.publish(&all).await.unwrap(), two_silent);
    assert_eq!(publisher.publish(&all).await.unwrap(), two_silent, "nothing is sent to them for a while");
    let other = connected(&broker).await;
    assert_eq!(other.publish(&all).await.unwrap(), two_silent, "over a new link, which declares the queues");

    two_of_them(&own, "resume", prefix);
    published(&publisher, &all).await;
}

/// The broker names a dead node as the leader of one queue, and refuses its messages like those to a full queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_refuses_although_it_is_empty_is_declared_anew() {
    let folder = Folder::new("broker");
    let set = [("SECKILL_AMQP__QUEUE_STUCK_AFTER_MS", "1000"), ("SECKILL_AMQP__QUEUE_MAX_LENGTH", "10")];
    let (own, environment) = own_broker(&folder, &set).await;
    let prefix = &environment["SECKILL_AMQP__PREFIX"];
    let resource = |queue: &str| format!(r#"rabbit_misc:r(<<"/">>, queue, <<"{prefix}{queue}">>)"#);
    // Otherwise a wrongly named leader is corrected every five seconds.
    own.control(&["eval", "ok = application:set_env(rabbit, quorum_tick_interval, 3600000)."]);
    let first = connected(&Broker::new(&Config::read(&environment).unwrap())).await;
    // A queue that has just been declared may refuse the first messages although it is empty.
    let has_taken = std::cell::Cell::new(false);
    eventually(|| async {
        let receipts = first.publish(&[message(Destination::GroupsPlaced)]).await.map_err(|error| error.to_string())?;
        has_taken.set(has_taken.get() || receipts == [Receipt::Confirmed]);
        let is_full = has_taken.get() && receipts == [Receipt::NoRoom];
        is_full.then_some(()).ok_or_else(|| format!("{receipts:?}"))
    })
    .await;
    let dead_leader = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup({0}), {{Name, _}} = amqqueue:get_pid(Q),
         rabbit_misc:execute_mnesia_transaction(fun() -> rabbit_amqqueue:update({0}, fun(Old) ->
             amqqueue:set_pid(Old, {{Name, 'dead@localhost'}}) end) end), ok.",
        resource("payment-requested.sandbox")
    );
    own.control(&["eval", &dead_leader]);

    let all = [Destination::GroupsPlaced, to_bank()].map(message);
    let publisher = Publisher::new(Broker::new(&Config::read(&environment).unwrap()));
    let refused = std::cell::Cell::new(false);
    eventually(|| async {
        // The full queue is the first to refuse, so it is judged first.
        let receipts = publisher.publish(&all).await.map_err(|error| error.to_string())?;
        refused.set(refused.get() || receipts[1] == Receipt::NoRoom);
        (receipts[1] == Receipt::Confirmed).then_some(()).ok_or_else(|| format!("{receipts:?}"))
    })
    .await;
    assert!(refused.get(), "the broker knows the leader");
    let full = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup({}), {{ok, N, _}} = rabbit_amqqueue:stat(Q), true = N >= 10.",
        resource("groups-placed")
    );
    own.control(&["eval", &full]);
}

/// Two of three queues have no process that could answer, as after a broker was killed while it declared them.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_never_answers_is_declared_anew() {
    let folder = Folder::new("broker");
    let (own, environment) = own_broker(&folder, &[("SECKILL_AMQP__QUEUE_STUCK_AFTER_MS", "1000")]).await;
    let prefix = &environment["SECKILL_AMQP__PREFIX"];
    let publisher = connected(&Broker::new(&Config::read(&environment).unwrap())).await;
    let all = one_each();
    published(&publisher, &all).await;

    two_of_them(&own, "suspend", prefix);
    published(&publisher, &all).await;
    // The queue that always answered is unchanged: its first message is still there.
    let resource = format!(r#"rabbit_misc:r(<<"/">>, queue, <<"{prefix}groups-placed">>)"#);
    let kept = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup({resource}), {{ok, N, _}} = rabbit_amqqueue:stat(Q), true = N >= 3."
    );
    own.control(&["eval", &kept]);
}
