//! Worker processes, and the system in which they run.

use std::process::{Command, Stdio};
use std::time::Duration;

use seckill::app::stores;
use seckill_config::Config;
use seckill_delivery::outflow_changes::{self, OutflowChange};
use seckill_domain::outflow::Pace;
use seckill_postgres::Ledger;
use seckill_postgres::outflow::items::{EnqueueOutcome, NewItem};
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use seckill_harness::receiver::Receiver;
use seckill_harness::running::Running;
use seckill_harness::{Environment, environment, eventually};

/// How much later than the fastest request another one may arrive. In a short run the receiver shares busy processors with twenty workers
/// and other programs, and may stand still for most of a second. A long run has the default jitter of `outflow create`.
pub fn jitter_ms() -> i64 {
    if long() { 15 } else { 1_000 }
}

/// The number of concurrent tests. A test that must not be disturbed runs alone.
const BESIDE: u32 = 3;
static ROOM: Semaphore = Semaphore::const_new(BESIDE as usize);

pub fn worker(environment: &Environment, dies_at: Option<&str>) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.args(["work", "--only", "outflow"]).env_clear().envs(environment);
    command.env("SECKILL_DATABASE__MAX_CONNECTIONS", "3");
    command.env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "error".into()));
    Running::start(command.envs(dies_at.map(|place| ("FAILPOINTS", place))).stdout(Stdio::null()))
}

/// A ledger with channels, and no workers yet.
pub struct Works {
    pub environment: Environment,
    pub ledger: Ledger,
    pub sql: PgPool,
    _room: SemaphorePermit<'static>,
}

impl Works {
    pub async fn prepare(settings: &[(&str, &str)]) -> Self {
        Self::in_room(if long() { BESIDE } else { 1 }, settings).await
    }

    /// While no other test runs.
    pub async fn alone() -> Self {
        Self::in_room(BESIDE, &[]).await
    }

    async fn in_room(room: u32, settings: &[(&str, &str)]) -> Self {
        let room = ROOM.acquire_many(room).await.unwrap();
        let environment = environment(settings).await;
        let config = Config::read(&environment).unwrap();
        let ledger = stores(&config).unwrap().ledger;
        let sql = PgPool::connect(&config.database.url).await.unwrap();
        Self { environment, ledger, sql, _room: room }
    }

    pub async fn channel(&self, name: &str, rate: u32, receiver: &Receiver) {
        let pace = Pace::parse(rate.into(), jitter_ms()).unwrap();
        assert!(self.ledger.outflows.create_outflow(name, pace, &receiver.url(), 1_000_000, "test").await.unwrap());
    }

    /// Changes a channel; `false` if no channel has this name.
    pub async fn change(&self, name: &str, change: OutflowChange) -> bool {
        outflow_changes::change(&self.ledger.outflows, name, change, "test").await.unwrap()
    }

    /// Enqueues an item `{key, n}` for each number. Returns the ids, in order.
    pub async fn put(&self, channel: &str, key: &str, numbers: std::ops::Range<usize>) -> Vec<Uuid> {
        let mut ids = Vec::new();
        for n in numbers {
            let payload = json!({ "key": key, "n": n });
            let item = NewItem { id: Uuid::new_v4(), channel: channel.into(), key: key.into(), payload };
            assert_eq!(self.ledger.outflows.enqueue_outflow(&item).await.unwrap(), EnqueueOutcome::Taken);
            ids.push(item.id);
        }
        ids
    }

    /// Inserts `items` items over `keys` keys in one statement.
    pub async fn backlog(&self, channel: &str, keys: i32, items: i32) {
        let put = "WITH items AS (
                       INSERT INTO outflow_items (id, channel, key, payload)
                       SELECT gen_random_uuid(), $1, 'k' || n % $2, jsonb_build_object('n', n)
                       FROM generate_series(0, $3 - 1) n RETURNING key)
                   INSERT INTO outflow_keys (channel, key, turn_at) SELECT DISTINCT $1, key, now() FROM items";
        sqlx::query(put).bind(channel).bind(keys).bind(items).execute(&self.sql).await.unwrap();
    }

    /// Starts `number` workers, and waits until all of them listen, because starting processes uses the whole machine.
    pub async fn workers(&self, number: i64) -> Vec<Running> {
        let workers = (0..number).map(|_| worker(&self.environment, None)).collect();
        eventually(|| async {
            let listening = "SELECT count(*) FROM pg_stat_activity
                             WHERE datname = current_database() AND query LIKE 'LISTEN%'";
            let up: i64 = sqlx::query_scalar(listening).fetch_one(&self.sql).await.map_err(|e| e.to_string())?;
            (up >= number).then_some(()).ok_or_else(|| format!("{up} workers are up"))
        })
        .await;
        workers
    }

    pub async fn statuses(&self, channel: &str) -> Vec<(String, i64)> {
        let count = "SELECT status, count(*) FROM outflow_items WHERE channel = $1 GROUP BY 1 ORDER BY 1";
        sqlx::query_as(count).bind(channel).fetch_all(&self.sql).await.unwrap()
    }
}

pub fn long() -> bool {
    std::env::var("SECKILL_TEST_LONG").is_ok_and(|long| long == "1")
}

pub async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}
