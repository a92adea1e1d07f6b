//! A sale on a real Redis server, for the tests that compare the model's scripts with those in lua/.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Connection, FromRedisValue, Script, Value};
use uuid::Uuid;

/// The keys of sale_begin.lua.
pub(crate) const KEYS: [&str; 8] = ["sale", "tickets", "buyers", "unconfirmed", "holders", "waves", "passes", "loans"];
/// The keys of limits of requests, which the histories do not have.
const LIMITS: [&str; 3] = ["limit:b", "limit:a", "limit:s"];
/// Later than the end of the test.
pub(crate) const NEVER_MS: &str = "9000000000000";

/// The fields of a sale that the models have, too.
pub(crate) struct SaleFields {
    pub epoch: u8,
    pub state: Option<String>,
    pub stock: u8,
    pub returning: u8,
    /// Whether a caller may remember "sold out".
    pub granted: bool,
    pub loans: u8,
}

/// A reply of reserve.lua.
pub(crate) struct Reserved {
    pub epoch: u8,
    pub may_remember: bool,
    pub holders: BTreeSet<String>,
    /// The code of each buyer, and its detail.
    pub answers: Vec<(u8, String)>,
}

pub(crate) fn id(order: usize) -> String {
    format!("order-{order}")
}

pub(crate) struct RealSale {
    redis: Connection,
    tag: String,
}

impl RealSale {
    pub(crate) fn new() -> Self {
        let url = std::env::var("REDIS_URL").expect("REDIS_URL names a server: run this test by ./dev test unit");
        let redis = redis::Client::open(url).unwrap().get_connection().unwrap();
        Self { redis, tag: format!("{{history:{}}}", Uuid::new_v4().simple()) }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.tag)
    }

    pub(crate) fn call<T: FromRedisValue>(&mut self, script: &str, keys: &[&str], arguments: &[impl AsRef<str>]) -> T {
        let parts = match script {
            "confirm" => "",
            "reserve" => {
                "sale_begin reserve_begin reserve_limits reserve_ticket reserve_window reserve_stock reserve_memory"
            }
            _ => "sale_begin",
        };
        let path = |name| format!("{}/../../lua/{name}.lua", env!("CARGO_MANIFEST_DIR"));
        let files = parts.split_whitespace().chain([script]).map(|name| std::fs::read_to_string(path(name)).unwrap());
        let script = Script::new(&files.collect::<String>());
        let mut call = script.prepare_invoke();
        keys.iter().for_each(|key| _ = call.key(self.key(key)));
        arguments.iter().for_each(|argument| _ = call.arg(argument.as_ref()));
        call.invoke(&mut self.redis).unwrap()
    }

    pub(crate) fn command<T: FromRedisValue>(&mut self, name: &str, key: &str, arguments: &[&str]) -> T {
        redis::cmd(name).arg(self.key(key)).arg(arguments).query(&mut self.redis).unwrap()
    }

    /// Calls reserve.lua; `None` if it does nothing.
    pub(crate) fn reserve(&mut self, arguments: &[impl AsRef<str>]) -> Option<Reserved> {
        let reply: Vec<Value> = self.call("reserve", &[&KEYS[..], &LIMITS].concat(), arguments);
        let [epoch, _now, memory, _known, holders, _expires, Value::BulkString(codes), details] = &reply[..] else {
            assert!(matches!(reply[..], [Value::Int(code)] if code < 0), "{reply:?}");
            return None;
        };
        let may_remember = *memory == Value::Int(2);
        let holders = BTreeSet::from_redis_value_ref(holders).unwrap();
        let details: BTreeMap<usize, String> = FromRedisValue::from_redis_value_ref(details).unwrap();
        let detail = |place| details.get(&place).cloned().unwrap_or_default();
        let answers = codes.iter().enumerate().map(|(place, code)| (*code, detail(place))).collect();
        Some(Reserved { epoch: u8::from_redis_value_ref(epoch).unwrap(), may_remember, holders, answers })
    }

    pub(crate) fn fields(&mut self) -> SaleFields {
        let names = ["epoch", "state", "stock", "returning", "returning_at_ms", "sold_out_until_ms", "loan"];
        let fields: Vec<Option<String>> = self.command("HMGET", "sale", &names);
        let number = |at: usize| fields[at].as_ref().map_or(0_i64, |text| text.parse().unwrap());
        let small = |number: i64| u8::try_from(number).unwrap();
        // Due units count as for sale, although only the next call moves them.
        let is_due = number(4) == 0;
        let (stock, returning) = if is_due { (number(2) + number(3), 0) } else { (number(2), number(3)) };
        SaleFields {
            epoch: small(number(0)),
            state: fields[1].clone(),
            stock: small(stock),
            returning: small(returning),
            granted: number(5) > 0,
            loans: small(number(6)),
        }
    }

    pub(crate) fn holders(&mut self) -> BTreeSet<String> {
        self.command::<Vec<String>>("LRANGE", "holders", &["0", "-1"]).into_iter().collect()
    }

    pub(crate) fn is_unconfirmed(&mut self, order: usize) -> bool {
        self.command::<Option<f64>>("ZSCORE", "unconfirmed", &[&id(order)]).is_some()
    }

    pub(crate) fn passes(&mut self, user: &str) -> usize {
        self.command::<Option<usize>>("HGET", "passes", &[user]).unwrap_or(0)
    }

    pub(crate) fn lacks_a_key(&mut self) -> bool {
        KEYS.iter().any(|key| !self.command::<bool>("EXISTS", key, &[]))
    }

    pub(crate) fn delete(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.command("UNLINK", key, &[]));
    }
}
