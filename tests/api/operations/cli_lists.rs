//! Lists and exports of the command line: whole, or cut and said so; a failure is named by its cause.

use std::collections::HashSet;
use std::process::{Output, Stdio};

use reqwest::Url;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use uuid::Uuid;

use seckill_domain::account::AccountRole;
use seckill_harness::folder::free_address;
use seckill_harness::{System, terms};
use seckill_postgres::LedgerError;

use crate::backoffice::admin_api::{Person, account};
use crate::operations::memory::serve;
use crate::pages::served_pages::command;

fn run(system: &System, words: &[&str], settings: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(system, words).envs(settings.iter().copied()).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The most memory that a program has used so far, in MiB.
fn memory_mib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// A large table is exported whole, with the memory of a small one: no list is in memory as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_has_every_order_and_needs_little_memory() {
    const ORDERS: usize = 300_000;
    const MEMORY_MIB: u64 = 96;
    /// The file has some 50 MB.
    const EXPORT_MIB: u64 = 24;
    let system = System::prepare(&[]).await;
    let sale = system.create_sale(terms(5)).await;
    // Rows go in faster without what the export does not use.
    system.execute("ALTER TABLE orders DISABLE TRIGGER ALL; DROP INDEX orders_of_user, orders_of_sale").await;
    let insert = format!(
        "INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, expires_at, created_at, group_id)
         SELECT lpad(to_hex(i), 32, '0')::uuid, {}, 'buyer ' || i, 1, 100, 'CNY', CASE WHEN i % 3 = 0 THEN 'cancelled' ELSE 'paid' END, now(),
                now() - interval '1 ms' * (i / 2), gen_random_uuid() FROM generate_series(1, {ORDERS}) i",
        sale.id
    );
    system.execute(insert).await;
    system.execute("ANALYZE orders").await;
    let mut export = Command::from(command(&system, &["orders", "--format", "csv"]));
    let mut export = export.stdout(Stdio::piped()).spawn().unwrap();
    let pid = export.id().unwrap();
    let mut lines = BufReader::new(export.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("order_id,sale_id,user,"));
    let (mut buyers, mut most) = (HashSet::new(), 0);
    while let Some(line) = lines.next_line().await.unwrap() {
        if buyers.len() % 10_000 == 0 {
            most = memory_mib(pid).unwrap_or(0).max(most);
        }
        buyers.insert(line.split(',').nth(2).unwrap().to_owned());
    }
    assert_eq!((export.wait().await.unwrap().code(), buyers.len()), (Some(0), ORDERS));
    assert!((1..MEMORY_MIB).contains(&most), "{most} MiB");

    // The console's file comes from the service, and is as large.
    let address = free_address();
    let service = serve(&system, address).await;
    account(&system, "max", AccountRole::Manager).await;
    let max = Person::visiting(address).signed_in("max").await;
    let before = memory_mib(service.id()).unwrap();
    let mut file = max.request("GET", "orders.csv", None).send().await.unwrap();
    let (mut lines, mut last) = (0, 0);
    while let Some(piece) = file.chunk().await.unwrap() {
        lines += piece.iter().filter(|byte| **byte == b'\n').count();
        last = *piece.last().unwrap();
    }
    assert_eq!((lines, last), (ORDERS + 1, b'\n'));
    let grown = memory_mib(service.id()).unwrap() - before;
    assert!(grown < EXPORT_MIB, "{grown} MiB more");
    service.end();
}

/// Each list is read in pages and ends with its last row; where a limit cuts it, stderr and the exit code say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_whole_or_says_that_it_is_cut() {
    const ROWS: usize = 2_500;
    let system = System::prepare(&[]).await;
    let sale = system.create_sale(terms(5)).await;
    let id = sale.id.to_string();
    let series = format!("FROM generate_series(1, {}) i", ROWS - 1);
    for insert in [
        format!("INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at, pay_within_ms,
                                    purchase_key, waiting_key)
                 SELECT product_id, price_cents, currency, 5, 5, 1, 0, starts_at, ends_at, pay_within_ms, 'a' || i, 'b' || i
                 FROM sales, generate_series(1, {}) i WHERE id = {id}", ROWS - 1),
        format!("INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, expires_at, group_id)
                 SELECT gen_random_uuid(), {id}, 'u' || i, 1, 100, 'CNY', 'paid', now(), gen_random_uuid() {series}"),
        "INSERT INTO payments (id, order_id, channel, amount_cents, currency, status, pays, ended_at)
                 SELECT gen_random_uuid(), id, 'sandbox', 100, 'CNY', 'succeeded', true, now() FROM orders".to_owned(),
        "INSERT INTO refunds (id, payment_id, order_id, channel, amount_cents, currency, cause, asked_by, reason, status, key, queued, ended_at)
                 SELECT gen_random_uuid(), id, order_id, 'sandbox', 100, 'CNY', 'asked', 'u', '', 'succeeded', gen_random_uuid(), false, now()
                 FROM payments".to_owned(),
        format!("INSERT INTO callbacks_set_aside (channel, message_id, problem, body) SELECT 'sandbox', 'm' || i, 'unknown', '{{}}' {series}"),
        format!("INSERT INTO alarms (kind, subject, cleared_at) SELECT 'drift', 'sale ' || i, CASE WHEN i > 1200 THEN now() END {series}"),
        format!("INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, status, attempts, last_error)
                 SELECT 'group_placed', gen_random_uuid(), {id}, 1, 0, 'parked', 10, 'why' {series}"),
        "INSERT INTO outflow_channels (name, rate, jitter_ms, gap_us, target) VALUES ('c', 10, 10, 200000, 'http://127.0.0.1/')".to_owned(),
        format!("INSERT INTO outflow_items (id, channel, key, payload, status, last_error)
                 SELECT gen_random_uuid(), 'c', 'k' || i, '{{}}', 'parked', 'why' {series}"),
        format!("INSERT INTO lapsed_holds (order_id, sale_id, user_id, address, quantity)
                 SELECT gen_random_uuid(), {id}, 'u' || i, '10.0.0.1', 1 {series}"),
    ] {
        system.execute(format!("SET session_replication_role = replica; {insert}")).await;
    }
    for list in [
        &["sale", "list"][..],
        &["orders"],
        &["payments", "list"],
        &["payments", "set-aside"],
        &["refunds", "list"],
        &["alarms"],
        &["outbox", "list"],
        &["outflow", "parked"],
        &["sale", "lapsed-holds", &id],
    ] {
        let rows = ROWS - usize::from(list != ["sale", "list"]);
        let json = |words: &[&str]| {
            let (code, out, error) = run(&system, &[list, &["--format", "json"], words].concat(), &[]);
            let found: Vec<Value> = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{list:?}: {error} {out}"));
            let different: HashSet<String> = found.iter().map(Value::to_string).collect();
            assert_eq!(different.len(), found.len(), "{list:?}");
            (code, found.len(), error)
        };
        let all = rows.to_string();
        for whole in [&[][..], &["--limit", &all], &["--limit", "1000000"]] {
            assert_eq!(json(whole), (Some(0), rows, String::new()), "{list:?} {whole:?}");
        }
        for cut in ["1", "1000", "2001"] {
            let said = format!("seckill: cut at {cut} rows; more with --limit\n");
            assert_eq!(json(&["--limit", cut]), (Some(3), cut.parse().unwrap(), said), "{list:?}");
        }
    }
    // Of a finding's rows, the audit shows a part, and says so.
    let (_, audit, error) = run(&system, &["audit", "--sale", &id, "--json"], &[]);
    let audit: Value = serde_json::from_str(&audit).unwrap_or_else(|_| panic!("{error}"));
    let findings = audit["sales"][0]["findings"].as_array().unwrap().iter();
    let long: Vec<_> =
        findings.filter_map(|finding| finding["evidence"].as_array()).filter(|rows| rows.len() > 1).collect();
    let says_more = |row: &Value| row.as_str().is_some_and(|row| row.starts_with("and ") && row.ends_with("more"));
    assert!(!long.is_empty() && long.iter().all(|rows| rows.len() == 21 && says_more(&rows[20])), "{audit}");
    let (code, table, _) = run(&system, &["orders", "--limit", "1500"], &[]);
    assert_eq!((code, table.lines().count()), (Some(3), 1502), "with the columns and a line");
}

/// The error of a command says what PostgreSQL said, and not that it was unreachable while it answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_postgres_is_named() {
    let system = System::prepare(&[("SECKILL_DATABASE__ACQUIRE_TIMEOUT_MS", "2000")]).await;
    let fails = |list: &[&str], settings: &[(&str, &str)]| {
        let (code, out, error) = run(&system, &[list, &["--format", "json"]].concat(), settings);
        assert_eq!((code, out.as_str(), error.lines().count()), (Some(1), "", 1), "{error}");
        error
    };
    let url = &system.environment["DATABASE_URL"];
    let mut other = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE sales, orders").execute(&mut other).await.unwrap();
    assert!(fails(&["orders"], &[]).contains("another transaction keeps a row locked"));
    // Shorter than the time that a statement waits for a lock.
    let late = fails(&["sale", "list"], &[("SECKILL_DATABASE__STATEMENT_TIMEOUT_MS", "1000")]);
    assert!(late.contains("postgres cancelled a statement") && late.contains("statement timeout"), "{late}");
    assert_eq!(late.matches("timeout").count(), 1, "said once: {late}");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();

    let (role, mut crowded) = (format!("crowded_{}", Uuid::new_v4().simple()), Url::parse(url).unwrap());
    crowded.set_username(&role).unwrap();
    crowded.set_password(Some("x")).unwrap();
    system.execute(format!("CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 0")).await;
    let error = fails(&["orders"], &[("DATABASE_URL", crowded.as_str())]);
    system.execute(format!("DROP ROLE {role}")).await;
    assert!(error.contains("postgres cannot work") && error.contains("too many connections"), "{error}");
    let nowhere = fails(&["orders"], &[("DATABASE_URL", "postgres://seckill@127.0.0.1:1/x")]);
    assert!(nowhere.contains("postgres unreachable") && nowhere.contains("refused"), "{nowhere}");

    for (code, says) in [
        ("53100", "postgres cannot work: "),
        ("53200", "postgres cannot work: "),
        ("25006", "postgres cannot work: "),
        ("57P03", "postgres cannot work: "),
        ("58030", "postgres cannot work: "),
        ("08006", "postgres unreachable: "),
        ("57014", "postgres cancelled a statement: "),
        ("40001", "conflict with another transaction: "),
        ("28P01", "postgres: "),
    ] {
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'because' USING ERRCODE = '{code}'; END $$");
        let raised = sqlx::raw_sql(AssertSqlSafe(raise)).execute(&system.sql).await.unwrap_err();
        let error = LedgerError::from(raised);
        assert!(error.to_string().starts_with(says) && error.to_string().contains("because"), "{code}: {error}");
        // What another row would meet too is tried again later.
        assert_eq!(error.is_outage(), !["57014", "28P01"].contains(&code), "{code}");
    }
}
