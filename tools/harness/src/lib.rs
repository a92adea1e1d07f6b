//! A complete system for tests, with a database, a Redis prefix and a queue prefix of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

pub mod api_document;
pub mod busy_machine;
pub mod folder;
pub mod nginx;
pub mod outage;
pub mod own_postgres;
pub mod own_rabbitmq;
pub mod receiver;
pub mod redis_cluster;
pub mod redis_group;
pub mod repository;
pub mod running;
mod shared;

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seckill::app::{Service, Stopper, stores};
use seckill_buying::sale::{SaleError, Stores};
use seckill_buying::sale_work::audit::SaleVerdict;
use seckill_config::Config;
use seckill_domain::ids::{SaleId, UserId};
use seckill_domain::sale::NewSale;
use seckill_domain::shards::SaleShards;
use seckill_domain::stock::Stock;
use seckill_rabbitmq::Broker;
use seckill_tokens::Tokens;
use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::{Connection, Decode, PgConnection, PgPool, Postgres, SqlSafeStr};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use uuid::Uuid;

use shared::SharedSystem;

/// The longest wait for a condition, chosen for a slow machine with both cores busy. Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The settings of a system.
pub type Environment = HashMap<String, String>;

/// Waits until a condition holds, and panics with its last error when it does not in time.
pub async fn eventually<T, F: Future<Output = Result<T, String>>>(mut condition: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match condition().await {
            Ok(value) => return value,
            Err(why) if Instant::now() > deadline => panic!("condition not met in time: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Waits until a value meets a condition, and returns it. Panics with the last value when it does not in time.
pub async fn wait_until<T: Debug, F>(mut value: impl FnMut() -> F, condition: impl Fn(&T) -> bool) -> T
where
    F: Future<Output = T>,
{
    let condition = &condition;
    eventually(|| {
        let value = value();
        async move {
            let value = value.await;
            if condition(&value) { Ok(value) } else { Err(format!("{value:?}")) }
        }
    })
    .await
}

/// Waits until a value equals `wanted`.
pub async fn until<W, T: PartialEq<W> + Debug, F>(wanted: W, value: impl FnMut() -> F)
where
    F: Future<Output = T>,
{
    wait_until(value, |value| *value == wanted).await;
}

/// A client that does not reuse a connection after 2 s without a request. The service closes idle connections after 5 s; a request sent
/// at that moment would be lost.
///
/// # Panics
///
/// The TLS backend cannot be initialized.
pub fn http_client() -> reqwest::Client {
    reqwest::Client::builder().pool_idle_timeout(Duration::from_secs(2)).build().unwrap()
}

/// A connection to a Redis, which may take long to answer on a busy machine: by default a client waits for half a second.
///
/// # Errors
///
/// Redis cannot be reached.
pub async fn redis_at(url: &str) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let patience = Some(PATIENCE);
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

/// A new random secret.
pub fn secret() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

/// A new random secret of webhooks and payment channels. Hexadecimal digits are also digits of base64.
pub fn webhook_secret() -> String {
    format!("whsec_{}", secret())
}

/// The address of a server that `./dev test` starts.
///
/// # Panics
///
/// The variable is not set.
pub fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set. This test needs servers: run ./dev test AREA, or ./dev up and eval \"$(./dev env)\""
        )
    })
}

/// Safe settings of a service outside development mode. It has no servers: a refusal comes before it needs one.
pub fn production_settings() -> Environment {
    [
        ("REDIS_URL", format!("redis://:{}@127.0.0.1:1/", secret())),
        ("DATABASE_URL", format!("postgres://seckill:{}@127.0.0.1:1/x", secret())),
        ("AMQP_URL", format!("amqp://seckill:{}@127.0.0.1:1/%2f", secret())),
        ("SECKILL_AUTH__JWT_SECRET", secret()),
        ("SECKILL_HTTP__BIND", "127.0.0.1:0".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// An environment with a new, migrated database, and prefixes of its own.
pub async fn environment(settings: &[(&str, &str)]) -> Environment {
    let name = format!("t{}", &Uuid::new_v4().simple().to_string()[..12]);
    let mut environment: Environment =
        ["REDIS_URL", "DATABASE_URL", "AMQP_URL"].into_iter().map(|name| (name.to_owned(), server(name))).collect();
    let is_elsewhere = settings.iter().any(|(name, _)| *name == "DATABASE_URL");
    if !is_elsewhere {
        static TEMPLATE: OnceCell<String> = OnceCell::const_new();
        let template = TEMPLATE.get_or_init(|| template(&environment)).await;
        create_database(&environment, &format!("{name} TEMPLATE {template}")).await;
    }
    let server = environment["DATABASE_URL"].rsplit_once('/').unwrap().0.to_owned();
    let own = [
        ("DATABASE_URL", format!("{server}/{name}")),
        ("SECKILL_DEV", "1".into()),
        ("SECKILL_AUTH__JWT_SECRET", secret()),
        ("SECKILL_HTTP__BIND", "127.0.0.1:0".into()),
        ("SECKILL_HTTP__TRUSTED_PROXIES", "127.0.0.1".into()),
        ("SECKILL_REDIS__PREFIX", format!("{name}:")),
        ("SECKILL_AMQP__PREFIX", format!("{name}.")),
        ("SECKILL_DATABASE__MAX_CONNECTIONS", "8".into()),
        ("SECKILL_ALARMS__INTERVAL_MS", "1000".into()),
        ("SECKILL_ALARMS__CLEAR_AFTER_MS", "0".into()),
        // Nothing listens there: a test that needs a bank starts one.
        ("SECKILL_CHANNELS__SANDBOX__URL", "http://127.0.0.1:9".into()),
        // Tests poll until a condition holds.
        ("SECKILL_HTTP__BUYER_READS", "100000".into()),
        // Many tests share few cores: a slow server is not a dead one, and a waiting thread is not overloaded.
        ("SECKILL_REDIS__CONNECT_TIMEOUT_MS", "20000".into()),
        ("SECKILL_REDIS__RESPONSE_TIMEOUT_MS", "20000".into()),
        ("SECKILL_DATABASE__ACQUIRE_TIMEOUT_MS", "20000".into()),
        ("SECKILL_FLOW__TIMEOUT_MS", "1000".into()),
        ("SECKILL_PURCHASE__WAIT_TARGET_MS", "10000".into()),
        // The thread that checks passwords is the last to run.
        ("SECKILL_ADMIN__HASH_WAIT_MAX_MS", "120000".into()),
        // A test needs a few challenges, and not thousands.
        ("SECKILL_CAPTCHA__IMAGES_MAX", "20".into()),
        ("SECKILL_CAPTCHA__SLIDERS_MAX", "20".into()),
    ];
    environment.extend(own.map(|(name, value)| (name.to_owned(), value)));
    environment.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    if is_elsewhere {
        stores(&Config::read(&environment).unwrap()).unwrap().ledger.migrate().await.unwrap();
    }
    environment
}

/// The settings of a system where nobody runs or writes, for tests that only look; each has a queue prefix of its own.
pub async fn quiet_environment() -> Environment {
    static QUIET: OnceCell<Environment> = OnceCell::const_new();
    let mut environment = QUIET.get_or_init(|| environment(&[])).await.clone();
    environment.insert("SECKILL_AMQP__PREFIX".into(), format!("t{}.", Uuid::new_v4().simple()));
    environment
}

/// Deletes the queues of a system.
async fn demolished(config: &Config) {
    let broker = Broker::new(config);
    eventually(|| async { broker.demolish().await.map_err(|error| error.to_string()) }).await;
}

/// A migrated database, which is copied for each test: a copy takes half the time of all migrations.
async fn template(environment: &Environment) -> String {
    let name = format!("template{}", Uuid::new_v4().simple());
    create_database(environment, &name).await;
    let url = format!("{}/{name}", environment["DATABASE_URL"].rsplit_once('/').unwrap().0);
    let mut template = PgConnection::connect(&url).await.unwrap();
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
    Migrator::new(migrations).await.unwrap().run(&mut template).await.unwrap();
    template.close().await.unwrap();
    name
}

async fn create_database(environment: &Environment, terms: &str) {
    let mut maintenance = PgConnection::connect(&environment["DATABASE_URL"]).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE DATABASE {terms}"))).execute(&mut maintenance).await.unwrap();
    maintenance.close().await.unwrap();
}

/// The terms of a sale that is open now, one unit per buyer.
pub fn terms(stock: i64) -> NewSale {
    NewSale::of_defaults("Phone".into(), 100, "CNY".parse().unwrap(), Stock::parse(stock).unwrap())
}

/// A system under test: its HTTP address as a client uses it, and the system's own handles.
pub struct System {
    pub environment: Environment,
    pub config: Config,
    pub stores: Stores,
    pub sql: PgPool,
    pub instances: Vec<Instance>,
    http: reqwest::Client,
    tokens: Tokens,
    shared: Option<Arc<SharedSystem>>,
}

/// One running service.
pub struct Instance {
    pub address: SocketAddr,
    /// Nothing if other tests use the service, too.
    own: Option<(Stopper, JoinHandle<anyhow::Result<()>>)>,
}

impl System {
    /// One instance with workers.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub async fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut system = Self::prepare(settings).await;
        system.serve(true).await;
        system
    }

    /// One instance without workers.
    pub async fn without_workers(settings: &[(&str, &str)]) -> Self {
        let mut system = Self::prepare(settings).await;
        system.serve(false).await;
        system
    }

    /// One instance with workers that other tests use at the same time, for a test that only reads answers. The test's sales, buyers,
    /// products, accounts and applications have names of their own, and it counts only those.
    pub async fn shared() -> Self {
        Self::shared_with(&[]).await
    }

    /// As `shared`, with a sale of the test's own.
    pub async fn selling(terms: NewSale) -> (Self, Sale) {
        let system = Self::shared().await;
        let sale = system.create_sale(terms).await;
        (system, sale)
    }

    /// As `shared`, with these settings. Tests with the same settings share one system.
    pub async fn shared_with(settings: &[(&str, &str)]) -> Self {
        let shared = SharedSystem::with(settings).await;
        let running = shared.running();
        let mut system = Self::of(running.environment.clone()).await;
        let instance = Instance { address: running.address, own: None };
        system.wait_until_ready(&instance).await;
        system.instances.push(instance);
        system.shared = Some(shared);
        system
    }

    /// Prepares a system without a running service.
    pub async fn prepare(settings: &[(&str, &str)]) -> Self {
        Self::of(environment(settings).await).await
    }

    async fn of(environment: Environment) -> Self {
        let config = Config::read(&environment).unwrap();
        Self {
            stores: stores(&config).unwrap(),
            sql: PgPool::connect(&config.database.url).await.unwrap(),
            tokens: Tokens::new(&config.auth, true).unwrap(),
            http: http_client(),
            instances: Vec::new(),
            shared: None,
            environment,
            config,
        }
    }

    /// Starts another instance, and waits until it is ready.
    pub async fn serve(&mut self, with_workers: bool) {
        let service = Service::bind(self.config.clone(), with_workers).await.unwrap();
        let (address, stopper) = (service.address(), service.stopper());
        let instance = Instance { address, own: Some((stopper, tokio::spawn(service.run()))) };
        self.wait_until_ready(&instance).await;
        self.instances.push(instance);
    }

    async fn wait_until_ready(&self, instance: &Instance) {
        let ready = format!("http://{}/readyz", instance.address);
        eventually(|| async {
            let answer = self.http.get(&ready).send().await.map_err(|e| e.to_string())?;
            answer.status().is_success().then_some(()).ok_or_else(|| answer.status().to_string())
        })
        .await;
    }

    /// Stops all instances gracefully, and deletes the system's queues. A shared system, which keeps running, needs no end.
    pub async fn finish(mut self) {
        self.stop().await;
        if self.shared.is_none() {
            demolished(&self.config).await;
        }
    }

    /// Stops all instances gracefully.
    pub async fn stop(&mut self) {
        for (stopper, running) in self.instances.drain(..).filter_map(|instance| instance.own) {
            stopper.stop().await;
            running.await.unwrap().unwrap();
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.instances[0].address)
    }

    pub async fn create_sale(&self, terms: NewSale) -> Sale {
        let (id, _) = self.stores.create_sale(&terms.check().unwrap(), "test").await.unwrap();
        self.is_followed().await;
        let keys: (String, String) = sqlx::query_as("SELECT purchase_key, waiting_key FROM sales WHERE id = $1")
            .bind(id.get())
            .fetch_one(&self.sql)
            .await
            .unwrap();
        Sale { id, key: keys.0, waiting_key: keys.1 }
    }

    /// Waits until every instance has loaded the present catalogue.
    pub async fn is_followed(&self) {
        let version = sqlx::query_scalar("SELECT version FROM catalog_version").fetch_one(&self.sql).await.unwrap();
        let followed = self.stores.ledger.sales.wait_for_instances(version, PATIENCE).await.unwrap();
        assert!(followed, "an instance has not loaded the catalogue of version {version}");
    }

    pub fn token(&self, user: &str, level: i64) -> String {
        self.token_for(user, level, 3600)
    }

    /// A token that expires after `seconds`.
    pub fn token_for(&self, user: &str, level: i64, seconds: i64) -> String {
        let exp = chrono::Utc::now().timestamp() + seconds;
        self.tokens.issue(&UserId::parse(user).unwrap(), level, exp).unwrap()
    }

    /// A purchase as a client sends it, to the first instance.
    pub fn buy<'a>(&'a self, sale: &'a Sale, user: &'a str) -> Click<'a> {
        self.buy_at(self.instances[0].address, sale, user)
    }

    /// A purchase at this address.
    pub fn buy_at<'a>(&'a self, at: SocketAddr, sale: &'a Sale, user: &'a str) -> Click<'a> {
        Click {
            system: self,
            at,
            path: sale.id.to_string(),
            token: Some(self.token(user, 0)),
            idempotency_key: None,
            from: None,
            body: json!({ "key": sale.key }).to_string(),
        }
    }

    /// Each of these buyers buys a unit. Returns their orders.
    pub async fn all_buy(&self, sale: &Sale, users: &[impl AsRef<str>]) -> Vec<Uuid> {
        let mut orders = Vec::new();
        for user in users {
            let answer = self.buy(sale, user.as_ref()).send().await;
            assert_eq!(answer.code(), "202");
            orders.push(answer.order_id().parse().unwrap());
        }
        orders
    }

    pub async fn get(&self, path: &str, user: Option<&str>) -> (u16, Value) {
        let mut request = self.http.get(self.url(path));
        if let Some(user) = user {
            request = request.bearer_auth(self.token(user, 0));
        }
        read(request.send().await.unwrap()).await
    }

    pub async fn post(&self, path: &str, user: &str) -> (u16, Value) {
        let request = self.http.post(self.url(path)).bearer_auth(self.token(user, 0));
        read(request.send().await.unwrap()).await
    }

    /// Waits until the sale is at rest and its audit finds nothing.
    pub async fn settled(&self, sale: &Sale) {
        eventually(|| async {
            let verdict = self.audit(sale).await.map_err(|e| e.to_string())?.unwrap();
            let passed = verdict.held && verdict.at_rest && verdict.redis_compared;
            passed.then_some(()).ok_or_else(|| format!("{verdict:#?}"))
        })
        .await;
    }

    pub async fn all_settled<'a>(&self, sales: impl IntoIterator<Item = &'a Sale>) {
        for sale in sales {
            self.settled(sale).await;
        }
    }

    /// Lets the time to pay run out for every unpaid order of a sale: their deadlines move into the past, and their
    /// expiry messages are sent at once. Tests move deadlines instead of racing them.
    pub async fn let_deadlines_pass(&self, sale: &Sale) {
        let moved = [
            "UPDATE orders SET expires_at = now() - interval '1 second'
             WHERE sale_id = $1 AND status = 'pending_payment'",
            "UPDATE outbox SET status = 'pending', due_at = now() - interval '1 second', next_attempt_at = now()
             WHERE sale_id = $1 AND kind = 'group_expire' AND status IN ('pending', 'sent')",
        ];
        let mut tx = self.sql.begin().await.unwrap();
        for sql in moved {
            sqlx::query(sql).bind(sale.id.get()).execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    pub async fn audit(&self, sale: &Sale) -> Result<Option<SaleVerdict>, SaleError> {
        self.stores.audit(sale.id, self.config.reconcile.retire_after_ms).await
    }

    /// Executes statements without parameters. Returns the number of changed rows.
    pub async fn execute(&self, sql: impl Into<String>) -> u64 {
        let sql = sqlx::AssertSqlSafe(sql.into());
        sqlx::raw_sql(sql).execute(&self.sql).await.unwrap().rows_affected()
    }

    /// From now on, PostgreSQL refuses an event such as `INSERT ON orders` for each row with this condition.
    pub async fn refuse(&self, event: &str, condition: &str) {
        let (_, table) = event.split_once(" ON ").unwrap();
        self.execute(format!(
            "CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF {condition} THEN RAISE EXCEPTION 'this one never'; END IF; RETURN NEW; END $$;
             CREATE TRIGGER refuse BEFORE {event} FOR EACH ROW EXECUTE FUNCTION refuse_{table}()"
        ))
        .await;
    }

    /// Ends `refuse` on this table.
    pub async fn allow(&self, table: &str) {
        self.execute(format!("DROP TRIGGER refuse ON {table}")).await;
    }

    /// The result of a query without parameters, which returns one value.
    pub async fn value<T>(&self, sql: impl SqlSafeStr) -> T
    where
        T: Send + Unpin + sqlx::Type<Postgres> + for<'row> Decode<'row, Postgres>,
    {
        sqlx::query_scalar(sql).fetch_one(&self.sql).await.unwrap()
    }

    pub async fn count(&self, sql: &'static str, sale: &Sale) -> i64 {
        sqlx::query_scalar(sql).bind(sale.id.get()).fetch_one(&self.sql).await.unwrap()
    }

    /// The number that a query about everything returns.
    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.sql).await.unwrap()
    }

    /// Changes rows of a sale, and returns their number.
    pub async fn change(&self, sql: &'static str, sale: &Sale) -> u64 {
        sqlx::query(sql).bind(sale.id.get()).execute(&self.sql).await.unwrap().rows_affected()
    }

    pub async fn stock(&self, sale: &Sale) -> i64 {
        self.count("SELECT stock FROM sales WHERE id = $1", sale).await
    }

    /// Waits until the ledger has this many units left.
    pub async fn left(&self, sale: &Sale, units: i64) {
        until(units, || self.stock(sale)).await;
    }

    pub async fn orders(&self, sale: &Sale) -> i64 {
        self.count("SELECT count(*) FROM orders WHERE sale_id = $1", sale).await
    }

    /// The shards, which decide the sale's keys in Redis.
    pub async fn shards(&self, sale: &Sale) -> SaleShards {
        self.stores.ledger.sales.shards_of(&[sale.id]).await.unwrap()[0].shards
    }

    pub async fn available(&self, sale: &Sale) -> Option<i64> {
        self.stores.gate.sale_view(self.shards(sale).await).await.unwrap().unwrap().available
    }
}

/// A sale under test.
pub struct Sale {
    pub id: SaleId,
    pub key: String,
    pub waiting_key: String,
}

/// A purchase request that a test may change before it is sent.
#[derive(Clone)]
pub struct Click<'a> {
    system: &'a System,
    pub at: SocketAddr,
    pub path: String,
    pub token: Option<String>,
    pub idempotency_key: Option<String>,
    pub from: Option<String>,
    pub body: String,
}

impl Click<'_> {
    pub fn idempotent(mut self, key: &str) -> Self {
        self.idempotency_key = Some(key.to_owned());
        self
    }

    pub fn from(mut self, address: &str) -> Self {
        self.from = Some(address.to_owned());
        self
    }

    pub fn body(mut self, body: impl ToString) -> Self {
        self.body = body.to_string();
        self
    }

    pub async fn send(self) -> Answer {
        self.try_send().await.unwrap()
    }

    /// The first answer other than 503: a busy service may refuse for a moment, and such a refusal is not counted.
    pub async fn answered(self) -> Answer {
        eventually(|| async {
            let answer = self.clone().send().await;
            if answer.status == 503 { Err(answer.code()) } else { Ok(answer) }
        })
        .await
    }

    pub async fn try_send(self) -> Result<Answer, reqwest::Error> {
        let url = format!("http://{}/api/v1/sales/{}/purchases", self.at, self.path);
        let mut request = self.system.http.post(url).header("content-type", "application/json").body(self.body);
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = self.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(from) = self.from {
            request = request.header("x-forwarded-for", from);
        }
        Ok(Answer::of(request.send().await?).await)
    }
}

/// The answer to a purchase request.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    pub headers: reqwest::header::HeaderMap,
}

impl Answer {
    pub async fn of(response: reqwest::Response) -> Self {
        let headers = response.headers().clone();
        let (status, body) = read(response).await;
        Self { status, body, headers }
    }

    /// The status and the problem's code, such as `409 sold-out`, or the status alone.
    pub fn code(&self) -> String {
        match self.body["code"].as_str() {
            Some(code) => format!("{} {code}", self.status),
            None => self.status.to_string(),
        }
    }

    pub fn order_id(&self) -> String {
        self.body["order_id"].as_str().expect("an order id").to_owned()
    }
}

async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap_or_default();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
