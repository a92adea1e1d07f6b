//! The issuer of buyers' tokens publishes its keys. It replaces them, is slow, is away, and answers nonsense; buyers go on buying.

use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::running::Running;
use seckill_harness::{Click, Sale, System, eventually, terms, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct SigningKey {
    name: &'static str,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    fn new(name: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { name, pair: Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap() }
    }

    fn public(&self) -> Value {
        let x = BASE64_URL_SAFE_NO_PAD.encode(self.pair.public_key());
        json!({ "kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": self.name, "x": x })
    }

    fn token(&self, user: &str) -> String {
        self.token_named(self.name, user)
    }

    fn token_named(&self, kid: &str, user: &str) -> String {
        let header = json!({ "alg": "EdDSA", "kid": kid });
        let claims = json!({ "sub": user, "exp": chrono::Utc::now().timestamp() as f64 + 3600.5 });
        let [header, claims] = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
        let message = format!("{header}.{claims}");
        let signature = BASE64_URL_SAFE_NO_PAD.encode(self.pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

#[derive(Clone)]
enum Mood {
    Answering(u16, String),
    /// Takes the request, and says nothing.
    Slow,
    /// Closes each connection.
    Away,
}

/// A stub of an issuer.
struct Issuer {
    address: SocketAddr,
    mood: Arc<Mutex<Mood>>,
    reads: Arc<Mutex<u64>>,
}

impl Issuer {
    /// It is away.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mood, reads) = (Arc::new(Mutex::new(Mood::Away)), Arc::<Mutex<u64>>::default());
        let issuer = Self { address: listener.local_addr().unwrap(), mood: mood.clone(), reads: reads.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *reads.lock() += 1;
                let mood = mood.lock().clone();
                tokio::spawn(answer(stream, mood));
            }
        });
        issuer
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    fn publishes(&self, keys: &[&SigningKey]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.public()).collect();
        self.is(Mood::Answering(200, json!({ "keys": keys }).to_string()));
    }

    fn reads(&self) -> u64 {
        *self.reads.lock()
    }
}

async fn answer(mut stream: TcpStream, mood: Mood) {
    let mut head = Vec::new();
    match mood {
        Mood::Away => {}
        Mood::Slow => _ = stream.read_to_end(&mut head).await,
        Mood::Answering(status, body) => {
            while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            // A reader that has had enough of a long answer closes the connection.
            _ = stream.write_all(answer.as_bytes()).await;
        }
    }
}

/// A process, and a sale with a unit for each buyer.
struct Shop {
    system: System,
    address: SocketAddr,
    sale: Sale,
}

impl Shop {
    fn click<'a>(&'a self, user: &'a str, token: String) -> Click<'a> {
        let mut click = self.system.buy_at(self.address, &self.sale, user);
        click.token = Some(token);
        click
    }

    async fn buy(&self, user: &str, token: String) -> String {
        self.click(user, token).send().await.code()
    }

    /// The first answer other than 503, which a client repeats.
    async fn answered(&self, user: &str, token: String) -> String {
        self.click(user, token).answered().await.code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_go_on_while_the_issuer_replaces_its_keys_and_fails() {
    let issuer = Issuer::start().await;
    let url = format!("http://{}/keys", issuer.address);
    let system = System::prepare(&[
        ("SECKILL_AUTH__JWKS_URL", &url),
        // Only unknown keys cause reads.
        ("SECKILL_AUTH__JWKS_REFRESH_S", "86400"),
        ("SECKILL_AUTH__JWKS_MIN_INTERVAL_S", "1"),
        ("SECKILL_AUTH__JWKS_TIMEOUT_MS", "1000"),
        ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
        ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
    ])
    .await;
    let (address, folder) = (free_address(), Folder::new("issuer"));
    let log = File::create(folder.file("log")).unwrap();
    let process = Running::start(
        Command::new(env!("CARGO_BIN_EXE_seckill"))
            .args(["serve", "--with-workers"])
            .envs(&system.environment)
            .env("SECKILL_HTTP__BIND", address.to_string())
            .stdout(log.try_clone().unwrap())
            .stderr(log),
    );
    // The issuer is away: the start goes on.
    let http = reqwest::Client::new();
    eventually(|| async {
        let answer = http.get(format!("http://{address}/readyz")).send().await.map_err(|error| error.to_string())?;
        answer.status().is_success().then_some(()).ok_or_else(|| answer.status().to_string())
    })
    .await;
    let sale = system.create_sale(terms(1_000)).await;
    let shop = Shop { system, address, sale };
    let [first, second, third, unknown] = ["first", "second", "third", "unknown"].map(SigningKey::new);
    assert_eq!(shop.buy("ann", first.token("ann")).await, "503 temporarily-unavailable");
    // The keys of the settings need no issuer.
    assert_eq!(shop.answered("own", shop.system.token("own", 0)).await, "202");
    issuer.publishes(&[&first]);
    assert_eq!(shop.answered("ann", first.token("ann")).await, "202");

    // From one moment to the next, the second key replaces the first. No buyer has a 401.
    issuer.publishes(&[&second]);
    let users: Vec<String> = (0..40).map(|n| format!("auth0|{n}")).collect();
    let codes = join_all(users.iter().map(|user| shop.answered(user, second.token(user)))).await;
    assert!(codes.iter().all(|code| code == "202"), "{codes:?}");
    until("401 unauthenticated".to_owned(), || shop.buy("late", first.token("late"))).await;

    assert_a_flood_of_names_causes_few_reads(&shop, &issuer, &second, &unknown).await;
    assert_nonsense_leaves_the_known_keys(&shop, &issuer, &second, &unknown).await;
    issuer.publishes(&[&second, &third]);
    assert_eq!(shop.answered("carl", third.token("carl")).await, "202");
    until("401 unauthenticated".to_owned(), || shop.buy("eve", unknown.token("eve"))).await;

    let metrics = http.get(format!("http://{address}/metrics")).send().await.unwrap().text().await.unwrap();
    for outcome in ["read", "unreachable", "refused", "unreadable"] {
        assert!(metrics.contains(&format!("seckill_issuer_reads_total{{outcome=\"{outcome}\"}}")), "{outcome}");
    }
    shop.system.settled(&shop.sale).await;
    assert!(process.end().success());
    let log = std::fs::read_to_string(folder.file("log")).unwrap();
    let warned = log.matches("the issuer has no key with the name").count();
    assert!((1..=3).contains(&warned), "once a minute: {log}");
    assert!(log.contains("no JSON Web Key Set") && log.contains("the answer has status 500"), "{log}");
    assert!(!log.contains("eyJ"), "a token: {log}");
    shop.system.finish().await;
}

/// A read decides on all names that tokens had before it. Reads are a second apart.
async fn assert_a_flood_of_names_causes_few_reads(
    shop: &Shop,
    issuer: &Issuer,
    known: &SigningKey,
    other: &SigningKey,
) {
    let (began, before) = (Instant::now(), issuer.reads());
    let mut invented = 0;
    while began.elapsed() < Duration::from_secs(3) {
        let names = invented..invented + 50;
        invented = names.end;
        let codes = join_all(names.map(|n| shop.buy("eve", other.token_named(&format!("invented {n}"), "eve")))).await;
        let refused = ["401 unauthenticated", "503 temporarily-unavailable"];
        assert!(codes.iter().all(|code| refused.contains(&code.as_str())), "{codes:?}");
        let user = format!("in the flood {invented}");
        assert_eq!(shop.answered(&user, known.token(&user)).await, "202");
    }
    let (reads, most) = (issuer.reads() - before, began.elapsed().as_secs() + 2);
    assert!(reads <= most, "{reads} reads for {invented} names");
}

async fn assert_nonsense_leaves_the_known_keys(shop: &Shop, issuer: &Issuer, known: &SigningKey, unknown: &SigningKey) {
    let nonsense = |text: &str| Mood::Answering(200, text.to_owned());
    let no_key = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "kid": "unknown" }] }).to_string();
    for (n, mood) in [
        Mood::Away,
        Mood::Slow,
        nonsense("<html>garbage</html>"),
        nonsense(&no_key),
        nonsense(&"x".repeat(10 << 20)),
        Mood::Answering(500, json!({ "keys": [unknown.public()] }).to_string()),
    ]
    .into_iter()
    .enumerate()
    {
        issuer.is(mood);
        let before = issuer.reads();
        // Nobody knows whether the key is the issuer's.
        until("503 temporarily-unavailable".to_owned(), || shop.buy("eve", unknown.token("eve"))).await;
        // The second read begins when the first has ended.
        eventually(|| async { (issuer.reads() > before + 1).then_some(()).ok_or(format!("mood {n}")) }).await;
        assert_eq!(shop.buy("eve", unknown.token("eve")).await, "503 temporarily-unavailable");
        let user = format!("urn:x:{n}");
        assert_eq!(shop.answered(&user, known.token(&user)).await, "202");
    }
}
