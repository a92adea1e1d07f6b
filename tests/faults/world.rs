//! The system of one run: its own database, Redis keys, queues and processes, the sale of the rush, and its neighbours.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use seckill::app::stores;
use seckill_buying::sale::Stores;
use seckill_config::Config;
use seckill_domain::ids::{SaleId, UserId};
use seckill_domain::shards::{SaleShards, ShardCount};
use seckill_harness::nginx::Nginx;
use seckill_rabbitmq::Broker;
use seckill_tokens::Tokens;
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tokio::process::Command;
use tokio::time::sleep;

use crate::Options;
use crate::run_summary::Watch;
use crate::servers::Servers;
use crate::service::{PROGRAM, Process, Role};

pub struct Setup {
    pub serve: usize,
    pub work: usize,
    pub stock: i64,
    pub pay_within_s: i64,
    /// Whether buyers come through nginx with deploy/nginx.conf.
    pub edge: bool,
    /// Private PostgreSQL servers: the addresses of all of them and of the primary, without a database.
    pub postgres: Option<(String, String)>,
    /// The run's own address of Redis, if it differs from the service's.
    pub redis: Option<String>,
    pub shards: u8,
    /// Settings beyond those of every run.
    pub settings: Vec<(&'static str, String)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            serve: 2,
            work: 1,
            stock: 2_000,
            pay_within_s: 900,
            shards: 1,
            edge: false,
            postgres: None,
            redis: None,
            settings: Vec::new(),
        }
    }
}

pub struct World {
    pub servers: Arc<Servers>,
    pub rng: StdRng,
    pub environment: HashMap<String, String>,
    pub config: Config,
    pub stores: Stores,
    pub sql: PgPool,
    pub redis: redis::Client,
    pub serve: Vec<Process>,
    pub work: Vec<Process>,
    pub sale: Sale,
    /// Other sales, each with a few buyers. A fault in the sale of the rush must not affect them.
    pub neighbours: Vec<Sale>,
    edge: Option<Nginx>,
    tokens: Tokens,
    logs: PathBuf,
    /// The database from which databases are created and dropped.
    maintenance: String,
}

#[derive(Clone)]
pub struct Sale {
    pub id: i64,
    pub key: String,
    pub stock: i64,
    pub pay_within_s: i64,
    pub shards: SaleShards,
    /// Whether its window changes during the run, so that buyers may find it shut.
    pub is_shut_for_a_time: bool,
}

impl Sale {
    /// Whether orders outlast the run. If not, units come back, and a buyer may have several orders.
    pub fn is_lasting(&self) -> bool {
        self.pay_within_s > 60
    }
}

const NEIGHBOURS: usize = 4;
/// The units of a neighbour: fewer than its buyers in most rushes.
const NEIGHBOUR_STOCK: i64 = 100;

impl World {
    pub async fn new(options: &Options, setup: Setup) -> anyhow::Result<Self> {
        let servers = Arc::clone(&options.servers);
        let name = format!("f{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let shared = servers.url("DATABASE_URL").rsplit_once('/').context("DATABASE_URL")?.0.to_owned();
        let (all, primary) = setup.postgres.unwrap_or((shared.clone(), shared));
        let maintenance = format!("{primary}/postgres");
        let mut connection = PgConnection::connect(&maintenance).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await?;
        connection.close().await?;
        let mut environment = servers.environment.clone();
        let own = [
            ("DATABASE_URL", format!("{all}/{name}")),
            ("SECKILL_REDIS__PREFIX", format!("{name}:")),
            ("SECKILL_AMQP__PREFIX", format!("{name}.")),
            // Buyers may repeat a request often: the limit of requests is not under test.
            ("SECKILL_PURCHASE__BUYER_LIMIT", "10000".into()),
        ];
        for (name, value) in own.into_iter().chain(setup.settings.iter().cloned()) {
            environment.insert(name.to_owned(), value);
        }
        let config = Config::read(&environment)?;
        let logs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".dev/log/faults").join(&name);
        std::fs::create_dir_all(&logs)?;
        let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(5));
        let mut world = Self {
            rng: StdRng::seed_from_u64(options.seed),
            stores: stores(&config)?,
            sql: pool.connect(&format!("{primary}/{name}")).await?,
            redis: redis::Client::open(setup.redis.as_deref().unwrap_or(&config.redis.url))?,
            tokens: Tokens::new(&config.auth, true)?,
            serve: Vec::new(),
            work: Vec::new(),
            sale: Sale {
                id: 0,
                key: String::new(),
                stock: setup.stock,
                pay_within_s: setup.pay_within_s,
                shards: SaleShards { sale: SaleId::from_db(0), count: ShardCount::ONE, asks_pass: false },
                is_shut_for_a_time: false,
            },
            neighbours: Vec::new(),
            edge: None,
            servers,
            environment,
            config,
            logs,
            maintenance,
        };
        world.run(&["migrate"]).await?;
        for _ in 0..setup.serve {
            world.add(Role::Serve, None).await?;
        }
        for _ in 0..setup.work {
            world.add(Role::Work, None).await?;
        }
        world.sale = world.create_sale(setup.stock, setup.pay_within_s, setup.shards.max(options.shards)).await?;
        for _ in 0..NEIGHBOURS {
            let neighbour = world.create_sale(NEIGHBOUR_STOCK, 900, options.shards).await?;
            world.neighbours.push(neighbour);
        }
        if setup.edge {
            // It would log at each request that an instance is dead.
            let silent = [("error_log /dev/stderr warn;", "error_log /dev/null;")];
            world.edge = Some(Nginx::edge(&world.addresses(), Path::new("/nonexistent"), &silent).await);
        }
        Ok(world)
    }

    /// Starts another process. If a place is named, it dies or is delayed there.
    pub async fn add(&mut self, role: Role, dies_at: Option<&str>) -> anyhow::Result<()> {
        let among = if role == Role::Serve { &mut self.serve } else { &mut self.work };
        let log = self.logs.join(format!("{role:?}-{}.log", among.len()));
        among.push(Process::start(role, &self.environment, log, dies_at).await?);
        Ok(())
    }

    async fn create_sale(&self, stock: i64, pay_within_s: i64, shards: u8) -> anyhow::Result<Sale> {
        let (units, pay, shards) = (stock.to_string(), pay_within_s.to_string(), shards.to_string());
        let options = ["--product", "Fault", "--price-cents", "100", "--stock", &units, "--pay-within", &pay];
        let options = [&["sale", "create"][..], &options, &["--shards", &shards]].concat();
        let (code, output) = self.run(&options).await?;
        ensure!(code == 0, "sale create: {code}, {output}");
        let output: Value = serde_json::from_str(&output)?;
        let id = output["sale_id"].as_i64().context("sale create names no sale")?;
        let key = self.purchase_key(id).await?;
        let shards = self.stores.ledger.sales.shards_of(&[SaleId::from_db(id)]).await?;
        let shards = shards.first().context("the sale is gone")?.shards;
        Ok(Sale { id, key, stock, pay_within_s, shards, is_shut_for_a_time: false })
    }

    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<(i32, String)> {
        let (code, output) = self.run_to(arguments, "").await?;
        Ok((code.context("seckill was killed")?, output))
    }

    /// Runs a command that dies at the failpoint, if one is given: then it has no exit code.
    pub async fn run_to(&self, arguments: &[&str], failpoint: &str) -> anyhow::Result<(Option<i32>, String)> {
        let mut program = Command::new(PROGRAM);
        program.args(arguments).env_clear().envs(&self.environment).env("RUST_LOG", "warn").kill_on_drop(true);
        program.env("FAILPOINTS", failpoint);
        let done = tokio::time::timeout(Duration::from_secs(60), program.output()).await.context("seckill hangs")??;
        let code = done.status.code();
        let mut output = String::from_utf8_lossy(&done.stdout).into_owned();
        if code.is_some_and(|code| code > 1) {
            output.push_str(&String::from_utf8_lossy(&done.stderr));
        }
        Ok((code, output))
    }

    pub fn sales(&self) -> impl Iterator<Item = &Sale> {
        std::iter::once(&self.sale).chain(&self.neighbours)
    }

    /// Repeats `seckill audit` until all sales are at rest and every invariant holds. A broken one fails immediately.
    pub async fn wait_until_audited(&self, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let (code, output) = self.run(&["audit", "--json"]).await?;
            let verdict: Value = serde_json::from_str(&output).unwrap_or(Value::Null);
            let sales = verdict["sales"].as_array().map_or(&[][..], Vec::as_slice);
            match code {
                0 if sales.len() > NEIGHBOURS && sales.iter().all(|sale| sale["at_rest"] == true) => return Ok(()),
                1 => bail!("audit: {output}"),
                _ if begun.elapsed() > patience => bail!("no rest within {patience:?}: audit says {code}, {output}"),
                _ => {}
            }
        }
    }

    /// The addresses for buyers' requests: the edge, or each instance.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match &self.edge {
            Some(edge) => vec![edge.address],
            None => self.serve.iter().map(|process| process.address).collect(),
        }
    }

    pub fn is_behind_edge(&self) -> bool {
        self.edge.is_some()
    }

    pub fn sale_id(&self) -> SaleId {
        SaleId::from_db(self.sale.id)
    }

    pub fn token(&self, user: &str) -> String {
        let exp = chrono::Utc::now().timestamp() + 3600;
        self.tokens.issue(&UserId::parse(user).unwrap(), 0, exp).unwrap()
    }

    pub async fn purchase_key(&self, sale: i64) -> anyhow::Result<String> {
        let key = sqlx::query_scalar("SELECT purchase_key FROM sales WHERE id = $1").bind(sale);
        Ok(key.fetch_one(&self.sql).await?)
    }

    pub async fn count(&self, sql: &'static str) -> anyhow::Result<i64> {
        self.count_in(&self.sale, sql).await
    }

    async fn count_in(&self, sale: &Sale, sql: &'static str) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar(sql).bind(sale.id).fetch_one(&self.sql).await?)
    }

    pub async fn left(&self, sale: &Sale) -> anyhow::Result<i64> {
        self.count_in(sale, "SELECT stock FROM sales WHERE id = $1").await
    }

    pub async fn epoch(&self) -> anyhow::Result<i64> {
        self.count("SELECT epoch FROM sale_epochs WHERE sale_id = $1").await
    }

    /// The number of purchases that are not yet orders.
    pub async fn backlog(&self) -> anyhow::Result<i64> {
        self.count("SELECT count(*) FROM accepted_purchases WHERE sale_id = $1").await
    }

    /// Waits until every purchase from before `moment` is an order.
    pub async fn wait_until_drained_of(&self, moment: SystemTime, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let moment = chrono::DateTime::<chrono::Utc>::from(moment);
        loop {
            let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM accepted_purchases WHERE created_at < $1")
                .bind(moment)
                .fetch_one(&self.sql)
                .await?;
            if rows == 0 {
                return Ok(());
            }
            ensure!(begun.elapsed() < patience, "{rows} purchases are no orders after {patience:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The name of a Redis key of the sale, or of its first shard.
    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.tags(&self.sale)[0])
    }

    /// The prefixes of all Redis keys of a sale, one for each shard.
    fn tags(&self, sale: &Sale) -> Vec<String> {
        let of = sale.shards;
        of.count.all().map(|shard| format!("{}{{{}}}", self.config.redis.prefix, of.tag(shard))).collect()
    }

    pub fn watch(&self) -> Watch {
        let sales = self.sales().map(|sale| (sale.id, self.tags(sale))).collect();
        Watch { sql: self.sql.clone(), redis: self.redis.clone(), sales }
    }

    pub async fn redis_command<T: redis::FromRedisValue>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        redis_command(&self.redis, arguments).await
    }

    pub fn look_at_postgres(&mut self, server: &str) -> anyhow::Result<()> {
        let database = self.environment["DATABASE_URL"].rsplit_once('/').context("DATABASE_URL")?.1;
        self.sql.set_connect_options(format!("{server}/{database}").parse()?);
        self.maintenance = format!("{server}/postgres");
        Ok(())
    }

    /// Ends the processes, and deletes the queues, keys and database of the run.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        for process in self.serve.iter_mut().chain(&mut self.work) {
            process.kill9().await?;
        }
        Broker::new(&self.config).demolish().await?;
        let _: () = self.redis_command(&["FLUSHALL"]).await?;
        self.sql.close().await;
        self.stores.ledger.close().await;
        let name = self.environment["DATABASE_URL"].rsplit_once('/').context("DATABASE_URL")?.1.to_owned();
        let mut connection = PgConnection::connect(&self.maintenance).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut connection).await?;
        std::fs::remove_dir_all(&self.logs)?;
        Ok(())
    }
}

pub async fn redis_command<T: redis::FromRedisValue>(client: &redis::Client, arguments: &[&str]) -> anyhow::Result<T> {
    let mut connection = connected(client).await?;
    let mut command = redis::cmd(arguments[0]);
    Ok(command.arg(&arguments[1..]).query_async(&mut connection).await?)
}

/// A connection with longer time-outs than the service's: the machine is busy.
pub async fn connected(client: &redis::Client) -> anyhow::Result<redis::aio::MultiplexedConnection> {
    let patience = Some(Duration::from_secs(5));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
