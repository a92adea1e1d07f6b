//! Messages that are not processed, not read, or not accepted.

use std::net::SocketAddr;
use std::time::Duration;

use lapin::options::QueuePurgeOptions;
use lapin::{Connection, ConnectionProperties};
use seckill_domain::delay::rung_for;
use seckill_harness::{Sale, eventually, terms};
use seckill_rabbitmq::{Broker, Destination, Outgoing, Publisher};
use tokio::time::sleep;
use uuid::Uuid;

use super::scene::Scene;
use crate::network::broken_network::Wire;
use crate::orders::relay_resends::{delete, published};

/// Unpublished rows of the outbox: the expiry of an order.
const UNPUBLISHED: &str = "SELECT count(*) FROM outbox WHERE sale_id = $1 AND status = 'pending'";

/// The sale has an order: its cancellation has made the queue of this delay, and the relay does not check that the queue still exists.
pub async fn no_queue_takes_a_message(scene: Scene<'_>, sale: &Sale) {
    let (system, alerts) = (scene.system, ["SeckillMessagesUnroutable"]);
    let delay_ms = rung_for(terms(1).pay_within_ms - 5_000);
    let before = unroutable(scene.at).await;
    // Sometimes the broker closes the connection that publishes to a deleted queue. The next connection declares the queue.
    let lose = eventually(|| async {
        delete(system, &format!("delay-groups-{delay_ms}")).await;
        scene.bought(sale, &format!("u{}", Uuid::new_v4().simple())).await;
        system.settled(sale).await;
        scene.counts(UNPUBLISHED, sale, 0).await;
        let counted = unroutable(scene.at).await != before;
        counted.then_some(()).ok_or("another connection has declared the queue".to_owned())
    });
    // The relay has opened another link, which declares the queue, and has sent the message again.
    scene.drill.fires_and_clears(&alerts, lose, system.settled(sale)).await;
}

/// The number of messages that reached no queue. The counter exists from the first order on.
async fn unroutable(at: SocketAddr) -> String {
    let metrics = reqwest::get(format!("http://{at}/metrics")).await.unwrap().text().await.unwrap();
    let count = metrics.lines().find_map(|line| line.strip_prefix("seckill_relayed_total{result=\"unroutable\"} "));
    count.expect("the counter of unroutable messages").to_owned()
}

pub async fn a_message_cannot_be_read(scene: Scene<'_>) {
    let (system, alerts) = (scene.system, ["SeckillDeadLetters"]);
    let publish = async {
        let (to, id) = (Destination::GroupsPlaced, Uuid::new_v4());
        let garbage = Outgoing { to, id, body: b"{".to_vec(), trace: None };
        published(&Publisher::new(Broker::new(&system.config)), &[garbage]).await;
    };
    let purge = async {
        let connection = Connection::connect(&system.config.amqp.url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let dead = format!("{}dead", system.config.amqp.prefix);
        channel.queue_purge(dead.into(), QueuePurgeOptions::default()).await.unwrap();
        connection.close(200, "".into()).await.unwrap();
    };
    scene.drill.fires_and_clears(&alerts, publish, purge).await;
}

pub async fn the_dead_letter_queue_is_deleted(scene: Scene<'_>, wire: &Wire) {
    let alerts = ["SeckillNoDeadLetterQueue"];
    // A link opened meanwhile for another reason would declare the queue.
    let delete = async {
        loop {
            delete(scene.system, "dead").await;
            sleep(Duration::from_secs(1)).await;
        }
    };
    scene.drill.fires_while(&alerts, delete).await;
    // Each new connection of a worker declares all queues.
    let connect_anew = async {
        wire.cut();
        wire.mend();
    };
    scene.drill.clears_after(&alerts, connect_anew).await;
}
