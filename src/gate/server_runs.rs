//! The runs of the servers that sales are on: one server, or all masters of a cluster. Whether a sale is as it should be on them is decided here,
//! and a refill uses these connections, which never reconnect (protocol, rules 10 and 11).

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, RedisResult};

use super::servers::Masters;
use super::{Gate, GateError};
use crate::domain::ids::{Epoch, Shard};
use crate::domain::sale::SaleStatus;
use crate::domain::shards::SaleShards;

/// Sales whose state is read in one pipeline, so that purchases do not wait behind thousands.
pub(super) const SALES_A_CALL: usize = 200;

/// Connections to one run of each master; clones share them.
#[derive(Clone)]
pub struct ServerRuns {
    pub(super) gate: Gate,
    masters: Masters,
    /// In the order of the masters; `None` for one that is away.
    runs: Vec<Option<ServerRun>>,
}

/// A connection to one run of one server.
#[derive(Clone)]
struct ServerRun {
    connection: MultiplexedConnection,
    run_id: String,
}

/// What a sale is on its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleState {
    /// It is there, with all shards at one epoch.
    Served(Standing),
    /// A server may have lost some of it, or its shards have different epochs.
    Lost,
    /// A server of it is away.
    Unknown,
}

/// The state of a sale that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub epoch: Epoch,
    /// `None` when its shards differ.
    pub status: Option<SaleStatus>,
}

/// A call to one server.
type Call<T> = BoxFuture<'static, Result<T, GateError>>;

impl SaleState {
    /// That of two shards together.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Served(one), Self::Served(two)) if one.epoch == two.epoch => {
                Self::Served(Standing { epoch: one.epoch, status: one.status.filter(|_| one.status == two.status) })
            }
            _ => Self::Lost,
        }
    }
}

impl Gate {
    /// Makes a connection to the server of a key. It never reconnects, and has a longer time-out than a purchase.
    pub(super) async fn connect_once(&self, key: &str) -> Result<MultiplexedConnection, GateError> {
        let masters = self.server.masters().await?;
        let client = masters.place_of(key).and_then(|place| masters.clients().into_iter().nth(place));
        self.connect_to(&client.ok_or_else(has_no_master)?).await
    }

    async fn connect_to(&self, client: &redis::Client) -> Result<MultiplexedConnection, GateError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.response * 10));
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Connects to the server, or to all masters of a cluster, and reads the run ids.
    ///
    /// # Errors
    /// `Evicts`, or no server can be asked.
    pub async fn connect_to_runs(&self) -> Result<ServerRuns, GateError> {
        let masters = self.server.masters().await?;
        let answers = join_all(masters.clients().iter().map(|client| self.connect_to_run(client))).await;
        let (mut runs, mut failure) = (Vec::with_capacity(answers.len()), None);
        for answer in answers {
            match answer {
                Ok(run) => runs.push(Some(run)),
                Err(error) => {
                    if let GateError::Evicts(_) = error {
                        tracing::error!(%error, "a master is not used");
                    }
                    runs.push(None);
                    failure = Some(error);
                }
            }
        }
        if runs.iter().all(Option::is_none) {
            return Err(failure.unwrap_or_else(has_no_master));
        }
        Ok(ServerRuns { gate: self.clone(), masters, runs })
    }

    async fn connect_to_run(&self, client: &redis::Client) -> Result<ServerRun, GateError> {
        let mut connection = self.connect_to(client).await?;
        let mut about = redis::pipe();
        about.cmd("INFO").arg("server").cmd("INFO").arg("memory");
        let (info, memory): (String, String) = about.query_async(&mut connection).await?;
        match info_value(&memory, "maxmemory_policy:") {
            Some("noeviction") => {}
            policy => return Err(GateError::Evicts(policy.unwrap_or("unknown").to_owned())),
        }
        let run_id = info_value(&info, "run_id:").ok_or(GateError::Malformed("INFO server"))?.to_owned();
        Ok(ServerRun { connection, run_id })
    }
}

/// The slot of a key has no master, or its master is away.
pub fn has_no_master() -> GateError {
    RedisError::from((ErrorKind::Io, "the master of this key is away")).into()
}

impl ServerRuns {
    /// Whether each master is here, and answered when it was asked last. One server is what it is while its connection lives.
    pub async fn are_all(&self) -> bool {
        self.runs.iter().all(Option::is_some)
            && self.gate.server.masters().await.is_ok_and(|now| now.are_those_of(&self.masters))
    }

    /// What names the runs of the servers that have this sale's shards. It changes when one of them starts anew, or another takes over.
    /// `None` while one of them is away.
    pub fn run_id(&self, of: SaleShards) -> Option<String> {
        if of.count.is_one() || matches!(self.masters, Masters::One(_)) {
            return Some(self.run_of(&self.key(of, Shard::FIRST))?.run_id.clone());
        }
        let mut all = blake3::Hasher::new();
        for shard in of.count.all() {
            all.update(self.run_of(&self.key(of, shard))?.run_id.as_bytes());
        }
        Some(all.finalize().to_hex().to_string())
    }

    /// The run id and the replication id of each server. Whatever makes a server forget without being told to changes one of them (protocol,
    /// rule 10).
    ///
    /// # Errors
    /// No server can be asked.
    pub async fn identity(&mut self) -> Result<Vec<Option<[String; 2]>>, GateError> {
        let ids = |run: &Option<ServerRun>| {
            let mut run = run.clone()?;
            Some(async move { Ok([run.run_id.clone(), run.about().await?.id]) }.boxed())
        };
        let calls = self.runs.iter().map(ids).collect();
        self.answers(calls).await
    }

    /// What each sale is on its servers.
    ///
    /// # Errors
    /// No server can be asked.
    pub async fn sale_states(&mut self, sales: &[SaleShards]) -> Result<Vec<SaleState>, GateError> {
        // By server, the keys of its shards, and the places of their sales in the list.
        let mut by_server: Vec<(Vec<String>, Vec<usize>)> = vec![Default::default(); self.runs.len()];
        let mut states: Vec<Option<SaleState>> = vec![None; sales.len()];
        let mut add = |sale: usize, state: SaleState| {
            states[sale] = Some(states[sale].map_or(state, |shards| shards.with(state)));
        };
        for (sale, of) in sales.iter().enumerate() {
            for shard in of.count.all() {
                let key = self.key(*of, shard);
                match self.masters.place_of(&key).and_then(|place| by_server.get_mut(place)) {
                    Some((keys, sales)) => {
                        keys.push(key);
                        sales.push(sale);
                    }
                    None => add(sale, SaleState::Unknown),
                }
            }
        }
        let states_of = |(run, (keys, _)): (&Option<ServerRun>, &(Vec<String>, Vec<usize>))| {
            let (mut run, keys) = (run.clone()?, (!keys.is_empty()).then(|| keys.clone())?);
            Some(async move { run.states(&keys).await }.boxed())
        };
        let calls = self.runs.iter().zip(&by_server).map(states_of).collect();
        let found = self.answers(calls).await?;
        for ((_, sales), found) in by_server.iter().zip(found) {
            let mut found = found.into_iter().flatten();
            for sale in sales {
                add(*sale, found.next().unwrap_or(SaleState::Unknown));
            }
        }
        Ok(states.into_iter().map(|state| state.unwrap_or(SaleState::Unknown)).collect())
    }

    /// Calls servers, all at once, each by its place. One that does not answer is away from now on.
    ///
    /// # Errors
    /// No server has answered.
    async fn answers<T>(&mut self, calls: Vec<Option<Call<T>>>) -> Result<Vec<Option<T>>, GateError> {
        let calls = calls.into_iter().map(|call| async { Some(call?.await) });
        let answered = join_all(calls).await;
        let (mut answers, mut failure) = (Vec::with_capacity(self.runs.len()), None);
        for (run, answer) in self.runs.iter_mut().zip(answered) {
            answers.push(match answer {
                Some(Err(error)) => {
                    (*run, failure) = (None, Some(error));
                    None
                }
                answer => answer.and_then(Result::ok),
            });
        }
        match failure {
            Some(error) if self.runs.iter().all(Option::is_none) => Err(error),
            _ => Ok(answers),
        }
    }

    /// The connection to the server of a key.
    pub(super) fn connection_of(&self, key: &str) -> Result<MultiplexedConnection, GateError> {
        Ok(self.run_of(key).ok_or_else(has_no_master)?.connection.clone())
    }

    fn run_of(&self, key: &str) -> Option<&ServerRun> {
        self.runs.get(self.masters.place_of(key)?)?.as_ref()
    }

    fn key(&self, of: SaleShards, shard: Shard) -> String {
        self.gate.keys.sale(of, shard).sale
    }
}

impl ServerRun {
    /// What this server says of itself.
    async fn about(&mut self) -> Result<AboutMaster, GateError> {
        let mut info = redis::pipe();
        info.cmd("INFO").arg("replication").cmd("INFO").arg("stats");
        let (replication, stats): (String, String) = info.query_async(&mut self.connection).await?;
        let id = info_value(&replication, "master_replid:").ok_or(GateError::Malformed("INFO replication"))?;
        let second = info_value(&replication, "master_replid2:").unwrap_or_default();
        let bytes = info_value(&stats, "total_net_repl_input_bytes:");
        let server = bytes.map(|bytes| format!("{}|{bytes}", self.run_id));
        Ok(AboutMaster { id: id.to_owned(), never_promoted: second.bytes().all(|digit| digit == b'0'), server })
    }

    /// The states of the shards with these keys.
    async fn states(&mut self, keys: &[String]) -> Result<Vec<SaleState>, GateError> {
        let mut states = Vec::with_capacity(keys.len());
        for keys in keys.chunks(SALES_A_CALL) {
            let mut reads = redis::pipe();
            for key in keys {
                reads.cmd("HMGET").arg(key).arg(&["epoch", "state", "replid", "server"]);
            }
            // The ids are read first: a sale that was opened under a later one counts as lost, and is looked at again.
            let master = self.about().await?;
            // A key that is no hash is an error for that sale only, which then counts as lost.
            let rows: Vec<RedisResult<StateRow>> = reads.ignore_errors().query_async(&mut self.connection).await?;
            let state = |row: RedisResult<StateRow>| master.state_of(row.ok()?).map(SaleState::Served);
            states.extend(rows.into_iter().map(|row| state(row).unwrap_or(SaleState::Lost)));
        }
        Ok(states)
    }
}

/// Epoch, state, replid and server of a sale.
type StateRow = (Option<i64>, Option<String>, Option<String>, Option<String>);

/// The replication ids of a server, and what begin_refill.lua calls "server".
struct AboutMaster {
    id: String,
    /// Whether the second id is empty: no promotion since the id was changed.
    never_promoted: bool,
    server: Option<String>,
}

impl AboutMaster {
    /// The epoch and status of a sale, unless this server may have lost some of it: the same decision as `serves` of
    /// sale_begin.lua. "filling" is not a status.
    fn state_of(&self, (epoch, state, replid, server): StateRow) -> Option<Standing> {
        let status = state?.parse().ok()?;
        let same =
            replid.as_deref() == Some(&self.id) || self.never_promoted && server.is_some() && server == self.server;
        same.then_some(Standing { epoch: Epoch(epoch?), status: Some(status) })
    }
}

/// The value of a line of INFO.
pub(super) fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
