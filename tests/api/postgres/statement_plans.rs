//! The number of pages that each statement of the program reads in large tables. The statements come from `.sqlx`, so new ones are
//! included. Each is prepared, executed several times as in a long-lived session, and rolled back.

use std::path::Path;

use seckill_harness::System;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, raw_sql};

/// Pages of 8 KiB that a statement may read or write without a reason: of a table or an index, in memory or not. A batch has 20 rows here.
const PAGES_MAX: i64 = 400;
/// The tables have this share of the rows in tests/data/large_tables.sql, and all rows with SECKILL_TEST_SCALE=1.
const SCALE: &str = "0.2";

/// Statements that may read more, by a part of their text, with the reason.
const DEAR: &[(&str, &str)] = &[
    ("AS \"retired!\", cleared_at", "the auditor counts all that a sale has, when somebody asks it to"),
    ("AS \"user_id!\", shard AS \"shard!\" FROM orders", "the auditor lists the live orders of a sale"),
    ("AND r.kind = 'hold_release' AND r.status <> 'processed'", "the auditor lists the releases of a sale"),
    ("SELECT order_ids FROM purchase_groups", "the auditor reads the purchases of a sale that are no orders yet"),
    (
        "coalesce(sum(quantity), 0) AS \"units!\" FROM accepted_purchases",
        "a change of the stock counts a sale's purchases that are no orders yet",
    ),
    (
        "AS \"kept!\" FROM orders WHERE sale_id = $1 GROUP BY",
        "the live page counts the orders of a sale, at most 5 % of the time",
    ),
    ("AS \"drift_alarm!\"", "the live page counts up to 10,000 new rows of the outbox, at most 5 % of the time"),
    ("(SELECT count(*) FROM sessions", "the sessions of all accounts, of which a shop has dozens"),
    ("UPDATE refunds SET asked_at", "reads the refunds under way, at most 5 % of the time"),
    ("WHERE r.status = 'requested' AND i.done_at", "an alarm reads the money under way, at most 5 % of the time"),
    ("AS live WHERE channel <> ALL", "a metric reads the money under way, at most 5 % of the time"),
    (
        "FROM payments WHERE channel = $1 AND status = 'succeeded'",
        "the books of a channel are compared when somebody asks for it",
    ),
    (
        "FROM refunds WHERE status = 'failed' GROUP BY",
        "an alarm reads what failed and was not settled, at most 5 % of the time",
    ),
    (
        "count(DISTINCT address) AS \"addresses!\"",
        "the console counts the lapsed holds of a sale, at most 5 % of the time",
    ),
    ("ORDER BY next_attempt_at, step_id LIMIT $1 FOR UPDATE", "about 25 pages for each event of a batch"),
    ("members AS released,", "about 25 pages for each release of a group, which has ten members here"),
    (
        "AS \"items!\" FROM outflow_items WHERE status = 'parked'",
        "an alarm counts the parked items, at most 5 % of the time",
    ),
    ("AS \"parked!\" FROM outflow_channels", "a metric counts the parked items, at most 5 % of the time"),
    ("INSERT INTO outflow_depths", "counts the items that wait, at most 5 % of the time"),
    ("AS \"created!\"", "a metric counts the money under way, at most 5 % of the time"),
    (
        "AS \"accepted!\" FROM (SELECT members",
        "a metric reads an index with what a backlog has left in it, at most 5 % of the time",
    ),
    ("left(payload::text, 2000)", "the console sorts the parked items of all channels, when somebody looks"),
    ("SELECT p.place AS \"place!\"", "the console looks for a buyer among the purchases of a sale, when somebody asks"),
    ("AS \"group!\" FROM orders", "looks through the groups that are not settled, for a purchase that is no order yet"),
    ("WITH known AS MATERIALIZED", "likewise"),
    ("one AS MATERIALIZED", "likewise, where an order is asked for by its id alone"),
    (
        "AND NOT g.was_split AND m.address = $2",
        "the console looks for an address among the purchases of a sale, when somebody asks",
    ),
    (
        "right(id::text, 8) = $8 ORDER BY",
        "the console looks for an order's number in a sale or a time, when somebody asks",
    ),
    (
        "LEFT JOIN alarm_mutes m",
        "the console looks for alarms of some kinds among all alarms, of which a shop has thousands",
    ),
    ("UPDATE payments SET asked = asked + 1", "about 25 pages for each payment of a batch"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_reads_little_however_large_the_tables_are() {
    let system = System::prepare(&[]).await;
    let mut sql = PgConnection::connect(&system.config.database.url).await.unwrap();
    let scale = std::env::var("SECKILL_TEST_SCALE").unwrap_or_else(|_| SCALE.to_owned());
    run(&mut sql, &format!("SET seckill.scale = '{scale}'")).await;
    run(&mut sql, include_str!("../../data/large_tables.sql")).await;
    run(&mut sql, "VACUUM ANALYZE").await;
    let statements = statements();
    assert!(statements.len() > 250, "{} statements in .sqlx", statements.len());
    let mut dear = measure(&mut sql, &statements, "a backlog").await;
    // Each shape is measured with the statistics of the shape before it: a backlog's after the drain, and an empty backlog's for a new one.
    let (drain, new_backlog) = (include_str!("../../data/drain.sql"), include_str!("../../data/new_backlog.sql"));
    for (change, shape) in [(drain, "drained"), (new_backlog, "a large new backlog"), (drain, "drained again")] {
        run(&mut sql, change).await;
        run(&mut sql, "VACUUM").await;
        dear.extend(measure(&mut sql, &statements, shape).await);
        run(&mut sql, "ANALYZE").await;
    }
    assert!(dear.is_empty(), "more than {PAGES_MAX} pages:\n{}", dear.join("\n"));
    for (part, _) in WITHOUT {
        let named = statements.iter().filter(|statement| one_line(&statement.text).contains(part)).count();
        assert_eq!(named, 2, "{part:?} is a part of {named} statements");
    }
    for (part, _) in DEAR {
        let named = statements.iter().filter(|statement| one_line(&statement.text).contains(part)).count();
        assert_eq!(named, 1, "{part:?} is a part of {named} statements");
    }
    system.finish().await;
}

/// Searches that are measured a second time without these parameters, which callers often leave out.
const WITHOUT: &[(&str, &[usize])] = &[
    // The orders of one sale, of all buyers, times and statuses.
    ("AND ($2::bigint IS NULL OR sale_id = $2) AND ($9::bigint[]", &[1, 3, 7, 8, 9]),
    // The same of several sales.
    ("WHERE sale_id = wanted.sale AND ($2::text IS NULL", &[2, 6, 7]),
];

struct Statement {
    text: String,
    parameters: Vec<String>,
}

fn statements() -> Vec<Statement> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let mut statements = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let described: Value = serde_json::from_slice(&std::fs::read(entry.unwrap().path()).unwrap()).unwrap();
        let text = described["query"].as_str().unwrap().to_owned();
        let types = described["describe"]["parameters"]["Left"].as_array().unwrap();
        let parameters: Vec<String> =
            types.iter().enumerate().map(|(place, kind)| value(&text, place + 1, kind.as_str())).collect();
        for (_, left_out) in WITHOUT.iter().filter(|(part, _)| one_line(&text).contains(part)) {
            let given = parameters.iter().enumerate();
            let given = given
                .map(|(place, value)| if left_out.contains(&(place + 1)) { "NULL".to_owned() } else { value.clone() });
            statements.push(Statement { text: text.clone(), parameters: given.collect() });
        }
        statements.push(Statement { text, parameters });
    }
    statements.sort_by(|one, other| one.text.cmp(&other.text));
    statements
}

async fn measure(sql: &mut PgConnection, all: &[Statement], shape: &str) -> Vec<String> {
    let (mut dear, mut refused) = (Vec::new(), 0);
    for Statement { text, parameters } in all {
        let pages = match pages(sql, text, parameters).await {
            Ok(pages) => pages,
            // A constraint refuses the new row. The check would read only the row itself.
            Err(error)
                if error
                    .as_database_error()
                    .is_some_and(|error| error.code().is_some_and(|code| !code.starts_with("57"))) =>
            {
                refused += 1;
                continue;
            }
            Err(error) => panic!("{error}: {text}"),
        };
        let line = one_line(text);
        if pages > PAGES_MAX && !DEAR.iter().any(|(part, _)| line.contains(part)) {
            dear.push(format!("{shape}: {pages} pages of {line} with {parameters:?}"));
        }
    }
    assert!(refused < 40, "{refused} statements were refused");
    dear
}

/// The pages that a statement reads the second time. The first time may meet index entries of deleted rows.
async fn pages(sql: &mut PgConnection, text: &str, parameters: &[String]) -> Result<i64, sqlx::Error> {
    let given = if parameters.is_empty() { String::new() } else { format!("({})", parameters.join(", ")) };
    let mut last = 0;
    run(sql, &format!("DEALLOCATE ALL; PREPARE measured AS {text}")).await;
    // After five plans for given values, a session may keep one for all values.
    for _ in 0..6 {
        run(sql, &format!("EXPLAIN EXECUTE measured{given}")).await;
    }
    for _ in 0..2 {
        let mut tx = sql.begin().await?;
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE measured{given}");
        let explained =
            sqlx::query_scalar::<_, Value>(AssertSqlSafe(explain)).persistent(false).fetch_one(&mut *tx).await;
        tx.rollback().await?;
        let plan = &explained?[0]["Plan"];
        last = plan["Shared Hit Blocks"].as_i64().unwrap() + plan["Shared Read Blocks"].as_i64().unwrap();
    }
    Ok(last)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn run(sql: &mut PgConnection, statement: &str) {
    raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(sql)
        .await
        .unwrap_or_else(|error| panic!("{error}: {statement}"));
}

/// A value for a parameter: by the column that it is compared with, otherwise by its type.
fn value(text: &str, number: usize, kind: Option<&str>) -> String {
    let kind = kind.unwrap_or("Text");
    let name = format!("${number}");
    let at = text
        .match_indices(&name)
        .find(|(at, _)| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_digit()));
    let (before, after) = at.map_or(("", ""), |(at, _)| (text[..at].trim_end(), &text[at + name.len()..]));
    let before = before.strip_suffix('(').unwrap_or(before);
    let before = before.strip_suffix("ANY").or_else(|| before.strip_suffix("ALL")).unwrap_or(before).trim_end();
    let compared = before.trim_end_matches(['=', '<', '>']).trim_end();
    let column = if compared.len() < before.len() {
        compared.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
    } else {
        ""
    };
    if before.ends_with("LIMIT") || before.ends_with("OFFSET") {
        return "20".to_owned();
    }
    if before.ends_with("days =>") {
        return "7".to_owned();
    }
    if after.starts_with("::text::interval") {
        return "'16 seconds'".to_owned();
    }
    if after.starts_with("::bigint * interval '1") {
        return "60000".to_owned();
    }
    let (element, is_array) = kind.strip_suffix("Array").map_or((kind, false), |element| (element, true));
    let (one, cast) = match element {
        "Text" => (text_for(column).to_owned(), "text"),
        "Int8" => (if matches!(column, "sale_id" | "id" | "") { "201" } else { "1000" }.to_owned(), "bigint"),
        "Int4" => ("1".to_owned(), "integer"),
        "Int2" => ("1".to_owned(), "smallint"),
        "Uuid" => (id_for(text), "uuid"),
        "Bool" => ("true".to_owned(), "boolean"),
        "Bytea" => ("sha256('x')".to_owned(), "bytea"),
        "Jsonb" => ("'{}'".to_owned(), "jsonb"),
        "Timestamptz" => ("now()".to_owned(), "timestamptz"),
        other => panic!("a parameter of the type {other} needs a value here: {text}"),
    };
    if is_array { format!("ARRAY[{one}]::{cast}[]") } else { one }
}

fn text_for(column: &str) -> &'static str {
    match column {
        "status" => "'paid'",
        "kind" => "'group_placed'",
        "channel" => "'sandbox'",
        "user_id" => "'u1000'",
        "account" => "'a1'",
        "app" | "home" => "'app1'",
        "name" => "'product 1'",
        "actor" => "'actor1'",
        "action" => "'action1'",
        "subject" => "'sale 201'",
        "key" => "'k1'",
        _ => "'x'",
    }
}

fn id_for(text: &str) -> String {
    let tables = [
        ("purchase_groups", "group100"),
        ("outflow_items", "item1000"),
        ("FROM orders", "order1000"),
        ("payments", "payment1000"),
        ("refunds", "refund1004"),
    ];
    let of = tables.iter().find(|(table, _)| text.contains(table)).map_or("order1000", |(_, of)| of);
    format!("md5('{of}')::uuid")
}
