//! F9, F13, F23: messages that arrive too often, cannot be processed, or cannot be dead-lettered.

use std::time::{Duration, Instant};

use anyhow::ensure;
use lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use rand::seq::SliceRandom;
use seckill::domain::ids::GroupId;
use seckill::domain::message::OutboxKind;
use seckill::queue::{Broker, Destination, Outgoing, Publisher, Receipt};
use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::service::Role;
use crate::world::{Setup, World};

/// The time limit for messages to reach their queue.
const TO_ARRIVE: Duration = Duration::from_secs(30);

/// F9: purchases and expiries take effect once, delivered ten times before and after their effect, alone and many in a message.
pub async fn ten_deliveries(options: Options) -> anyhow::Result<RunSummary> {
    let setup = Setup { work: 0, stock: 300, pay_within_s: 6, ..Setup::default() };
    let mut world = World::new(&options, setup).await?;
    let mut run = Run::begin(&mut world, Plan { buyers: 400, ..Plan::default() });
    while !run.rush.is_over() {
        sleep(Duration::from_millis(20)).await;
    }
    let orders = world.count("SELECT count(*) FROM purchase_records WHERE sale_id = $1").await?;
    ensure!(orders == 300, "{orders} of 300 units were sold");
    let groups: Vec<GroupId> = sqlx::query_scalar("SELECT id FROM purchase_groups WHERE sale_id = $1")
        .bind(world.sale.id)
        .fetch_all(&world.sql)
        .await?
        .into_iter()
        .map(GroupId)
        .collect();
    let message = |to: Destination, kind: OutboxKind, groups: &[GroupId]| {
        let body = json!({ "version": 1, "groups": groups }).to_string().into_bytes();
        vec![Outgoing { to, id: kind.message_id_of_many(groups), body, trace: None }; 10]
    };
    let mut messages = Vec::new();
    for groups in groups.chunks(1).chain(groups.chunks(3)).chain(groups.chunks(40)) {
        messages.extend(message(Destination::GroupsPlaced, OutboxKind::GroupPlaced, groups));
        messages.extend(message(Destination::GroupsExpire { remaining_ms: 0 }, OutboxKind::GroupExpire, groups));
    }
    messages.shuffle(&mut world.rng);
    let publisher = publisher_with_patience(&world);
    run.fault_injected();
    publish(&publisher, &messages).await?;
    world.add(Role::Work, None).await?;
    // All become orders, none is paid, all are cancelled: after six seconds, and one more in the delay queues.
    let begun = Instant::now();
    loop {
        let cancelled = world.count(CANCELLED).await?;
        if cancelled == 300 {
            break;
        }
        ensure!(begun.elapsed() < TO_ARRIVE, "{cancelled} of 300 orders are cancelled");
        sleep(Duration::from_millis(50)).await;
    }
    messages.shuffle(&mut world.rng);
    publish(&publisher, &messages).await?;
    let (mut summary, _) = run.checked(&mut world).await?;
    let steps = world
        .count("SELECT count(*) FROM order_steps s JOIN orders o ON o.id = s.order_id WHERE o.sale_id = $1")
        .await?;
    ensure!(steps == 600, "{steps} steps of 300 orders that were made and cancelled");
    summary.note =
        format!("{} messages twice for 300 orders: each made once, cancelled once, all units back", messages.len());
    world.finish().await?;
    Ok(summary)
}

const CANCELLED: &str = "SELECT count(*) FROM orders WHERE sale_id = $1 AND status = 'cancelled'";

/// A publisher with longer time-outs than the service's: the machine is busy, and this test does not retry.
fn publisher_with_patience(world: &World) -> Publisher {
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

/// Messages whose bodies cannot be parsed.
fn poison_messages_to_publish() -> Vec<Outgoing> {
    let bodies = ["", "{", "{\"version\":2}", "\u{0}", "[]"];
    let poison_messages = |body: &str| {
        let (to, id) = (Destination::GroupsPlaced, Uuid::new_v4());
        Outgoing { to, id, body: body.into(), trace: None }
    };
    bodies.map(poison_messages).into()
}

/// Buyers whose orders the schema refuses.
const REFUSED_BUYERS: [&str; 3] = ["u7", "u42", "u111"];

/// F13: poison messages are parked at the maximum of attempts, or dead-lettered if nobody can read them, the others continue, and the log has an alarm.
pub async fn poison_messages(options: Options) -> anyhow::Result<RunSummary> {
    let settings = [
        ("SECKILL_OUTBOX__MAX_ATTEMPTS", "3"),
        ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "50"),
        ("SECKILL_OUTBOX__BACKOFF_MAX_MS", "200"),
    ];
    let settings = settings.map(|(name, value)| (name, value.to_owned()));
    let mut world = World::new(&options, Setup { settings: settings.into(), ..Setup::default() }).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF NEW.user_id IN ('{}') THEN RAISE EXCEPTION 'this one never'; END IF; RETURN NEW; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()",
        REFUSED_BUYERS.join("','")
    )))
    .execute(&world.sql)
    .await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    run.fault_injected();
    let unreadable = poison_messages_to_publish();
    publish(&publisher_with_patience(&world), &unreadable).await?;
    run.wait_until_recovered().await?;
    let begun = Instant::now();
    loop {
        let (backlog, parked) = (world.backlog().await?, world.count(PARKED).await?);
        let beside = world.backlog_of_neighbours().await?;
        if backlog == parked && parked == 3 && beside == 0 {
            break;
        }
        ensure!(
            begun.elapsed() < TO_ARRIVE,
            "{backlog} are no orders, {parked} are parked; {beside} of other sales are no orders"
        );
        sleep(Duration::from_millis(50)).await;
    }
    let attempts =
        world.count("SELECT max(attempts)::bigint FROM outbox WHERE sale_id = $1 AND status = 'parked'").await?;
    ensure!(attempts == 3, "parked after {attempts} attempts, the cap is 3");
    // A message that can be read is parked in the outbox, and not dead-lettered too.
    let expected = unreadable.len();
    let dead = wait_for_poison(&world, "not dead-lettered", |q| q.dead == expected && q.kept == 0).await?.dead;
    let (code, output) = world.run(&["audit", "--sale", &world.sale.id.to_string()]).await?;
    ensure!(code == 1 && output.contains("parked"), "the auditor found nothing: {code}, {output}");
    ensure!(world.work[0].log().contains("ERROR"), "no alarm in the log");
    sqlx::raw_sql("DROP TRIGGER refuse ON orders").execute(&world.sql).await?;
    let (code, output) = world.run(&["outbox", "retry"]).await?;
    ensure!(code == 0, "outbox retry: {output}");
    let (mut summary, _) = run.checked(&mut world).await?;
    summary.note = format!(
        "{} unreadable and 3 unwritable among them: {dead} dead letters, 3 parked after 3 attempts, then retried",
        unreadable.len()
    );
    world.finish().await?;
    Ok(summary)
}

const PARKED: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status = 'parked'";

/// The places of the run's poison messages.
#[derive(Debug, Default)]
struct Poison {
    /// In the dead-letter queue.
    dead: usize,
    /// Rejected, and kept by their source because the dead-letter queue is full.
    kept: usize,
}

async fn read_poison(world: &World) -> anyhow::Result<Poison> {
    let columns = ["list_queues", "name", "messages", "messages_ready", "messages_unacknowledged"];
    let listed = world.servers.brokerctl(&columns).await?;
    let mut poison_messages = Poison::default();
    for line in listed.lines() {
        let Some(row) = line.strip_prefix(&world.config.amqp.prefix) else { continue };
        let mut words = row.split('\t');
        let name = words.next();
        let numbers: Vec<usize> = words.filter_map(|word| word.trim().parse().ok()).collect();
        match (name, &numbers[..]) {
            (Some("dead"), [messages, ..]) => poison_messages.dead = *messages,
            (Some("groups-placed"), [all, ready_messages, unacked]) => {
                poison_messages.kept = all.saturating_sub(ready_messages + unacked);
            }
            _ => {}
        }
    }
    Ok(poison_messages)
}

/// The number of messages in a queue of the run that no consumer holds.
pub async fn ready_messages(world: &World, queue: &str) -> anyhow::Result<u32> {
    let connection = Connection::connect(&world.config.amqp.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue = format!("{}{queue}", world.config.amqp.prefix);
    Ok(channel.queue_declare(queue.into(), passive, FieldTable::default()).await?.message_count())
}

/// Waits until the poison messages are in the places that the condition expects.
async fn wait_for_poison(world: &World, what: &str, there: impl Fn(&Poison) -> bool) -> anyhow::Result<Poison> {
    let begun = Instant::now();
    loop {
        let found = read_poison(world).await?;
        if there(&found) {
            return Ok(found);
        }
        ensure!(begun.elapsed() < TO_ARRIVE, "{what}: {found:?}");
        sleep(Duration::from_millis(500)).await;
    }
}

/// F23: the source keeps the message, and the others continue. When there is room again, nothing is lost.
pub async fn no_dead_letters(options: Options) -> anyhow::Result<RunSummary> {
    // RabbitMQ retries a dead letter after three minutes. A shorter time must be set before the queue is declared.
    let retry = "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 2000).";
    options.servers.brokerctl(&["eval", retry]).await?;
    let mut world = World::new(&options, Setup::default()).await?;
    let dead = format!("{}dead", world.config.amqp.prefix);
    // The broker refuses at the bound, which is one message.
    let pattern = format!("^{}$", dead.replace('.', "\\."));
    let bound = ["set_policy", "full", &pattern, r#"{"max-length":1}"#, "--apply-to", "queues"];
    world.servers.brokerctl(&bound).await?;
    let publisher = publisher_with_patience(&world);
    publish(&publisher, &poison_messages_to_publish()).await?;
    let put_away =
        wait_for_poison(&world, "the dead-letter queue is not full", |q| q.dead > 0 && q.dead + q.kept == 5).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    run.fault_injected();
    publish(&publisher, &poison_messages_to_publish()).await?;
    let full = wait_for_poison(&world, "full: not kept", |q| q.dead + q.kept == 10).await?;
    ensure!(full.kept >= 5 && full.dead == put_away.dead, "full: {full:?}, before {put_away:?}");

    let connection = Connection::connect(&world.config.amqp.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.queue_delete(dead.clone().into(), QueueDeleteOptions::default()).await?;
    world.servers.brokerctl(&["clear_policy", "full"]).await?;
    publish(&publisher, &poison_messages_to_publish()).await?;
    // The messages in the deleted queue are gone with it. The service could not prevent that.
    let expected = full.kept + 5;
    let deleted = wait_for_poison(&world, "deleted: not kept", |q| q.kept == expected).await?;
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
    run.wait_until_recovered().await?;
    wait_for_poison(&world, "queue exists again: not dead-lettered", |q| q.dead == expected && q.kept == 0).await?;
    let (mut summary, _) = run.checked(&mut world).await?;
    summary.note = format!(
        "poison kept by the source: {} when full, {} when deleted; all {expected} dead-lettered once the queue existed again",
        full.kept, deleted.kept
    );
    world.finish().await?;
    Ok(summary)
}
