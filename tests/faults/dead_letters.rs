//! F23: messages that nobody can read, and that cannot be dead-lettered.

use std::time::{Duration, Instant};

use anyhow::ensure;
use lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use seckill_rabbitmq::{Broker, Destination, Outgoing, Publisher, Receipt};
use tokio::time::sleep;
use uuid::Uuid;

use crate::Options;
use crate::run::Run;
use crate::run_summary::RunSummary;
use crate::rush::Plan;
use crate::world::{Setup, World};

const TO_ARRIVE: Duration = Duration::from_secs(30);

/// A publisher with longer time-outs than the service's: the machine is busy, and this test does not retry.
fn publisher_with_patience(world: &World) -> Publisher {
    let mut config = world.config.clone();
    (config.amqp.connect_timeout_ms, config.amqp.confirm_timeout_ms) = (60_000, 60_000);
    Publisher::new(Broker::new(&config))
}

/// Publishes five messages whose bodies cannot be parsed.
async fn publish_poison(publisher: &Publisher) -> anyhow::Result<()> {
    let poison = ["", "{", "{\"version\":2}", "\u{0}", "[]"].map(|body| {
        let (to, id) = (Destination::GroupsPlaced, Uuid::new_v4());
        Outgoing { to, id, body: body.into(), trace: None }
    });
    let receipts = publisher.publish(&poison).await?;
    ensure!(receipts.iter().all(|receipt| *receipt == Receipt::Confirmed), "not confirmed");
    Ok(())
}

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
    publish_poison(&publisher).await?;
    let put_away =
        wait_for_poison(&world, "the dead-letter queue is not full", |q| q.dead > 0 && q.dead + q.kept == 5).await?;
    let mut run = Run::begin_and_wait(&mut world, Plan::default()).await?;
    run.fault_injected();
    publish_poison(&publisher).await?;
    let full = wait_for_poison(&world, "full: not kept", |q| q.dead + q.kept == 10).await?;
    ensure!(full.kept >= 5 && full.dead == put_away.dead, "full: {full:?}, before {put_away:?}");

    let connection = Connection::connect(&world.config.amqp.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.queue_delete(dead.clone().into(), QueueDeleteOptions::default()).await?;
    world.servers.brokerctl(&["clear_policy", "full"]).await?;
    publish_poison(&publisher).await?;
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
    run.finished(world, format!(
        "poison kept by the source: {} when full, {} when deleted; all {expected} dead-lettered once the queue existed again",
        full.kept, deleted.kept
    )).await
}
