//! The crowd: buyers who arrive at a fixed rate, whatever the service does, and repeat their request until they have a definite
//! answer. Every call is recorded.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use seckill_domain::ids::Shard;
use seckill_domain::shards::SaleShards;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until};
use uuid::Uuid;

use crate::history::{Call, History};
use crate::world::{Sale, World};

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub name: &'static str,
    pub buyers: usize,
    /// Buyers per second.
    pub rate: f64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { name: "u", buyers: 2_400, rate: 400.0 }
    }
}

impl Plan {
    /// Names of buyers, in the order of arrival. The first shard is home to twice as many as any other, so that many must borrow (protocol,
    /// rule 15).
    fn names(self, shards: SaleShards) -> impl Iterator<Item = String> {
        let comes = move |(n, user): &(usize, String)| n % 2 == 0 || shards.home(user) == Shard::FIRST;
        (0..)
            .map(move |n| format!("{}{n}", self.name))
            .enumerate()
            .filter(comes)
            .map(|(_, user)| user)
            .take(self.buyers)
    }
}

/// How long a buyer keeps repeating the request, and how long one answer may take.
const BUYERS_PATIENCE: Duration = Duration::from_secs(90);
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const IN_FLIGHT_MAX: usize = 200;
/// Addresses of this machine from which a crowd comes to the edge: nginx trusts no other ones, and each has a limit.
const SOURCES: u8 = 50;

pub struct Rush {
    crowd: Arc<Crowd>,
    playing: JoinHandle<()>,
}

struct Crowd {
    /// A client for each address of this machine from which the crowd comes.
    http: Vec<reqwest::Client>,
    addresses: Vec<SocketAddr>,
    sale: i64,
    body: String,
    requests_allowed: Semaphore,
    closed: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

struct Buyer {
    user: String,
    token: String,
    /// Most buyers have an Idempotency-Key. Without one, every request is a new purchase, up to the limit.
    key: Option<String>,
    /// The address in the request. An instance believes it unless the edge gives another.
    from: String,
    number: usize,
    rng: StdRng,
}

impl Rush {
    pub fn begin(world: &mut World, sale: &Sale, plan: Plan) -> Self {
        let crowd = Arc::new(Crowd {
            http: sources(world.is_behind_edge()).map(client).collect(),
            addresses: world.addresses(),
            sale: sale.id,
            body: json!({ "key": sale.key }).to_string(),
            requests_allowed: Semaphore::new(IN_FLIGHT_MAX),
            closed: AtomicBool::new(false),
            calls: Mutex::default(),
        });
        let buyers: Vec<Buyer> = plan
            .names(sale.shards)
            .enumerate()
            .map(|(n, user)| {
                let keyless = world.rng.random_bool(0.1);
                Buyer {
                    token: world.token(&user),
                    key: (!keyless).then(|| format!("key-of-{user}")),
                    from: format!("10.{}.{}.{}", n / 65_536, n / 256 % 256, n % 256),
                    number: n,
                    rng: StdRng::seed_from_u64(world.rng.random()),
                    user,
                }
            })
            .collect();
        let playing = tokio::spawn(Arc::clone(&crowd).play(buyers, plan.rate));
        Self { crowd, playing }
    }

    pub fn accepted(&self) -> usize {
        self.crowd.calls.lock().unwrap().iter().filter(|call| call.status == 202).count()
    }

    /// The time of the first 202 among the requests sent after `moment`.
    pub fn first_promise_after(&self, moment: SystemTime) -> Option<SystemTime> {
        let calls = self.crowd.calls.lock().unwrap();
        calls.iter().filter(|call| call.status == 202 && call.sent > moment).map(|call| call.answered).min()
    }

    pub fn promised(&self) -> HashSet<Uuid> {
        let calls = self.crowd.calls.lock().unwrap();
        calls.iter().filter(|call| call.status == 202).filter_map(|call| call.order).collect()
    }

    pub fn is_over(&self) -> bool {
        self.playing.is_finished()
    }

    /// Admits no more buyers. Admitted buyers continue.
    pub fn admit_no_more(&self) {
        self.crowd.closed.store(true, Ordering::Relaxed);
    }

    /// Waits until every buyer has a definite answer.
    pub async fn end(self) -> anyhow::Result<History> {
        self.playing.await?;
        Ok(History { calls: std::mem::take(&mut self.crowd.calls.lock().unwrap()) })
    }
}

impl Crowd {
    async fn play(self: Arc<Self>, buyers: Vec<Buyer>, rate: f64) {
        let mut buyers_at_work = JoinSet::new();
        let mut due = tokio::time::Instant::now();
        for buyer in buyers {
            sleep_until(due).await;
            due += Duration::from_secs_f64(1.0 / rate);
            if self.closed.load(Ordering::Relaxed) {
                break;
            }
            buyers_at_work.spawn(Arc::clone(&self).buy(buyer));
        }
        while let Some(done) = buyers_at_work.join_next().await {
            done.unwrap();
        }
    }

    /// Plays one buyer until there is a definite answer; some buyers then repeat the request.
    async fn buy(self: Arc<Self>, mut buyer: Buyer) {
        let begun = Instant::now();
        let mut pause_ms = 100;
        let mut repeats = if buyer.rng.random_bool(0.2) { 2 } else { 0 };
        while begun.elapsed() < BUYERS_PATIENCE {
            let (status, code) = self.call(&mut buyer).await;
            match (status, code.as_str()) {
                (0 | 503, _) => {
                    sleep(Duration::from_millis(buyer.rng.random_range(pause_ms / 2..=pause_ms))).await;
                    pause_ms = (pause_ms * 2).min(2_000);
                }
                _ if repeats > 0 => {
                    repeats -= 1;
                    sleep(Duration::from_millis(buyer.rng.random_range(0..1_500))).await;
                }
                _ => return,
            }
        }
    }

    async fn call(&self, buyer: &mut Buyer) -> (u16, String) {
        let _room = self.requests_allowed.acquire().await.unwrap();
        let address = self.addresses[buyer.rng.random_range(0..self.addresses.len())];
        let url = format!("http://{address}/api/v1/sales/{}/purchases", self.sale);
        let mut request = self.http[buyer.number % self.http.len()]
            .post(url)
            .header("content-type", "application/json")
            .body(self.body.clone());
        request = request.bearer_auth(&buyer.token).header("x-forwarded-for", &buyer.from);
        if let Some(key) = &buyer.key {
            request = request.header("idempotency-key", key);
        }
        let sent = SystemTime::now();
        let answer = async {
            let answer = request.send().await?;
            let status = answer.status().as_u16();
            Ok::<_, reqwest::Error>((status, answer.json::<Value>().await?))
        };
        let (status, body) = answer.await.unwrap_or_else(|error| (0, json!({ "code": failure_name(&error) })));
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let code = text("code");
        self.calls.lock().unwrap().push(Call {
            user: buyer.user.clone(),
            keyless: buyer.key.is_none(),
            sent,
            answered: SystemTime::now(),
            status,
            code: code.clone(),
            order: body["order_id"].as_str().and_then(|id| Uuid::try_parse(id).ok()),
            order_status: text("status"),
        });
        (status, code)
    }
}

fn sources(many: bool) -> impl Iterator<Item = Ipv4Addr> {
    let last = if many { SOURCES } else { 1 };
    (1..=last).map(|n| Ipv4Addr::new(127, 0, 0, n))
}

fn client(source: Ipv4Addr) -> reqwest::Client {
    let client = reqwest::Client::builder().local_address(IpAddr::from(source)).timeout(ANSWER_PATIENCE);
    client.no_proxy().build().unwrap()
}

fn failure_name(error: &reqwest::Error) -> &'static str {
    match () {
        () if error.is_timeout() => "time-out",
        () if error.is_connect() => "no connection",
        () => "cut",
    }
}
