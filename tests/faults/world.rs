//! A whole system of a run's own: database, Redis keys, queues, processes, one sale.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use seckill::app::stores;
use seckill::config::Config;
use seckill::domain::ids::{SaleId, UserId};
use seckill::http::Tokens;
use seckill::queue::Broker;
use seckill::sale::Stores;
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tokio::process::Command;
use tokio::time::sleep;

use crate::Terms;
use crate::run_summary::Watch;
use crate::servers::Servers;
use crate::service::{PROGRAM, Process, Role};

/// What a run asks for.
pub struct Setup {
    pub serve: usize,
    pub work: usize,
    pub stock: i64,
    pub pay_within_s: i64,
    /// Settings over those of every run.
    pub settings: Vec<(&'static str, String)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { serve: 2, work: 1, stock: 2_000, pay_within_s: 900, settings: Vec::new() }
    }
}

pub struct World {
    pub servers: Arc<Servers>,
    pub dice: StdRng,
    pub environment: HashMap<String, String>,
    pub config: Config,
    pub stores: Stores,
    pub sql: PgPool,
    pub redis: redis::Client,
    pub serve: Vec<Process>,
    pub work: Vec<Process>,
    pub sale: Sale,
    tokens: Tokens,
    logs: PathBuf,
}

#[derive(Clone)]
pub struct Sale {
    pub id: i64,
    pub key: String,
    pub stock: i64,
    pub pay_within_s: i64,
}

impl World {
    pub async fn new(terms: &Terms, setup: Setup) -> anyhow::Result<Self> {
        let servers = Arc::clone(&terms.servers);
        let name = format!("f{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let mut maintenance = PgConnection::connect(servers.url("DATABASE_URL")).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut maintenance).await?;
        maintenance.close().await?;
        let server = servers.url("DATABASE_URL").rsplit_once('/').context("DATABASE_URL")?.0;
        let mut environment = servers.environment.clone();
        let own = [
            ("DATABASE_URL", format!("{server}/{name}")),
            ("SECKILL_REDIS__PREFIX", format!("{name}:")),
            ("SECKILL_AMQP__PREFIX", format!("{name}.")),
            // Nobody is refused for asking again and again what became of a purchase.
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
            dice: StdRng::seed_from_u64(terms.seed),
            stores: stores(&config)?,
            sql: pool.connect(&config.database.url).await?,
            redis: redis::Client::open(config.redis.url.as_str())?,
            tokens: Tokens::new(&config.auth.jwt_secret, "", true)?,
            serve: Vec::new(),
            work: Vec::new(),
            sale: Sale { id: 0, key: String::new(), stock: setup.stock, pay_within_s: setup.pay_within_s },
            servers,
            environment,
            config,
            logs,
        };
        world.run(&["migrate"]).await?;
        for _ in 0..setup.serve {
            world.add(Role::Serve, None).await?;
        }
        for _ in 0..setup.work {
            world.add(Role::Work, None).await?;
        }
        world.create_sale().await?;
        Ok(world)
    }

    /// Starts another process, which dies at a named place if one is given.
    pub async fn add(&mut self, role: Role, dies_at: Option<&str>) -> anyhow::Result<()> {
        let among = if role == Role::Serve { &mut self.serve } else { &mut self.work };
        let log = self.logs.join(format!("{role:?}-{}.log", among.len()));
        among.push(Process::start(role, &self.environment, log, dies_at).await?);
        Ok(())
    }

    async fn create_sale(&mut self) -> anyhow::Result<()> {
        let (stock, pay) = (self.sale.stock.to_string(), self.sale.pay_within_s.to_string());
        let terms = ["--product", "Fault", "--price-cents", "100", "--stock", &stock, "--pay-within", &pay];
        let (code, said) = self.run(&[&["sale", "create"][..], &terms[..]].concat()).await?;
        ensure!(code == 0, "sale create: {code}, {said}");
        let said: Value = serde_json::from_str(&said)?;
        self.sale.id = said["sale_id"].as_i64().context("sale create names no sale")?;
        self.sale.key = sqlx::query_scalar("SELECT purchase_key FROM sales WHERE id = $1")
            .bind(self.sale.id)
            .fetch_one(&self.sql)
            .await?;
        Ok(())
    }

    /// Runs the program to its end; its exit code, and what it printed.
    pub async fn run(&self, words: &[&str]) -> anyhow::Result<(i32, String)> {
        let mut program = Command::new(PROGRAM);
        program.args(words).env_clear().envs(&self.environment).env("RUST_LOG", "warn").kill_on_drop(true);
        let done = tokio::time::timeout(Duration::from_secs(60), program.output()).await.context("seckill hangs")??;
        let code = done.status.code().context("seckill was killed")?;
        let mut said = String::from_utf8_lossy(&done.stdout).into_owned();
        if code > 1 {
            said.push_str(&String::from_utf8_lossy(&done.stderr));
        }
        Ok((code, said))
    }

    /// `seckill audit --sale N`, until it is at rest and held. What is broken is broken at once.
    pub async fn audited(&self, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let id = self.sale.id.to_string();
        loop {
            let (code, said) = self.run(&["audit", "--sale", &id, "--json"]).await?;
            let verdict: Value = serde_json::from_str(&said).unwrap_or(Value::Null);
            match code {
                0 if verdict["sales"][0]["at_rest"] == true => return Ok(()),
                1 => bail!("audit: {said}"),
                _ if begun.elapsed() > patience => bail!("no rest within {patience:?}: audit says {code}, {said}"),
                _ => {}
            }
        }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.serve.iter().map(|process| process.address).collect()
    }

    pub fn sale_id(&self) -> SaleId {
        SaleId::from_db(self.sale.id)
    }

    pub fn token(&self, user: &str) -> String {
        let exp = chrono::Utc::now().timestamp() + 3600;
        self.tokens.issue(&UserId::parse(user).unwrap(), 0, exp).unwrap()
    }

    pub async fn count(&self, sql: &'static str) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar(sql).bind(self.sale.id).fetch_one(&self.sql).await?)
    }

    pub async fn left(&self) -> anyhow::Result<i64> {
        self.count("SELECT stock FROM sales WHERE id = $1").await
    }

    pub async fn epoch(&self) -> anyhow::Result<i64> {
        self.count("SELECT epoch FROM sale_epochs WHERE sale_id = $1").await
    }

    /// Purchases that are no orders yet.
    pub async fn backlog(&self) -> anyhow::Result<i64> {
        self.count("SELECT count(*) FROM outbox WHERE sale_id = $1 AND kind = 'order_placed' AND status <> 'processed'")
            .await
    }

    /// Waits until every purchase from before a moment is an order.
    pub async fn drained_of(&self, moment: SystemTime, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let moment = chrono::DateTime::<chrono::Utc>::from(moment);
        loop {
            let rows: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM outbox WHERE kind = 'order_placed' AND status <> 'processed' AND created_at < $1",
            )
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

    /// A Redis key of the sale's.
    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.watch().tag)
    }

    pub fn watch(&self) -> Watch {
        let tag = format!("{}{{{}}}", self.config.redis.prefix, self.sale.id);
        Watch { sql: self.sql.clone(), redis: self.redis.clone(), sale: self.sale.id, tag }
    }

    /// Asks Redis something.
    pub async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
        ask(&self.redis, words).await
    }

    /// Ends the processes, and clears the broker and the database server of what was made there.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        for process in self.serve.iter_mut().chain(&mut self.work) {
            process.kill9().await?;
        }
        Broker::new(&self.config).demolish().await?;
        let _: () = self.ask(&["FLUSHALL"]).await?;
        self.sql.close().await;
        self.stores.ledger.close().await;
        let name = self.environment["DATABASE_URL"].rsplit_once('/').context("DATABASE_URL")?.1.to_owned();
        let mut maintenance = PgConnection::connect(self.servers.url("DATABASE_URL")).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut maintenance).await?;
        std::fs::remove_dir_all(&self.logs)?;
        Ok(())
    }
}

pub async fn ask<T: redis::FromRedisValue>(client: &redis::Client, words: &[&str]) -> anyhow::Result<T> {
    let mut connection = connected(client).await?;
    let mut command = redis::cmd(words[0]);
    Ok(command.arg(&words[1..]).query_async(&mut connection).await?)
}

/// A connection with more patience than the service has: the machine is busy.
pub async fn connected(client: &redis::Client) -> anyhow::Result<redis::aio::MultiplexedConnection> {
    let patience = Some(Duration::from_secs(5));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
