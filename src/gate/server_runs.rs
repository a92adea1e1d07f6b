//! The runs of the servers that sales are on: one server, or all masters of a cluster. Whether a sale is as it should be on them is decided here,
//! and a refill uses these connections, which never reconnect (protocol, rules 10 and 11).

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, FromRedisValue, RedisError, RedisResult, Value};

use super::keys::{SALE_KEYS, SaleKeys};
use super::servers::{Masters, info_value};
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
    /// In the order of the masters; `None` for one that is away, or evicts keys.
    runs: Vec<Option<ServerRun>>,
    /// The masters that evict keys, by their places. Nothing is sold on them.
    evicting: Vec<(usize, ServerRun)>,
}

/// A connection to one run of one server.
#[derive(Clone)]
struct ServerRun {
    connection: MultiplexedConnection,
    run_id: String,
    /// What the server does when its memory is full.
    policy: String,
}

/// What a sale is on its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleState {
    /// It is there, with all shards at one epoch.
    Served(Standing),
    /// A server may have lost some of it, or its shards have different epochs.
    Lost,
    /// Some of its keys are missing, and others are there: they were deleted or evicted.
    Incomplete,
    /// A server of it is away, or evicts keys.
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
            (Self::Incomplete, _) | (_, Self::Incomplete) => Self::Incomplete,
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
    /// No server can be asked.
    pub async fn connect_to_runs(&self) -> Result<ServerRuns, GateError> {
        let masters = self.server.masters().await?;
        let answers = join_all(masters.clients().iter().map(|client| self.connect_to_run(client))).await;
        let (mut runs, mut failure) = (Vec::with_capacity(answers.len()), None);
        for answer in answers {
            runs.push(answer.map_err(|error| failure = Some(error)).ok());
        }
        if runs.iter().all(Option::is_none) {
            return Err(failure.unwrap_or_else(has_no_master));
        }
        let mut servers = ServerRuns { gate: self.clone(), masters, runs, evicting: Vec::new() };
        servers.set_evicting_aside();
        Ok(servers)
    }

    async fn connect_to_run(&self, client: &redis::Client) -> Result<ServerRun, GateError> {
        let mut connection = self.connect_to(client).await?;
        let mut about = redis::pipe();
        about.cmd("INFO").arg("server").cmd("INFO").arg("memory");
        let (info, memory): (String, String) = about.query_async(&mut connection).await?;
        let run_id = info_value(&info, "run_id:").ok_or(GateError::Malformed("INFO server"))?.to_owned();
        Ok(ServerRun { connection, run_id, policy: policy_of(&memory) })
    }
}

/// The slot of a key has no master, or its master is away.
pub fn has_no_master() -> GateError {
    RedisError::from((ErrorKind::Io, "the master of this key is away")).into()
}

impl ServerRuns {
    /// Whether each master is here, and answered when it was asked last. One server is what it is while its connection lives.
    pub async fn are_all(&self) -> bool {
        self.runs.iter().flatten().count() + self.evicting.len() == self.runs.len()
            && self.gate.server.masters().await.is_ok_and(|now| now.are_those_of(&self.masters))
    }

    /// Refuses servers of which every one evicts keys.
    ///
    /// # Errors
    /// `Evicts`.
    pub fn can_sell(&self) -> Result<(), GateError> {
        match self.evicts() {
            Some(policy) if self.runs.iter().all(Option::is_none) => Err(GateError::Evicts(policy.to_owned())),
            _ => Ok(()),
        }
    }

    /// What a server that evicts keys does when its memory is full; `None` if there is no such server.
    pub fn evicts(&self) -> Option<&str> {
        self.evicting.first().map(|(_, run)| run.policy.as_str())
    }

    fn set_evicting_aside(&mut self) {
        for (place, run) in self.runs.iter_mut().enumerate() {
            if let Some(run) = run.take_if(|run| run.policy != KEEPS_ALL) {
                self.evicting.push((place, run));
            }
        }
    }

    /// The servers that evict keys, by their places.
    pub(super) fn evicting(&self) -> impl Iterator<Item = (usize, MultiplexedConnection)> {
        self.evicting.iter().map(|(place, run)| (*place, run.connection.clone()))
    }

    pub(super) fn is_at(&self, place: usize, key: &str) -> bool {
        self.masters.place_of(key) == Some(place)
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

    /// The run id and the replication id of each server that sells. Whatever makes a server forget without being told to changes one of
    /// them (protocol, rule 10), except a policy that evicts keys: such a server is set aside.
    ///
    /// # Errors
    /// No server can be asked.
    pub async fn identity(&mut self) -> Result<Vec<Option<[String; 2]>>, GateError> {
        let ids = |run: &Option<ServerRun>| {
            let mut run = run.clone()?;
            Some(async move { Ok((run.about().await?.id, run.policy().await?)) }.boxed())
        };
        for (place, run) in self.evicting.drain(..) {
            self.runs[place] = Some(run);
        }
        let calls = self.runs.iter().map(ids).collect();
        let answers = self.answers(calls).await?;
        let mut identity = Vec::with_capacity(answers.len());
        for (run, answer) in self.runs.iter_mut().zip(answers) {
            let id = answer.zip(run.as_mut()).map(|((id, policy), run)| {
                run.policy = policy;
                [run.run_id.clone(), id]
            });
            identity.push(id.filter(|_| run.as_ref().is_some_and(|run| run.policy == KEEPS_ALL)));
        }
        self.set_evicting_aside();
        Ok(identity)
    }

    /// What each sale is on its servers.
    ///
    /// # Errors
    /// No server can be asked.
    pub async fn sale_states(&mut self, sales: &[SaleShards]) -> Result<Vec<SaleState>, GateError> {
        // By server, the keys of its shards, and the places of their sales in the list.
        let mut by_server: Vec<(Vec<SaleKeys>, Vec<usize>)> = self.runs.iter().map(|_| Default::default()).collect();
        let mut states: Vec<Option<SaleState>> = vec![None; sales.len()];
        let mut add = |sale: usize, state: SaleState| {
            states[sale] = Some(states[sale].map_or(state, |shards| shards.with(state)));
        };
        for (sale, of) in sales.iter().enumerate() {
            for shard in of.count.all() {
                let keys = self.gate.keys.sale(*of, shard);
                match self.masters.place_of(&keys.sale).and_then(|place| by_server.get_mut(place)) {
                    Some((shards, sales)) => {
                        shards.push(keys);
                        sales.push(sale);
                    }
                    None => add(sale, SaleState::Unknown),
                }
            }
        }
        let states_of = |(run, (shards, _)): (&Option<ServerRun>, &mut (Vec<SaleKeys>, Vec<usize>))| {
            let (mut run, shards) = (run.clone()?, std::mem::take(shards));
            (!shards.is_empty()).then(|| async move { run.states(&shards).await }.boxed())
        };
        let calls = self.runs.iter().zip(&mut by_server).map(states_of).collect();
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

    async fn policy(&mut self) -> Result<String, GateError> {
        let memory: String = redis::cmd("INFO").arg("memory").query_async(&mut self.connection).await?;
        Ok(policy_of(&memory))
    }

    /// The states of the shards with these keys.
    async fn states(&mut self, shards: &[SaleKeys]) -> Result<Vec<SaleState>, GateError> {
        let mut states = Vec::with_capacity(shards.len());
        for shards in shards.chunks(SALES_A_CALL) {
            let mut reads = redis::pipe();
            for keys in shards {
                reads.cmd("HMGET").arg(&keys.sale).arg(&["epoch", "state", "replid", "server"]);
                reads.exists(&keys.lasting());
            }
            // The ids are read first: a sale that was opened under a later one counts as lost, and is looked at again.
            let master = self.about().await?;
            // A key that is no hash is an error for that sale only, which then counts as lost.
            let replies: Vec<RedisResult<Value>> = reads.ignore_errors().query_async(&mut self.connection).await?;
            states.extend(replies.chunks(2).map(|replies| match replies {
                [Ok(row), Ok(Value::Int(present))] => master.state_of(row, usize::try_from(*present).unwrap_or(0)),
                _ => SaleState::Lost,
            }));
        }
        Ok(states)
    }
}

/// The policy of a server that loses no key when its memory is full.
const KEEPS_ALL: &str = "noeviction";

fn policy_of(memory: &str) -> String {
    info_value(memory, "maxmemory_policy:").unwrap_or("unknown").to_owned()
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
    /// The state of a sale of which so many keys are there.
    fn state_of(&self, row: &Value, present: usize) -> SaleState {
        match present {
            SALE_KEYS => {}
            0 => return SaleState::Lost,
            _ => return SaleState::Incomplete,
        }
        let standing = StateRow::from_redis_value_ref(row).ok().and_then(|row| self.standing_of(row));
        standing.map_or(SaleState::Lost, SaleState::Served)
    }

    /// The epoch and status of a sale, unless this server may have lost some of it: the same decision as `serves` of
    /// sale_begin.lua. "filling" is not a status.
    fn standing_of(&self, (epoch, state, replid, server): StateRow) -> Option<Standing> {
        let status = state?.parse().ok()?;
        let same =
            replid.as_deref() == Some(&self.id) || self.never_promoted && server.is_some() && server == self.server;
        same.then_some(Standing { epoch: Epoch(epoch?), status: Some(status) })
    }
}
