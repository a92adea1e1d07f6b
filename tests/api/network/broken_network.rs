//! The network is broken on purpose.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use seckill_config::Database;
use seckill_domain::log_filter::LogFilter;
use seckill_domain::sale::NewSale;
use seckill_harness::{PATIENCE, Sale, System, eventually, terms, until};
use seckill_postgres::Ledger;
use serde_json::json;

/// A wire that can be cut: connections break, and new ones fail until it is mended. It can also be slow, or lose answers.
#[derive(Clone)]
pub struct Wire {
    pub address: SocketAddr,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    is_cut: AtomicBool,
    is_mute: AtomicBool,
    snip: Notify,
    refused: AtomicUsize,
    unanswered: AtomicUsize,
    delay_ms: AtomicU64,
    to_lose: AtomicUsize,
    sent: Mutex<Vec<u8>>,
}

impl Wire {
    pub async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Self { address: listener.local_addr().unwrap(), line: Arc::default() };
        let line = Arc::clone(&wire.line);
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                if line.is_cut.load(Ordering::SeqCst) {
                    line.refused.fetch_add(1, Ordering::SeqCst);
                    continue; // dropped at once
                }
                if line.is_mute.load(Ordering::SeqCst) {
                    line.unanswered.fetch_add(1, Ordering::SeqCst);
                }
                tokio::spawn(connect(near, target.clone(), Arc::clone(&line)));
            }
        });
        wire
    }

    pub fn cut(&self) {
        self.line.is_cut.store(true, Ordering::SeqCst);
        self.line.snip.notify_waiters();
    }

    /// Waits until this many connections have been tried since the wire was cut.
    pub async fn tried_in_vain(&self, times: usize) {
        let before = self.refused();
        until(true, || async { self.refused() >= before + times }).await;
    }

    pub fn refused(&self) -> usize {
        self.line.refused.load(Ordering::SeqCst)
    }

    /// Waits until this many connections have been made that get no answer.
    pub async fn made_in_vain(&self, times: usize) {
        until(true, || async { self.line.unanswered.load(Ordering::SeqCst) >= times }).await;
    }

    /// Drops packets: connections stay open, and nothing arrives.
    pub fn swallow(&self) {
        self.line.is_mute.store(true, Ordering::SeqCst);
        self.line.snip.notify_waiters();
    }

    pub fn mend(&self) {
        self.line.is_cut.store(false, Ordering::SeqCst);
        if self.line.is_mute.swap(false, Ordering::SeqCst) {
            self.line.snip.notify_waiters();
        }
    }

    /// From now on, everything takes this long in either direction.
    pub fn delay(&self, delay: Duration) {
        self.line.delay_ms.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Loses the next answers, and each connection with its answer: the server has done its work, and the caller does not know it.
    pub fn lose(&self, answers: usize) {
        self.line.to_lose.store(answers, Ordering::SeqCst);
    }

    /// The number of requests that begin with this line.
    pub fn requests(&self, line: &str) -> usize {
        String::from_utf8_lossy(&self.line.sent.lock().unwrap()).matches(line).count()
    }
}

/// Connects a caller with the server, until one of them ends or the wire is cut.
async fn connect(mut near: TcpStream, target: String, line: Arc<Line>) {
    let cut = line.snip.notified();
    if line.is_cut.load(Ordering::SeqCst) {
        return; // cut before this task began
    }
    if line.is_mute.load(Ordering::SeqCst) {
        return cut.await; // taken, and never answered
    }
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    tokio::select! {
        _ = pass_on(&mut near, &mut far, &line) => {}
        () = cut => {
            if line.is_mute.load(Ordering::SeqCst) {
                line.snip.notified().await; // both ends stay, and nothing passes
            }
        }
    }
}

/// Passes on bytes in both directions, until both ends have ended or one of them breaks.
async fn pass_on(near: &mut TcpStream, far: &mut TcpStream, line: &Line) -> std::io::Result<()> {
    let ((near_in, near_out), (far_in, far_out)) = (near.split(), far.split());
    let there = pass_one_way(near_in, far_out, line, |bytes| {
        line.sent.lock().unwrap().extend_from_slice(bytes);
        true
    });
    let back = pass_one_way(far_in, near_out, line, |_| {
        let one_less = |left: usize| left.checked_sub(1);
        line.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err()
    });
    tokio::try_join!(there, back).map(drop)
}

async fn pass_one_way(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    line: &Line,
    passes: impl Fn(&[u8]) -> bool,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 65_536];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if !passes(&bytes[..read]) {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        let delay = Duration::from_millis(line.delay_ms.load(Ordering::SeqCst));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        to.write_all(&bytes[..read]).await?;
    }
}

/// A wire to the server at this address, and the address over the wire.
pub async fn wire_to(url: &str) -> (Wire, String) {
    let start = url.find("127.0.0.1:").unwrap();
    let (before, after) = (&url[..start], &url[start + "127.0.0.1:".len()..]);
    let port: String = after.chars().take_while(char::is_ascii_digit).collect();
    let wire = Wire::to(format!("127.0.0.1:{port}")).await;
    let over_the_wire = format!("{before}{}{}", wire.address, &after[port.len()..]);
    (wire, over_the_wire)
}

/// A system whose connections of one kind go over a wire.
pub async fn wired(variable: &'static str) -> (System, Wire) {
    wired_with(variable, &[]).await
}

pub async fn wired_with(variable: &'static str, settings: &[(&str, &str)]) -> (System, Wire) {
    let mut system = System::prepare(settings).await;
    let wire = put_wire(&mut system, variable).await;
    system.serve(true).await;
    (system, wire)
}

/// A system whose instance does not wait long for a lost server. The test's own calls may take longer.
async fn wired_and_impatient(variable: &'static str) -> (System, Wire) {
    let mut system = System::prepare(&[]).await;
    let wire = put_wire(&mut system, variable).await;
    let (redis, database) = (&mut system.config.redis, &mut system.config.database);
    (redis.connect_timeout_ms, redis.response_timeout_ms) = (2000, 2000);
    database.acquire_timeout_ms = 2000;
    system.serve(true).await;
    (system, wire)
}

/// Leads the connections of one kind over a wire, for instances that start later.
async fn put_wire(system: &mut System, variable: &str) -> Wire {
    let (wire, over_the_wire) = wire_to(&system.environment[variable]).await;
    match variable {
        "AMQP_URL" => system.config.amqp.url = over_the_wire,
        "REDIS_URL" => system.config.redis.url = over_the_wire,
        _ => system.config.database.url = over_the_wire,
    }
    wire
}

/// The broker disappears without a word, while nothing is published and nothing is awaited. The service notices the silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_without_a_word_is_noticed() {
    let (system, wire) = wired_with("AMQP_URL", &[("SECKILL_AMQP__HEARTBEAT_S", "1")]).await;
    let crowd = Crowd::at(system).await;
    crowd.all_buy().await;
    crowd.settles().await;
    wire.swallow();
    wire.made_in_vain(3).await;
    crowd.all_buy().await;
    wire.mend();
    crowd.settles().await;
    for sale in &crowd.sales {
        assert_eq!(crowd.system.orders(sale).await, 2);
    }
    crowd.system.finish().await;
}

/// The most connections per second to a broker that is away: three loops, each with a growing pause.
const CONNECTIONS_A_SECOND: f64 = 10.0;

/// F4 in small: each buyer's first request is accepted, and everything settles when the broker is back.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_broker_winners_go_on_being_accepted() {
    // A slow machine sheds purchases with the answer that this test excludes.
    let (system, wire) = wired_with("AMQP_URL", &[("SECKILL_PURCHASE__WAIT_TARGET_MS", "10000")]).await;
    let crowd = Crowd::at(system).await;
    for _ in 0..2 {
        crowd.all_buy().await;
    }
    let cut = Instant::now();
    wire.cut();
    // A message published earlier may have been returned, which is an attempt.
    let before: i64 = crowd.system.value("SELECT coalesce(max(id), 0) FROM outbox").await;
    for _ in 0..4 {
        assert_eq!(crowd.buy().await, ["202"; 5]);
    }
    wire.tried_in_vain(5).await;
    let (tried, away) = (wire.refused(), cut.elapsed());
    assert!(tried as f64 <= away.as_secs_f64() * CONNECTIONS_A_SECOND + 10.0, "{tried} connections in {away:?}");
    for sale in &crowd.sales {
        assert!(crowd.system.orders(sale).await <= 2);
    }
    let attempts = sqlx::query_scalar("SELECT max(attempts)::bigint FROM outbox WHERE id > $1").bind(before);
    let attempts: i64 = attempts.fetch_one(&crowd.system.sql).await.unwrap();
    assert_eq!(attempts, 0, "a broker that cannot be reached counts as no attempt");
    wire.mend();
    crowd.settles().await;
    for sale in &crowd.sales {
        assert_eq!((crowd.system.orders(sale).await, crowd.system.stock(sale).await), (6, STOCK - 6));
    }
    crowd.system.finish().await;
}

/// The sweeper replaces the broker while it is away, also when messages are overdue and their marks cannot be sent (rule 6).
#[tokio::test(flavor = "multi_thread")]
async fn without_the_broker_the_sweeper_cancels_although_messages_are_overdue() {
    let settings = [
        ("SECKILL_OUTBOX__RESEND_AFTER_MS", "1000"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "200"),
        ("SECKILL_RECONCILE__SWEEP_GRACE_MS", "100"),
    ];
    let (system, wire) = wired_with("AMQP_URL", &settings).await;
    let sale = system.create_sale(NewSale { pay_within_ms: 600_000, ..terms(2) }).await;
    system.all_buy(&sale, &["a", "b"]).await;
    system.settled(&sale).await;
    system.left(&sale, 0).await;
    // Their expiries are on the delay ladder.
    let unsent = "SELECT count(*) FROM outbox WHERE kind = 'group_expire' AND status <> 'sent'";
    until(0, || system.value::<i64>(unsent)).await;
    wire.cut();
    let overdue = "UPDATE outbox SET due_at = now() - interval '1 minute' WHERE kind = 'group_expire'";
    assert!(system.execute(overdue).await > 0);
    wire.tried_in_vain(5).await;
    system.execute("UPDATE orders SET expires_at = now() - interval '1 second'").await;
    system.left(&sale, 2).await;
    wire.mend();
    system.settled(&sale).await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_purchases_fail_closed_and_quickly() {
    for silent in [false, true] {
        let (system, wire) = wired_and_impatient("REDIS_URL").await;
        let crowd = Crowd::at(system).await;
        crowd.sells().await;
        if silent {
            wire.swallow();
        } else {
            wire.cut();
        }
        let began = Instant::now();
        for _ in 0..5 {
            // Without a time-out they would wait until the wire is mended.
            let answers = tokio::time::timeout(PATIENCE, crowd.buy()).await.expect("it fails in time");
            assert_eq!(answers, ["503 temporarily-unavailable"; 5]);
        }
        // The time-out is two seconds each.
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        wire.mend();
        crowd.recovers().await;
    }
}

/// A step that is interrupted while its transaction begins must leave no transaction on its connection for the next user.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_begin_leaves_no_transaction_open() {
    let system = System::prepare(&[]).await;
    let (wire, url) = wire_to(&system.environment["DATABASE_URL"]).await;
    let config = Database { url, max_connections: 1, acquire_timeout_ms: 20_000, ..system.config.database.clone() };
    let ledger = Ledger::new(&config, 1).unwrap();
    ledger.now_ms().await.unwrap();
    wire.delay(Duration::from_millis(30));
    // Four things take 60 ms each or more: giving the connection back, sqlx's test of it, BEGIN, and each statement of the step.
    for ms in (0..400).step_by(10) {
        let interrupted =
            tokio::time::timeout(Duration::from_millis(ms), ledger.accounts.audit_log(&LogFilter::default())).await;
        let subject = format!("after {ms} ms");
        ledger.accounts.record("test", "write", &subject, json!({})).await.unwrap();
        let written = sqlx::query_scalar("SELECT count(*) FROM audit_log WHERE subject = $1").bind(&subject);
        let written: i64 = written.fetch_one(&system.sql).await.unwrap();
        assert_eq!(written, 1, "not committed: {subject} (through: {})", interrupted.is_ok());
    }
    system.finish().await;
}

/// F38: a slow way to a server and back costs time and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_makes_purchases_wait_and_loses_none() {
    for (server, delay_ms) in [("REDIS_URL", 60), ("DATABASE_URL", 30), ("AMQP_URL", 100)] {
        let (system, wire) = wired(server).await;
        let crowd = Crowd::at(system).await;
        crowd.all_buy().await;
        wire.delay(Duration::from_millis(delay_ms));
        crowd.sells().await;
        // On a busy machine many calls may time out. Then more buyers come.
        let (mut bought, began) = (0, Instant::now());
        while bought < 25 {
            let answers = join_all((0..10).map(|_| crowd.buy())).await.concat();
            bought += answers.iter().filter(|answer| *answer == "202").count();
            assert!(bought >= 25 || began.elapsed() < PATIENCE, "{server}: {bought} bought, {answers:?}");
        }
        wire.delay(Duration::ZERO);
        crowd.recovers().await;
    }
}

const STOCK: i64 = 10_000;

/// Five sales in one system, and buyers who keep coming.
struct Crowd {
    system: System,
    sales: Vec<Sale>,
    next: AtomicUsize,
}

impl Crowd {
    async fn at(system: System) -> Self {
        let sales = join_all((0..5).map(|_| system.create_sale(terms(STOCK)))).await;
        Self { system, sales, next: AtomicUsize::new(0) }
    }

    /// The name and the address of a new buyer.
    fn next_buyer(&self) -> (String, String) {
        let n = self.next.fetch_add(1, Ordering::SeqCst);
        (format!("c{n}"), format!("10.5.{}.{}", n / 250, n % 250))
    }

    /// A new buyer buys one unit in each sale. While a busy service refuses, the buyer repeats under the same Idempotency-Key.
    async fn all_buy(&self) {
        let (user, from) = &self.next_buyer();
        let buys = self.sales.iter().map(|sale| {
            until(
                "202",
                move || async move { self.system.buy(sale, user).idempotent("k").from(from).send().await.code() },
            )
        });
        join_all(buys).await;
    }

    /// A new buyer in each sale. Returns the answers.
    async fn buy(&self) -> Vec<String> {
        let (user, from) = self.next_buyer();
        let clicks = self.sales.iter().map(|sale| self.system.buy(sale, &user).from(&from).send());
        join_all(clicks).await.iter().map(seckill_harness::Answer::code).collect()
    }

    async fn sells(&self) {
        until(vec!["202".to_owned(); self.sales.len()], || self.buy()).await;
    }

    /// Sends buyers until purchases are refused before they reach Redis; then refusals come at once, and few holds are without a
    /// row.
    async fn fails_closed(&self) {
        eventually(|| async {
            let before = self.holds().await;
            let answers = join_all((0..20).map(|_| self.buy())).await.concat();
            let closed = answers.iter().all(|answer| answer == "503 temporarily-unavailable");
            let holds = self.holds().await;
            (closed && holds == before).then_some(()).ok_or(format!("{holds} holds, {before} before"))
        })
        .await;
        let began = Instant::now();
        for _ in 0..10 {
            self.buy().await;
        }
        // Without the early refusal, each would wait for the sum of PostgreSQL's time-outs.
        assert!(began.elapsed() < PATIENCE, "refusals took {:?}", began.elapsed());
        let left = self.holds().await;
        assert!(left <= FEW, "{left} holds without a row");
    }

    /// Holds that Redis does not know as committed.
    async fn holds(&self) -> i64 {
        let mut sum = 0;
        for sale in &self.sales {
            sum +=
                self.system.stores.gate.sale_view(self.system.shards(sale).await).await.unwrap().unwrap().unconfirmed;
        }
        sum
    }

    async fn settles(&self) {
        join_all(self.sales.iter().map(|sale| self.system.settled(sale))).await;
    }

    /// The fault is over: every sale sells and settles, and every connection of the pools works.
    async fn recovers(self) {
        self.sells().await;
        self.settles().await;
        // On a slow machine the last buyers may have to repeat.
        let read = || async { self.system.get("/api/v1/orders", Some("c0")).await.0 };
        join_all((0..64).map(|_| until(200, read))).await;
        self.system.finish().await;
    }
}

/// The most holds without a row when PostgreSQL stops: purchases in flight, and arrivals until the failure is noticed.
const FEW: i64 = 500;

/// F25: PostgreSQL disappears: packets are dropped and connections stay open, or all connections break.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_goes_without_a_word_is_noticed_and_forgotten() {
    for silent in [true, false] {
        let (system, wire) = wired_and_impatient("DATABASE_URL").await;
        let crowd = Crowd::at(system).await;
        crowd.sells().await;
        if silent {
            wire.swallow();
        } else {
            wire.cut();
            // The reason is PostgreSQL, although Redis's guard may have noticed its absence first.
            until(false, || async { crowd.system.get("/readyz", None).await.1["postgres"].clone() }).await;
        }
        crowd.fails_closed().await;
        wire.mend();
        crowd.recovers().await;
    }
}

/// F25: PostgreSQL becomes read-only, as after a failover, and its sessions end.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_turns_read_only_takes_no_purchase() {
    let crowd = Crowd::at(System::start().await).await;
    crowd.sells().await;
    read_only(&crowd.system, true).await;
    crowd.fails_closed().await;
    read_only(&crowd.system, false).await;
    crowd.recovers().await;
}

/// Makes the system's database read-only or writable, and ends all of its sessions except the test's own.
async fn read_only(system: &System, read_only: bool) {
    let mut own = system.sql.acquire().await.unwrap();
    let database: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&mut *own).await.unwrap();
    let change = format!("ALTER DATABASE {database} SET default_transaction_read_only = {read_only}");
    for sql in ["SET default_transaction_read_only = off", &change] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut *own).await.unwrap();
    }
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    sqlx::query(end).execute(&mut *own).await.unwrap();
}

/// F25: a table is gone, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_lacks_a_table_takes_no_purchase_and_parks_nothing() {
    let settings = [("SECKILL_OUTBOX__MAX_ATTEMPTS", "2"), ("SECKILL_OUTBOX__BACKOFF_BASE_MS", "10")];
    for table in ["outbox", "orders"] {
        let crowd = Crowd::at(System::start_with(&settings).await).await;
        crowd.sells().await;
        crowd.system.execute(format!("ALTER TABLE {table} RENAME TO {table}_gone")).await;
        if table == "outbox" {
            crowd.fails_closed().await;
        } else {
            // Purchases are promised as before; later steps wait.
            crowd.sells().await;
        }
        crowd.system.execute(format!("ALTER TABLE {table}_gone RENAME TO {table}")).await;
        assert_eq!(crowd.system.stores.ledger.outbox.parked(None, None, 10).await.unwrap().len(), 0);
        crowd.recovers().await;
    }
}
