//! The batcher of a worker thread, with a server in Redis's place that answers when the test lets it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use seckill::config;
use seckill::domain::admission::{Admission, ReserveRequest};
use seckill::domain::captcha::PassCheck;
use seckill::domain::ids::{OrderId, SaleId, Units, UserId};
use seckill::gate::reserve_batcher::ReserveBatcher;
use seckill::gate::{Gate, GateError};
use seckill_harness::{PATIENCE, eventually};

/// A server that shows each call of a script, and answers it when it may: always that the sale is being refilled.
struct SlowRedis {
    url: String,
    /// The key of the sale, and the number of buyers, of each call that has arrived.
    calls: mpsc::UnboundedReceiver<(String, usize)>,
    /// How many more calls are answered.
    answers: Arc<Semaphore>,
}

impl SlowRedis {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let (arrived, calls) = mpsc::unbounded_channel();
        let answers = Arc::new(Semaphore::new(0));
        let may_answer = Arc::clone(&answers);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(Self::serve(client, arrived.clone(), Arc::clone(&may_answer)));
            }
        });
        Self { url, calls, answers }
    }

    /// Reads commands as they come, and answers them in their order.
    async fn serve(client: TcpStream, arrived: mpsc::UnboundedSender<(String, usize)>, may_answer: Arc<Semaphore>) {
        let (reads, mut writes) = client.into_split();
        let (read, mut answering) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut reads = BufReader::new(reads);
            while let Some(words) = command(&mut reads).await {
                let is_script = words[0] == "EVALSHA";
                if is_script {
                    // The script's hash, 9 and nine keys, of which the sale's is the first; then the number of buyers.
                    let _ = arrived.send((words[3].clone(), words[12].parse().unwrap()));
                }
                let _ = read.send(is_script);
            }
        });
        while let Some(is_script) = answering.recv().await {
            if is_script {
                may_answer.acquire().await.unwrap().forget();
            }
            let answer: &[u8] = if is_script { b"*1\r\n:-2\r\n" } else { b"+OK\r\n" };
            if writes.write_all(answer).await.is_err() {
                return;
            }
        }
    }

    /// The next call that arrives, or has arrived.
    async fn next_call(&mut self) -> (String, usize) {
        tokio::time::timeout(PATIENCE, self.calls.recv()).await.expect("no call arrives").unwrap()
    }
}

/// The words of the next command; `None` at the connection's end.
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

fn batcher(redis: &SlowRedis) -> ReserveBatcher {
    let patience_ms = u64::try_from(PATIENCE.as_millis()).unwrap();
    let redis = config::Redis {
        url: redis.url.clone(),
        lock_urls: Vec::new(),
        ca_file: None,
        prefix: "t:".into(),
        connect_timeout_ms: patience_ms,
        response_timeout_ms: patience_ms,
    };
    let purchase = config::Purchase {
        buyer_limit: -1,
        buyer_window_ms: 1000,
        address_limit: -1,
        address_window_ms: 1000,
        sale_limit: -1,
        sale_window_ms: 1000,
        lapses_max: -1,
        lapse_wait_ms: 1000,
        sold_out_memory_ms: 500,
        wait_target_ms: 250,
        batch_max: 3,
        queue_max: 5,
        commit_batch_max: 1,
        committers: 1,
    };
    ReserveBatcher::new(Gate::new(&redis, &purchase).unwrap()).unwrap()
}

/// Asks for a unit, in a task of its own.
fn ask(batcher: &ReserveBatcher, sale: i64) -> JoinHandle<Result<Admission, GateError>> {
    let request = ReserveRequest {
        order: OrderId(uuid::Uuid::now_v7()),
        user: UserId::parse("ann").unwrap(),
        address: "10.0.0.1".into(),
        units: Units::ONE,
        wrong_key: false,
        level_too_low: false,
        pass: PassCheck::NotAsked,
    };
    let batcher = batcher.clone();
    spawn_local(async move { batcher.reserve(SaleId::from_db(sale), request, 0).await })
}

/// A call that is not answered holds back its own sale alone; what comes for that sale meanwhile goes into its next calls, also
/// what a caller has asked for who has gone away.
#[tokio::test]
async fn a_slow_call_of_one_sale_holds_back_no_other() {
    let mut redis = SlowRedis::start().await;
    let batcher = batcher(&redis);
    LocalSet::new()
        .run_until(async {
            let first = ask(&batcher, 1);
            assert_eq!(redis.next_call().await, ("t:{1}:sale".into(), 1));
            let waiting: Vec<_> = (0..4).map(|_| ask(&batcher, 1)).collect();
            let other = ask(&batcher, 2);
            assert_eq!(redis.next_call().await, ("t:{2}:sale".into(), 1));
            assert!(batcher.take_wait() > Duration::ZERO, "four requests wait for their call");
            waiting[0].abort();
            redis.answers.add_permits(2);
            assert_eq!(redis.next_call().await, ("t:{1}:sale".into(), 3));
            assert!(!waiting[3].is_finished(), "no more fit into one call");
            redis.answers.add_permits(2);
            assert_eq!(redis.next_call().await, ("t:{1}:sale".into(), 1));
            for asked in [first, other].into_iter().chain(waiting.into_iter().skip(1)) {
                assert_eq!(asked.await.unwrap().unwrap(), Admission::NotServing);
            }
            // The waits of those four, which were measured when they were taken.
            assert!(batcher.take_wait() > Duration::ZERO);
            assert_eq!(batcher.take_wait(), Duration::ZERO, "nobody waits");
        })
        .await;
}

/// The line of all sales is bounded, whatever sale fills it, and it has room again when its requests are being served.
#[tokio::test]
async fn the_line_is_bounded() {
    let mut redis = SlowRedis::start().await;
    let batcher = batcher(&redis);
    LocalSet::new()
        .run_until(async {
            let under_way = ask(&batcher, 1);
            redis.next_call().await;
            let waiting: Vec<_> = (0..6).map(|_| ask(&batcher, 1)).collect();
            let refused = eventually(|| async {
                let refused = waiting.iter().filter(|asked| asked.is_finished()).count();
                if refused > 0 { Ok(refused) } else { Err("nobody is refused".to_owned()) }
            })
            .await;
            assert_eq!(refused, 1);
            redis.answers.add_permits(100);
            under_way.await.unwrap().unwrap();
            let mut answers = Vec::new();
            for asked in waiting {
                answers.push(asked.await.unwrap().is_ok());
            }
            assert_eq!(answers, [true, true, true, true, true, false]);
            assert_eq!(ask(&batcher, 1).await.unwrap().unwrap(), Admission::NotServing);
        })
        .await;
}
