//! F9, F13, F23: messages that come too often, that nobody can read, and that nobody may put away.

use std::time::{Duration, Instant};

use anyhow::ensure;
use lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use rand::seq::SliceRandom;
use seckill::domain::ids::OrderId;
use seckill::domain::message::{OrderPlacedV1, OutboxKind, Version};
use seckill::queue::{Broker, Destination, Outgoing, Publisher, Receipt};
use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;

use crate::Terms;
use crate::run::Run;
use crate::run_summary::Figures;
use crate::rush::Plan;
use crate::service::Role;
use crate::world::{Setup, World};

/// How long messages may take to arrive where they belong.
const TO_ARRIVE: Duration = Duration::from_secs(30);

/// F9: one effect, before and after it has been had, of purchases and of expiries.
pub async fn ten_deliveries(terms: Terms) -> anyhow::Result<Figures> {
    let setup = Setup { work: 0, stock: 300, pay_within_s: 6, ..Setup::default() };
    let mut world = World::new(&terms, setup).await?;
    let mut run = Run::begin(&mut world, Plan { buyers: 400, ..Plan::default() });
    while !run.rush.is_over() {
        sleep(Duration::from_millis(20)).await;
    }
    let orders: Vec<Uuid> =
        sqlx::query_scalar("SELECT order_id FROM outbox WHERE sale_id = $1 AND kind = 'order_placed'")
            .bind(world.sale.id)
            .fetch_all(&world.sql)
            .await?;
    ensure!(orders.len() == 300, "{} of 300 units were sold", orders.len());
    let id = world.sale_id();
    let placed = |order: &Uuid| {
        let message = OrderPlacedV1 { version: Version, order_id: OrderId(*order), sale_id: id };
        let body = serde_json::to_vec(&message).unwrap();
        Outgoing { to: Destination::OrderPlaced, id: OutboxKind::OrderPlaced.message_id(OrderId(*order)), body }
    };
    let expire = |order: &Uuid| {
        let body = json!({ "version": 1, "order_id": order, "due_at_ms": 0 }).to_string().into_bytes();
        let to = Destination::OrderExpire { remaining_ms: 0 };
        Outgoing { to, id: OutboxKind::OrderExpire.message_id(OrderId(*order)), body }
    };
    let mut messages: Vec<Outgoing> =
        orders.iter().flat_map(|o| [vec![placed(o); 10], vec![expire(o); 10]].concat()).collect();
    messages.shuffle(&mut world.dice);
    let publisher = patient(&world);
    run.injected();
    publish(&publisher, &messages).await?;
    world.add(Role::Work, None).await?;
    // All become orders, none is paid, all are cancelled: six seconds, and the delay queues' second.
    let begun = Instant::now();
    loop {
        let cancelled = world.count(CANCELLED).await?;
        if cancelled == 300 {
            break;
        }
        ensure!(begun.elapsed() < TO_ARRIVE, "{cancelled} of 300 orders are cancelled");
        sleep(Duration::from_millis(50)).await;
    }
    messages.shuffle(&mut world.dice);
    publish(&publisher, &messages).await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    let steps = world
        .count("SELECT count(*) FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1")
        .await?;
    ensure!(steps == 600, "{steps} steps of 300 orders that were made and cancelled");
    figures.note =
        format!("{} messages twice for 300 orders: each made once, cancelled once, all units back", messages.len());
    world.finish().await?;
    Ok(figures)
}

const CANCELLED: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled'";

/// A publisher with more patience than the service has: the machine is busy, and nobody here tries again.
fn patient(world: &World) -> Publisher {
    let mut config = world.config.clone();
    (config.amqp.connect_timeout_ms, config.amqp.confirm_timeout_ms) = (60_000, 60_000);
    Publisher::new(Broker::new(&config))
}

async fn publish(publisher: &Publisher, messages: &[Outgoing]) -> anyhow::Result<()> {
    for messages in messages.chunks(500) {
        let receipts = publisher.publish(messages).await?;
        ensure!(receipts.iter().all(|receipt| *receipt == Receipt::Confirmed), "not confirmed");
    }
    Ok(())
}

/// Bodies that nobody can read.
fn poisonous() -> Vec<Outgoing> {
    let bodies = ["", "{", "{\"version\":2}", "\u{0}", "[]"];
    let poison = |body: &str| Outgoing { to: Destination::OrderPlaced, id: Uuid::new_v4(), body: body.into() };
    bodies.map(poison).into()
}

/// Buyers whose orders the schema refuses.
const CURSED: [&str; 3] = ["u7", "u42", "u111"];

/// F13: parked at the cap, the others flow, alarm.
pub async fn poison(terms: Terms) -> anyhow::Result<Figures> {
    let settings = [
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "3"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "50"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "200"),
    ];
    let settings = settings.map(|(name, value)| (name, value.to_owned()));
    let mut world = World::new(&terms, Setup { settings: settings.into(), ..Setup::default() }).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF NEW.user_id IN ('{}') THEN RAISE EXCEPTION 'this one never'; END IF; RETURN NEW; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()",
        CURSED.join("','")
    )))
    .execute(&world.sql)
    .await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    run.injected();
    let unreadable = poisonous();
    publish(&patient(&world), &unreadable).await?;
    run.recovered().await?;
    let begun = Instant::now();
    loop {
        let (backlog, parked) = (world.backlog().await?, world.count(PARKED).await?);
        if backlog == parked && parked == 3 {
            break;
        }
        ensure!(begun.elapsed() < TO_ARRIVE, "{backlog} are no orders, {parked} are parked");
        sleep(Duration::from_millis(50)).await;
    }
    let attempts =
        world.count("SELECT max(attempts)::bigint FROM outbox WHERE sale_id = $1 AND status = 'parked'").await?;
    ensure!(attempts == 3, "parked after {attempts} attempts, the cap is 3");
    // Unreadable ones and parked ones: each where people look for it.
    let expected = unreadable.len() + CURSED.len();
    let dead = until(&world, "not put away", |q| q.dead == expected && q.kept == 0).await?.dead;
    let (code, said) = world.run(&["audit", "--sale", &world.sale.id.to_string()]).await?;
    ensure!(code == 1 && said.contains("parked"), "the auditor does not mind: {code}, {said}");
    ensure!(world.work[0].log().contains("ERROR"), "no alarm in the log");
    sqlx::raw_sql("DROP TRIGGER refuse ON orders").execute(&world.sql).await?;
    let (code, said) = world.run(&["outbox", "retry"]).await?;
    ensure!(code == 0, "outbox retry: {said}");
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!(
        "{} unreadable and 3 unwritable among them: {dead} dead letters, 3 parked after 3 attempts, then retried",
        unreadable.len()
    );
    world.finish().await?;
    Ok(figures)
}

const PARKED: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status = 'parked'";

/// Where the run's poison is.
#[derive(Debug, Default)]
struct Poison {
    /// In the dead-letter queue.
    dead: usize,
    /// Rejected, and kept by the source because nobody takes it.
    kept: usize,
}

async fn look(world: &World) -> anyhow::Result<Poison> {
    let columns = ["list_queues", "name", "messages", "messages_ready", "messages_unacknowledged"];
    let listed = world.servers.brokerctl(&columns).await?;
    let mut poison = Poison::default();
    for line in listed.lines() {
        let Some(row) = line.strip_prefix(&world.config.amqp.prefix) else { continue };
        let mut words = row.split('\t');
        let name = words.next();
        let numbers: Vec<usize> = words.filter_map(|word| word.trim().parse().ok()).collect();
        match (name, &numbers[..]) {
            (Some("dead"), [messages, ..]) => poison.dead = *messages,
            (Some("order-placed"), [all, ready, unacked]) => poison.kept = all.saturating_sub(ready + unacked),
            _ => {}
        }
    }
    Ok(poison)
}

/// Messages of a queue of the run's that nobody has been given.
pub async fn ready(world: &World, queue: &str) -> anyhow::Result<u32> {
    let connection = Connection::connect(&world.config.amqp.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = format!("{}{queue}", world.config.amqp.prefix);
    Ok(channel.queue_declare(queue.into(), passive, FieldTable::default()).await?.message_count())
}

/// Waits until the poison is where it should be.
async fn until(world: &World, what: &str, there: impl Fn(&Poison) -> bool) -> anyhow::Result<Poison> {
    let begun = Instant::now();
    loop {
        let found = look(world).await?;
        if there(&found) {
            return Ok(found);
        }
        ensure!(begun.elapsed() < TO_ARRIVE, "{what}: {found:?}");
        sleep(Duration::from_millis(500)).await;
    }
}

/// F23: the source keeps the message; the others flow; with room again nothing was lost.
pub async fn no_dead_letters(terms: Terms) -> anyhow::Result<Figures> {
    // RabbitMQ tries a dead letter again after three minutes, unless told otherwise before its queue is declared.
    let retry = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 2000).";
    terms.servers.brokerctl(&["eval", retry]).await?;
    let mut world = World::new(&terms, Setup::default()).await?;
    let dead = format!("{}dead", world.config.amqp.prefix);
    // The broker refuses at the bound: one letter at most.
    let pattern = format!("^{}$", dead.replace('.', "\\."));
    let bound = ["set_policy", "full", &pattern, r#"{"max-length":1}"#, "--apply-to", "queues"];
    world.servers.brokerctl(&bound).await?;
    let publisher = patient(&world);
    publish(&publisher, &poisonous()).await?;
    let put_away = until(&world, "the dead-letter queue is not full", |q| q.dead > 0 && q.dead + q.kept == 5).await?;
    let mut run = Run::under_way(&mut world, Plan::default()).await?;
    run.injected();
    publish(&publisher, &poisonous()).await?;
    let full = until(&world, "full: not kept", |q| q.dead + q.kept == 10).await?;
    ensure!(full.kept >= 5 && full.dead == put_away.dead, "full: {full:?}, before {put_away:?}");

    let connection = Connection::connect(&world.config.amqp.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.queue_delete(dead.clone().into(), QueueDeleteOptions::default()).await?;
    world.servers.brokerctl(&["clear_policy", "full"]).await?;
    publish(&publisher, &poisonous()).await?;
    // What had been put away went with the queue that was deleted; that was not the service's doing.
    let expected = full.kept + 5;
    let deleted = until(&world, "deleted: not kept", |q| q.kept == expected).await?;
    ensure!(world.work[0].log().contains("ERROR"), "no alarm in the log");

    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(world.config.amqp.queue_max_length.into()));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(dead.clone().into(), durable, arguments).await?;
    let exchange = format!("{}seckill", world.config.amqp.prefix);
    let bind = QueueBindOptions::default();
    channel.queue_bind(dead.clone().into(), exchange.into(), dead.into(), bind, FieldTable::default()).await?;
    run.recovered().await?;
    until(&world, "there again: not put away", |q| q.dead == expected && q.kept == 0).await?;
    let (mut figures, _) = run.judged(&mut world).await?;
    figures.note = format!(
        "poison kept by the source: {} when full, {} when deleted; all {expected} put away once it was there again",
        full.kept, deleted.kept
    );
    world.finish().await?;
    Ok(figures)
}
