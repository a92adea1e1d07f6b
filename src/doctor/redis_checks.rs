//! Redis: the settings that prevent the loss or corruption of tickets, stock, limits and locks.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::postgres_checks::PostgresAnswers;
use super::versions::TestedVersions;
use super::{Answer, Check, Finding, Topic, not_shown, of, one_line, redis_memory, some_of};
use seckill_config::Config;
use seckill_config::servers::nodes;
use seckill_domain::clock_reading::ClockReading;
use seckill_redis::Gate;
use seckill_redis::inspect::{RedisInspection, SeenByScript, ServerInfo};

const APPEND_ONLY_FILE: Topic =
    Topic("redis.aof", "I7: a restart loses counts of limits and locks, and closes every sale until it is refilled");

/// Clocks with a difference of at most this count as equal.
const CLOCK_NEAR_MS: u64 = 1_000;
/// With a difference of at least this, scripts use PostgreSQL's time (lua/sale_begin.lua).
const CLOCK_OFF_MS: u64 = 5_000;

/// Valkey gives the version of Redis that it is compatible with.
pub(super) const VERSIONS: TestedVersions = TestedVersions {
    server: "Redis",
    oldest: (7, 0),
    newest: (8, 0),
    needed: ((5, 0), "before 5.0 scripts that read the clock may not write"),
};

pub(super) struct RedisAnswers {
    masters: Vec<MasterAnswers>,
    /// Of the servers that `redis.url` names.
    named: Vec<Answer<()>>,
    locks: Vec<Answer<ServerInfo>>,
    names_cluster: bool,
}

struct MasterAnswers {
    address: String,
    info: Answer<ServerInfo>,
    appendfsync: Answer<String>,
    full_coverage: Answer<String>,
    seen_by_script: Answer<Result<SeenByScript, String>>,
    clock: Answer<ClockReading>,
}

pub(super) async fn ask(config: &Config, deadline: Instant, limit: Duration) -> RedisAnswers {
    let gate = Gate::new(&config.redis, &config.purchase).map_err(|error| one_line(&error));
    let masters = async {
        let masters = of(deadline, &gate, async |gate: &Gate| gate.masters().await).await;
        // Without an answer, one entry that holds the reason.
        let masters = (0..masters.unwrap_or(1)).map(|index| ask_master(&gate, index, deadline, limit));
        join_all(masters).await
    };
    let locks = (0..config.redis.lock_urls.len())
        .map(|index| of(deadline, &gate, async move |gate: &Gate| gate.lock_server_info(index, limit).await));
    let addresses = gate.as_ref().map(Gate::named).unwrap_or_default();
    let named = addresses.iter().enumerate().map(async |(index, address)| {
        let asked = of(deadline, &gate, async move |gate: &Gate| gate.ask_named(index, limit).await).await;
        asked.map_err(|why| format!("{address}: {why}"))
    });
    let (masters, named, locks) = tokio::join!(masters, join_all(named), join_all(locks));
    RedisAnswers { masters, named, locks, names_cluster: nodes(&config.redis.url).is_some() }
}

async fn ask_master(gate: &Answer<Gate>, index: usize, deadline: Instant, limit: Duration) -> MasterAnswers {
    let server = of(deadline, gate, async |gate: &Gate| gate.inspect(index, limit).await).await;
    let (info, appendfsync, full_coverage, seen_by_script, clock) = tokio::join!(
        of(deadline, &server, RedisInspection::info),
        of(deadline, &server, async |server| server.setting("appendfsync").await),
        of(deadline, &server, async |server| server.setting("cluster-require-full-coverage").await),
        of(deadline, &server, RedisInspection::seen_by_script),
        of(deadline, &server, RedisInspection::clock),
    );
    let address = server.map_or_else(|_| "a master".to_owned(), |server| server.address);
    MasterAnswers { address, info, appendfsync, full_coverage, seen_by_script, clock }
}

pub(super) fn checks(redis: &RedisAnswers, postgres: &PostgresAnswers) -> Vec<Check> {
    let masters = redis.masters.len().max(1) as u64;
    let of_masters = redis.masters.iter().map(|master| checks_of(master, masters, redis.names_cluster, postgres));
    let worst = of_masters.reduce(|worst, checks| {
        let worse = |(one, other): (Check, Check)| if other.verdict > one.verdict { other } else { one };
        worst.into_iter().zip(checks).map(worse).collect()
    });
    let mut checks = worst.unwrap_or_default();
    checks.push(
        Topic("redis.named", "F36: after the death of a master, the others say where the next one is")
            .check(named(&redis.named)),
    );
    checks.push(
        Topic("redis.locks", "F17: locks survive the loss of a minority of servers; fences hold I8 without them")
            .check(locks(&redis.locks)),
    );
    checks
}

fn checks_of(master: &MasterAnswers, masters: u64, names_cluster: bool, postgres: &PostgresAnswers) -> Vec<Check> {
    let MasterAnswers { address, info, appendfsync, full_coverage, seen_by_script, clock: redis_clock } = master;
    let mut checks = vec![
        Topic(
            "redis.eviction",
            "rule 10: a server that evicts keys has lost memory unnoticed; I7: limits are forgotten",
        )
        .judge(info, eviction),
        Topic("redis.memory", "F15: a Redis at maxmemory refuses all purchases")
            .judge_both((info, &postgres.planned), |info, planned| redis_memory::judge(info, planned, masters)),
        APPEND_ONLY_FILE.judge(info, append_only_file),
        Topic("redis.fsync", "I7: a power loss takes the last counts of limits, and locks")
            .judge_both((info, appendfsync), |info, appendfsync| flush(info, appendfsync)),
        Topic("redis.role", "rule 10: only a master serves sales; a replica refuses every write").judge(info, role),
        // A user that may not call INFO fails here, and not only in the checks that need INFO.
        Topic("redis.script", "rule 10: the scripts cannot tell that the server has lost memory")
            .judge(seen_by_script, |seen| script(info.as_ref().ok(), seen)),
        Topic("redis.cluster", "rule 2: a sale whose keys are on another node is not served")
            .judge(info, |info| cluster(info, names_cluster, full_coverage)),
        Topic("redis.version", "rule 10: before 7.0, each new replication id closes the sales until they are refilled")
            .judge(info, |info| {
                info.text("redis_version").map_or_else(|| not_shown("redis_version"), |version| VERSIONS.judge(version))
            }),
        Topic(
            "redis.clock",
            "a clock that is up to 5 s ahead starts and ends sales early; beyond, PostgreSQL's time counts",
        )
        .judge_both((redis_clock, &postgres.clock), clock),
    ];
    if masters > 1 {
        checks.iter_mut().for_each(|check| check.found = format!("{address}: {}", check.found));
    }
    checks
}

/// The value is hidden by this server, or by a proxy in front of it.
fn eviction(info: &ServerInfo) -> Finding {
    match info.text("maxmemory_policy") {
        Some("noeviction") => Finding::pass("maxmemory-policy is noeviction"),
        Some(policy) => Finding::fail(
            format!("maxmemory-policy is {policy}"),
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; the service does not start before",
        ),
        None => not_shown("maxmemory_policy"),
    }
}

fn append_only_file(info: &ServerInfo) -> Finding {
    let says = |name| info.text(name).unwrap_or("unknown");
    let failed = |name| !matches!(says(name), "ok" | "unknown");
    if says("aof_enabled") == "unknown" {
        return not_shown("aof_enabled");
    }
    if says("aof_enabled") != "1" {
        let fix = "CONFIG SET appendonly yes, and the same in redis.conf";
        return Finding::fail("there is no append-only file (appendonly is no)", fix);
    }
    if failed("aof_last_write_status") {
        let fix = "look at Redis's log and its disk: until it can write its file, it refuses all writes";
        return Finding::fail(
            format!("the last write of the append-only file: {}", says("aof_last_write_status")),
            fix,
        );
    }
    if failed("aof_last_bgrewrite_status") {
        let fix = "look at Redis's log, its disk and its memory: a file that cannot be rewritten grows until the disk \
                   is full";
        let found = format!("the last rewrite of the append-only file: {}", says("aof_last_bgrewrite_status"));
        return Finding::warn(found, fix);
    }
    if failed("rdb_last_bgsave_status") {
        let fix = "look at Redis's log and its disk; with stop-writes-on-bgsave-error Redis refuses all writes then";
        return Finding::warn(format!("the last snapshot: {}", says("rdb_last_bgsave_status")), fix);
    }
    Finding::pass("the append-only file is on, and was written")
}

fn flush(info: &ServerInfo, appendfsync: &str) -> Finding {
    let found = format!("appendfsync is {appendfsync}");
    match (info.text("aof_enabled"), appendfsync) {
        (Some("0"), _) => Finding::pass(format!("{found}, without an append-only file: see {}", APPEND_ONLY_FILE.0)),
        (_, "everysec" | "always") => Finding::pass(found),
        _ => {
            let fix = "CONFIG SET appendfsync everysec: else a power loss takes up to half a minute";
            Finding::warn(found, fix)
        }
    }
}

fn role(info: &ServerInfo) -> Finding {
    match info.text("role") {
        Some("master") => {}
        Some(role) => {
            let fix = "let REDIS_URL name the master, by an address that follows it";
            return Finding::fail(format!("the server is a {role}, not a master"), fix);
        }
        None => return not_shown("role"),
    }
    let replicas: Vec<&str> = (0..).map_while(|n| info.text(&format!("slave{n}"))).collect();
    let behind = replicas.iter().filter(|replica| !replica.contains("state=online")).count();
    match (replicas.len(), behind) {
        (0, _) => Finding::pass("a master without replicas"),
        (all, 0) => Finding::pass(format!("a master with {all} replicas; a failover means a refill")),
        (all, behind) => {
            let fix = "wait, or look at the replica's log: a failover to it now loses much, and refills every sale";
            Finding::warn(format!("a master with {all} replicas, {behind} of them not in step"), fix)
        }
    }
}

fn script(info: Option<&ServerInfo>, seen: &Result<SeenByScript, String>) -> Finding {
    let answered = info.and_then(|info| info.text("run_id"));
    let allow = "let the user of redis.url call INFO, EVALSHA and SCRIPT LOAD (ACL SETUSER … +info +evalsha +script), \
                 directly and not through a proxy that answers INFO by itself";
    match seen {
        Err(why) => Finding::fail(format!("the script failed: {why}"), allow),
        Ok(SeenByScript { replication_id: None, .. }) => Finding::fail("a script sees no replication id", allow),
        Ok(SeenByScript { run_id: Some(run_id), .. }) if answered.is_some_and(|other| other != run_id) => {
            let fix = "let redis.url lead to one server: not through a proxy that spreads its calls over several";
            Finding::fail("a script ran on another server than the one that answered INFO", fix)
        }
        Ok(SeenByScript { run_id: Some(_), .. }) => Finding::pass("a script sees the run id and the replication id"),
        Ok(SeenByScript { run_id: None, .. }) => {
            Finding::warn("a script does not see how much the server has read", "use Redis 7.0 or later")
        }
    }
}

fn cluster(info: &ServerInfo, names_cluster: bool, full_coverage: &Answer<String>) -> Finding {
    match (info.text("cluster_enabled"), names_cluster) {
        (Some("1"), false) => Finding::fail(
            "the server is a node of a Redis Cluster",
            "name nodes of the cluster: redis+cluster://one:6379,two:6379 in redis.url",
        ),
        (Some("1"), true) if full_coverage.as_ref().is_ok_and(|set| set != "no") => Finding::warn(
            "cluster-require-full-coverage is on: while one master is away, all sales are closed",
            "CONFIG SET cluster-require-full-coverage no on each node, and the same in redis.conf",
        ),
        (Some("1"), true) => Finding::pass("a node of the cluster"),
        (_, true) => Finding::fail(
            "the server is not in cluster mode",
            "name it without cluster in redis.url, or set cluster-enabled yes",
        ),
        (_, false) => Finding::pass("not in cluster mode"),
    }
}

fn clock(redis: &ClockReading, postgres: &ClockReading) -> Finding {
    let ahead_ms = redis.ahead_of_ms(postgres);
    let direction = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let found = format!("Redis's clock is {} ms {direction} PostgreSQL's", ahead_ms.unsigned_abs());
    let fix = "run a time service (chrony, systemd-timesyncd) on both machines";
    match ahead_ms.unsigned_abs() {
        ..CLOCK_NEAR_MS => Finding::pass(format!("less than {CLOCK_NEAR_MS} ms from PostgreSQL's clock")),
        CLOCK_NEAR_MS..CLOCK_OFF_MS => Finding::warn(found, fix),
        CLOCK_OFF_MS.. => Finding::fail(found, fix),
    }
}

fn named(servers: &[Answer<()>]) -> Finding {
    let failures: Vec<String> = servers.iter().filter_map(|server| server.as_ref().err().cloned()).collect();
    let found = format!("{} of {} servers that redis.url names answer", servers.len() - failures.len(), servers.len());
    let fix = "start them, or correct the address: sentinels with a password need ?sentinel_password= after the \
               master's name";
    match failures.len() {
        0 => Finding::pass(found),
        failed if failed == servers.len() => Finding::could_not_look(format!("{found}: {}", some_of(&failures)), fix),
        _ => Finding::warn(format!("{found}: {}", some_of(&failures)), fix),
    }
}

fn locks(servers: &[Answer<ServerInfo>]) -> Finding {
    if servers.is_empty() {
        return Finding::pass("locks are kept by the server of sales");
    }
    let up: Vec<&ServerInfo> = servers.iter().filter_map(|server| server.as_ref().ok()).collect();
    let found = format!("{} of {} servers of redis.lock_urls answer", up.len(), servers.len());
    let unfit: Vec<String> = up.iter().filter_map(|info| unfit_for_locks(info)).collect();
    if !unfit.is_empty() {
        let fix = "let each be a master with maxmemory-policy noeviction";
        return Finding::fail(format!("{found}; {}", some_of(&unfit)), fix);
    }
    let independent: BTreeSet<_> = up.iter().filter_map(|info| info.text("run_id")).collect();
    if independent.len() < up.len() {
        let fix = "name independent servers, each once";
        return Finding::fail(format!("{found}, and some are the same server"), fix);
    }
    if up.len() * 2 <= servers.len() {
        let fix = "start the others: without a majority no lock is granted";
        return Finding::could_not_look(format!("{found}: no majority"), fix);
    }
    if up.len() < servers.len() {
        return Finding::warn(found, "start the others: the loss of a few more stops every lock");
    }
    if servers.len().is_multiple_of(2) {
        return Finding::warn(found, "name an odd number of servers: an even one survives no more losses");
    }
    Finding::pass(found)
}

fn unfit_for_locks(info: &ServerInfo) -> Option<String> {
    let port = info.text("tcp_port").unwrap_or("?");
    match (info.text("maxmemory_policy"), info.text("role")) {
        (Some("noeviction") | None, Some("master") | None) => None,
        (Some(policy), Some("master") | None) => Some(format!("the one at port {port} has maxmemory-policy {policy}")),
        (_, Some(role)) => Some(format!("the one at port {port} is a {role}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn info(lines: &[&str]) -> ServerInfo {
        ServerInfo::from(lines.join("\r\n"))
    }

    #[test]
    fn a_replica_that_is_not_in_step_is_told_from_one_that_is() {
        let verdict = |lines: &[&str]| role(&info(lines)).verdict;
        let in_step = "slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0";
        let behind = "slave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0";
        assert_eq!(verdict(&["role:master"]), Verdict::Pass);
        assert_eq!(verdict(&["role:master", in_step]), Verdict::Pass);
        assert_eq!(verdict(&["role:master", in_step, behind]), Verdict::Warn);
        assert_eq!(verdict(&["role:slave"]), Verdict::Fail);
    }
}
