//! The edge (deploy/nginx.conf) with a bundle written by `seckill publish`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::future::{join, join_all};
use reqwest::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH, RETRY_AFTER, VARY,
};
use reqwest::{Client, Method, Response};
use seckill_domain::sale::NewSale;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::network::service_killed::Process;
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::nginx::{DEPLOY, INSTANCES, Nginx, servers};
use seckill_harness::{PATIENCE, Sale, System, eventually, terms, until};

/// Views of a sale's page, and the number of browsers, each at an address of its own.
const VIEWS: usize = 10_000;
const BROWSERS: usize = 50;
/// How long one answer is shared, and the allowance for a busy machine that reads its clocks late.
const SHARED_MS: i64 = 100;
const SLACK_MS: i64 = 2000;

const FRESH: &str = "public, max-age=0, must-revalidate";
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// A published sale behind the edge.
pub struct Shop {
    pub system: System,
    site: Folder,
    pub edge: Nginx,
    sale: Sale,
}

impl Shop {
    async fn open() -> Self {
        let system = System::shared().await;
        let address = system.instances[0].address;
        Self::in_front_of(system, address).await
    }

    pub async fn in_front_of(system: System, address: SocketAddr) -> Self {
        let sale = system.create_sale(terms(50)).await;
        let site = Folder::new("site");
        // Another test may replace a picture meanwhile.
        eventually(|| async {
            let mut publish = Command::new(env!("CARGO_BIN_EXE_seckill"));
            publish.args(["publish", "--out"]).arg(site.path()).env_clear().envs(&system.environment);
            let publish = publish.output().await.unwrap();
            publish.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&publish.stderr).into_owned())
        })
        .await;
        let edge = Nginx::edge(&[address], site.path(), &[]).await;
        Self { system, site, edge, sale }
    }

    fn page(&self) -> String {
        format!("/sales/{}", self.sale.id)
    }
}

/// The contents of a state.js.
async fn state(answer: Response) -> Value {
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
    let script = answer.text().await.unwrap();
    let state = script.trim().strip_prefix("window.seckill = ").and_then(|rest| rest.strip_suffix(';'));
    serde_json::from_str(state.unwrap_or_else(|| panic!("{script}"))).unwrap()
}

/// Asserts that an answer has the headers of deploy/headers.conf, each once.
fn assert_secured(headers: &HeaderMap) {
    let mut lines = 0;
    for line in include_str!("../../../deploy/headers.conf").lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.strip_prefix("add_header ").and_then(|rest| rest.split_once(' ')).unwrap();
        let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix("\" always;")).unwrap();
        let sent: Vec<_> = headers.get_all(name).iter().collect();
        assert_eq!(sent, [value], "{name}");
        lines += 1;
    }
    assert!(lines >= 5);
    assert!(!headers["content-security-policy"].to_str().unwrap().contains("unsafe"));
}

/// The edge answers methods as the service does.
async fn assert_unsupported(answer: Response) {
    assert_eq!((answer.status().as_u16(), &answer.headers()[ALLOW]), (405, &"GET, HEAD".parse().unwrap()));
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(answer.json::<Value>().await.unwrap()["code"], "method-not-allowed");
}

/// The number of requests that reached a service, by their kind.
pub async fn requests(service: SocketAddr, kind: &str) -> u64 {
    let metrics = reqwest::get(format!("http://{service}/metrics")).await.unwrap().text().await.unwrap();
    let name = format!("seckill_requests_total{{kind=\"{kind}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

/// Viewing a page costs the service nothing. Its state costs at most eleven requests a second, whatever the crowd.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_views_cost_the_service_eleven_requests_a_second() {
    // A separate process, so its metrics count only these requests.
    let (system, service) = (System::prepare(&[]).await, free_address());
    let process = Process::start_with(&system, service, &[("RUST_LOG", "error")], Stdio::inherit());
    let process = process.ready(service).await;
    let shop = Shop::in_front_of(system, service).await;
    let before = [requests(service, "page").await, requests(service, "api").await, requests(service, "state").await];
    let began = Instant::now();
    let browsers = (0..BROWSERS).map(|n| {
        let (page, mark) = (shop.edge.url(&shop.page()), format!("data-sale=\"{}\"", shop.sale.id));
        let from = IpAddr::from(Ipv4Addr::new(127, 0, 1, u8::try_from(n).unwrap() + 1));
        let browser = Client::builder().local_address(from).build().unwrap();
        tokio::spawn(async move {
            for view in 0..VIEWS / BROWSERS {
                let answer = browser.get(&page).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                assert!(answer.text().await.unwrap().contains(&mark));
                let asked = browser.get(format!("{page}/state.js?r={n}-{view}")).send().await.unwrap();
                assert_eq!(state(asked).await["open"], true);
            }
        })
    });
    for viewed in join_all(browsers.collect::<Vec<_>>()).await {
        viewed.unwrap();
    }
    let seconds = began.elapsed().as_secs() + 1;
    let asked = requests(service, "state").await - before[2];
    assert!((1..=11 * seconds).contains(&asked), "{asked} requests in {seconds} s");
    assert_eq!([requests(service, "page").await, requests(service, "api").await], before[..2]);
    process.end();
    shop.system.finish().await;
}

/// At the start, all viewers learn within a tenth of a second that the sale is open, and get the purchase key.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_state_is_not_older_than_a_tenth_of_a_second() {
    const WATCHERS: usize = 8;
    let shop = Shop::open().await;
    // Its page is not published, but its state is.
    let planned = NewSale { starts_in_ms: 3_600_000, ends_in_ms: 7_200_000, ..terms(50) };
    let sale = shop.system.create_sale(planned).await;
    // The number of viewers who have seen that it is closed.
    let waiting = AtomicUsize::new(0);
    let watch = |n: usize| {
        let (shop, sale, waiting, client) = (&shop, &sale, &waiting, Client::new());
        async move {
            let (mut closed, mut open) = (0, 0);
            while open < 20 {
                let sent_ms = chrono::Utc::now().timestamp_millis();
                let url = shop.edge.url(&format!("/sales/{}/state.js?r={n}-{sent_ms}", sale.id));
                let state = state(client.get(url).send().await.unwrap()).await;
                let [now_ms, starts_at_ms] = ["now_ms", "starts_at_ms"].map(|name| state[name].as_i64().unwrap());
                assert!(now_ms >= sent_ms - SHARED_MS - SLACK_MS, "{} ms old when it was asked for", sent_ms - now_ms);
                if state["open"] == true {
                    assert_eq!(state["key"], sale.key.as_str());
                    open += 1;
                } else {
                    assert!(sent_ms < starts_at_ms + SHARED_MS + SLACK_MS, "still closed");
                    assert_ne!(state["key"], sale.key.as_str());
                    if closed == 0 {
                        waiting.fetch_add(1, Ordering::SeqCst);
                    }
                    closed += 1;
                }
            }
        }
    };
    // The sale starts when all viewers watch, which takes long on a busy machine.
    let start = async {
        until(WATCHERS, || async { waiting.load(Ordering::SeqCst) }).await;
        let soon = "UPDATE sales SET starts_at = now() + interval '3 s' WHERE id = $1";
        sqlx::query(soon).bind(sale.id.get()).execute(&shop.system.sql).await.unwrap();
    };
    let watched = join(join_all((0..WATCHERS).map(watch)), start);
    timeout(PATIENCE, watched).await.expect("the sale opens");
}

/// One client cannot change the other clients' answers.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_spoils_the_state_for_others() {
    let shop = Shop::open().await;
    let path = format!("{}/state.js", shop.page());
    // Without a Host header, and with headers and a body that a server might refuse.
    let spoilers = [
        format!("GET {path} HTTP/1.0\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nIf-None-Match: *\r\nConnection: close\r\n\r\n"),
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nX: {}\r\nConnection: close\r\n\r\n", "x".repeat(7_000)),
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"),
    ];
    for spoiler in &spoilers {
        let mut wire = TcpStream::connect(shop.edge.address).await.unwrap();
        wire.write_all(spoiler.as_bytes()).await.unwrap();
        let others = join_all((0..10).map(|_| shop.edge.get(&path))).await;
        for other in others {
            assert_eq!(state(other).await["open"], true);
        }
        let mut answer = String::new();
        wire.read_to_string(&mut answer).await.unwrap();
        assert!(["HTTP/1.1 20", "HTTP/1.1 304"].iter().any(|status| answer.starts_with(status)), "{answer}");
    }
    // For an unknown sale, the answer is the service's, and shared as well.
    let unknown = shop.edge.get("/sales/999999/state.js").await;
    assert_eq!(unknown.status(), 404);
    assert_eq!(unknown.headers()[CACHE_CONTROL], "no-store");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_has_the_headers_of_its_kind() {
    let shop = Shop::open().await;
    std::fs::create_dir_all(shop.site.path().join("pictures")).unwrap();
    std::fs::write(shop.site.path().join("pictures/0123456789abcdef-480.jpg"), [0xff, 0xd8, 0xff, 0xd9]).unwrap();
    std::fs::write(shop.site.path().join("assets/.new"), "half").unwrap();
    let html = shop.edge.get(&shop.page()).await.text().await.unwrap();
    let asset = |ending: &str| {
        let found = html.split('"').find(|word| word.starts_with("/assets/") && word.ends_with(ending));
        found.unwrap_or_else(|| panic!("no {ending} in {html}")).to_owned()
    };
    let client = Client::new();
    for (path, kind, cached) in [
        ("/".to_owned(), "text/html; charset=utf-8", FRESH),
        (shop.page(), "text/html; charset=utf-8", FRESH),
        (format!("{}/", shop.page()), "text/html; charset=utf-8", FRESH),
        ("/orders".to_owned(), "text/html; charset=utf-8", FRESH),
        (asset(".css"), "text/css; charset=utf-8", FOR_EVER),
        (asset(".js"), "text/javascript; charset=utf-8", FOR_EVER),
        ("/pictures/0123456789abcdef-480.jpg".to_owned(), "image/jpeg", FOR_EVER),
    ] {
        let answer = shop.edge.get(&path).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_secured(answer.headers());
        assert_eq!(answer.headers()[CONTENT_TYPE], kind, "{path}");
        assert_eq!(answer.headers()[CACHE_CONTROL], cached, "{path}");
        let again = client.get(shop.edge.url(&path)).header(IF_NONE_MATCH, &answer.headers()[ETAG]);
        let again = again.send().await.unwrap();
        assert_eq!(again.status(), 304, "{path}");
        assert_eq!(again.headers()[CACHE_CONTROL], cached, "{path}");
    }
    let zipped = client.get(shop.edge.url(&asset(".css"))).header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(zipped.headers()[CONTENT_ENCODING], "gzip");
    assert_eq!(zipped.headers()[VARY], "Accept-Encoding");

    // The page of an unknown sale, and a name that does not exist or is being written.
    let missing = std::fs::read_to_string(shop.site.path().join("404.html")).unwrap();
    for path in ["/sales/999999", "/sales/x", "/assets/none.css", "/assets/.new", "/404.html", "/metrics"] {
        let answer = shop.edge.get(path).await;
        assert_eq!(answer.status(), 404, "{path}");
        assert_secured(answer.headers());
        assert_eq!(answer.headers()[CACHE_CONTROL], FRESH, "{path}");
        assert_eq!(answer.text().await.unwrap(), missing, "{path}");
    }
    let posted = client.post(shop.edge.url("/")).send().await.unwrap();
    assert_secured(posted.headers());
    assert_unsupported(posted).await;
}

/// With deploy/tls.conf, every answer over TLS tells browsers to use TLS only, errors too. Port 80 only redirects.
#[tokio::test(flavor = "multi_thread")]
async fn over_tls_browsers_are_told_to_come_by_tls() {
    let [folder, site] = ["tls", "site"].map(Folder::new);
    let own = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    for (name, content) in [("fullchain.pem", own.cert.pem()), ("privkey.pem", own.signing_key.serialize_pem())] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    std::fs::write(site.path().join("index.html"), "a page").unwrap();
    let (tls, states, here) = (free_address(), free_address().to_string(), folder.path().display().to_string());
    let listen = format!("listen {tls} ssl backlog=4096;");
    let file = std::fs::read_to_string(format!("{DEPLOY}/tls.conf")).unwrap();
    let file = file.replace("listen 443 ssl backlog=4096;", &listen).replace("/etc/nginx/tls", &here);
    assert!(file.contains(&listen) && file.contains(&here));
    let site = site.path().display().to_string();
    let changes = [("# include ", "include "), ("127.0.0.1:8081", &states), ("/var/www/seckill", &site)];
    let away = servers(&["127.0.0.1:9".parse().unwrap()]);
    let edge = Nginx::start("nginx.conf", &changes, &[("tls.conf", &file), (INSTANCES, &away)]).await;

    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).unwrap();
    let terms = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let terms =
        terms.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(terms));
    for (path, status) in [
        ("/", 200),
        ("/assets/none.css", 404),
        ("/none", 404),
        ("/sales/1/state.js", 503),
        ("/api/v1/time", 503),
        ("/favicon.ico", 204),
    ] {
        let wire = TcpStream::connect(tls).await.unwrap();
        let mut wire = connector.connect("shop.example".try_into().unwrap(), wire).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n");
        wire.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        wire.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        let told = answer.matches("\r\nStrict-Transport-Security: max-age=31536000\r\n").count();
        assert_eq!(told, 1, "{path}: {answer}");
    }
    let plain = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let led = plain.get(edge.url("/sales/7?x=1")).header("host", "shop.example").send().await.unwrap();
    assert_eq!(led.status(), 301);
    assert_eq!(led.headers()["location"], "https://shop.example/sales/7?x=1");
    assert!(!led.headers().contains_key("strict-transport-security"));
}

/// Events pass one by one, without buffering.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_not_held_back() {
    let shop = Shop::open().await;
    let order = shop.system.buy_at(shop.edge.address, &shop.sale, "ann").send().await.order_id();
    let token = shop.system.token("ann", 0);
    let order = shop.edge.url(&format!("/api/v1/orders/{order}"));
    let client = Client::new();
    let mut events = client.get(format!("{order}/events")).bearer_auth(&token).send().await.unwrap();
    assert_eq!(events.headers()[CONTENT_TYPE], "text/event-stream");
    let mut seen = String::new();
    // The next event comes only after this one was received.
    for (status, step) in [("pending_payment", Some("cancel")), ("cancelled", None)] {
        let next = async {
            while !seen.contains(&format!("\"status\":\"{status}\"")) {
                let chunk = events.chunk().await.unwrap().expect("the stream goes on");
                seen += std::str::from_utf8(&chunk).unwrap();
            }
        };
        timeout(PATIENCE, next).await.expect("the event comes");
        if let Some(step) = step {
            let done = client.post(format!("{order}/{step}")).bearer_auth(&token).send().await.unwrap();
            assert_eq!(done.status(), 200);
        }
    }
}

/// While no instance answers, the pages still load, and all other answers are a problem with Retry-After.
#[tokio::test(flavor = "multi_thread")]
async fn the_pages_stay_when_the_service_is_away() {
    let shop = Shop::in_front_of(System::shared().await, free_address()).await;
    let page = shop.page();
    assert_eq!(shop.edge.get(&page).await.status(), 200);
    // No other method reaches the service for a state.
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let answer = Client::new().request(method, shop.edge.url(&format!("{page}/state.js"))).send().await.unwrap();
        assert_unsupported(answer).await;
    }
    for path in [format!("{page}/state.js"), "/api/v1/sales".to_owned()] {
        let answer = shop.edge.get(&path).await;
        assert_eq!(answer.status(), 503, "{path}");
        assert_eq!(answer.headers()[RETRY_AFTER], "1", "{path}");
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
        let problem: Value = answer.json().await.unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&"temporarily-unavailable".into(), &503.into()));
    }
    shop.system.finish().await;
}
