//! PostgreSQL: the settings that keep a committed purchase committed.

use std::time::Duration;

use tokio::time::Instant;

use super::versions::TestedVersions;
use super::{Answer, Check, Finding, Topic, of, one_line, some_of};
use seckill_config::Config;
use seckill_domain::clock_reading::ClockReading;
use seckill_postgres::inspect::{DatabaseFacts, PlannedUnits, SchemaState, Standby};
use seckill_postgres::{Database, Ledger};

pub(super) const VERSIONS: TestedVersions = TestedVersions {
    server: "PostgreSQL",
    oldest: (15, 0),
    newest: (18, u32::MAX),
    needed: ((13, 0), "before 13 our statements fail"),
};
/// The processes of compose.yaml, two of `serve` and two of `work`; and the fewest that form a system.
const PROCESSES_USUAL: i64 = 4;
const PROCESSES_LEAST: i64 = 2;

pub(super) struct PostgresAnswers {
    facts: Answer<DatabaseFacts>,
    standbys: Answer<Vec<Standby>>,
    own_sessions: Answer<bool>,
    hears_notices: Answer<bool>,
    schema: Answer<SchemaState>,
    connections: i64,
    pub(super) planned: Answer<PlannedUnits>,
    pub(super) clock: Answer<ClockReading>,
}

pub(super) async fn ask(config: &Config, deadline: Instant, limit: Duration) -> PostgresAnswers {
    let ledger = Ledger::new(&config.database, config.purchase.committers).map_err(|error| one_line(&error));
    let database = ledger.map(|ledger| Database::clone(&ledger));
    let (facts, standbys, own_sessions, hears_notices, schema, planned, clock) = tokio::join!(
        of(deadline, &database, Database::facts),
        of(deadline, &database, Database::standbys),
        of(deadline, &database, Database::has_own_sessions),
        // A notification either arrives at once or never: the rest of the time is for connecting.
        of(deadline, &database, async |database: &Database| database.hears_notices(limit / 2).await),
        of(deadline, &database, Database::schema_state),
        of(deadline, &database, Database::planned_units),
        of(deadline, &database, Database::clock),
    );
    let connections = database.map_or(0, |database| database.connections_max().into());
    PostgresAnswers { facts, standbys, own_sessions, hears_notices, schema, connections, planned, clock }
}

pub(super) fn checks(config: &Config, postgres: &PostgresAnswers) -> Vec<Check> {
    let PostgresAnswers { facts, standbys, own_sessions, hears_notices, schema, connections: each, .. } = postgres;
    let timeout_ms = config.database.statement_timeout_ms;
    vec![
        Topic("postgres.fsync", "rule 3: a power loss takes commits, or the whole database")
            .judge(facts, |facts| must_be_on("fsync", &facts.fsync)),
        Topic(
            "postgres.full-page-writes",
            "rule 3: a power loss can leave half-written pages, which cannot be restored",
        )
        .judge(facts, |facts| must_be_on("full_page_writes", &facts.full_page_writes)),
        Topic("postgres.synchronous-commit", "rule 3: a 202 leaves before its commit is on disk")
            .judge(facts, synchronous_commit),
        Topic("postgres.primary", "F25: a server that is read-only takes no purchase").judge(facts, primary),
        Topic("postgres.replicas", "rule 3: a promoted asynchronous replica lacks the last commits, 202s among them")
            .judge_both((facts, standbys), |facts, standbys| replicas(facts, standbys)),
        Topic("postgres.sessions", "F8, F25: without sessions of our own, statements fail and commits hang")
            .judge_both((facts, own_sessions), |facts, own| sessions(facts, *own, timeout_ms)),
        Topic("postgres.notices", "policies and sales change a second late, and workers do not give way to purchases")
            .judge(hears_notices, |heard| notices(*heard)),
        Topic("postgres.connections", "an instance that gets no connection answers 503 for all sales")
            .judge(facts, |facts| connections(facts, *each)),
        Topic("postgres.schema", "I1, I2, I6, I9: the constraints and triggers of the schema hold them")
            .judge(schema, schema_state),
        Topic("postgres.role", "I9: a superuser bypasses triggers, and its password opens the whole server")
            .judge(facts, role),
        Topic("postgres.version", "all guarantees: they are tested with some versions")
            .judge(facts, |facts| VERSIONS.judge(&facts.version)),
    ]
}

fn must_be_on(name: &str, value: &str) -> Finding {
    match value {
        "on" => Finding::pass(format!("{name} is on")),
        other => Finding::fail(format!("{name} is {other}"), format!("ALTER SYSTEM SET {name} = on, and reload")),
    }
}

fn synchronous_commit(facts: &DatabaseFacts) -> Finding {
    let (setting, role) = (&facts.synchronous_commit, &facts.role);
    let found = format!("synchronous_commit is {setting} for {role}");
    match setting.as_str() {
        "off" => {
            let fix = "set it to on where it is off: in postgresql.conf, or by ALTER DATABASE … RESET or ALTER ROLE … \
                       RESET";
            Finding::fail(found, fix)
        }
        _ => Finding::pass(found),
    }
}

fn primary(facts: &DatabaseFacts) -> Finding {
    let fix = "let DATABASE_URL name the primary, by an address that follows it";
    match (facts.in_recovery, facts.read_only) {
        (true, _) => Finding::fail("the server is a replica", fix),
        (false, true) => {
            let fix = "ALTER ROLE … or ALTER DATABASE … RESET default_transaction_read_only";
            Finding::fail("transactions are read-only by default", fix)
        }
        (false, false) => Finding::pass("the server is a primary, and takes writes"),
    }
}

/// Whether each standby that could be promoted has every answered commit.
fn replicas(facts: &DatabaseFacts, standbys: &[Standby]) -> Finding {
    let attached: Vec<&Standby> = standbys.iter().filter(|one| one.state.as_deref() != Some("backup")).collect();
    let names = |those: &[&Standby]| {
        let names: Vec<&str> = those.iter().map(|one| one.name.as_deref().unwrap_or("?")).collect();
        some_of(&names)
    };
    let waits = !matches!(facts.synchronous_commit.as_str(), "off" | "local");
    let make_synchronous = "set synchronous_standby_names to the replicas that may be promoted, such as ANY 1 (a, b), \
                            with synchronous_commit = on; or let nothing promote these";
    if facts.synchronous_standby_names.is_empty() {
        return match attached.len() {
            0 => Finding::pass("no replica is attached"),
            n => {
                let found = format!("{n} asynchronous replicas are attached: {}", names(&attached));
                Finding::fail(found, make_synchronous)
            }
        };
    }
    if attached.iter().any(|one| one.sync_state.is_none()) {
        let fix = format!("GRANT pg_read_all_stats TO {}, or look at pg_stat_replication by hand", facts.role);
        return Finding::could_not_look("our role does not see which replicas are synchronous", fix);
    }
    let (waited_for, others): (Vec<&Standby>, Vec<&Standby>) =
        attached.into_iter().partition(|one| matches!(one.sync_state.as_deref(), Some("sync" | "quorum")));
    let configured = &facts.synchronous_standby_names;
    match (waits, waited_for.is_empty(), others.is_empty()) {
        (true, true, _) => {
            let found = format!(
                "synchronous_standby_names is {configured}, and none of them is attached: every \
                                 commit waits"
            );
            Finding::fail(found, "start the replicas, or correct the names")
        }
        (false, ..) => {
            let found = format!("synchronous_commit is {}: commits wait for no replica", facts.synchronous_commit);
            Finding::fail(found, "set synchronous_commit to on, where it is set otherwise for our role or database")
        }
        (true, false, false) => {
            let found = format!("asynchronous beside the synchronous replicas: {}", names(&others));
            Finding::warn(found, "let nothing promote these")
        }
        (true, false, true) if facts.synchronous_commit == "remote_write" => {
            let found = "replicas have written what they confirm, and not flushed it to disk (remote_write)";
            Finding::warn(found, "set synchronous_commit to on")
        }
        (true, false, true) => Finding::pass(format!("commits wait for replicas: {}", names(&waited_for))),
    }
}

fn sessions(facts: &DatabaseFacts, own: bool, timeout_ms: u64) -> Finding {
    if !own {
        let fix = "let DATABASE_URL lead to PostgreSQL itself, or set the pooler to session pooling (PgBouncer: \
                   pool_mode = session)";
        return Finding::fail("two connections share a session: a pooler hands sessions out by the transaction", fix);
    }
    if facts.statement_timeout_ms != timeout_ms {
        let fix = "let DATABASE_URL lead to PostgreSQL itself: the service refuses a pooler that drops its settings";
        let found = format!("statement_timeout is {} ms, and not our {timeout_ms} ms", facts.statement_timeout_ms);
        return Finding::fail(found, fix);
    }
    Finding::pass("connections have sessions of their own, with our settings")
}

fn notices(heard: bool) -> Finding {
    if heard {
        return Finding::pass("a NOTIFY of one connection reaches a LISTEN of another");
    }
    let fix = "let DATABASE_URL lead to PostgreSQL itself, or set the pooler to session pooling";
    Finding::warn("a NOTIFY of one connection does not reach a LISTEN of another", fix)
}

fn connections(facts: &DatabaseFacts, each: i64) -> Finding {
    let limits = [facts.max_connections - facts.kept_connections, facts.role_limit, facts.database_limit];
    let usable = limits.into_iter().filter(|limit| *limit >= 0).min().unwrap_or(0);
    let processes = usable / each.max(1);
    let found = format!(
        "{usable} connections for us, {} of the server are open; a process opens up to {each}: room for {processes}",
        facts.sessions
    );
    let fix = format!(
        "let max_connections, and limits of our role and database, be {} or more (for {PROCESSES_USUAL} processes), \
         or lower database.max_connections",
        PROCESSES_USUAL * each + facts.kept_connections
    );
    match processes {
        ..PROCESSES_LEAST => Finding::fail(found, fix),
        PROCESSES_LEAST..PROCESSES_USUAL => Finding::warn(found, fix),
        PROCESSES_USUAL.. => Finding::pass(found),
    }
}

fn schema_state(state: &SchemaState) -> Finding {
    let SchemaState { newest, missing, unfinished, changed, unknown } = state;
    let restore = "restore a backup, or find out who changed what: the schema is not the one that this program was \
                   made for";
    if !changed.is_empty() {
        return Finding::fail(format!("migrations were applied with another text: {}", some_of(changed)), restore);
    }
    if !unfinished.is_empty() {
        return Finding::fail(format!("migrations have failed halfway: {}", some_of(unfinished)), restore);
    }
    if !missing.is_empty() {
        return Finding::fail(format!("migrations are missing: {}", some_of(missing)), "seckill migrate");
    }
    if !unknown.is_empty() {
        let fix = "upgrade this program: a newer version has changed the schema, and this one does not know how";
        return Finding::warn(format!("migrations that this program does not know: {}", some_of(unknown)), fix);
    }
    Finding::pass(format!("the schema is that of this program, migration {newest}"))
}

fn role(facts: &DatabaseFacts) -> Finding {
    let role = &facts.role;
    if facts.powers.is_empty() {
        return Finding::pass(format!("{role} has no rights beyond those of a service"));
    }
    let powers = facts.powers.join(", ");
    let fix = format!("ALTER ROLE {role} NO{}; a role that owns the database is enough", facts.powers.join(" NO"));
    Finding::warn(format!("{role} is {powers}"), fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn facts() -> DatabaseFacts {
        DatabaseFacts {
            version: "15.4".into(),
            fsync: "on".into(),
            full_page_writes: "on".into(),
            synchronous_commit: "on".into(),
            synchronous_standby_names: String::new(),
            in_recovery: false,
            read_only: false,
            statement_timeout_ms: 10_000,
            max_connections: 100,
            kept_connections: 3,
            role_limit: -1,
            database_limit: -1,
            sessions: 5,
            role: "seckill".into(),
            powers: Vec::new(),
        }
    }

    fn standby(sync_state: Option<&str>) -> Standby {
        let state = sync_state.map(|_| "streaming".to_owned());
        Standby { name: Some("a".into()), state, sync_state: sync_state.map(str::to_owned) }
    }

    #[test]
    fn only_replicas_that_commits_wait_for_are_safe_to_promote() {
        let verdict = |names: &str, commit: &str, standbys: &[Standby]| {
            let facts =
                DatabaseFacts { synchronous_standby_names: names.into(), synchronous_commit: commit.into(), ..facts() };
            replicas(&facts, standbys).verdict
        };
        let (synchronous, quorum, later) = (standby(Some("sync")), standby(Some("quorum")), standby(Some("async")));
        assert_eq!(verdict("", "on", &[]), Verdict::Pass);
        assert_eq!(verdict("", "on", std::slice::from_ref(&later)), Verdict::Fail);
        assert_eq!(verdict("", "on", &[standby(None)]), Verdict::Fail, "without names every replica is asynchronous");
        assert_eq!(verdict("*", "on", &[standby(None)]), Verdict::Unknown);
        assert_eq!(verdict("*", "on", &[]), Verdict::Fail, "every commit waits");
        assert_eq!(verdict("*", "on", &[synchronous.clone(), quorum]), Verdict::Pass);
        assert_eq!(verdict("*", "remote_write", std::slice::from_ref(&synchronous)), Verdict::Warn);
        assert_eq!(verdict("*", "local", std::slice::from_ref(&synchronous)), Verdict::Fail);
        assert_eq!(verdict("a", "on", &[synchronous, later]), Verdict::Warn);
        let backup = Standby { name: None, state: Some("backup".into()), sync_state: Some("async".into()) };
        assert_eq!(verdict("", "on", &[backup]), Verdict::Pass, "a backup is never promoted");
    }
}
