//! The batcher of a worker thread. A fake server in Redis's place answers when the test allows it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use seckill_config::{Config, Purchase};
use seckill_domain::admission::{Admission, ReserveRequest};
use seckill_domain::captcha::PassCheck;
use seckill_domain::ids::{Epoch, OrderId, SaleId, Units, UserId};
use seckill_domain::shards::{SaleShards, ShardCount};
use seckill_redis::reserve::batcher::ReserveBatcher;
use seckill_redis::thread_gate::CallWinners;
use seckill_redis::{Gate, GateError};

/// The longest wait, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The script's reply for this number of buyers.
type Reply = fn(usize) -> String;

/// The sale is being refilled.
fn refilling(_: usize) -> String {
    "*1\r\n:-2\r\n".into()
}

/// Each buyer gets a unit, at epoch 7, to be paid by 5000.
fn reserved(buyers: usize) -> String {
    let codes = "\0".repeat(buyers);
    format!("*8\r\n:7\r\n:1000\r\n:0\r\n:0\r\n*0\r\n:5000\r\n${buyers}\r\n{codes}\r\n*0\r\n")
}

/// Each buyer has written a loan, at epoch 7.
fn borrow(buyers: usize) -> String {
    let codes = "\u{12}".repeat(buyers);
    let details: String = (0..buyers).map(|place| format!(":{place}\r\n$1\r\n1\r\n")).collect();
    let count = 2 * buyers;
    format!("*8\r\n:7\r\n:1000\r\n:0\r\n:0\r\n*0\r\n:5000\r\n${buyers}\r\n{codes}\r\n*{count}\r\n{details}")
}

/// A server that shows each call of a script, and answers it when the test allows it.
struct SlowRedis {
    url: String,
    /// For each call that has arrived: the key of the sale, and the number of buyers.
    calls: mpsc::UnboundedReceiver<(String, usize)>,
    /// The number of further calls to answer.
    answers: Arc<Semaphore>,
}

impl SlowRedis {
    async fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let (arrived, calls) = mpsc::unbounded_channel();
        let answers = Arc::new(Semaphore::new(0));
        let may_answer = Arc::clone(&answers);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(Self::serve(client, reply, arrived.clone(), Arc::clone(&may_answer)));
            }
        });
        Self { url, calls, answers }
    }

    /// Reads commands as they come, and answers them in order.
    async fn serve(
        client: TcpStream,
        reply: Reply,
        arrived: mpsc::UnboundedSender<(String, usize)>,
        may_answer: Arc<Semaphore>,
    ) {
        let (reads, mut writes) = client.into_split();
        let (read, mut answering) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut reads = BufReader::new(reads);
            while let Some(words) = command(&mut reads).await {
                // The script's hash, the number of keys, and the keys: the first is the sale's. Then the number of buyers, which lend.lua,
                // with 8 keys, has in the fourth place.
                let buyers: Option<usize> = (words[0] == "EVALSHA").then(|| {
                    let keys: usize = words[2].parse().unwrap();
                    words[3 + keys + if keys == 8 { 3 } else { 0 }].parse().unwrap()
                });
                if let Some(buyers) = buyers {
                    let _ = arrived.send((words[3].clone(), buyers));
                }
                let _ = read.send(buyers);
            }
        });
        while let Some(buyers) = answering.recv().await {
            let answer = match buyers {
                Some(buyers) => {
                    may_answer.acquire().await.unwrap().forget();
                    reply(buyers)
                }
                None => "+OK\r\n".into(),
            };
            if writes.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// The next call, which may have arrived already.
    async fn next_call(&mut self) -> (String, usize) {
        tokio::time::timeout(PATIENCE, self.calls.recv()).await.expect("no call arrives").unwrap()
    }
}

/// The words of the next command; `None` at the end of the connection.
async fn command(reads: &mut BufReader<OwnedReadHalf>) -> Option<Vec<String>> {
    let words = length(reads, '*').await?;
    let mut command = Vec::new();
    for _ in 0..words {
        let mut word = vec![0; length(reads, '$').await? + 2];
        reads.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        command.push(String::from_utf8(word).unwrap());
    }
    Some(command)
}

/// The number in a line that begins with this mark.
async fn length(reads: &mut BufReader<OwnedReadHalf>, mark: char) -> Option<usize> {
    let mut line = String::new();
    reads.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}

fn batcher(redis: &SlowRedis) -> (ReserveBatcher, mpsc::UnboundedReceiver<CallWinners>) {
    let environment = [
        ("REDIS_URL", redis.url.as_str()),
        ("DATABASE_URL", "postgres://x@127.0.0.1:1/x"),
        ("AMQP_URL", "amqp://127.0.0.1:1/%2f"),
        ("SECKILL_DEV", "1"),
        ("SECKILL_REDIS__PREFIX", "t:"),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut config = Config::read(&environment).unwrap();
    let patience_ms = u64::try_from(PATIENCE.as_millis()).unwrap();
    (config.redis.connect_timeout_ms, config.redis.response_timeout_ms) = (patience_ms, patience_ms);
    let purchase = Purchase {
        buyer_limit: -1,
        address_limit: -1,
        sale_limit: -1,
        wait_target_ms: 250,
        batch_max: 3,
        queue_max: 5,
        commit_batch_max: 1,
        committers: 1,
        ..config.purchase
    };
    ReserveBatcher::new(Gate::new(&config.redis, &purchase).unwrap()).unwrap()
}

/// A batcher and its callers run on one thread.
async fn local<T>(work: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(work).await
}

fn of(sale: i64) -> SaleShards {
    SaleShards { sale: SaleId::from_db(sale), count: ShardCount::ONE, asks_pass: false }
}

/// Asks for a unit in a separate task.
fn ask(batcher: &ReserveBatcher, sale: i64) -> JoinHandle<Result<Admission, GateError>> {
    ask_as("ann", batcher, of(sale))
}

fn ask_as(user: &str, batcher: &ReserveBatcher, sale: SaleShards) -> JoinHandle<Result<Admission, GateError>> {
    let request = ReserveRequest {
        order: OrderId(uuid::Uuid::now_v7()),
        user: UserId::parse(user).unwrap(),
        address: IpAddr::from([10, 0, 0, 1]).into(),
        units: Units::ONE,
        terms_version: 0,
        wrong_key: false,
        level_too_low: false,
        pass: PassCheck::NotAsked,
        trace: None,
    };
    let batcher = batcher.clone();
    spawn_local(async move { batcher.reserve(sale, request, 0).await })
}

/// An unanswered call holds back its own sale alone. Later requests for that sale go into its next calls.
#[tokio::test]
async fn a_slow_call_of_one_sale_holds_back_no_other() {
    let mut redis = SlowRedis::start(refilling).await;
    let (batcher, _calls) = batcher(&redis);
    local(async {
        let first = ask(&batcher, 1);
        assert_eq!(redis.next_call().await, ("t:{1}:sale".into(), 1));
        let other = ask(&batcher, 2);
        assert_eq!(redis.next_call().await, ("t:{2}:sale".into(), 1));
        let waiting: Vec<_> = (0..5).map(|_| ask(&batcher, 1)).collect();
        tokio::task::yield_now().await;
        let in_line = |sale| batcher.take_waits(Duration::ZERO).get(&SaleId::from_db(sale)).map(|wait| wait.in_line);
        assert!(in_line(1) > Some(Duration::ZERO), "five requests wait for their call");
        assert_eq!(in_line(2), Some(Duration::ZERO), "they hold back no other sale");
        waiting[0].abort();
        redis.answers.add_permits(2);
        assert_eq!(redis.next_call().await, ("t:{1}:sale".into(), 3));
        assert!(!waiting[3].is_finished(), "no more fit into one call");
        redis.answers.add_permits(2);
        assert_eq!(redis.next_call().await, ("t:{1}:sale".into(), 1));
        for asked in [first, other].into_iter().chain(waiting.into_iter().skip(1)) {
            assert_eq!(asked.await.unwrap().unwrap(), Admission::NotServing);
        }
        // The waits of these four were measured when the batcher took them.
        assert!(in_line(1) > Some(Duration::ZERO));
        assert_eq!(in_line(1), None, "nobody waits");
    })
    .await;
}

/// The line of all sales is bounded, whichever sale fills it. It has room again when its requests are being served.
#[tokio::test]
async fn the_line_is_bounded() {
    let mut redis = SlowRedis::start(refilling).await;
    let (batcher, _calls) = batcher(&redis);
    local(async {
        let under_way = ask(&batcher, 1);
        redis.next_call().await;
        let waiting: Vec<_> = (0..6).map(|_| ask(&batcher, 1)).collect();
        while !waiting.iter().any(JoinHandle::is_finished) {
            tokio::task::yield_now().await;
        }
        redis.answers.add_permits(100);
        under_way.await.unwrap().unwrap();
        let answers = join_all(waiting).await.into_iter().map(|answer| answer.unwrap().is_ok());
        assert!(answers.eq([true, true, true, true, true, false]));
        assert_eq!(ask(&batcher, 1).await.unwrap().unwrap(), Admission::NotServing);
    })
    .await;
}

/// The winners of a call are committed together, and none is answered before the row is durable (rule 3).
#[tokio::test]
async fn winners_of_one_call_wait_for_one_commit() {
    let mut redis = SlowRedis::start(reserved).await;
    let (batcher, mut calls) = batcher(&redis);
    local(async {
        let first = ask(&batcher, 1);
        redis.next_call().await;
        let next: Vec<_> = (0..3).map(|_| ask(&batcher, 1)).collect();
        redis.answers.add_permits(1);
        let mut first_call = calls.recv().await.unwrap();
        assert_eq!((first_call.shards, first_call.hold.epoch, first_call.winners.len()), (of(1), Epoch(7), 1));
        assert_eq!(redis.next_call().await.1, 3);
        assert!(!first.is_finished(), "its row is not durable");
        next[0].abort();
        redis.answers.add_permits(1);
        let next_call = calls.recv().await.unwrap();
        assert_eq!(next_call.winners.len(), 3);
        for (winner, is_durable) in next_call.winners.into_iter().zip([true, true, false]) {
            winner.answer.give(is_durable);
        }
        let answers = join_all(next.into_iter().skip(1)).await.into_iter().map(|answer| answer.unwrap().unwrap());
        assert_eq!(answers.collect::<Vec<_>>(), [Admission::Reserved { expires_at_ms: 5000 }, Admission::NotDurable]);
        assert!(!first.is_finished());
        first_call.winners.remove(0).answer.give(true);
        assert_eq!(first.await.unwrap().unwrap(), Admission::Reserved { expires_at_ms: 5000 });
    })
    .await;
}

/// Panics when the batcher makes this call, counted from 1.
struct Bug(Cell<u32>);

impl Recorder for Bug {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if key.name() == "seckill_gate_batch_size" {
            self.0.update(|calls| calls.wrapping_sub(1));
            assert!(self.0.get() != 0, "a bug");
        }
        Histogram::noop()
    }
}

/// A bug that ends the task of a sale closes no sale. The waiting requests are answered "unknown", and the next request is served.
#[tokio::test]
async fn a_panic_in_a_sales_task_closes_no_sale() {
    let mut redis = SlowRedis::start(reserved).await;
    let (batcher, mut calls) = batcher(&redis);
    let bug = Bug(Cell::new(3));
    let _guard = metrics::set_default_local_recorder(&bug);
    local(async {
        spawn_local(async move {
            while let Some(call) = calls.recv().await {
                call.winners.into_iter().for_each(|winner| winner.answer.give(true));
            }
        });
        let first = ask(&batcher, 1);
        redis.next_call().await;
        let waiting: Vec<_> = (0..4).map(|_| ask(&batcher, 1)).collect();
        let other = ask(&batcher, 2);
        assert_eq!(redis.next_call().await.0, "t:{2}:sale");
        redis.answers.add_permits(100);
        for asked in waiting {
            assert!(matches!(asked.await.unwrap(), Err(GateError::Unknown)), "nobody is forgotten");
        }
        for asked in [first, other] {
            assert_eq!(asked.await.unwrap().unwrap(), Admission::Reserved { expires_at_ms: 5000 });
        }
        // These five fill the line, so the earlier requests are no longer counted.
        for asked in [1; 5].map(|sale| ask(&batcher, sale)) {
            assert_eq!(asked.await.unwrap().unwrap(), Admission::Reserved { expires_at_ms: 5000 });
        }
    })
    .await;
}

/// An unreachable lender does not let the line grow beyond its bound (protocol, rule 15).
#[tokio::test]
async fn those_who_borrow_count_among_those_who_wait() {
    let mut redis = SlowRedis::start(borrow).await;
    let (batcher, _calls) = batcher(&redis);
    let sale = SaleShards { count: ShardCount::parse(2).unwrap(), ..of(1) };
    local(async {
        let ask = || ask_as("ann", &batcher, sale);
        let _borrowers = [ask(), ask(), ask()];
        let (home, buyers) = redis.next_call().await;
        assert_eq!(buyers, 3);
        redis.answers.add_permits(1);
        let (lender, borrowers) = redis.next_call().await;
        assert!(borrowers == 3 && lender != home, "{lender} is asked for {borrowers}");
        let _waiting = [ask(), ask()];
        let answer = ask().await.unwrap();
        assert!(matches!(answer, Err(GateError::Overloaded)), "{answer:?}");
    })
    .await;
}
