//! The runs of the servers of sales: one server, or all masters of a cluster. Connections to a run never reconnect. They show whether a
//! sale is whole, and refills use them (protocol, rules 10 and 11).

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, Value};

use super::keys::{SALE_KEYS, SaleKeys};
use super::servers::{Masters, Timeouts, connected_once, info_value};
use super::{Gate, GateError};
use seckill_domain::ids::{Epoch, Shard};
use seckill_domain::sale::SaleStatus;
use seckill_domain::shards::SaleShards;

/// Sales in one pipeline. Purchases wait behind no more.
pub(super) const SALES_A_CALL: usize = 200;

/// Connections to one run of each master; clones share them.
#[derive(Clone)]
pub struct ServerRuns {
    pub(super) gate: Gate,
    masters: Masters,
    /// In the order of the masters; `None` while a master is away.
    runs: Vec<Option<ServerRun>>,
}

#[derive(Clone)]
struct ServerRun {
    connection: MultiplexedConnection,
    run_id: String,
    /// `maxmemory-policy`. Nothing is sold on a server that evicts keys.
    policy: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaleState {
    /// All shards are there, at one epoch.
    Served(Standing),
    /// A server may have lost a part, or the shards have different epochs.
    Lost,
    /// Some keys were deleted or evicted.
    Incomplete,
    /// One of its servers is away, or evicts keys.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub epoch: Epoch,
    /// `None` when its shards differ.
    pub status: Option<SaleStatus>,
}

type Call<T> = BoxFuture<'static, Result<T, GateError>>;

impl SaleState {
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
    /// A connection to the server of a key. It has a longer time-out than a purchase.
    pub(super) async fn connect_once(&self, key: &str) -> Result<MultiplexedConnection, GateError> {
        let masters = self.server.masters().await?;
        let client = masters.place_of(key).and_then(|place| masters.clients().into_iter().nth(place));
        self.connect_to(&client.ok_or_else(has_no_master)?).await
    }

    async fn connect_to(&self, client: &redis::Client) -> Result<MultiplexedConnection, GateError> {
        let timeouts = Timeouts { response: self.timeouts.response * 10, ..self.timeouts };
        Ok(connected_once(client, timeouts).await?)
    }

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
        Ok(ServerRuns { gate: self.clone(), masters, runs })
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

pub fn has_no_master() -> GateError {
    RedisError::from((ErrorKind::Io, "the master of this key is away")).into()
}

impl ServerRuns {
    /// Whether each master answered the last call, and no other server has taken over.
    pub async fn are_all(&self) -> bool {
        self.runs.iter().all(Option::is_some)
            && self.gate.server.masters().await.is_ok_and(|now| now.are_those_of(&self.masters))
    }

    /// # Errors
    /// `Evicts`: every server evicts keys.
    pub fn can_sell(&self) -> Result<(), GateError> {
        match self.evicts() {
            Some(policy) if !self.runs.iter().flatten().any(ServerRun::sells) => {
                Err(GateError::Evicts(policy.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The `maxmemory-policy` of a server that evicts keys, if there is one.
    pub fn evicts(&self) -> Option<&str> {
        self.runs.iter().flatten().find(|run| !run.sells()).map(|run| run.policy.as_str())
    }

    /// Deletes the shards of these sales on servers that evict keys. UNLINK works also when memory is full.
    pub async fn delete_where_evicted(&self, sales: &[SaleShards]) -> Result<(), GateError> {
        for (place, run) in self.runs.iter().enumerate() {
            let Some(run) = run.as_ref().filter(|run| !run.sells()) else { continue };
            let shards = sales.iter().flat_map(|of| of.count.all().map(move |shard| self.gate.keys.sale(*of, shard)));
            let is_there = |keys: &SaleKeys| self.masters.place_of(&keys.sale) == Some(place);
            for some in shards.filter(is_there).collect::<Vec<_>>().chunks(SALES_A_CALL) {
                let mut unlinks = redis::pipe();
                some.iter().for_each(|keys| _ = unlinks.unlink(&keys.lasting()).ignore());
                unlinks.query_async::<()>(&mut run.connection.clone()).await?;
            }
        }
        Ok(())
    }

    /// Names the runs of the servers of this sale's shards. It changes when a server starts again, or another takes over. `None` while a
    /// server is away.
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

    /// The run id and the replication id of each server that sells. One of them changes whenever a server may have lost keys without a
    /// command to delete them (protocol, rule 10). Only eviction changes neither.
    ///
    /// # Errors
    /// No server can be asked.
    pub async fn identity(&mut self) -> Result<Vec<Option<[String; 2]>>, GateError> {
        let ids = |run: &Option<ServerRun>| {
            let mut run = run.clone()?;
            Some(async move { Ok((run.about().await?.id, run.policy().await?)) }.boxed())
        };
        let answers = self.answers(self.runs.iter().map(ids).collect(), |_| true).await?;
        let mut identity = Vec::with_capacity(answers.len());
        for (run, answer) in self.runs.iter_mut().zip(answers) {
            let id = answer.zip(run.as_mut()).map(|((id, policy), run)| {
                run.policy = policy;
                [run.run_id.clone(), id]
            });
            identity.push(id.filter(|_| run.as_ref().is_some_and(ServerRun::sells)));
        }
        Ok(identity)
    }

    /// # Errors
    /// No server can be asked.
    pub async fn sale_states(&mut self, sales: &[SaleShards]) -> Result<Vec<SaleState>, GateError> {
        // By server: the keys of its shards, and the places of their sales in the list.
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
            let (mut run, shards) = (run.as_ref().filter(|run| run.sells())?.clone(), std::mem::take(shards));
            (!shards.is_empty()).then(|| async move { run.states(&shards).await }.boxed())
        };
        let calls = self.runs.iter().zip(&mut by_server).map(states_of).collect();
        let found = self.answers(calls, ServerRun::sells).await?;
        for ((_, sales), found) in by_server.iter().zip(found) {
            let mut found = found.into_iter().flatten();
            for sale in sales {
                add(*sale, found.next().unwrap_or(SaleState::Unknown));
            }
        }
        Ok(states.into_iter().map(|state| state.unwrap_or(SaleState::Unknown)).collect())
    }

    /// Calls servers at the same time, each by its place. A server without an answer is away from now on.
    ///
    /// # Errors
    /// No server of this kind is left.
    async fn answers<T>(
        &mut self,
        calls: Vec<Option<Call<T>>>,
        is_left: impl Fn(&ServerRun) -> bool,
    ) -> Result<Vec<Option<T>>, GateError> {
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
            Some(error) if !self.runs.iter().flatten().any(is_left) => Err(error),
            _ => Ok(answers),
        }
    }

    pub(super) fn connection_of(&self, key: &str) -> Result<MultiplexedConnection, GateError> {
        Ok(self.run_of(key).ok_or_else(has_no_master)?.connection.clone())
    }

    fn run_of(&self, key: &str) -> Option<&ServerRun> {
        self.runs.get(self.masters.place_of(key)?)?.as_ref().filter(|run| run.sells())
    }

    fn key(&self, of: SaleShards, shard: Shard) -> String {
        self.gate.keys.sale(of, shard).sale
    }
}

impl ServerRun {
    /// Whether the server keeps all keys when its memory is full.
    fn sells(&self) -> bool {
        self.policy == "noeviction"
    }

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

    async fn states(&mut self, shards: &[SaleKeys]) -> Result<Vec<SaleState>, GateError> {
        let mut states = Vec::with_capacity(shards.len());
        for shards in shards.chunks(SALES_A_CALL) {
            let mut reads = redis::pipe();
            for keys in shards {
                reads.cmd("HMGET").arg(&keys.sale).arg(&["epoch", "state", "replid", "server"]);
                reads.exists(&keys.lasting());
            }
            // The ids are read first: a sale that was opened under a later id counts as lost, and is examined again.
            let master = self.about().await?;
            // A sale whose key is no hash counts as lost.
            let replies: Vec<RedisResult<Value>> = reads.ignore_errors().query_async(&mut self.connection).await?;
            states.extend(replies.chunks(2).map(|replies| match replies {
                [Ok(row), Ok(Value::Int(present))] => master.state_of(row, usize::try_from(*present).unwrap_or(0)),
                _ => SaleState::Lost,
            }));
        }
        Ok(states)
    }
}

fn policy_of(memory: &str) -> String {
    info_value(memory, "maxmemory_policy:").unwrap_or("unknown").to_owned()
}

/// Epoch, state, replid and server of a sale.
type StateRow = (Option<i64>, Option<String>, Option<String>, Option<String>);

/// The replication ids of a server, and its "server" of begin_refill.lua.
struct AboutMaster {
    id: String,
    /// The second id is empty: no promotion since the id changed.
    never_promoted: bool,
    server: Option<String>,
}

impl AboutMaster {
    fn state_of(&self, row: &Value, present: usize) -> SaleState {
        match present {
            SALE_KEYS => {}
            0 => return SaleState::Lost,
            _ => return SaleState::Incomplete,
        }
        let standing = StateRow::from_redis_value_ref(row).ok().and_then(|row| self.standing_of(row));
        standing.map_or(SaleState::Lost, SaleState::Served)
    }

    /// The epoch and status of a sale, by the same decision as `serves` of sale_begin.lua. "filling" is no status.
    fn standing_of(&self, (epoch, state, replid, server): StateRow) -> Option<Standing> {
        let status = state?.parse().ok()?;
        let same =
            replid.as_deref() == Some(&self.id) || self.never_promoted && server.is_some() && server == self.server;
        same.then_some(Standing { epoch: Epoch(epoch?), status: Some(status) })
    }
}
