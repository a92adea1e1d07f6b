//! Supervision checks changed sales at once and others in turn (rules 10 to 12). It still finds every fault of an idle sale.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use seckill::app::stores;
use seckill_buying::sale::catalog::Catalog;
use seckill_buying::sale_work::reconcile::{DriftWatch, HoldWatch};
use seckill_buying::sale_work::refill::supervisor::RefillSupervisor;
use seckill_buying::sale_work::retention::{Retention, RetentionTimes};
use seckill_buying::sale_work::sales_in_turn::SalesInTurn;
use seckill_domain::ids::SaleId;
use seckill_domain::sale::SaleStatus;
use seckill_harness::{PATIENCE, System, redis_at, until};
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use crate::redis::own_redis::OwnRedis;

/// More sales than fit into one round, and enough rounds for all of them.
const SALES: usize = 120;
const TURNS: usize = 3;

/// Planned sales that are complete in Redis, as a refill leaves them, on a private server. No instance runs.
pub struct World {
    pub system: System,
    redis: OwnRedis,
    sales: Vec<SaleId>,
}

impl World {
    pub async fn with(sales: usize) -> Self {
        let redis = OwnRedis::start().await;
        let system = System::prepare(&[("REDIS_URL", &redis.url())]).await;
        let mut world = Self { system, redis, sales: Vec::new() };
        world.plan(sales).await;
        world
    }

    /// Plans sales until there are this many. They are written directly, because a refill of each would take minutes.
    pub async fn plan(&mut self, sales: usize) {
        let prefix = &self.system.config.redis.prefix;
        let (run_id, replid) =
            (self.redis.info("server", "run_id").await, self.redis.info("replication", "master_replid").await);
        let mut redis = redis_at(&self.redis.url()).await.unwrap();
        // A session of its own, which `rows` waits for, so that its reads do not count later.
        let mut sql = PgConnection::connect(&self.system.config.database.url).await.unwrap();
        sqlx::raw_sql("SET application_name = 'seckill'").execute(&mut sql).await.unwrap();
        let product = "INSERT INTO products (name) VALUES ('Phone') ON CONFLICT DO NOTHING";
        sqlx::raw_sql(product).execute(&mut sql).await.unwrap();
        while self.sales.len() < sales {
            // Not all in one transaction, where each change of the catalogue's version would read all earlier versions.
            let some = i64::try_from((sales - self.sales.len()).min(500)).unwrap();
            let planned = "WITH planned AS (
                             INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at,
                                                pay_within_ms, purchase_key, waiting_key)
                             SELECT p.id, 100, 'CNY', 5, 5, 1, 0, now() + interval '1 hour', now() + interval '2 hours', 900000,
                                    md5('key ' || n), md5('waiting ' || n)
                             FROM products p, generate_series(1, $1) n RETURNING id),
                           filled AS (INSERT INTO sale_epochs (sale_id, epoch, run_id, filled_at)
                                      SELECT id, 1, $2, now() FROM planned)
                           SELECT id FROM planned ORDER BY id";
            let planned: Vec<i64> =
                sqlx::query_scalar(planned).bind(some).bind(&run_id).fetch_all(&mut sql).await.unwrap();
            let mut fill = redis::pipe();
            for id in &planned {
                let sale = fill.cmd("HSET").arg(format!("{prefix}{{{id}}}:sale")).arg("replid").arg(&replid);
                sale.arg(&["epoch", "1", "state", "open", "state_version", "0", "stock", "5", "returning", "0"]);
                let key = |name: &str| format!("{prefix}{{{id}}}:{name}");
                for hash in ["tickets", "buyers", "passes", "loans"] {
                    fill.cmd("HSET").arg(key(hash)).arg(&["", ""]);
                }
                fill.cmd("ZADD").arg(key("unconfirmed")).arg(&["+inf", ""]);
                fill.cmd("RPUSH").arg(key("holders")).arg("").cmd("SADD").arg(key("waves")).arg("");
            }
            let _: Vec<i64> = fill.query_async(&mut redis).await.unwrap();
            self.sales.extend(planned.into_iter().map(SaleId::from_db));
        }
        // PostgreSQL does this by itself after a minute.
        sqlx::raw_sql("ANALYZE").execute(&mut sql).await.unwrap();
        sql.close().await.unwrap();
    }

    async fn start(&self) {
        for some in self.sales.chunks(500) {
            let some: Vec<i64> = some.iter().map(|sale| sale.get()).collect();
            let start =
                "UPDATE sales SET starts_at = now() - interval '1 hour' WHERE id = ANY($1) AND starts_at > now()";
            sqlx::query(start).bind(&some).execute(&self.system.sql).await.unwrap();
        }
        sqlx::raw_sql("ANALYZE").execute(&self.system.sql).await.unwrap();
    }

    fn key(&self, sale: SaleId, name: &str) -> String {
        format!("{}{{{sale}}}:{name}", self.system.config.redis.prefix)
    }

    /// Puts an old uncommitted hold into Redis, as a dead process leaves it. Returns its order.
    async fn put_old_hold(&self, sale: SaleId) -> String {
        let (order, key) = (uuid::Uuid::now_v7().to_string(), |name: &str| self.key(sale, name));
        self.redis.ask(&["HSET", &key("tickets"), &order, "h|1|ann"]).await.unwrap();
        self.redis.ask(&["HSET", &key("buyers"), "ann", &format!("1|{order}")]).await.unwrap();
        self.redis.ask(&["ZADD", &key("unconfirmed"), "1", &order]).await.unwrap();
        order
    }

    /// How often the reconciler has recorded that it finished this hold.
    async fn finished_holds(&self, order: &str) -> i64 {
        let noted = "SELECT count(*) FROM audit_log
                     WHERE action = 'finish holds' AND details::text LIKE '%' || $1 || '%'";
        sqlx::query_scalar(noted).bind(order).fetch_one(&self.system.sql).await.unwrap()
    }

    async fn field(&self, sale: SaleId, field: &str) -> Option<String> {
        let found = self.redis.query(&["HGET", &self.key(sale, "sale"), field]).await.unwrap();
        Option::<String>::from_redis_value(found).unwrap()
    }

    fn supervisor(&self) -> RefillSupervisor {
        RefillSupervisor::new(self.system.stores.clone(), self.system.config.reconcile.retire_after_ms)
    }

    /// Waits until a lost sale is open again, under its second epoch.
    async fn is_refilled(&self, sale: SaleId, supervisor: &mut RefillSupervisor) {
        let refilled = async {
            let wanted = (Some("2".to_owned()), Some("open".to_owned()));
            while (self.field(sale, "epoch").await, self.field(sale, "state").await) != wanted {
                _ = timeout(Duration::from_millis(50), supervisor.refill_ended()).await;
                supervisor.check(false).await.unwrap();
            }
        };
        timeout(PATIENCE, refilled).await.expect("the sale is not refilled");
    }

    /// The number of commands that Redis has executed, including those of scripts.
    async fn commands(&self) -> i64 {
        let stats = String::from_redis_value(self.redis.query(&["INFO", "commandstats"]).await.unwrap()).unwrap();
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<i64>().ok();
        stats.lines().filter_map(calls).sum()
    }

    /// The number of rows and index entries of our tables that PostgreSQL has read in ended sessions.
    async fn rows(&self) -> i64 {
        let sessions = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name = 'seckill'";
        until(0, || self.system.value::<i64>(sessions)).await;
        self.system
            .value(
                "SELECT ((SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables)
                   + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes))::bigint",
            )
            .await
    }

    /// The commands of Redis and the reads of PostgreSQL in this number of rounds, after the work that an instance does once.
    async fn cost(&self, rounds: usize) -> (i64, i64) {
        // The ledger of the system itself has sessions too.
        self.system.stores.ledger.close().await;
        let (config, before) = (&self.system.config, self.rows().await);
        let (stores, retire_after_ms) = (stores(config).unwrap(), config.reconcile.retire_after_ms);
        let mut supervisor = RefillSupervisor::new(stores.clone(), retire_after_ms);
        supervisor.check(true).await.unwrap();
        let catalog = Catalog::load(&stores, retire_after_ms).await.unwrap();
        let mut holds = HoldWatch::new(stores.clone(), config.reconcile.unconfirmed_after_ms);
        let mut drift = DriftWatch::new(stores.clone(), retire_after_ms);
        let mut retention =
            Retention::new(stores.clone(), RetentionTimes { messages_days: 7, steps_days: 90, records_days: 400 });
        let mut in_turn = SalesInTurn::new(500);
        let commands = self.commands().await;
        for _ in 0..rounds {
            supervisor.check(true).await.unwrap();
            let beat = catalog.beat().await.unwrap();
            catalog.load_changes(beat.catalog_version).await.unwrap();
            holds.finish_holds().await.unwrap();
            drift.check_sales().await.unwrap();
            stores.ledger.sales.due_waves(100, &[]).await.unwrap();
            stores.retire_sales(&mut in_turn, retire_after_ms).await.unwrap();
            retention.step().await.unwrap();
        }
        let commands = self.commands().await - commands;
        drop(catalog);
        stores.ledger.close().await;
        (commands, self.rows().await - before)
    }
}

/// A round costs the same for 20,000 planned sales as for 2,000: it checks only the sales that have their turn.
#[tokio::test(flavor = "multi_thread")]
async fn ten_times_as_many_planned_sales_cost_no_more() {
    const ROUNDS: usize = 20;
    let mut world = World::with(2_000).await;
    let mut costs = Vec::new();
    for sales in [2_000, 20_000] {
        world.plan(sales).await;
        let (once, often) = (world.cost(0).await, world.cost(ROUNDS).await);
        costs.push((often.0 - once.0, often.1 - once.1));
    }
    let (few, many) = (costs[0], costs[1]);
    // Checking all of them in one of the rounds would add 18,000 commands.
    assert!(many.0 < few.0 + 2_000, "Redis: {few:?}, {many:?} commands");
    assert!(many.1 < few.1 + 2_000, "PostgreSQL: {few:?}, {many:?} rows");
    world.system.finish().await;
}

/// If many sales sell, a round checks 500 of them, or a tenth if that is more.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_ten_times_as_many_sales_that_sell_takes_few_of_them() {
    const ROUNDS: usize = 20;
    let mut world = World::with(1_000).await;
    let mut costs = Vec::new();
    for sales in [1_000, 10_000] {
        world.plan(sales).await;
        world.start().await;
        let (once, often) = (world.cost(0).await, world.cost(ROUNDS).await);
        costs.push((often.0 - once.0, often.1 - once.1));
    }
    let (few, many) = (costs[0], costs[1]);
    // 1,000 in a round instead of 500. Checking all of them would take ten times the commands of checking 1,000, and read 1,100,000 more
    // rows. PostgreSQL reads the whole table of 10,000 rows to find a part, because the table is small.
    assert!(many.0 < few.0 * 5 / 2, "Redis: {few:?}, {many:?} commands");
    assert!(many.1 < few.1 + 600_000, "PostgreSQL: {few:?}, {many:?} rows");
    world.system.finish().await;
}

/// Each of 2,400 selling sales has its turn within five rounds: a lost key, an old hold and a wrong figure are found then.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_with_one_of_many_that_sell_is_found_in_its_turn() {
    const TURNS: usize = 5;
    let world = World::with(2_400).await;
    world.start().await;
    let (config, stores) = (&world.system.config.reconcile, &world.system.stores);
    let [lost, held, wrong] = [2_399, 2_100, 2_300].map(|place| world.sales[place]);
    let mut supervisor = world.supervisor();
    supervisor.check(false).await.unwrap();
    world.redis.ask(&["DEL", &world.key(lost, "sale")]).await.unwrap();
    for _ in 0..TURNS {
        supervisor.check(true).await.unwrap();
    }
    world.is_refilled(lost, &mut supervisor).await;

    let order = world.put_old_hold(held).await;
    let mut holds = HoldWatch::new(stores.clone(), config.unconfirmed_after_ms);
    for _ in 0..TURNS {
        holds.finish_holds().await.unwrap();
    }
    assert_eq!(world.finished_holds(&order).await, 1);

    let drifts = "SELECT count(*) FROM audit_log WHERE action = 'drift'";
    world.redis.ask(&["HSET", &world.key(wrong, "sale"), "stock", "25"]).await.unwrap();
    let mut drift = DriftWatch::new(stores.clone(), config.retire_after_ms);
    for _ in 0..TURNS {
        drift.check_sales().await.unwrap();
    }
    let unconfirmed = world.key(wrong, "unconfirmed");
    world.redis.ask(&["ZADD", &unconfirmed, "1", &order]).await.unwrap();
    drift.check_sales().await.unwrap();
    world.redis.ask(&["ZREM", &unconfirmed, &order]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(world.system.value::<i64>(drifts).await, 0);
        drift.check_sales().await.unwrap();
    }
    assert_eq!(world.system.value::<i64>(drifts).await, 1);
    supervisor.finish().await;
    world.system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_sale_that_redis_has_lost_is_found_in_its_turn() {
    let world = World::with(SALES).await;
    let mut supervisor = world.supervisor();
    supervisor.check(false).await.unwrap();
    for lost in [world.sales[0], world.sales[SALES / 2], world.sales[SALES - 1]] {
        world.redis.ask(&["DEL", &world.key(lost, "sale")]).await.unwrap();
        for _ in 0..TURNS {
            supervisor.check(true).await.unwrap();
        }
        world.is_refilled(lost, &mut supervisor).await;
    }
    let refilled: i64 = world.system.value("SELECT count(*) FROM sale_epochs WHERE epoch > 1").await;
    assert_eq!(refilled, 3, "the others were left alone");
    supervisor.finish().await;
    world.system.finish().await;
}

/// After FLUSHALL, the only sign is that sales are missing. When one is missing, all others are checked, not only in their turn.
#[tokio::test(flavor = "multi_thread")]
async fn one_missing_sale_gives_all_others_away() {
    let world = World::with(SALES).await;
    let mut supervisor = world.supervisor();
    supervisor.check(false).await.unwrap();
    world.redis.ask(&["FLUSHALL"]).await.unwrap();
    supervisor.check_asked(&HashSet::from([world.sales[7]])).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Without a turn.
        supervisor.check(false).await.unwrap();
        _ = timeout(Duration::from_millis(50), supervisor.refill_ended()).await;
        let left =
            world.system.value::<i64>("SELECT count(*) FROM sale_epochs WHERE run_id IS NULL OR epoch < 2").await;
        if left == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{left} sales are not filled");
    }
    supervisor.finish().await;
    world.system.finish().await;
}

/// The process that pauses a sale dies before it has told Redis. The next check sets the status of any sale, without its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_status_reaches_redis_though_its_manager_died() {
    let world = World::with(SALES).await;
    let mut supervisor = world.supervisor();
    supervisor.check(false).await.unwrap();
    for status in [SaleStatus::Paused, SaleStatus::Open, SaleStatus::Closed] {
        for sale in world.sales.iter().step_by(40) {
            let ledger = &world.system.stores.ledger;
            assert!(ledger.sales.set_sale_status(*sale, status, "test").await.unwrap().is_some());
        }
        supervisor.check(false).await.unwrap();
        for sale in world.sales.iter().step_by(40) {
            assert_eq!(world.field(*sale, "state").await.as_deref(), Some(status.as_str()));
        }
    }
    supervisor.finish().await;
    world.system.finish().await;
}

/// Two faults are found in turn: an uncommitted hold in a sale that ended an hour ago, and a wrong figure in a planned sale.
#[tokio::test(flavor = "multi_thread")]
async fn holds_and_wrong_figures_of_idle_sales_are_found_in_their_turn() {
    let world = World::with(SALES).await;
    let (config, stores) = (&world.system.config.reconcile, &world.system.stores);
    let (over, planned) = (world.sales[SALES - 1], world.sales[SALES / 2]);
    let ended =
        "UPDATE sales SET starts_at = now() - interval '2 hours', ends_at = now() - interval '1 hour' WHERE id = $1";
    sqlx::query(ended).bind(over.get()).execute(&world.system.sql).await.unwrap();
    let order = world.put_old_hold(over).await;
    world.redis.ask(&["HSET", &world.key(planned, "sale"), "stock", "25"]).await.unwrap();
    let mut holds = HoldWatch::new(stores.clone(), config.unconfirmed_after_ms);
    let mut drift = DriftWatch::new(stores.clone(), config.retire_after_ms);
    // A difference is reported after three checks in a row.
    for _ in 0..TURNS + 2 {
        holds.finish_holds().await.unwrap();
        drift.check_sales().await.unwrap();
    }
    assert_eq!(world.finished_holds(&order).await, 1);
    assert_eq!(world.system.value::<i64>("SELECT count(*) FROM audit_log WHERE action = 'drift'").await, 1);
    let waiting = world.system.value::<i64>("SELECT sale_id FROM sale_epochs WHERE run_id IS NULL").await;
    assert_eq!(waiting, planned.get(), "it waits for a refill");
    world.system.finish().await;
}
