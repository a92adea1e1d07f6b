//! The crowd: buyers who arrive at a rate whatever the service does, and ask until they know. Every call is written down.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until};
use uuid::Uuid;

use crate::history::{Call, History};
use crate::world::World;

/// Who comes.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub name: &'static str,
    pub buyers: usize,
    /// Buyers a second.
    pub rate: f64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { name: "u", buyers: 2_400, rate: 400.0 }
    }
}

/// How long a buyer keeps asking, and how long one answer may take.
const BUYERS_PATIENCE: Duration = Duration::from_secs(90);
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Requests on their way at once.
const AT_ONCE: usize = 200;

/// A rush that goes on.
pub struct Rush {
    crowd: Arc<Crowd>,
    playing: JoinHandle<()>,
}

struct Crowd {
    http: reqwest::Client,
    addresses: Vec<SocketAddr>,
    sale: i64,
    body: String,
    room: Semaphore,
    in_flight: AtomicUsize,
    closed: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

struct Buyer {
    user: String,
    token: String,
    /// Most have a key; those without make a new purchase with every request, up to the limit.
    key: Option<String>,
    from: String,
    dice: StdRng,
}

impl Rush {
    pub fn begin(world: &mut World, plan: Plan) -> Self {
        let crowd = Arc::new(Crowd {
            http: reqwest::Client::builder().timeout(ANSWER_PATIENCE).no_proxy().build().unwrap(),
            addresses: world.addresses(),
            sale: world.sale.id,
            body: json!({ "key": world.sale.key }).to_string(),
            room: Semaphore::new(AT_ONCE),
            in_flight: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            calls: Mutex::default(),
        });
        let buyers: Vec<Buyer> = (0..plan.buyers)
            .map(|n| {
                let user = format!("{}{n}", plan.name);
                let keyless = world.dice.random_bool(0.1);
                Buyer {
                    token: world.token(&user),
                    key: (!keyless).then(|| format!("key-of-{user}")),
                    from: format!("10.{}.{}.{}", n / 65_536, n / 256 % 256, n % 256),
                    dice: StdRng::seed_from_u64(world.dice.random()),
                    user,
                }
            })
            .collect();
        let playing = tokio::spawn(Arc::clone(&crowd).play(buyers, plan.rate));
        Self { crowd, playing }
    }

    /// Requests that have been sent and not answered.
    pub fn in_flight(&self) -> usize {
        self.crowd.in_flight.load(Ordering::Relaxed)
    }

    pub fn accepted(&self) -> usize {
        self.crowd.calls.lock().unwrap().iter().filter(|call| call.status == 202).count()
    }

    /// When the first promise was heard among requests that were sent after a moment.
    pub fn first_promise_after(&self, moment: SystemTime) -> Option<SystemTime> {
        let calls = self.crowd.calls.lock().unwrap();
        calls.iter().filter(|call| call.status == 202 && call.sent > moment).map(|call| call.answered).min()
    }

    /// Whether everybody knows.
    pub fn is_over(&self) -> bool {
        self.playing.is_finished()
    }

    /// Nobody new comes; those who are there ask on.
    pub fn close_doors(&self) {
        self.crowd.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until everybody knows.
    pub async fn end(self) -> anyhow::Result<History> {
        self.playing.await?;
        Ok(History { calls: std::mem::take(&mut self.crowd.calls.lock().unwrap()) })
    }
}

impl Crowd {
    async fn play(self: Arc<Self>, buyers: Vec<Buyer>, rate: f64) {
        let mut people = JoinSet::new();
        let mut due = tokio::time::Instant::now();
        for buyer in buyers {
            sleep_until(due).await;
            due += Duration::from_secs_f64(1.0 / rate);
            if self.closed.load(Ordering::Relaxed) {
                break;
            }
            people.spawn(Arc::clone(&self).buy(buyer));
        }
        while let Some(done) = people.join_next().await {
            done.unwrap();
        }
    }

    /// One buyer, until there is a definite answer; some then ask again.
    async fn buy(self: Arc<Self>, mut buyer: Buyer) {
        let begun = Instant::now();
        let mut pause_ms = 100;
        let mut encores = if buyer.dice.random_bool(0.2) { 2 } else { 0 };
        while begun.elapsed() < BUYERS_PATIENCE {
            let (status, code) = self.call(&mut buyer).await;
            match (status, code.as_str()) {
                (0 | 503, _) => {
                    sleep(Duration::from_millis(buyer.dice.random_range(pause_ms / 2..=pause_ms))).await;
                    pause_ms = (pause_ms * 2).min(2_000);
                }
                _ if encores > 0 => {
                    encores -= 1;
                    sleep(Duration::from_millis(buyer.dice.random_range(0..1_500))).await;
                }
                _ => return,
            }
        }
    }

    async fn call(&self, buyer: &mut Buyer) -> (u16, String) {
        let _room = self.room.acquire().await.unwrap();
        let address = self.addresses[buyer.dice.random_range(0..self.addresses.len())];
        let url = format!("http://{address}/api/v1/sales/{}/purchases", self.sale);
        let mut request = self.http.post(url).header("content-type", "application/json").body(self.body.clone());
        request = request.bearer_auth(&buyer.token).header("x-forwarded-for", &buyer.from);
        if let Some(key) = &buyer.key {
            request = request.header("idempotency-key", key);
        }
        let sent = SystemTime::now();
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let answer = async {
            let answer = request.send().await?;
            let status = answer.status().as_u16();
            Ok::<_, reqwest::Error>((status, answer.json::<Value>().await?))
        };
        let (status, body) = answer.await.unwrap_or_else(|error| (0, json!({ "code": how(&error) })));
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let word = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let code = word("code");
        self.calls.lock().unwrap().push(Call {
            user: buyer.user.clone(),
            keyless: buyer.key.is_none(),
            sent,
            answered: SystemTime::now(),
            status,
            code: code.clone(),
            order: body["order_id"].as_str().and_then(|id| Uuid::try_parse(id).ok()),
            order_status: word("status"),
        });
        (status, code)
    }
}

/// How a request ended without an answer.
fn how(error: &reqwest::Error) -> &'static str {
    match () {
        () if error.is_timeout() => "time-out",
        () if error.is_connect() => "no connection",
        () => "cut",
    }
}
