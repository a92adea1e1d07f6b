//! What the bench has measured: the JSON of `./dev bench --json FILE`, read into what a purchase costs each process.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use serde_json::{Map, Value};

/// The figures of a stored run of the bench, `samples/speed.json`.
const SAMPLE: &str = include_str!("../samples/speed.json");
/// What is read of the bench's JSON. The parts that the given files lack are taken from the sample.
const PARTS: [&str; 5] = ["cases", "settled", "redis_benchmark", "gateway", "payments"];
/// Where the bench does not say how many winners shared a commit: so many of its connections. One of the others is in a call to
/// Redis, one on its way, and two commits are under way at a time.
const CONNECTIONS_A_COMMIT: f64 = 4.0;
/// Buyers in the large batches of redis-benchmark.
const BATCHED: f64 = 50.0;
/// `purchase.batch_max`: buyers in one call to Redis at most.
pub const CALL_MAX: f64 = 256.0;

/// The cases of the bench that a sale consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    Hello,
    SoldOut,
    RefusedByRedis,
    Winners,
}

impl Case {
    pub const ALL: [Self; 4] = [Self::Hello, Self::SoldOut, Self::RefusedByRedis, Self::Winners];

    /// The name in the bench's JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::SoldOut => "sold_out",
            Self::RefusedByRedis => "refused_by_redis",
            Self::Winners => "winners",
        }
    }
}

/// The bench's figures.
#[derive(Debug, Clone)]
pub struct Measured {
    document: Value,
    /// Parts that the given files lack, and that were taken from the sample.
    pub from_sample: Vec<String>,
}

/// Microseconds of a processor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Costs {
    /// nginx, for passing a request and its answer on.
    pub balancer_us: f64,
    /// The hello-world server, for a POST.
    pub hello_us: f64,
    /// What `serve` uses to answer "sold out" from memory.
    pub memory_us: f64,
    /// `serve`, for a buyer for whom Redis was asked in vain.
    pub asked_us: f64,
    /// `serve`, for a winner.
    pub bought_us: f64,
    /// Redis, for a call, whatever the number of its buyers; for each buyer who is refused; for each winner.
    pub call_us: f64,
    pub refused_us: f64,
    pub reserved_us: f64,
    /// PostgreSQL, for a commit, whatever the number of its winners; for each winner.
    pub commit_us: f64,
    pub row_us: f64,
    /// For each order that is settled.
    pub settled: Shares,
    /// For each payment, from the wish to pay to the books.
    pub paid: Shares,
}

/// What something costs, by process, in microseconds of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shares {
    pub server_us: f64,
    pub work_us: f64,
    pub broker_us: f64,
    pub postgres_us: f64,
}

impl Measured {
    /// The figures of a stored run of the bench, `samples/speed.json`.
    ///
    /// # Errors
    /// The sample is not JSON.
    pub fn sample() -> anyhow::Result<Self> {
        Ok(Self { document: serde_json::from_str(SAMPLE).context("the sample")?, from_sample: Vec::new() })
    }

    /// Files of `./dev bench --json FILE`, which may have been measured part by part; without any, the sample.
    ///
    /// # Errors
    /// A file cannot be read, or is not a JSON document with parts.
    pub fn read(files: &[PathBuf]) -> anyhow::Result<Self> {
        let mut own = Map::new();
        for file in files {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            let document = serde_json::from_str::<Value>(&text);
            let document = document.with_context(|| format!("{} is not JSON", file.display()))?;
            let Value::Object(parts) = document else { bail!("{} has no parts", file.display()) };
            own.extend(parts);
        }
        Ok(Self::over_sample(own, Self::sample()?))
    }

    /// From a document that is at hand.
    ///
    /// # Errors
    /// The sample is not JSON.
    pub fn from_parts(parts: Map<String, Value>) -> anyhow::Result<Self> {
        Ok(Self::over_sample(parts, Self::sample()?))
    }

    fn over_sample(mut own: Map<String, Value>, sample: Self) -> Self {
        if own.is_empty() {
            return sample;
        }
        let mut from_sample = Vec::new();
        for part in PARTS {
            if !own.contains_key(part) {
                own.insert(part.to_owned(), sample.document[part].clone());
                from_sample.push(part.to_owned());
            }
        }
        Self { document: Value::Object(own), from_sample }
    }

    /// A figure, or the median of a figure's rounds.
    pub fn figure(&self, at: &str) -> Option<f64> {
        let found = self.document.pointer(at)?;
        found.as_f64().or_else(|| found.get("median")?.as_f64())
    }

    fn needed(&self, at: &str) -> anyhow::Result<f64> {
        self.figure(at).with_context(|| format!("the bench's JSON has no figure {at}: measure it again, ./dev bench"))
    }

    /// A figure of a case, such as `p50_us`.
    pub fn of_case(&self, case: Case, figure: &str) -> Option<f64> {
        self.figure(&format!("/cases/{}/{figure}", case.name()))
    }

    /// Microseconds of a process for a request of a case.
    ///
    /// # Errors
    /// The bench's JSON lacks the figure.
    pub fn cpu_us(&self, case: Case, process: &str) -> anyhow::Result<f64> {
        self.needed(&format!("/cases/{}/cpu_us/{process}", case.name()))
    }

    /// The processors of the machine that was measured.
    pub fn cores(&self) -> u32 {
        self.figure("/machine/cores").map_or(2, |cores| cores as u32).max(1)
    }

    /// Connections of the bench's load generator, in its two sizes.
    pub fn connections(&self) -> (f64, f64) {
        (self.figure("/few_connections").unwrap_or(64.0), self.figure("/connections").unwrap_or(256.0))
    }

    /// # Errors
    /// The bench's JSON lacks a figure, or has one that cannot be.
    pub fn costs(&self) -> anyhow::Result<Costs> {
        let server = |case| self.cpu_us(case, "server");
        let (call_us, refused_us, reserved_us) = self.of_redis()?;
        let (commit_us, row_us) = self.of_postgres()?;
        let costs = Costs {
            balancer_us: self
                .of_nginx()
                .context("the bench's JSON has no costs of nginx: ./dev bench --only gateway")?,
            hello_us: server(Case::Hello)?,
            memory_us: server(Case::SoldOut)?,
            asked_us: server(Case::RefusedByRedis)?,
            bought_us: server(Case::Winners)?,
            call_us,
            refused_us,
            reserved_us,
            commit_us,
            row_us,
            settled: self.shares(|process| self.needed(&format!("/settled/cpu_us/{process}")))?,
            paid: {
                let begun = self.needed("/payments/begun_per_s")?;
                self.shares(|process| Ok(self.needed(&format!("/payments/alone_cores/{process}"))? * 1e6 / begun))?
            },
        };
        ensure!(
            costs.memory_us > 0.0 && costs.asked_us >= costs.memory_us && costs.bought_us >= costs.asked_us,
            "a winner must cost `serve` no less than a loser: {costs:?}"
        );
        Ok(costs)
    }

    fn shares(&self, us: impl Fn(&str) -> anyhow::Result<f64>) -> anyhow::Result<Shares> {
        Ok(Shares {
            // Workers settle without `serve`: the bench has no such figure.
            server_us: us("server").unwrap_or_default(),
            work_us: us("work")?,
            broker_us: us("rabbitmq")?,
            postgres_us: us("postgres")?,
        })
    }

    fn of_nginx(&self) -> Option<f64> {
        let ways = self.document.pointer("/gateway/ways")?.as_array()?;
        let nginx = ways.iter().find(|way| way["way"] == "nginx")?;
        let us = nginx.pointer("/cpu_us/server")?;
        us.as_f64().or_else(|| us.get("median")?.as_f64())
    }

    /// Redis: a call, a refused buyer, a winner. By the sizes of the calls that the bench has seen; else by redis-benchmark, which
    /// asks for one buyer and for many.
    fn of_redis(&self) -> anyhow::Result<(f64, f64, f64)> {
        let refused = self.cpu_us(Case::RefusedByRedis, "redis")?;
        let winner = self.cpu_us(Case::Winners, "redis")?;
        let seen = |few: &str, figure: &str| self.of_case(Case::RefusedByRedis, &format!("{few}{figure}"));
        let at = |few: &str| Some((seen(few, "buyers_a_call")?, seen(few, "cpu_us/redis")?));
        let asked = |name: &str| Some(1e6 / self.figure(&format!("/redis_benchmark/{name}"))?);
        let alone = || Some(((1.0, asked("refuse")?), (BATCHED, asked("refuse_batched")?)));
        let sizes = at("few/").zip(at("")).and_then(|(few, many)| split(few, many));
        let split = sizes.or_else(|| alone().and_then(|(one, many)| split(one, many)));
        let Some((call, each)) = split else { return Ok((0.0, refused, winner)) };
        let buyers = match at("") {
            Some((buyers, _)) => buyers,
            None => (call / (refused - each)).clamp(1.0, CALL_MAX),
        };
        let buyers = if buyers.is_finite() { buyers } else { CALL_MAX };
        Ok((call, each, (winner - call / buyers).max(each)))
    }

    /// PostgreSQL: a commit, a winner. By two sizes of commits, which the bench's two numbers of connections bring about.
    fn of_postgres(&self) -> anyhow::Result<(f64, f64)> {
        let many = self.cpu_us(Case::Winners, "postgres")?;
        let Some(few) = self.of_case(Case::Winners, "few/cpu_us/postgres") else { return Ok((0.0, many)) };
        let connections = self.connections();
        let size = |few: &str, connections: f64| {
            let seen = self.of_case(Case::Winners, &format!("{few}winners_a_commit"));
            seen.unwrap_or(connections / CONNECTIONS_A_COMMIT)
        };
        let split = split((size("few/", connections.0), few), (size("", connections.1), many));
        Ok(split.unwrap_or((0.0, many)))
    }
}

/// What a batch costs whatever its size, and what each member adds: from the cost of a member in batches of two sizes.
fn split((few, small_us): (f64, f64), (many, large_us): (f64, f64)) -> Option<(f64, f64)> {
    let whole = (small_us - large_us) / (few.recip() - many.recip());
    let each = large_us - whole / many;
    (whole.is_finite() && whole >= 0.0 && each > 0.0).then_some((whole, each))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The costs of a batch and of a member are found again in the costs of two batches.
    #[test]
    fn the_cost_of_a_batch_is_told_from_that_of_its_members() {
        let cost = |size: f64| (size, 40.0 / size + 5.0);
        let (whole, each) = split(cost(4.0), cost(80.0)).unwrap();
        assert!((whole - 40.0).abs() < 1e-9 && (each - 5.0).abs() < 1e-9, "{whole} {each}");
        assert!(split((64.0, 5.0), (64.0, 5.0)).is_none());
        assert!(split((1.0, 4.0), (50.0, 5.0)).is_none(), "a batch costs less than nothing");
    }

    /// The sample has all that a simulation needs, and adds up to what it was measured as.
    #[test]
    fn the_sample_is_complete() {
        let measured = Measured::sample().unwrap();
        let costs = measured.costs().unwrap();
        assert_eq!((costs.memory_us, costs.asked_us, costs.bought_us), (7.9, 9.6, 16.3));
        assert!(costs.call_us > 0.0 && costs.commit_us > 0.0, "{costs:?}");
        let commit = costs.commit_us / (256.0 / CONNECTIONS_A_COMMIT) + costs.row_us;
        assert!((commit - 18.7).abs() < 1e-6, "{commit}");
        assert_eq!(costs.settled.server_us, 0.0);
        assert!((costs.paid.postgres_us - 0.48 / 199.0 * 1e6).abs() < 1e-6);
    }

    /// Files of single parts are put together, and what they lack comes from the sample and is named.
    #[test]
    fn parts_of_several_files_are_put_together() {
        let gateway = serde_json::json!({ "gateway": { "ways": [{ "way": "nginx", "cpu_us": { "server": 20.0 } }] } });
        let Value::Object(parts) = gateway else { panic!() };
        let measured = Measured::from_parts(parts).unwrap();
        assert_eq!(measured.costs().unwrap().balancer_us, 20.0);
        assert_eq!(measured.from_sample, ["cases", "settled", "redis_benchmark", "payments"]);
    }
}
