//! A sale on a real Redis server, for the tests that compare the model's scripts with those in lua/.

use redis::{Connection, FromRedisValue, Script};
use uuid::Uuid;

/// The keys of sale_begin.lua.
pub const KEYS: [&str; 8] = ["sale", "tickets", "buyers", "unconfirmed", "holders", "waves", "passes", "loans"];
/// The keys of limits of requests.
pub const LIMITS: [&str; 3] = ["limit:b", "limit:a", "limit:s"];
/// Later than the end of the test.
pub const NEVER_MS: &str = "9000000000000";

pub struct RealSale {
    redis: Connection,
    tag: String,
}

impl RealSale {
    pub fn new() -> Self {
        let url = std::env::var("REDIS_URL").expect("run the tests by ./dev test");
        let redis = redis::Client::open(url).unwrap().get_connection().unwrap();
        Self { redis, tag: format!("{{history:{}}}", Uuid::new_v4().simple()) }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.tag)
    }

    pub fn call<T: FromRedisValue>(&mut self, script: &str, keys: &[&str], arguments: &[impl AsRef<str>]) -> T {
        let read = |name| std::fs::read_to_string(format!("{}/../../lua/{name}.lua", env!("CARGO_MANIFEST_DIR")));
        let begin = if script == "confirm" { String::new() } else { read("sale_begin").unwrap() };
        let script = Script::new(&(begin + &read(script).unwrap()));
        let mut call = script.prepare_invoke();
        keys.iter().for_each(|key| _ = call.key(self.key(key)));
        arguments.iter().for_each(|argument| _ = call.arg(argument.as_ref()));
        call.invoke(&mut self.redis).unwrap()
    }

    pub fn command<T: FromRedisValue>(&mut self, name: &str, key: &str, arguments: &[&str]) -> T {
        redis::cmd(name).arg(self.key(key)).arg(arguments).query(&mut self.redis).unwrap()
    }

    pub fn lacks_a_key(&mut self) -> bool {
        KEYS.iter().any(|key| !self.command::<bool>("EXISTS", key, &[]))
    }

    pub fn delete(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.command("UNLINK", key, &[]));
    }
}
