//! Slow servers, and more requests than can be served.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use seckill_harness::terms;

use super::drill::{Drill, while_it_goes_on};
use super::programs::Programs;
use super::scene::Scene;
use crate::network::broken_network::wire_to;
use seckill_harness::folder::free_address;

const ALERTS: [&str; 6] = [
    "SeckillRedisSlow",
    "SeckillLimiterSlow",
    "SeckillPurchasesWait",
    "SeckillPurchasesShed",
    "SeckillCommitsSlow",
    "SeckillRequestsShed",
];
/// From here to Redis. The way back takes the same time.
const ONE_WAY: Duration = Duration::from_millis(300);
const BUYERS: usize = 40;
const READERS: usize = 12;

/// Redis and PostgreSQL become slow while a crowd buys and reads.
#[tokio::test(flavor = "multi_thread")]
async fn slow_servers_and_crowds_are_alerts_until_all_is_fast_again() {
    let settings = [
        // A few purchases in flight are enough of a crowd.
        ("SECKILL_PURCHASE__WAIT_TARGET_MS", "50"),
        ("SECKILL_HTTP__LINE_MAX", "1"),
        // A late answer of Redis counts as an answer.
        ("SECKILL_REDIS__RESPONSE_TIMEOUT_MS", "10000"),
    ];
    let programs = Programs::prepare(&settings).await;
    let system = &programs.system;
    let (redis, redis_url) = wire_to(&system.environment["REDIS_URL"]).await;
    let at = free_address();
    let drill = Drill::start(&programs, &[at], &[]);
    let serve = programs.start("serve", at, &["serve", "--with-workers"], &[("REDIS_URL", redis_url.as_str())]).await;
    let sale = system.create_sale(terms(100_000)).await;
    let scene = Scene { drill: &drill, system, at };
    scene.bought(&sale, "first").await;
    drill.begin().await;
    let crowd = async {
        redis.delay(ONE_WAY);
        system.execute(SLOW_INSERTS).await;
        let buying = (0..BUYERS).map(|_| scene.buyers(&sale, Duration::from_millis(500)));
        let reading = (0..READERS).map(|n| scene.reads_orders(format!("reader{n}")));
        tokio::join!(join_all(buying), join_all(reading));
    };
    drill.fires_while(&ALERTS, crowd).await;
    let mend = async {
        redis.delay(Duration::ZERO);
        system.execute("DROP TRIGGER slow ON outbox").await;
    };
    // So few that even a busy machine has seconds without a delayed purchase.
    let few = scene.buyers(&sale, Duration::from_secs(2));
    while_it_goes_on(few, drill.clears_after(&ALERTS, mend)).await;
    drill.finish().await;
    drop(serve);
    programs.system.finish().await;
}

/// As if PostgreSQL's disk was slow. The service would take a commit of more than a second for a server that hangs.
const SLOW_INSERTS: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION slow()";

impl Scene<'_> {
    /// Lists a buyer's orders, in a loop.
    async fn reads_orders(&self, user: String) {
        let (http, token) = (Client::new(), self.system.token(&user, 0));
        loop {
            _ = http.get(format!("http://{}/api/v1/orders", self.at)).bearer_auth(&token).send().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}
