//! Permits for gateways: the address for them, and nginx (deploy/gateway.conf) in front of another small server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response};
use seckill_domain::limiter::{Algorithm, AlgorithmKind, Parameters};
use seckill_domain::policy::{Excess, NewPolicy};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::backoffice::console_frame::header;
use crate::flow::permits_and_policies::{Caller, a_day, policy, set};
use seckill_harness::folder::free_address;
use seckill_harness::nginx::{INSTANCES, Nginx, servers};
use seckill_harness::{System, eventually, until};

/// The server behind the gateway. It counts its requests, and echoes them.
struct Application {
    address: SocketAddr,
    reached: Arc<AtomicUsize>,
    server: actix_web::dev::ServerHandle,
}

impl Application {
    async fn start() -> Self {
        let reached = Arc::new(AtomicUsize::new(0));
        let counter = Data::from(Arc::clone(&reached));
        let echo = async |request: HttpRequest, counter: Data<AtomicUsize>, body: Bytes| {
            counter.fetch_add(1, Ordering::SeqCst);
            let lease = request.headers().get("x-seckill-lease").map(|lease| lease.to_str().unwrap().to_owned());
            let body = String::from_utf8(body.to_vec()).unwrap();
            HttpResponse::Ok().json(json!({
                "method": request.method().as_str(), "uri": request.uri().to_string(), "body": body, "lease": lease,
            }))
        };
        let app = move || App::new().app_data(counter.clone()).default_service(web::to(echo));
        let server = HttpServer::new(app).workers(1).disable_signals().bind("127.0.0.1:0").unwrap();
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        tokio::spawn(server);
        Self { address, reached, server: handle }
    }

    fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        drop(self.server.stop(false));
    }
}

/// The gateway in front of the application, with the token of an application of the service at `service`.
async fn gateway(service: SocketAddr, application: &Application, token: &str, changes: &[(&str, &str)]) -> Nginx {
    let application = application.address.to_string();
    let token = format!("proxy_set_header Authorization \"Bearer {token}\";\n");
    let beside = [("gateway-token.conf", token.as_str()), (INSTANCES, &servers(&[service]))];
    Nginx::start("gateway.conf", &[&[("app:8080", application.as_str())], changes].concat(), &beside).await
}

/// On a busy machine an answer may take longer than a gateway should wait.
const PATIENT: [(&str, &str); 2] = [
    ("proxy_connect_timeout 250ms;", "proxy_connect_timeout 60s;"),
    ("proxy_read_timeout 500ms;", "proxy_read_timeout 60s;"),
];

/// Status and `X-Seckill-Code`.
fn outcome(answer: &Response) -> (u16, &str) {
    (answer.status().as_u16(), header(answer, "x-seckill-code"))
}

/// A request of a gateway with this policy.
fn asking(system: &System, caller: &Caller, path: &str, named: &str) -> RequestBuilder {
    let request = Client::new().get(system.url(&format!("/api/v1/flow/authorize{path}")));
    request.bearer_auth(&caller.token).header("X-Seckill-Policy", named)
}

/// The status corresponds to the body of `acquire`, and the headers have the other fields.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_says_whether_a_request_may_pass() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "status-shop").await;
    let later = Excess::parse(r#"degrade:{"page":"稍后"}"#).unwrap();
    set(&system, policy("status-shop", "web", a_day(2))).await;
    set(&system, NewPolicy { excess: later, ..policy("status-shop", "page", a_day(1)) }).await;
    set(&system, NewPolicy { excess: Excess::Shadow, ..policy("status-shop", "trial", a_day(1)) }).await;

    let granted = asking(&system, &shop, "", "web").send().await.unwrap();
    assert_eq!(outcome(&granted), (204, "granted"));
    assert_eq!(header(&granted, "ratelimit-policy"), "\"web\";q=2;w=86400");
    assert!(header(&granted, "ratelimit").starts_with("\"web\";r=1;t="));
    let cost = asking(&system, &shop, "", "web").header("X-Seckill-Permits", "2").send().await.unwrap();
    assert_eq!(outcome(&cost), (403, "quota-exceeded"), "one is left");
    let all = asking(&system, &shop, "", "web").header("X-Seckill-Key", "ann").header("X-Seckill-Permits", "2");
    assert_eq!(outcome(&all.send().await.unwrap()), (204, "granted"), "each key has permits of its own");
    let refused = asking(&system, &shop, "", "web").header("X-Seckill-Key", "ann").send().await.unwrap();
    assert_eq!((outcome(&refused), header(&refused, "x-seckill-reason")), ((403, "quota-exceeded"), "limit"));
    assert!(header(&refused, "retry-after").parse::<u64>().unwrap() > 0);
    assert!(header(&refused, "ratelimit").starts_with("\"web\";r=0;t="));
    let problem: Value = refused.json().await.unwrap();
    assert_eq!((&problem["code"], &problem["status"]), (&json!("quota-exceeded"), &json!(403)));

    // All terms in the query, and another status for the refusal.
    let by_query = |query: &str| {
        let url = system.url(&format!("/api/v1/flow/authorize?policy=web&{query}"));
        Client::new().get(url).bearer_auth(&shop.token).send()
    };
    assert_eq!(outcome(&by_query("key=b%20n&permits=2&app=status-shop").await.unwrap()), (204, "granted"));
    assert_eq!(outcome(&by_query("key=b%20n&deny=429").await.unwrap()), (429, "quota-exceeded"));

    // Terms in the other place are the caller's, and mean nothing.
    let in_query = asking(&system, &shop, "?key=mine&permits=0&x", "web").send().await.unwrap();
    assert_eq!(outcome(&in_query), (204, "granted"));
    let url = system.url("/api/v1/flow/authorize?policy=web&key=yours");
    let in_headers = Client::new().get(url).bearer_auth(&shop.token).header("X-Seckill-Permits", "0");
    assert_eq!(outcome(&in_headers.send().await.unwrap()), (204, "granted"));

    // A prepared answer, a shadow policy, and a missing policy.
    assert_eq!(outcome(&asking(&system, &shop, "", "page").send().await.unwrap()), (204, "granted"));
    let degraded = asking(&system, &shop, "", "page").send().await.unwrap();
    assert_eq!((outcome(&degraded), header(&degraded, "content-type")), ((403, "quota-exceeded"), "application/json"));
    assert_eq!(header(&degraded, "x-seckill-answer"), r#"{"page":"\u7a0d\u540e"}"#);
    assert_eq!(degraded.json::<Value>().await.unwrap(), json!({ "page": "稍后" }));
    for reason in ["", "shadow"] {
        let tried = asking(&system, &shop, "", "trial").send().await.unwrap();
        assert_eq!((outcome(&tried), header(&tried, "x-seckill-reason")), ((204, "granted"), reason));
    }
    assert_eq!(outcome(&asking(&system, &shop, "", "none").send().await.unwrap()), (204, "not-configured"));
}

/// A gateway's mistake is 403, and a wrong token 401: nginx treats every other status as a failure.
#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_a_gateway_let_nothing_pass() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "mistaken-shop").await;
    set(&system, policy("mistaken-shop", "web", a_day(5))).await;
    let stranger = Caller::of("0".repeat(64), shop.at);
    assert_eq!(outcome(&asking(&system, &stranger, "", "web").send().await.unwrap()), (401, "unauthenticated"));
    let without_token = Client::new().get(system.url("/api/v1/flow/authorize?policy=web")).send().await.unwrap();
    assert_eq!(outcome(&without_token), (401, "unauthenticated"));
    let other_app = asking(&system, &shop, "", "web").header("X-Seckill-App", "till").send().await.unwrap();
    assert_eq!(outcome(&other_app), (403, "forbidden"));
    let long = "k".repeat(129);
    for (name, value) in [
        ("X-Seckill-Key", long.as_str()),
        ("X-Seckill-Permits", "0"),
        ("X-Seckill-Permits", "6"),
        ("X-Seckill-Permits", "-1"),
        ("X-Seckill-Permits", "many"),
        ("X-Seckill-Deny", "500"),
        ("X-Seckill-Policy", "twice"),
    ] {
        let wrong = asking(&system, &shop, "", "web").header(name, value).send().await.unwrap();
        assert_eq!(outcome(&wrong), (403, "invalid-request"), "{name}: {value}");
        let problem: Value = wrong.json().await.unwrap();
        assert_eq!(problem["status"], 403);
    }
    let twice = asking(&system, &shop, "?policy=web", "web").send().await.unwrap();
    assert_eq!(outcome(&twice), (403, "invalid-request"), "headers and query name a policy");
    let large = asking(&system, &shop, "", "web").body("x".repeat(system.config.http.body_max_bytes + 1));
    assert_eq!(outcome(&large.send().await.unwrap()), (403, "body-too-large"));
    let left = shop.ask(json!({ "app": "mistaken-shop", "policy": "web" })).await;
    assert_eq!(left["remaining"], 4, "mistakes use up nothing");
}

/// Envoy appends its caller's path and query, which have no effect. It takes 200 for a grant, and passes other statuses on.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_may_append_the_path_of_its_caller() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "envoy-shop").await;
    set(&system, policy("envoy-shop", "web", a_day(9))).await;
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"];
    let paths = ["/", "/a/b%2Fc/", "/search?policy=other&key=mine&deny=x", "/api/v1/flow/acquire", "/%E5%AE%89/..;/"];
    let ask = |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Client::new().request(method, system.url(&format!("/api/v1/flow/authorize{path}")));
        request.bearer_auth(&shop.token).header("X-Seckill-Policy", "web").header("X-Seckill-Deny", "429")
    };
    for n in 0..9 {
        let (method, path) = (methods[n % methods.len()], paths[n % paths.len()]);
        let granted = ask(method, path).send().await.unwrap();
        assert_eq!(outcome(&granted), (200, "granted"), "{method} {path}");
        assert_eq!(granted.text().await.unwrap(), "");
    }
    for method in methods {
        let refused = ask(method, "/search").send().await.unwrap();
        assert_eq!(outcome(&refused), (429, "quota-exceeded"), "{method}");
        assert!(refused.headers().contains_key(RETRY_AFTER));
    }
    // The query cannot name the policy in the gateway's place.
    let url = system.url("/api/v1/flow/authorize/x?policy=web");
    let unnamed = Client::new().get(url).bearer_auth(&shop.token).send().await.unwrap();
    assert_eq!(outcome(&unnamed), (403, "invalid-request"));
}

/// nginx passes on granted requests, and answers the others itself: 429 with its fields, the prepared answer, 403, 503.
#[tokio::test(flavor = "multi_thread")]
async fn nginx_passes_on_what_is_granted_and_nothing_else() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "nginx-shop").await;
    let application = Application::start().await;
    let nginx = gateway(system.instances[0].address, &application, &shop.token, &PATIENT).await;
    // Without policies everything passes, with method, body and query.
    let posted = Client::new().post(nginx.url("/a?b=c")).body("hello").send().await.unwrap();
    assert_eq!((posted.status().as_u16(), header(&posted, "ratelimit")), (200, ""));
    let echo: Value = posted.json().await.unwrap();
    assert_eq!(echo, json!({ "method": "POST", "uri": "/a?b=c", "body": "hello", "lease": null }));

    // `/` counts by address, and ignores the caller's own terms.
    set(&system, policy("nginx-shop", "web", a_day(2))).await;
    for left in [1, 0] {
        let claims = Client::new().get(nginx.url("/?policy=none&key=x")).header("Authorization", "Bearer x");
        let claims = claims.header("X-Seckill-Policy", "none").header("X-Seckill-Key", left.to_string());
        let passed = claims.send().await.unwrap();
        assert_eq!(passed.status(), 200);
        assert_eq!(header(&passed, "ratelimit-policy"), "\"web\";q=2;w=86400");
        assert!(header(&passed, "ratelimit").starts_with(&format!("\"web\";r={left};t=")));
    }
    let reached = application.reached();
    let refused = nginx.get("/").await;
    assert_eq!(refused.status(), 429);
    assert!(header(&refused, "retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(header(&refused, "ratelimit-policy"), "\"web\";q=2;w=86400");
    assert!(header(&refused, "ratelimit").starts_with("\"web\";r=0;t="));
    assert_eq!(refused.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(refused.json::<Value>().await.unwrap()["code"], "quota-exceeded");
    let local = Client::builder().local_address(std::net::IpAddr::from([127, 0, 2, 1])).build().unwrap();
    assert_eq!(local.get(nginx.url("/")).send().await.unwrap().status(), 200, "another address");

    // `/search/` counts by user, and an export costs twenty. Its excess has a prepared answer.
    let later = Excess::parse(r#"degrade:{"hits":[],"note":"稍后 $uri"}"#).unwrap();
    set(&system, NewPolicy { excess: later, ..policy("nginx-shop", "search", a_day(21)) }).await;
    let search = |path: &str, user: &str| Client::new().get(nginx.url(path)).header("X-User", user).send();
    assert_eq!(search("/search/export/1", "ann").await.unwrap().status(), 200);
    assert_eq!(search("/search/a", "ann").await.unwrap().status(), 200);
    assert_eq!(search("/search/a", "ben").await.unwrap().status(), 200, "another user");
    let prepared = search("/search/a", "ann").await.unwrap();
    assert_eq!((prepared.status().as_u16(), header(&prepared, "content-type")), (200, "application/json"));
    assert!(header(&prepared, "retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(prepared.json::<Value>().await.unwrap(), json!({ "hits": [], "note": "稍后 $uri" }));
    assert_eq!(application.reached(), reached + 4);

    // A key that is too long is a mistake, and is refused although the location is open.
    assert_eq!(search("/search/a", &"u".repeat(200)).await.unwrap().status(), 403);
    let strange = gateway(system.instances[0].address, &application, &"0".repeat(64), &PATIENT).await;
    for path in ["/", "/search/a"] {
        assert_eq!(strange.get(path).await.status(), 503, "a wrong token lets nothing pass: {path}");
    }
    assert_eq!(application.reached(), reached + 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prepared_answer_leaves_the_429() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "long-answer-shop").await;
    let application = Application::start().await;
    let nginx = gateway(system.instances[0].address, &application, &shop.token, &PATIENT).await;
    let prepared = |content: String| Excess::parse(&format!("degrade:{}", json!({ "page": content }))).unwrap();
    for (content, status) in [("a".repeat(4_000), 200), ("稍".repeat(4_000), 429)] {
        set(&system, NewPolicy { excess: prepared(content), ..policy("long-answer-shop", "web", a_day(1)) }).await;
        eventually(|| async {
            let answer = nginx.get("/").await;
            let is_right = answer.status() == status && answer.headers().contains_key(RETRY_AFTER);
            is_right.then_some(()).ok_or(answer.status().to_string())
        })
        .await;
    }
}

/// While the service is away, or does not answer in time, nginx decides for each location.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_service_each_location_is_open_or_closed() {
    let application = Application::start().await;
    // A server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for away in [free_address(), silent.local_addr().unwrap()] {
        let nginx = gateway(away, &application, "token", &[]).await;
        let reached = application.reached();
        let closed = nginx.get("/").await;
        assert_eq!((closed.status().as_u16(), header(&closed, "retry-after")), (503, "1"));
        assert_eq!(closed.json::<Value>().await.unwrap()["code"], "temporarily-unavailable");
        assert_eq!(application.reached(), reached);
        let open = Client::new().post(nginx.url("/search/a?b")).body("hello").send().await.unwrap();
        assert_eq!(open.status(), 200);
        let echo: Value = open.json().await.unwrap();
        assert_eq!(echo, json!({ "method": "POST", "uri": "/search/a?b", "body": "hello", "lease": null }));
    }
}

/// A lease travels to the application, which gives it back; otherwise it expires. A caller cannot name one.
#[tokio::test(flavor = "multi_thread")]
async fn the_application_receives_the_lease() {
    let system = System::shared().await;
    let shop = Caller::new(&system, "lease-shop").await;
    let application = Application::start().await;
    let nginx = gateway(system.instances[0].address, &application, &shop.token, &PATIENT).await;
    let one_at_a_time = |lease_ms| {
        let terms = Parameters { limit: Some(1), lease_ms: Some(lease_ms), ..Parameters::default() };
        Algorithm::new(AlgorithmKind::Concurrency, &terms).unwrap()
    };
    set(&system, policy("lease-shop", "web", one_at_a_time(3_600_000))).await;
    let ask = || async {
        let forged = Client::new().get(nginx.url("/")).header("X-Seckill-Lease", "forged");
        let answer = forged.send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, echo) = ask().await;
    assert_eq!((status, ask().await.0), (200, 429), "one at a time");
    let give = json!({ "app": "lease-shop", "policy": "web", "key": "127.0.0.1", "lease": echo["lease"] });
    assert_eq!(shop.post("release", &give).await.1, json!({ "released": true }));
    assert_eq!(ask().await.0, 200);
    // An unreturned lease expires: there is only one, and it is granted again.
    set(&system, policy("lease-shop", "brief", one_at_a_time(500))).await;
    assert_eq!(asking(&system, &shop, "", "brief").send().await.unwrap().status(), 204);
    until(204, || async { asking(&system, &shop, "", "brief").send().await.unwrap().status() }).await;
}
