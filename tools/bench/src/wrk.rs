//! The load generator wrk, and the file of buyers' requests that it reads.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::service::Buyer;

/// On a small machine, more threads of wrk would take processor time from the server.
const THREADS: &str = "1";
/// Connections of the crowd, and of a smaller one.
pub(crate) const CONNECTIONS: u64 = 256;
pub(crate) const FEW_CONNECTIONS: u64 = 64;
/// Buyers come from 22,500 addresses, from 10.100.100.100 on, all equally long: so many that the limit of 1,200 requests per
/// minute and address refuses nobody.
const OCTETS: usize = 150;
/// Bytes of records that are read at a time.
const READ_AHEAD: usize = 1 << 20;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/wrk/requests.lua");

/// A file of records of equal length. Each is the part of a request that differs from buyer to buyer.
pub(crate) struct RecordFile {
    file: PathBuf,
    record: usize,
    pub count: usize,
}

/// Writes such a file in parts, so that not all tokens are in memory at once.
pub(crate) struct RecordWriter {
    out: BufWriter<File>,
    /// The file, as far as it is written.
    file: RecordFile,
    /// The length of the longest token, which the first part has.
    longest: Option<usize>,
}

impl RecordWriter {
    pub(crate) fn create(file: PathBuf) -> anyhow::Result<Self> {
        let out = BufWriter::new(File::create(&file)?);
        Ok(Self { out, file: RecordFile { file, record: 0, count: 0 }, longest: None })
    }

    pub(crate) fn add(&mut self, buyers: &[Buyer]) -> anyhow::Result<()> {
        let of_these = buyers.iter().map(|buyer| buyer.token.len()).max().context("no buyers")?;
        let longest = *self.longest.get_or_insert(of_these);
        ensure!(of_these <= longest, "a token of {of_these} bytes; the first part had {longest} at most");
        for Buyer { token, .. } in buyers {
            let n = self.file.count;
            let (third, fourth) = (100 + n / OCTETS % OCTETS, 100 + n % OCTETS);
            let pad = longest - token.len() + 1;
            let record = format!(
                "Authorization: Bearer {token}\r\nX-Forwarded-For: 10.100.{third}.{fourth}\r\nUser-Agent: {:->pad$}\r\n\r\n",
                ""
            );
            self.out.write_all(record.as_bytes())?;
            self.file.record = record.len();
            self.file.count += 1;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<RecordFile> {
        self.out.flush()?;
        // The kernel would write this file and the tokens, 200 MB, half a minute later. Commits of a round would wait for that.
        ensure!(std::process::Command::new("sync").status()?.success(), "`sync` has failed");
        Ok(self.file)
    }
}

pub(crate) struct Records {
    file: BufReader<File>,
    record: Vec<u8>,
}

impl Records {
    pub(crate) fn read(&mut self) -> std::io::Result<&[u8]> {
        self.file.read_exact(&mut self.record)?;
        Ok(&self.record)
    }
}

impl RecordFile {
    pub(crate) fn write(buyers: &[Buyer], file: PathBuf) -> anyhow::Result<Self> {
        let mut writer = RecordWriter::create(file)?;
        writer.add(buyers)?;
        writer.finish()
    }

    pub(crate) fn records(&self) -> anyhow::Result<Records> {
        let file = BufReader::with_capacity(READ_AHEAD, File::open(&self.file)?);
        Ok(Records { file, record: vec![0; self.record] })
    }

    /// Posts the same body to one path, by one buyer after another.
    pub(crate) async fn post(
        &self,
        to: SocketAddr,
        (path, body): (&str, &str),
        connections: u64,
        seconds: u64,
    ) -> anyhow::Result<Seen> {
        let seen = self.run(to, &[path, body], connections, seconds).await?;
        ensure!(seen.timeouts == 0, "wrk gave up requests: {seen:?}");
        Ok(seen)
    }

    /// Reads orders and sessions, which may be slow.
    pub(crate) async fn read(&self, from: SocketAddr, connections: u64, seconds: u64) -> anyhow::Result<Seen> {
        self.run(from, &[], connections, seconds).await
    }

    async fn run(&self, to: SocketAddr, arguments: &[&str], connections: u64, seconds: u64) -> anyhow::Result<Seen> {
        let mut wrk = Command::new("wrk");
        wrk.args(["-t", THREADS, "-c", &connections.to_string(), "-d", &format!("{seconds}s"), "-s", SCRIPT]);
        wrk.arg(format!("http://{to}")).arg("--").arg(&self.file).arg(self.record.to_string()).args(arguments);
        let done = wrk.kill_on_drop(true).output().await.context("wrk")?;
        let output = String::from_utf8_lossy(&done.stdout);
        ensure!(done.status.success(), "wrk: {output}{}", String::from_utf8_lossy(&done.stderr));
        let last = output.lines().last().unwrap_or_default();
        let seen: Seen = serde_json::from_str(last).with_context(|| format!("wrk printed: {output}"))?;
        ensure!(seen.failed == 0 && seen.requests > 0, "requests without an answer: {seen:?}");
        Ok(seen)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Seen {
    pub requests: u64,
    micros: u64,
    /// Answers with a status of 400 or more.
    pub refused: u64,
    failed: u64,
    timeouts: u64,
    pub p50_us: u64,
    pub p99_us: u64,
}

impl Seen {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 * 1e6 / self.micros as f64
    }

    /// Whether the server's number matches wrk's: at the end, wrk closes its connections without waiting for answers.
    pub(crate) fn is_all(&self, n: u64) -> bool {
        (self.requests..=self.requests + CONNECTIONS).contains(&n)
    }
}
