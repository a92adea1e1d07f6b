//! Finds the primary if the address names several PostgreSQL servers. With one server, nothing of this runs.
//!
//! sqlx knows one server. So a task finds the server that takes writes, and points the pools at it. Each new connection is checked before
//! use. It is dropped if its server is in recovery, belongs to another cluster, or is a replaced primary. The timeline shows a replaced
//! primary, because each promotion raises it. A pool keeps no connection from before the last change.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Row, raw_sql};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

/// How often the primary is asked whether it still is one. A failed connection triggers the question at once.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How often all servers are checked, to notice a replacement that the old primary does not know of.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The pause between two checks without a primary, and the shortest between any two.
const RETRY_EVERY: Duration = Duration::from_millis(200);
/// How long a server may take to accept a connection and answer. A vanished server costs each check this long.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Connections opened within this time after a change are dropped too: they may have begun before it.
const MARGIN: Duration = Duration::from_millis(100);

/// A server's state. A simple query is one round trip. A prepared one would need two on each new connection.
const STANDING: &str = "SELECT system_identifier AS system,
    NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off' AS writes,
    CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
         ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END AS timeline
  FROM pg_control_system()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    writes: bool,
    history: History,
}

/// A server's cluster and timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct History {
    system: i64,
    timeline: i32,
}

impl Standing {
    /// Whether this server is usable, if the newest history seen is `known`; or why not.
    fn judge(self, known: Option<History>) -> Result<History, &'static str> {
        match known {
            Some(known) if known.system != self.history.system => Err("belongs to another cluster"),
            _ if !self.writes => Err("is in recovery or read-only"),
            Some(known) if known.timeline > self.history.timeline => {
                Err("was replaced by the promotion of another server")
            }
            _ => Ok(self.history),
        }
    }
}

/// The server to use: among usable ones, the newest timeline; among equals the current one, else the first.
fn choose(known: Option<History>, present: usize, seen: &[Option<Standing>]) -> Option<usize> {
    let fit = seen.iter().enumerate().filter_map(|(at, standing)| Some((at, standing.as_ref()?.judge(known).ok()?)));
    fit.max_by_key(|(at, history)| (history.timeline, *at == present, Reverse(*at))).map(|(at, _)| at)
}

/// Several servers; one is the primary.
#[derive(Debug)]
pub(super) struct Primary {
    servers: Vec<PgConnectOptions>,
    present: Mutex<Present>,
    /// Rises with each change of the primary.
    changes: AtomicU64,
    /// A connection has reached a server that is not the primary.
    doubted: Notify,
    /// Whether all servers were checked once.
    looked: watch::Sender<bool>,
}

#[derive(Debug, Clone, Copy)]
struct Present {
    server: usize,
    known: Option<History>,
    since: Instant,
}

impl Primary {
    pub(super) fn new(servers: Vec<PgConnectOptions>) -> Self {
        let present = Mutex::new(Present { server: 0, known: None, since: Instant::now() });
        let (changes, doubted, looked) = (AtomicU64::new(0), Notify::new(), watch::Sender::new(false));
        Self { servers, present, changes, doubted, looked }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) async fn looked_at(&self) {
        let _ = self.looked.subscribe().wait_for(|looked| *looked).await;
    }

    /// Connects to each server. Returns the errors.
    pub(super) async fn connect_to_each(&self) -> Vec<sqlx::Error> {
        join_all(self.servers.iter().map(probe)).await.into_iter().filter_map(Result::err).collect()
    }

    pub(super) fn admit_only_primary(self: &Arc<Self>, pool: PgPoolOptions) -> PgPoolOptions {
        let (opened, taken) = (Arc::clone(self), Arc::clone(self));
        pool.after_connect(move |connection, _| {
            let primary = Arc::clone(&opened);
            Box::pin(async move {
                super::session::begin(connection).await?;
                primary.admit(connection).await
            })
        })
        // sqlx would test an old connection first, and wait for a vanished server without a limit.
        .test_before_acquire(false)
        .before_acquire(move |connection, age| {
            let fresh = taken.is_fresh(age.age);
            Box::pin(
                async move { Ok(fresh && timeout(ANSWER_MAX, connection.ping()).await.is_ok_and(|pong| pong.is_ok())) },
            )
        })
    }

    /// Whether a connection of this age was opened after the last change.
    pub(super) fn is_fresh(&self, age: Duration) -> bool {
        self.changes() == 0 || age + MARGIN < self.present.lock().since.elapsed()
    }

    pub(super) async fn admit(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let standing = standing(connection).await?;
        let known = self.present.lock().known;
        match standing.judge(known) {
            // A newly promoted server is used after the next check has found it.
            Ok(history) if known.is_none_or(|known| known == history) => Ok(()),
            Ok(_) => Err(self.doubt("was promoted a moment ago")),
            Err(unfit) => Err(self.doubt(unfit)),
        }
    }

    fn doubt(&self, why: &str) -> sqlx::Error {
        self.doubted.notify_one();
        sqlx::Error::Io(std::io::Error::other(format!("the PostgreSQL server {why}")))
    }

    /// Follows the primary until the handle is dropped. Points the pools at it, and reports a change to all who wait for the old one.
    pub(super) fn follow(self: Arc<Self>, pools: Vec<PgPool>, outages: watch::Sender<()>) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            let (mut held, mut looked, mut away): (Option<PgConnection>, _, _) = (None, Instant::now(), false);
            let mut is_doubted = false;
            loop {
                if is_doubted || !self.is_still_primary(&mut held).await || looked.elapsed() > LOOK_EVERY {
                    let found = self.look(&pools, &outages).await;
                    if let (Err(why), false) = (&found, away) {
                        tracing::warn!("no PostgreSQL server of the address is the primary: {why}");
                    }
                    (away, looked) = (found.is_err(), Instant::now());
                    held = found.ok();
                    self.looked.send_replace(true);
                }
                let pause = if held.is_some() { ASK_EVERY } else { RETRY_EVERY };
                is_doubted = timeout(pause, self.doubted.notified()).await.is_ok();
                tokio::time::sleep(RETRY_EVERY.saturating_sub(looked.elapsed())).await;
            }
        }))
    }

    async fn is_still_primary(&self, held: &mut Option<PgConnection>) -> bool {
        let Some(connection) = held else { return false };
        let known = self.present.lock().known;
        let standing = timeout(ANSWER_MAX, standing(connection)).await;
        matches!(standing, Ok(Ok(standing)) if standing.judge(known).ok() == known)
    }

    /// Checks all servers, and points the pools at the primary. Returns a connection to it, or why there is none.
    async fn look(&self, pools: &[PgPool], outages: &watch::Sender<()>) -> Result<PgConnection, String> {
        let mut seen = join_all(self.servers.iter().map(probe)).await;
        let standings: Vec<_> = seen.iter().map(|seen| seen.as_ref().ok().map(|(_, standing)| *standing)).collect();
        let Present { known, server: present, .. } = *self.present.lock();
        let Some(chosen) = choose(known, present, &standings) else {
            let servers = self.servers.iter().zip(&seen);
            let said = servers.map(|(server, seen)| format!("{} {}", name(server), said(seen, known)));
            return Err(said.collect::<Vec<_>>().join(", "));
        };
        let (connection, Standing { history, .. }) = seen.swap_remove(chosen).map_err(|error| error.to_string())?;
        let rivals = standings.iter().flatten().filter(|other| other.writes && other.history.system == history.system);
        let (server, timeline) = (name(&self.servers[chosen]), history.timeline);
        if rivals.count() > 1 {
            tracing::error!(%server, timeline, "TWO POSTGRESQL PRIMARIES: another server takes writes, too, which will be lost; end it");
        }
        if known != Some(history) || present != chosen {
            *self.present.lock() = Present { server: chosen, known: Some(history), since: Instant::now() };
            pools.iter().for_each(|pool| pool.set_connect_options(self.servers[chosen].clone()));
            if known.is_some() || present != chosen {
                self.changes.fetch_add(1, Ordering::Release);
            }
            if known.is_some() {
                tracing::warn!(%server, timeline, "another PostgreSQL server is the primary now");
                outages.send_replace(());
            }
        }
        Ok(connection)
    }
}

/// The index of the primary among these servers; without one, the first index.
pub(super) async fn find(servers: &[PgConnectOptions]) -> usize {
    let seen = join_all(servers.iter().map(probe)).await;
    let standings: Vec<_> = seen.iter().map(|seen| seen.as_ref().ok().map(|(_, standing)| *standing)).collect();
    choose(None, 0, &standings).unwrap_or(0)
}

fn name(server: &PgConnectOptions) -> String {
    format!("{}:{}", server.get_host(), server.get_port())
}

fn said(seen: &Result<(PgConnection, Standing), sqlx::Error>, known: Option<History>) -> String {
    match seen {
        Err(error) => format!("does not answer: {error}"),
        Ok((_, standing)) => standing.judge(known).map_or_else(str::to_owned, |_| "is one".to_owned()),
    }
}

async fn probe(server: &PgConnectOptions) -> Result<(PgConnection, Standing), sqlx::Error> {
    let ask = async {
        let mut connection = PgConnection::connect_with(server).await?;
        let standing = standing(&mut connection).await?;
        Ok((connection, standing))
    };
    timeout(ANSWER_MAX, ask).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

async fn standing(connection: &mut PgConnection) -> Result<Standing, sqlx::Error> {
    let row = raw_sql(STANDING).fetch_one(connection).await?;
    let history = History { system: row.try_get("system")?, timeline: row.try_get("timeline")? };
    Ok(Standing { writes: row.try_get("writes")?, history })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(writes: bool, system: i64, timeline: i32) -> Option<Standing> {
        Some(Standing { writes, history: History { system, timeline } })
    }

    const FIRST: Option<History> = Some(History { system: 7, timeline: 1 });
    const SECOND: Option<History> = Some(History { system: 7, timeline: 2 });

    #[test]
    fn the_server_that_takes_writes_is_chosen() {
        assert_eq!(choose(None, 0, &[seen(false, 7, 1), None, seen(true, 7, 1)]), Some(2));
        assert_eq!(choose(FIRST, 0, &[None, seen(false, 7, 1)]), None);
        assert_eq!(choose(FIRST, 0, &[None, seen(true, 7, 2)]), Some(1));
        assert_eq!(choose(FIRST, 0, &[None, seen(true, 8, 9)]), None, "another cluster");
    }

    #[test]
    fn a_primary_that_was_replaced_is_not_used_again() {
        // The old server is back, but the new one is away.
        assert_eq!(choose(SECOND, 1, &[seen(true, 7, 1), None]), None);
        // Both take writes. The newer timeline is chosen, even if the other server was in use.
        assert_eq!(choose(FIRST, 0, &[seen(true, 7, 1), seen(true, 7, 2)]), Some(1));
        assert_eq!(choose(None, 0, &[seen(true, 7, 1), seen(true, 7, 2)]), Some(1));
    }

    #[test]
    fn of_equals_the_present_one_stays() {
        assert_eq!(choose(SECOND, 1, &[seen(true, 7, 2), seen(true, 7, 2)]), Some(1));
        assert_eq!(choose(None, 0, &[seen(true, 7, 2), seen(true, 7, 2)]), Some(0));
    }
}
