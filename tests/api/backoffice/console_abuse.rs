//! Texts that look like HTML, forged lines of the log, and secrets in answers (docs/protocol.md, Abuse: A11, A17).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use reqwest::Client;
use reqwest::header::ACCEPT;
use seckill_domain::account::AccountRole;
use seckill_domain::policy::{Excess, NewPolicy};
use seckill_domain::sale::NewSale;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::backoffice::admin_api::{PASSWORD, Person, account};
use crate::backoffice::console_rights::{RULES, WINDOW, staffed};
use crate::flow::permits_and_policies::{a_day, policy, set};
use crate::network::service_killed::Process;
use seckill_harness::folder::free_address;
use seckill_harness::{System, terms};

/// A text that would do harm as HTML, with an escape sequence that would do harm in a terminal.
const PLANTED: &str = "<script>alert('planted')</script>\"'><b id=x>";
const ESCAPE: &str = "\u{1b}[2JFORGED";

/// Writes the text into the fields that people, applications and banks can fill, through the service or by psql.
async fn plant(system: &System) {
    system.create_sale(NewSale { product: PLANTED.into(), ..terms(5) }).await;
    let degrade = Excess::Degrade { answer: json!({ "html": PLANTED }) };
    let planted = NewPolicy { key: PLANTED.into(), excess: degrade, ..policy("shop", "p", a_day(5)) };
    set(system, planted).await;
    for sql in [
        "UPDATE products SET description = $1",
        "UPDATE apps SET created_by = $1",
        "UPDATE accounts SET created_by = $1",
        "UPDATE policies SET created_by = $1, updated_by = $1",
        "INSERT INTO alarms (kind, subject, details) VALUES ($1, $1, jsonb_build_object('why', $1::text))",
        "INSERT INTO alarms (kind, subject, details) VALUES ('parked', $1, jsonb_build_object('why', $1::text))",
        "INSERT INTO audit_log (actor, action, subject, details) VALUES ($1, $1, $1, jsonb_build_object('why', $1::text))",
    ] {
        sqlx::query(sql).bind(PLANTED).execute(&system.sql).await.unwrap();
    }
    let line = "INSERT INTO audit_log (actor, action, subject, details)
                VALUES ($1, $1, $1, jsonb_build_object('why', $1::text))";
    sqlx::query(line).bind(ESCAPE).execute(&system.sql).await.unwrap();
}

/// A11: pages show user input as text, never as markup. No page and no answer contains a secret.
#[tokio::test(flavor = "multi_thread")]
async fn pages_show_what_people_write_as_text_and_no_secret() {
    let (system, people) = staffed().await;
    assert_text_on_every_page(&system, &people["root"]).await;
    assert_no_secret_in_any_answer(&system, &people).await;
    system.finish().await;
}

async fn assert_text_on_every_page(system: &System, root: &Person) {
    plant(system).await;
    let mut shown = BTreeSet::new();
    for rule in RULES.iter().filter(|rule| rule.is_page()) {
        let (status, page) = rule.answer(system, Some(root)).await;
        assert_eq!(status, 200, "{}", rule.address());
        for wrong in ["<script>alert", "<b id=x>", "\"'>", "\u{1b}"] {
            assert!(!page.contains(wrong), "{wrong} in {}: {page}", rule.address());
        }
        if page.contains("&#60;script&#62;alert") {
            shown.insert(rule.address());
        }
    }
    // The escaped text is there.
    for address in
        ["/admin", "/admin/policies", "/admin/policies/shop/p", "/admin/apps", "/admin/alarms", "/admin/audit-log"]
    {
        assert!(shown.contains(address), "{address} does not show the text: {shown:?}");
    }
    // Text in an address is escaped too.
    for address in [
        "/admin/sign-in?then=%22%3E%3Cscript%3Ealert(1)",
        "/admin/policies?app=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/admin/audit-log?actor=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/admin/audit-log?subject=%22%3E%3Cscript%3Ealert(1)",
        "/admin/policies/shop/%3Cscript%3Ealert(1)",
        "/admin/runbooks/%3Cscript%3Ealert(1)",
        "/admin/%3Cscript%3Ealert(1)",
    ] {
        let request = root.authenticated(Client::new().get(system.url(address)));
        let page = request.header(ACCEPT, "text/html").send().await.unwrap().text().await.unwrap();
        assert!(!page.contains("<script>alert"), "{address}: {page}");
    }
}

/// Secrets are password hashes, the service's keys, and tokens. An application's token is shown once, in its first answer.
async fn assert_no_secret_in_any_answer(system: &System, people: &BTreeMap<&str, Person>) {
    let root = &people["root"];
    let made = root.post("apps", json!({ "name": "till" })).await;
    let token = made.body["token"].as_str().unwrap().to_owned();
    let mut secrets = secrets_of(system).await;
    secrets.insert(token.clone());
    secrets.insert(blake3::hash(token.as_bytes()).to_hex().to_string());
    for (name, person) in people {
        secrets.extend(session_secrets(person));
        // The session's own CSRF token is meant for its page.
        let own = person.get("session").await.body["csrf_token"].as_str().unwrap().to_owned();
        if *name != "root" {
            secrets.insert(own);
        }
    }
    for rule in RULES.iter().filter(|rule| !rule.route.contains("/session")) {
        let (_, text) = rule.answer(system, Some(root)).await;
        let found: Vec<&String> = secrets.iter().filter(|secret| text.contains(secret.as_str())).collect();
        assert!(found.is_empty(), "{}: {found:?}", rule.route);
    }
}

/// The secrets of the database and the settings, as text.
async fn secrets_of(system: &System) -> BTreeSet<String> {
    let mut secrets = BTreeSet::from([system.environment["SECKILL_AUTH__JWT_SECRET"].clone(), PASSWORD.to_owned()]);
    for sql in [
        "SELECT password_hash FROM accounts",
        "SELECT encode(token_hash, 'hex') FROM apps WHERE token_hash IS NOT NULL",
        "SELECT encode(token_hash, 'hex') FROM sessions",
        // Only buyers of an open sale get its keys.
        "SELECT unnest(ARRAY[purchase_key, waiting_key]) FROM sales",
    ] {
        secrets.extend(sqlx::query_scalar::<_, String>(sql).fetch_all(&system.sql).await.unwrap());
    }
    secrets
}

/// The tokens in a person's cookies.
fn session_secrets(person: &Person) -> Vec<String> {
    let request = person.authenticated(Client::new().get("http://127.0.0.1/")).build().unwrap();
    let cookie = request.headers()["cookie"].to_str().unwrap();
    cookie.split("; ").filter_map(|pair| Some(pair.split_once('=')?.1.to_owned())).collect()
}

/// Names, reasons, paths and headers with line ends and escape sequences, as a client could send them by hand.
fn raw(cookie: &str, csrf: &str) -> Vec<String> {
    let signed_in = format!("Host: x\r\nCookie: {cookie}\r\nConnection: close\r\n");
    let body = |method: &str, path: &str, json: &str| {
        let length = json.len();
        format!(
            "{method} {path} HTTP/1.1\r\n{signed_in}X-CSRF-Token: {csrf}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{json}"
        )
    };
    let name = r#"\nFORGED \u001b[2JFORGED\r\nFORGED"#;
    vec![
        body("POST", "/api/v1/admin/apps", &format!(r#"{{"name": "{name}"}}"#)),
        body("PUT", "/api/v1/admin/grants", &format!(r#"{{"app": "shop", "account": "{name}", "role": "viewer"}}"#)),
        body("PUT", "/api/v1/admin/policies/%0aFORGED%1b[2J", &WINDOW.replace("shop", name)),
        body(
            "POST",
            "/api/v1/admin/session",
            &r#"{"name": NAME, "password": NAME}"#.replace("NAME", &format!("\"{name}\"")),
        ),
        body("POST", "/api/v1/admin/accounts", &format!(r#"{{"{name}": 1}}"#)),
        body("POST", "/api/v1/admin/%0aFORGED%0d%0aFORGED", "{}"),
        format!("GET /admin/policies/shop/%0aFORGED%1b[2J HTTP/1.1\r\n{signed_in}\r\n"),
        format!("GET /admin/runbooks/%0d%0aFORGED?x=%0aFORGED HTTP/1.1\r\n{signed_in}\r\n"),
        format!("GET /admin/audit-log?actor=%0aFORGED HTTP/1.1\r\n{signed_in}User-Agent: \x1b[2JFORGED\r\n\r\n"),
        format!("GET /admin HTTP/1.1\r\n{signed_in}X-Any: a\r\n FORGED\r\nReferer: \x1b]0;FORGED\x07\r\n\r\n"),
        format!("DELETE /api/v1/admin/session HTTP/1.1\r\n{signed_in}X-CSRF-Token: \x1b[2JFORGED\r\n\r\n"),
        format!("DELETE /api/v1/admin/session HTTP/1.1\r\n{signed_in}Origin: http://x%0aFORGED\r\n\r\n"),
        // The audit log records this refusal with the path.
        format!("DELETE /api/v1/admin/policies/%0aFORGED%1b[2J?app=%0aFORGED HTTP/1.1\r\n{signed_in}\r\n"),
    ]
}

/// A17: no caller begins a line of the log, sends an escape sequence to a reader's terminal, or reveals a secret.
#[tokio::test(flavor = "multi_thread")]
async fn no_caller_writes_a_line_of_the_log_and_no_secret_is_in_it() {
    let system = System::prepare(&[]).await;
    account(&system, "root", AccountRole::Admin).await;
    let address = free_address();
    let file = std::env::temp_dir().join(format!("seckill-{}", uuid::Uuid::new_v4().simple()));
    let log = std::fs::File::create(&file).unwrap();
    let more = [("RUST_LOG", "trace,h2=off,hyper=off"), ("SECKILL_WORK__METRICS_BIND", "127.0.0.1:0")];
    let process = Process::start_with(&system, address, &more, Stdio::from(log)).ready(address).await;
    let root = Person::visiting(address).signed_in("root").await;
    let session = root.get("session").await.body;
    let csrf = session["csrf_token"].as_str().unwrap().to_owned();
    let made = root.post("apps", json!({ "name": "shop" })).await;
    let rotated = root.post("apps/shop/tokens", json!({ "overlap_ms": 1000 })).await;
    assert_eq!(root.call("PUT", "policies/p", serde_json::from_str(WINDOW).ok()).await.status, 200);
    let token = session_secrets(&root).remove(0);
    let cookie = format!("seckill_session={token}");
    for request in raw(&cookie, &csrf) {
        let mut wire = TcpStream::connect(address).await.unwrap();
        wire.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The service answers an invalid head by closing the connection.
        _ = wire.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        // A busy service may refuse.
        let failed = answer.starts_with("HTTP/1.1 5") && !answer.starts_with("HTTP/1.1 503");
        assert!(!failed, "{request}: {answer}");
        let (head, _) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(!head.lines().any(|line| line.starts_with("FORGED")), "{request}: {head}");
    }
    process.end();
    let log = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(log.contains("seckill"), "nothing was logged");
    assert!(!log.contains('\u{1b}'), "an escape sequence was logged");
    let forged = log.lines().find(|line| line.trim_start().starts_with("FORGED"));
    assert_eq!(forged, None, "a caller wrote a line");
    let mut secrets = secrets_of(&system).await;
    secrets.extend([token, csrf]);
    for answer in [&made.body, &rotated.body] {
        secrets.insert(answer["token"].as_str().unwrap().to_owned());
    }
    for secret in secrets {
        assert!(!log.contains(&secret), "logged: {secret}");
    }
    // The audit log has no such line either: it escapes the line ends of a refused text.
    let lines = "SELECT count(*) FROM audit_log WHERE concat(actor, action, subject, details::text) ~ '[[:cntrl:]]'";
    assert_eq!(system.value::<i64>(lines).await, 0);
    system.finish().await;
}
