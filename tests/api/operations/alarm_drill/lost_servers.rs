//! Servers and processes that are lost while buyers come.

use std::net::SocketAddr;
use std::time::Duration;

use seckill_harness::{eventually, terms};

use super::drill::{Drill, while_it_goes_on};
use super::programs::Programs;
use super::scene::Scene;
use crate::network::broken_network::{Wire, wire_to};
use seckill_harness::folder::free_address;

const NO_POSTGRES: [&str; 5] = [
    "SeckillPostgresLost",
    "SeckillApiBudgetBurns14x",
    "SeckillApiBudgetBurns6x",
    "SeckillApiBudgetBurns3x",
    "SeckillApiBudgetBurns1x",
];
const NO_WORKER: [&str; 2] = ["SeckillInstanceLost", "SeckillWorkersLost"];
const NO_BROKER_AND_NO_REDIS: [&str; 4] =
    ["SeckillBrokerLost", "SeckillOutboxOld", "SeckillRedisLost", "SeckillLimiterDown"];

/// PostgreSQL, the only worker, RabbitMQ and Redis stop and come back. Each is an alert, and so are the purchases that fail meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_lost_are_alerts_until_they_are_back() {
    let programs = Programs::prepare(&[("SECKILL_ALARMS__OUTBOX_AGE_S", "2")]).await;
    let system = &programs.system;
    let (postgres, postgres_url) = wire_to(&system.environment["DATABASE_URL"]).await;
    let (redis, redis_url) = wire_to(&system.environment["REDIS_URL"]).await;
    let (broker, broker_url) = wire_to(&system.environment["AMQP_URL"]).await;
    let (at, at_work) = (free_address(), free_address());
    let drill = Drill::start(&programs, &[at], &[at_work]);
    let serves = [("DATABASE_URL", postgres_url.as_str()), ("REDIS_URL", redis_url.as_str())];
    let works = [("REDIS_URL", redis_url.as_str()), ("AMQP_URL", broker_url.as_str())];
    let (serve, work) = tokio::join!(
        programs.start("serve", at, &["serve"], &serves),
        programs.start("work", at_work, &["work"], &works),
    );
    fails(at, "catalog", &postgres).await;
    let sale = system.create_sale(terms(100_000)).await;
    let scene = Scene { drill: &drill, system, at };
    scene.bought(&sale, "first").await;
    system.settled(&sale).await;
    drill.begin().await;
    let lose_postgres = async {
        drill.fires_and_clears(&NO_POSTGRES, async { postgres.cut() }, async { postgres.mend() }).await;
    };
    let lose_worker = async {
        drill.fires_after(&NO_WORKER, async { drop(work) }).await;
        let again = async {
            let work = programs.start("work", at_work, &["work"], &works).await;
            fails(at_work, "relay", &broker).await;
            work
        };
        drill.clears_after(&NO_WORKER, again).await
    };
    let lose = async {
        let (work, ()) = tokio::join!(lose_worker, lose_postgres);
        let cut = async {
            broker.cut();
            // Its row stays in the outbox. Without Redis there would be none.
            scene.bought(&sale, "waits").await;
            redis.cut();
        };
        let mend = async {
            redis.mend();
            broker.mend();
        };
        drill.fires_and_clears(&NO_BROKER_AND_NO_REDIS, cut, mend).await;
        work
    };
    // Good answers continue afterwards: they clear alerts about the share of 503s.
    let work = while_it_goes_on(scene.buyers(&sale, Duration::from_millis(300)), lose).await;
    drill.finish().await;
    drop((serve, work));
    programs.system.finish().await;
}

/// Cuts the wire until a step of this program has failed: `increase` does not see the first event of a counter.
async fn fails(at: SocketAddr, step: &str, wire: &Wire) {
    let series = format!("seckill_step_failures_total{{step=\"{step}\"}}");
    wire.cut();
    eventually(|| async {
        let metrics = reqwest::get(format!("http://{at}/metrics")).await.map_err(|error| error.to_string())?;
        let metrics = metrics.text().await.map_err(|error| error.to_string())?;
        metrics.contains(&series).then_some(()).ok_or_else(|| format!("{step} has not failed"))
    })
    .await;
    wire.mend();
}
