//! The load generator wrk, and the file of buyers that it reads.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::process::Command;

/// On a small machine, more threads of wrk would take processor time from the server.
const THREADS: &str = "1";
/// Connections of the crowd, and of a smaller one.
pub const CONNECTIONS: u64 = 256;
pub const FEW_CONNECTIONS: u64 = 64;
/// Buyers come from 22,500 addresses, from 10.100.100.100 on, all equally long. At 1200 requests per minute each, the limit
/// per address never refuses.
const OCTETS: usize = 150;
/// Bytes of records that are read at a time.
const READ_AHEAD: usize = 1 << 20;
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/wrk");

/// A file of records of equal length. Each is the part of a request that differs from buyer to buyer.
pub struct Buyers {
    file: PathBuf,
    record: usize,
    /// How many there are.
    pub count: usize,
}

/// Writes such a file in parts, so that not all tokens are in memory at once.
pub struct BuyersWriter {
    out: BufWriter<File>,
    /// The file, as far as it is written.
    buyers: Buyers,
    /// The length of the longest token, which the first part has.
    longest: Option<usize>,
}

impl BuyersWriter {
    pub fn create(file: PathBuf) -> anyhow::Result<Self> {
        let out = BufWriter::new(File::create(&file)?);
        Ok(Self { out, buyers: Buyers { file, record: 0, count: 0 }, longest: None })
    }

    /// # Errors
    /// A token is longer than all of the first part, so its record would be too.
    pub fn add(&mut self, tokens: &[&str]) -> anyhow::Result<()> {
        let of_these = tokens.iter().map(|token| token.len()).max().context("no tokens")?;
        let longest = *self.longest.get_or_insert(of_these);
        ensure!(of_these <= longest, "a token of {of_these} bytes; the first part had {longest} at most");
        for token in tokens {
            let n = self.buyers.count;
            let (third, fourth) = (100 + n / OCTETS % OCTETS, 100 + n % OCTETS);
            let pad = longest - token.len() + 1;
            let record = format!(
                "Authorization: Bearer {token}\r\nX-Forwarded-For: 10.100.{third}.{fourth}\r\nUser-Agent: {:->pad$}\r\n\r\n",
                ""
            );
            self.out.write_all(record.as_bytes())?;
            self.buyers.record = record.len();
            self.buyers.count += 1;
        }
        Ok(())
    }

    pub fn finish(mut self) -> anyhow::Result<Buyers> {
        self.out.flush()?;
        // Half a minute later the kernel would write this file and that of the tokens, 200 MB, in the midst of a round, and commits would
        // wait for it.
        ensure!(std::process::Command::new("sync").status()?.success(), "`sync` has failed");
        Ok(self.buyers)
    }
}

/// Reads the records one after the other.
pub struct Records {
    file: BufReader<File>,
    record: Vec<u8>,
}

impl Records {
    /// # Errors
    /// There is no further record.
    pub fn read(&mut self) -> std::io::Result<&[u8]> {
        self.file.read_exact(&mut self.record)?;
        Ok(&self.record)
    }
}

impl Buyers {
    /// Writes the records of buyers with these tokens.
    pub fn write(tokens: &[&str], file: PathBuf) -> anyhow::Result<Self> {
        let mut writer = BuyersWriter::create(file)?;
        writer.add(tokens)?;
        writer.finish()
    }

    pub fn records(&self) -> anyhow::Result<Records> {
        let file = BufReader::with_capacity(READ_AHEAD, File::open(&self.file)?);
        Ok(Records { file, record: vec![0; self.record] })
    }

    /// Reads orders and sessions over this many connections.
    pub async fn read(&self, from: SocketAddr, connections: u64, seconds: u64) -> anyhow::Result<Seen> {
        let (file, record) = (self.file.to_string_lossy(), self.record.to_string());
        run("readers.lua", from, connections, &[&file, &record], seconds).await
    }
}

/// The results that wrk printed.
#[derive(Debug, Deserialize)]
pub struct Seen {
    pub requests: u64,
    micros: u64,
    /// Answers with a status of 400 or more.
    pub refused: u64,
    failed: u64,
    pub p50_us: u64,
    pub p99_us: u64,
}

impl Seen {
    pub fn per_second(&self) -> f64 {
        self.requests as f64 * 1e6 / self.micros as f64
    }

    /// Whether the server's number matches wrk's: at the end, wrk closes its connections without waiting for answers.
    pub fn is_all(&self, n: u64) -> bool {
        (self.requests..=self.requests + CONNECTIONS).contains(&n)
    }
}

/// Posts the same body to one path, by one buyer after another, for this many seconds.
pub async fn post(
    buyers: &Buyers,
    to: SocketAddr,
    (path, body): (&str, &str),
    connections: u64,
    seconds: u64,
) -> anyhow::Result<Seen> {
    let (file, record) = (buyers.file.to_string_lossy(), buyers.record.to_string());
    run("buyers.lua", to, connections, &[&file, &record, path, body], seconds).await
}

/// The same at all sales of a file in turn (`sales.lua`), from the buyer with this number on.
pub async fn post_spread(
    buyers: &Buyers,
    first: u64,
    to: SocketAddr,
    sales: &Path,
    connections: u64,
    seconds: u64,
) -> anyhow::Result<Seen> {
    let (file, record, first) = (buyers.file.to_string_lossy(), buyers.record.to_string(), first.to_string());
    run("sales.lua", to, connections, &[&file, &record, &first, &sales.to_string_lossy()], seconds).await
}

/// Runs a script of the folder `wrk`.
pub async fn run(
    script: &str,
    to: SocketAddr,
    connections: u64,
    arguments: &[&str],
    seconds: u64,
) -> anyhow::Result<Seen> {
    let mut wrk = Command::new("wrk");
    wrk.args(["-t", THREADS, "-c", &connections.to_string(), "-d", &format!("{seconds}s"), "-s"]);
    wrk.arg(format!("{SCRIPTS}/{script}")).arg(format!("http://{to}")).arg("--").args(arguments);
    let done = wrk.kill_on_drop(true).output().await.context("wrk")?;
    let output = String::from_utf8_lossy(&done.stdout);
    ensure!(done.status.success(), "wrk: {output}{}", String::from_utf8_lossy(&done.stderr));
    let last = output.lines().last().unwrap_or_default();
    let seen: Seen = serde_json::from_str(last).with_context(|| format!("wrk printed: {output}"))?;
    ensure!(seen.failed == 0 && seen.requests > 0, "requests without an answer: {seen:?}");
    Ok(seen)
}
