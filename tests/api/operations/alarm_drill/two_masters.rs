//! Two Redis servers are used as the master, and a worker leaves work undone.

use seckill_harness::{terms, until};
use serde_json::json;
use uuid::Uuid;

use super::drill::{Drill, while_it_goes_on};
use super::programs::Programs;
use super::scene::Scene;
use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use crate::network::service_killed::Process;
use crate::redis::own_redis::OwnRedis;
use seckill_harness::folder::free_address;

const NO_REFILL_FOR_3_S: &str = "SELECT NOT EXISTS (
    SELECT FROM audit_log WHERE action = 'refill' AND at > now() - interval '3 seconds')";

/// An instance at the wrong Redis server, a queue without a consumer, and a step that always fails.
#[tokio::test(flavor = "multi_thread")]
async fn two_masters_and_work_that_stands_are_alerts_until_they_are_put_right() {
    let settings = [("SECKILL_OUTBOX__RESEND_AFTER_MS", "500"), ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "500")];
    let programs = Programs::prepare(&settings).await;
    let system = &programs.system;
    let (at_left, at_right, at_work) = (free_address(), free_address(), free_address());
    let drill = Drill::start(&programs, &[at_left, at_right], &[at_work]);
    let (other_redis, of_limiters) = (OwnRedis::start().await, OwnRedis::start().await);
    let limiters = of_limiters.url();
    let apart = [("SECKILL_FLOW__REDIS_URL", limiters.as_str())];
    let (left, right, work) = tokio::join!(
        programs.start("left", at_left, &["serve"], &apart),
        programs.start("right", at_right, &["serve"], &[]),
        programs.start("work", at_work, &["work", "--only", "relay,sweep,outflow,alarms"], &apart),
    );
    let sale = system.create_sale(terms(10)).await;
    drill.begin().await;
    let scene = Scene { drill: &drill, system, at: at_left };
    let masters = async {
        let split = async {
            drop(right);
            programs.start("right", at_right, &["serve"], &[("REDIS_URL", other_redis.url().as_str())]).await
        };
        let right = drill.fires_after(&["SeckillTwoMasters"], split).await;
        // A sale that another server has taken is left alone for 10 s. A second sale puts a refill into each window.
        let create = async {
            until(true, || system.value::<bool>(NO_REFILL_FOR_3_S)).await;
            system.stores.create_sale(&terms(10).check().unwrap(), "test").await.unwrap()
        };
        drill.fires_after(&["SeckillRefillsRepeat"], create).await;
        let unite = async {
            drop(right);
            programs.start("right", at_right, &["serve"], &[]).await
        };
        drill.clears_after(&["SeckillTwoMasters", "SeckillRefillsRepeat"], unite).await
    };
    let consumer = async {
        let alerts = ["SeckillQueueStands"];
        drill.fires_after(&alerts, scene.bought(&sale, "ann")).await;
        drill.clears_after(&alerts, async { Process::work(system, "fulfil") }).await
    };
    let (right, fulfil, (), ()) =
        tokio::join!(masters, consumer, a_step_fails(scene), limiters_find_no_room(scene, &of_limiters));
    system.settled(&sale).await;
    drill.finish().await;
    drop((left, right, work, fulfil));
    programs.system.finish().await;
}

/// The limiters' Redis is out of memory. The sales' Redis is not.
async fn limiters_find_no_room(scene: Scene<'_>, redis: &OwnRedis) {
    let (system, alerts) = (scene.system, ["SeckillTooManyKeys", "SeckillRedisMemory"]);
    let shop = Caller::at(system, "crowded", scene.at).await;
    set(system, policy("crowded", "each-user", a_day(1000))).await;
    let limit = async |bytes| drop(redis.query(&["CONFIG", "SET", "maxmemory", bytes]).await.unwrap());
    let ask = |user: &str| shop.ask(json!({ "app": "crowded", "policy": "each-user", "key": user }));
    until(1, || async { ask("old").await["code"].clone() }).await;
    let fill = async {
        limit("1").await;
        until("too-many-keys", || async { ask(&Uuid::new_v4().to_string()).await["reason"].clone() }).await;
    };
    scene.drill.fires_after(&alerts, fill).await;
    while_it_goes_on(scene.forget_counts("each-user"), scene.drill.clears_after(&alerts, limit("0"))).await;
    until(1, || async { ask(&Uuid::new_v4().to_string()).await["code"].clone() }).await;
}

/// Only the count of the outflows' backlog needs this table.
async fn a_step_fails(scene: Scene<'_>) {
    let alerts = ["SeckillStepFails"];
    let lose = scene.system.execute("ALTER TABLE outflow_depths RENAME TO outflow_depths_gone");
    let bring_back = scene.system.execute("ALTER TABLE outflow_depths_gone RENAME TO outflow_depths");
    scene.drill.fires_and_clears(&alerts, lose, bring_back).await;
}
