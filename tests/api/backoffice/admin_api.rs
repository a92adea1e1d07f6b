//! The admin API: what each account may see and change. Forged requests, guessed passwords and mistakes have no effect.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex};

use reqwest::header::{ACCEPT, CONTENT_TYPE, COOKIE, HOST, ORIGIN, SET_COOKIE};
use reqwest::{Client, RequestBuilder};
use seckill_backoffice::admin::password::hash_new;
use seckill_domain::account::{AccountName, AccountRole, NewPassword};
use seckill_domain::policy::{Name, NewPolicy, Role};
use seckill_flow::policy_changes;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::backoffice::admin_sessions::seckill;
use crate::backoffice::sign_in_limits::GUESSED;
use crate::flow::permits_and_policies::{a_day, policy, set};
use crate::network::broken_network::wired_with;
use crate::network::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{Answer, System, eventually, http_client, terms, until};

pub const PASSWORD: &str = "a password of the tests";

/// No limits for tests that share a system. An eighth of the connections reads for the console, so four requests at once.
pub const UNLIMITED: [(&str, &str); 4] = [
    ("SECKILL_ADMIN__LOGIN_LIMIT", "10000"),
    ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
    ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
    ("SECKILL_DATABASE__MAX_CONNECTIONS", "32"),
];

fn app(text: &str) -> Name {
    Name::parse(text, "app").unwrap()
}

/// Creates an account whose password is `PASSWORD`.
pub async fn account(system: &System, name: &str, role: AccountRole) {
    static HASH: LazyLock<String> = LazyLock::new(|| {
        hash_new(NewPassword::parse(PASSWORD.into(), &AccountName::parse("ann", "name").unwrap()).unwrap()).unwrap()
    });
    let name = AccountName::parse(name, "name").unwrap();
    assert!(system.stores.ledger.accounts.create_account(&name, role, &HASH, "test").await.unwrap());
}

pub async fn granted(system: &System, account: &str, grants: &[(&str, Role)]) {
    let account = AccountName::parse(account, "account").unwrap();
    for (named, role) in grants {
        policy_changes::grant(&system.stores.ledger, &app(named), &account, Some(*role), "test").await.unwrap();
    }
}

/// A browser, and the account that is signed in there.
#[derive(Clone)]
pub struct Person {
    http: Client,
    base: String,
    cookie: Option<String>,
    csrf: Option<String>,
}

type Session = Arc<OnceCell<Person>>;

impl Person {
    pub fn signed_out(system: &System) -> Self {
        Self::visiting(system.instances[0].address)
    }

    /// A person without a session, at the instance with this address.
    pub fn visiting(address: SocketAddr) -> Self {
        Self { http: http_client(), base: format!("http://{address}/api/v1/admin/"), cookie: None, csrf: None }
    }

    /// Creates an account, and signs in.
    pub async fn new(system: &System, name: &str, role: AccountRole) -> Self {
        account(system, name, role).await;
        Self::sign_in(system, name).await
    }

    pub async fn sign_in(system: &System, name: &str) -> Self {
        Self::signed_out(system).signed_in(name).await
    }

    pub async fn signed_in(mut self, name: &str) -> Self {
        let credentials = json!({ "name": name, "password": PASSWORD });
        let answer = self.post("session", credentials).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let mut cookies = answer.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
        let cookie = cookies.find(|cookie| cookie.contains("seckill_session=")).unwrap();
        self.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        self.csrf = Some(answer.body["csrf_token"].as_str().unwrap().to_owned());
        self
    }

    /// A person whose session all tests of a system share. Such a test neither ends the session nor counts the account's actions.
    pub async fn shared(system: &System, name: &str, role: AccountRole) -> Self {
        static SIGNED_IN: Mutex<BTreeMap<(String, String), Session>> = Mutex::new(BTreeMap::new());
        let key = (system.config.database.url.clone(), name.to_owned());
        let session = Arc::clone(SIGNED_IN.lock().unwrap().entry(key).or_default());
        // The connections of another test end with that test.
        Self { http: http_client(), ..session.get_or_init(|| Self::new(system, name, role)).await.clone() }
    }

    /// The same person on a page of another site, without the token.
    pub fn forged(&self) -> Self {
        Self { csrf: None, ..self.clone() }
    }

    /// The same person, whose requests go to another instance.
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { base: format!("http://{address}/api/v1/admin/"), ..self.clone() }
    }

    /// Adds the headers that the browser and the page send with each request.
    pub fn authenticated(&self, mut request: RequestBuilder) -> RequestBuilder {
        if let Some(cookie) = &self.cookie {
            request = request.header(COOKIE, cookie);
        }
        if let Some(csrf) = &self.csrf {
            request = request.header("x-csrf-token", csrf);
        }
        request
    }

    pub fn request(&self, method: &str, path: &str, body: Option<Value>) -> RequestBuilder {
        let request = self.authenticated(self.http.request(method.parse().unwrap(), format!("{}{path}", self.base)));
        match body {
            Some(body) => request.json(&body),
            None => request,
        }
    }

    /// Status and text of a page of the console.
    pub async fn page(&self, path: &str) -> (u16, String) {
        let url = self.base.replace("/api/v1/admin/", path);
        let page = self.authenticated(self.http.get(url).header(ACCEPT, "text/html")).send().await.unwrap();
        (page.status().as_u16(), page.text().await.unwrap())
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.call("PUT", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, None).await
    }

    /// The answer when the service is not too busy. A test that expects a 503 sends the request by itself.
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        eventually(|| async {
            let answer = send(self.request(method, path, body.clone())).await;
            if answer.status == 503 { Err(format!("{method} {path}: {}", answer.body)) } else { Ok(answer) }
        })
        .await
    }
}

pub async fn send(request: RequestBuilder) -> Answer {
    Answer::of(request.send().await.unwrap()).await
}

/// The attributes of a cookie that an answer sets, in alphabetical order.
fn cookie_attributes<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    let mut cookies = answer.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    let cookie = cookies.find(|cookie| cookie.starts_with(&format!("{name}="))).expect(name);
    let (_, attributes) = cookie.split_once("; ").unwrap();
    let mut attributes: Vec<&str> = attributes.split("; ").collect();
    attributes.sort_unstable();
    attributes
}

async fn refusals(system: &System, actor: &str) -> i64 {
    let count = "SELECT count(*) FROM audit_log WHERE actor = $1 AND action = 'refused'";
    sqlx::query_scalar(count).bind(actor).fetch_one(&system.sql).await.unwrap()
}

fn window(apps: &[&str], limit: i64) -> Value {
    json!({ "apps": apps, "algorithm": "fixed-window", "limit": limit, "window_ms": 86_400_000 })
}

/// A10: a policy of several applications is changed by accounts with the right for all of them. Each refusal is in the audit log.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_see_and_change_what_they_were_granted_and_nothing_else() {
    let system = System::shared_with(&UNLIMITED).await;
    for named in ["mine", "seen", "other"] {
        policy_changes::create_app(&system.stores.ledger, &app(named), "test").await.unwrap();
        set(&system, policy(named, "p", a_day(5))).await;
    }
    let shared = NewPolicy { apps: vec![app("mine"), app("other")], ..policy("mine", "shared", a_day(5)) };
    set(&system, shared).await;
    let grants = [("mine", Role::Owner), ("seen", Role::Viewer)];
    let names = ["roles-root", "roles-max", "roles-vic"];
    let mut people = Vec::new();
    for (name, role) in names.into_iter().zip([AccountRole::Admin, AccountRole::Manager, AccountRole::Viewer]) {
        account(&system, name, role).await;
        granted(&system, name, &grants).await;
        people.push(Person::sign_in(&system, name).await);
    }
    for (method, path, body, expected) in [
        ("GET", "policies?app=seen", None, [200, 200, 200]),
        ("GET", "policies?app=other", None, [200, 404, 404]),
        ("PUT", "policies/p", Some(window(&["mine"], 9)), [200, 200, 403]),
        ("PUT", "policies/p", Some(window(&["seen"], 9)), [200, 403, 403]),
        ("PUT", "policies/p", Some(window(&["other"], 9)), [200, 404, 404]),
        ("PUT", "policies/new", Some(window(&["mine", "seen"], 9)), [200, 403, 403]),
        ("PUT", "policies/new-too", Some(window(&["mine", "other"], 9)), [200, 404, 404]),
        // The body names only their own application. The existing policy has another one, which would lose it.
        ("PUT", "policies/shared", Some(window(&["mine"], 9)), [200, 403, 403]),
        ("DELETE", "policies/p?app=other", None, [200, 404, 404]),
        ("DELETE", "policies/p?app=seen", None, [200, 403, 403]),
        ("DELETE", "policies/p?app=mine", None, [404, 200, 403]),
        ("DELETE", "policies/p?app=nowhere", None, [404, 404, 404]),
        ("POST", "apps", Some(json!({ "name": "fresh" })), [201, 403, 403]),
    ] {
        // The account with the fewest rights first: what an admin deletes would be gone for the others.
        for i in [2, 1, 0] {
            let (name, status) = (names[i], expected[i]);
            let before = refusals(&system, name).await;
            let answer = people[i].call(method, path, body.clone()).await;
            assert_eq!(answer.status, status, "{name}: {method} {path}: {}", answer.body);
            // An admin gets 404 for a missing object, which is not a refusal.
            let refused = i64::from(status >= 400 && i > 0);
            assert_eq!(refusals(&system, name).await - before, refused, "{name}: {method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_that_were_not_granted_stay_hidden() {
    let system = System::shared_with(&UNLIMITED).await;
    for named in ["granted", "hidden"] {
        policy_changes::create_app(&system.stores.ledger, &app(named), "test").await.unwrap();
    }
    set(&system, NewPolicy { apps: vec![app("hidden"), app("granted")], ..policy("hidden", "hidden-p", a_day(5)) })
        .await;
    set(&system, NewPolicy { key: "user".into(), ..policy("hidden", "hidden-narrow", a_day(9)) }).await;
    account(&system, "hidden-max", AccountRole::Manager).await;
    granted(&system, "hidden-max", &[("granted", Role::Owner)]).await;
    let max = Person::sign_in(&system, "hidden-max").await;
    let root = Person::shared(&system, "root", AccountRole::Admin).await;

    let listed = max.get("policies").await.body;
    let only = &listed["policies"][0];
    assert_eq!(listed["policies"].as_array().unwrap().len(), 1, "{listed}");
    let shown = [&only["apps"], &only["shared"], &only["may_change"]];
    assert_eq!(shown, [&json!(["granted"]), &json!(true), &json!(false)]);
    assert_eq!(only["warnings"], json!([]), "it would name a policy that the account may not see");
    let apps = max.get("apps").await.body;
    assert_eq!(apps["apps"].as_array().unwrap().len(), 1, "{apps}");
    // The answer is the same to the last letter, whether the application exists or not.
    for [there, nowhere] in
        [["policies?app=hidden", "policies?app=none"], ["policies/hidden-p?app=hidden", "policies/hidden-p?app=none"]]
    {
        let method = if there.contains('/') { "DELETE" } else { "GET" };
        let (there, nowhere) = (max.call(method, there, None).await, max.call(method, nowhere, None).await);
        assert_eq!((there.code().as_str(), &there.body), ("404 not-found", &nowhere.body));
    }
    // An account that sees both policies is warned that they contradict each other.
    let all = root.get("policies").await.body;
    let warned = all["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "hidden-p").unwrap();
    assert!(warned["warnings"][0].as_str().unwrap().contains("less than hidden-narrow gives to one user"), "{warned}");
    // A revoked grant ends immediately.
    let taken = json!({ "app": "granted", "account": "hidden-max", "role": null });
    assert_eq!(root.put("grants", taken).await.status, 200);
    assert_eq!(max.get("policies?app=granted").await.status, 404);
    let unknown = json!({ "app": "granted", "account": "noone", "role": "viewer" });
    assert_eq!(root.put("grants", unknown).await.status, 404);
}

/// A11: what looks like our own origin or type, and is not. All other forgeries at every route: `console_rights`.
#[tokio::test(flavor = "multi_thread")]
async fn other_sites_change_nothing() {
    let system = System::shared_with(&UNLIMITED).await;
    let root = Person::new(&system, "forged", AccountRole::Admin).await;
    let new = || Some(json!({ "name": "forged" }));
    let host = system.instances[0].address;
    let forged = [
        Person { csrf: Some(String::new()), ..root.clone() }.request("POST", "apps", new()),
        root.request("POST", "apps", new()).header(ORIGIN, format!("http://{host}.evil.example")),
        root.request("POST", "apps", new()).header(ORIGIN, "https://evil.example").header(HOST, "localhost"),
        root.request("POST", "apps", None).header(CONTENT_TYPE, "application/jsonx").body(r#"{"name":"forged"}"#),
    ];
    let tried = i64::try_from(forged.len()).unwrap();
    for request in forged {
        assert_eq!(send(request).await.code(), "403 forged-request");
    }
    assert_eq!(refusals(&system, "forged").await, tried);
    // A page of our own sends all that is required, and nothing was made before.
    let own = root.request("POST", "apps", new()).header(ORIGIN, format!("http://{host}"));
    assert_eq!(send(own).await.status, 201);
    assert_eq!(root.call("POST", "apps", new()).await.code(), "409 conflict");
}

/// A14: a mistake cannot create a policy that refuses everything, or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn policies_with_impossible_thresholds_are_refused_clearly() {
    let system = System::shared_with(&UNLIMITED).await;
    let root = Person::shared(&system, "root", AccountRole::Admin).await;
    policy_changes::create_app(&system.stores.ledger, &app("cautious"), "test").await.unwrap();
    let with = |field: &str, value: Value| {
        let mut terms = window(&["cautious"], 5);
        terms[field] = value;
        terms
    };
    let bucket = |rate: i64| json!({ "apps": ["cautious"], "algorithm": "token-bucket", "rate": rate });
    for (terms, detail) in [
        (with("limit", json!(0)), "limit must be 1 to"),
        (with("limit", json!(-2)), "limit must be 1 to"),
        (with("limit", json!(i64::MAX)), "limit must be 1 to"),
        (with("limit", json!(1.5)), "invalid type"),
        (with("limit", json!("5")), "invalid type"),
        (with("window_ms", json!(0)), "window_ms must be"),
        (with("window_ms", json!(-1)), "window_ms must be"),
        (with("window_ms", json!(i64::MAX)), "window_ms must be"),
        (with("rate", json!(1)), "rate means nothing"),
        (with("excess", json!("queue:0")), "excess"),
        (with("apps", json!([])), "app must be given"),
        (with("apps", json!(["no such name"])), "app must be 1 to 64"),
        (with("floor", json!(0)), "floor"),
        (with("breaker", json!({ "error_percent": 0 })), "breaker takes"),
        (with("key", json!("x".repeat(65))), "key must be"),
        (with("surprise", json!(1)), "unknown field"),
        (json!({ "apps": ["cautious"], "algorithm": "leaky-bucket" }), "capacity is missing: leaky-bucket needs it"),
        (
            json!({ "apps": ["cautious"], "algorithm": "sliding-log", "limit": 10_001, "window_ms": 1000 }),
            "limit must be 1 to 10000, or -1 for no limit",
        ),
        (bucket(0), "must be 1 to"),
        (bucket(-1), "must be 1 to"),
        (bucket(i64::MAX), "must be 1 to"),
    ] {
        let answer = root.put("policies/impossible", terms.clone()).await;
        assert_eq!(answer.code(), "400 invalid-request", "{terms}");
        assert!(answer.body["detail"].as_str().unwrap().contains(detail), "{terms}: {}", answer.body);
    }
    let made = "SELECT count(*) FROM policies WHERE name = 'impossible'";
    assert_eq!(system.value::<i64>(made).await, 0);
}

/// A15: attempts are limited by account and address, and by address, and no answer shows which accounts exist.
#[tokio::test(flavor = "multi_thread")]
async fn guessing_is_limited_and_reveals_nothing() {
    let mut system = System::prepare(&GUESSED).await;
    // A slow Redis is not a limiter that is down.
    system.config.flow.timeout_ms = 20_000;
    system.serve(false).await;
    account(&system, "root", AccountRole::Admin).await;
    let visitor = Person::signed_out(&system);
    let attempt = async |name: &str, password: &str, from: &str| {
        let body = json!({ "name": name, "password": password });
        send(visitor.request("POST", "session", Some(body)).header("x-forwarded-for", from)).await
    };
    // One account, and many unknown names.
    for n in 0..2 {
        let of_account = attempt("root", "not the password", "10.0.0.1").await;
        assert_eq!(of_account.code(), "401 wrong-credentials");
        let of_nobody = attempt(&format!("nobody{n}"), PASSWORD, "10.1.0.1").await;
        assert_eq!((of_nobody.status, &of_nobody.body), (401, &of_account.body), "the same answer");
    }
    let limited = attempt("root", PASSWORD, "10.0.0.1").await;
    assert_eq!(limited.code(), "429 quota-exceeded", "even with the right password");
    let wait: u64 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=600).contains(&wait), "{wait}");
    assert_eq!(limited.headers["ratelimit-policy"], "\"account-address\";q=2;w=600");
    for n in 2..6 {
        assert_eq!(attempt(&format!("nobody{n}"), PASSWORD, "10.1.0.1").await.code(), "401 wrong-credentials");
    }
    let limited = attempt("nobody6", PASSWORD, "10.1.0.1").await;
    assert_eq!(limited.headers["ratelimit-policy"], "\"address\";q=6;w=600");
    // A malformed name does not count as an attempt.
    assert_eq!(attempt("no such name", PASSWORD, "10.2.0.1").await.code(), "400 invalid-request");
    assert_eq!(attempt("root", &"x".repeat(2000), "10.2.0.1").await.code(), "400 invalid-request");
    let failures = "SELECT count(*) FROM audit_log WHERE action = 'sign-in refused'";
    let failures: i64 = system.value(failures).await;
    assert_eq!(failures, 8);
    system.stop().await;
}

/// The processor time that a process has spent on passwords, in hundredths of a second. Other processes do not prolong it.
fn spent_on_passwords(process: &Process) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let spent = stats.filter_map(|stat| {
        let (head, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let is_of_passwords = head.contains("(passwords");
        is_of_passwords.then(|| fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
    });
    spent.sum()
}

/// A15: the time of an answer does not show which accounts exist, because the service checks a password for unknown names too.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_no_account_has_takes_as_long_as_a_wrong_password() {
    let system = System::prepare(&[("SECKILL_ADMIN__LOGIN_LIMIT", "1000")]).await;
    account(&system, "root", AccountRole::Admin).await;
    // A separate process, which checks the passwords of no other test.
    let address = free_address();
    let process = Process::start_with(&system, address, &[("RUST_LOG", "error")], Stdio::inherit());
    let process = process.ready(address).await;
    let visitor = Person::visiting(address);
    let (wrong, mut of_account, mut of_nobody) = ("not the password", 0_u64, 0_u64);
    // They alternate, so that a slow machine slows both.
    for n in 0..6 {
        for (name, spent) in [("root".to_owned(), &mut of_account), (format!("nobody{n}"), &mut of_nobody)] {
            let before = spent_on_passwords(&process);
            let credentials = json!({ "name": name, "password": wrong });
            assert_eq!(visitor.post("session", credentials).await.code(), "401 wrong-credentials");
            *spent += spent_on_passwords(&process) - before;
        }
    }
    let is_alike = of_account > 0 && of_nobody > 0 && of_account < 5 * of_nobody && of_nobody < 5 * of_account;
    assert!(is_alike, "{of_account} hundredths of a second for an account, {of_nobody} for names that no account has");
    process.end();
    system.finish().await;
}

/// While attempts cannot be counted, the service refuses them. The overview lacks only Redis's figures.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_limiter_sign_in_is_refused() {
    let (system, wire) = wired_with("REDIS_URL", &[]).await;
    let root = Person::new(&system, "root", AccountRole::Admin).await;
    let sale = system.create_sale(terms(5)).await;
    wire.cut();
    // The connections break shortly after the wire is cut.
    until("503 temporarily-unavailable", || async {
        let credentials = Some(json!({ "name": "root", "password": PASSWORD }));
        send(Person::signed_out(&system).request("POST", "session", credentials)).await.code()
    })
    .await;
    // Existing sessions keep working, so that operators can act.
    assert_eq!(root.get("alarms").await.status, 200);
    until(json!([sale.id, null]), || async {
        let seen = root.get("overview").await.body;
        json!([seen["sales"][0]["id"], seen["sales"][0]["available"]])
    })
    .await;
    wire.mend();
    Person::sign_in(&system, "root").await;
    system.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_by_signing_out_by_age_and_by_idleness() {
    let system = System::shared_with(&UNLIMITED).await;
    account(&system, "ending", AccountRole::Admin).await;
    let mut visitor = Person::signed_out(&system);
    let answer = visitor.post("session", json!({ "name": "ending", "password": PASSWORD })).await;
    assert_eq!(cookie_attributes(&answer, "seckill_session"), ["HttpOnly", "Path=/", "SameSite=Strict"]);
    let left_ms = answer.body["expires_at_ms"].as_i64().unwrap() - chrono::Utc::now().timestamp_millis();
    assert!((43_000_000..=43_201_000).contains(&left_ms), "{left_ms}");

    // A reloaded page gets the same token again.
    let root = Person::sign_in(&system, "ending").await;
    let session = root.get("session").await.body;
    assert_eq!(session["csrf_token"].as_str(), root.csrf.as_deref());
    // The database has only a hash of the session's token.
    let token = root.cookie.as_deref().unwrap().split_once('=').unwrap().1;
    let kept = "SELECT token_hash FROM sessions WHERE account = 'ending' ORDER BY created_at DESC LIMIT 1";
    let kept: Vec<u8> = system.value(kept).await;
    assert_eq!(kept, blake3::hash(token.as_bytes()).as_bytes());
    let out = root.delete("session").await;
    let removed = cookie_attributes(&out, "seckill_session");
    assert_eq!(removed, ["HttpOnly", "Max-Age=0", "Path=/", "SameSite=Strict"]);
    assert_eq!(root.get("session").await.code(), "401 signed-out");

    for end in [
        "UPDATE sessions SET seen_at = now() - interval '31 minutes' WHERE account = 'ending'",
        "UPDATE sessions SET created_at = now() - interval '2 hours', expires_at = now() - interval '1 second'
         WHERE account = 'ending'",
    ] {
        let root = Person::sign_in(&system, "ending").await;
        assert_eq!(root.get("session").await.status, 200);
        system.execute(end).await;
        assert_eq!(root.get("session").await.code(), "401 signed-out", "{end}");
        assert_eq!(root.post("apps", json!({ "name": "late" })).await.code(), "401 signed-out", "{end}");
    }
    visitor.cookie = Some("seckill_session=".to_owned() + &"0".repeat(64));
    assert_eq!(visitor.get("policies").await.code(), "401 signed-out");
}

/// Another site under the same domain can set cookies for it, but none with this name.
#[tokio::test(flavor = "multi_thread")]
async fn outside_development_the_cookies_need_tls_and_belong_to_this_host_alone() {
    // Outside development mode, a new broker's default password is refused. Nothing here needs a broker.
    let nowhere = format!("amqp://seckill:{}@127.0.0.1:1/%2f", seckill_harness::secret());
    let mut system = System::without_workers(&[("SECKILL_DEV", "false"), ("AMQP_URL", &nowhere)]).await;
    account(&system, "root", AccountRole::Admin).await;
    let credentials = Some(json!({ "name": "root", "password": PASSWORD }));
    let answer = Person::signed_out(&system).call("POST", "session", credentials).await;
    let session = cookie_attributes(&answer, "__Host-seckill_session");
    assert_eq!(session, ["HttpOnly", "Path=/", "SameSite=Strict", "Secure"]);
    let device = cookie_attributes(&answer, "__Host-seckill_device");
    assert_eq!(device, ["HttpOnly", "Max-Age=7776000", "Path=/", "SameSite=Strict", "Secure"]);
    let mut root = Person::sign_in(&system, "root").await;
    assert_eq!(root.get("session").await.status, 200);
    root.cookie = root.cookie.map(|cookie| cookie.replace("__Host-", ""));
    assert_eq!(root.get("session").await.code(), "401 signed-out");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_created_on_the_command_line() {
    let system = System::shared_with(&UNLIMITED).await;
    let create = |name: &str, role: &str, typed: &str| {
        seckill(&system, &["admin", "create", "--name", name, "--role", role], typed)
    };
    let good = format!("{PASSWORD}\n");
    create("typed", "admin", &good).unwrap();
    for (name, role, typed, message) in [
        ("typed", "admin", good.as_str(), "account typed already exists"),
        ("short", "admin", "elevenchars\n", "at least 12 characters"),
        ("none", "admin", "", "at least 12 characters"),
        ("long", "admin", &"x".repeat(5000), "at most 1024 bytes"),
        ("bad name", "admin", &good, "name must be"),
        ("owner", "owner", &good, "role must be"),
    ] {
        let error = create(name, role, typed).unwrap_err();
        assert!(error.contains(message), "{name}: {error}");
        assert!(!error.contains(PASSWORD));
    }
    let root = Person::sign_in(&system, "typed").await;
    let session = root.get("session").await.body;
    assert_eq!((&session["name"], &session["role"]), (&json!("typed"), &json!("admin")));
}
