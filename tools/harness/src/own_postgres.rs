//! A PostgreSQL server of the test's own, which it may kill.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::folder::free_address;
use crate::{PATIENCE, eventually};

/// A server with its data in a folder of its own. Its role `seckill` needs no password. Dropping the value ends the server and deletes
/// the folder.
pub struct OwnPostgres {
    folder: PathBuf,
    process: Child,
    port: u16,
    settings: Vec<(String, String)>,
}

impl OwnPostgres {
    /// Starts a new server with these settings.
    pub async fn start(settings: &[(&str, &str)]) -> Self {
        let folder = new_folder();
        init(&folder, &["--auth=trust"]);
        Self::run(folder, settings).await
    }

    /// Starts a replica of this server, with this name, and waits until it receives the server's log.
    pub async fn replica(&self, name: &str) -> Self {
        let folder = new_folder();
        let source = format!("host=127.0.0.1 port={} user=seckill application_name={name}", self.port);
        let terms = ["--write-recovery-conf", "--no-sync", "--checkpoint=fast", "--dbname", &source];
        run(program("pg_basebackup").arg("-D").arg(data(&folder)).args(terms));
        // A replica must allow at least the connections of its primary.
        let settings: Vec<_> = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let replica = Self::run(folder, &settings).await;
        eventually(|| async {
            let ask = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name = $1";
            let streaming = sqlx::query_scalar::<_, i64>(ask).bind(name).fetch_one(&mut self.connect().await).await;
            let streaming = streaming.map_err(|error| error.to_string())?;
            (streaming == 1).then_some(()).ok_or_else(|| "the replica does not stream yet".to_owned())
        })
        .await;
        replica
    }

    async fn run(folder: PathBuf, settings: &[(&str, &str)]) -> Self {
        let port = free_address().port();
        let process = spawn(&folder, port, settings);
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let own = Self { folder, process, port, settings };
        eventually(|| async { PgConnection::connect(&own.url("postgres")).await.map(drop).map_err(|e| e.to_string()) })
            .await;
        own
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://seckill@127.0.0.1:{}/{database}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// SIGKILL to the first of its processes: the others end without telling their clients.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again on its data, after its end.
    pub async fn restart(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let settings: Vec<_> = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        while PgConnection::connect(&self.url("postgres")).await.is_err() {
            assert!(Instant::now() < deadline, "the server does not start again");
            // It ends at once while processes of the killed one still hold its memory.
            if self.process.try_wait().unwrap().is_some() {
                self.process = spawn(&self.folder, self.port, &settings);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Makes a replica the primary, and waits until it takes writes.
    pub async fn promote(&self) {
        // The replay of the log could cancel a statement that waits for the end of recovery.
        self.execute("SELECT pg_promote(wait => false)").await;
        eventually(|| async {
            let mut connection = self.connect().await;
            let asked = sqlx::query_scalar::<_, bool>("SELECT pg_is_in_recovery()").fetch_one(&mut connection);
            match asked.await {
                Ok(false) => Ok(()),
                in_recovery => Err(format!("in recovery: {in_recovery:?}")),
            }
        })
        .await;
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url("postgres")).await.unwrap()
    }

    pub async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.connect().await).await.unwrap();
    }

    /// Changes a setting of the running server, and waits until new sessions have it.
    pub async fn set(&self, name: &str, value: &str) {
        let change = format!("ALTER SYSTEM SET {name} = '{value}'");
        sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut self.connect().await).await.unwrap();
        self.execute("SELECT pg_reload_conf()").await;
        eventually(|| async {
            let mut connection = self.connect().await;
            let show = sqlx::query_scalar::<_, String>("SELECT current_setting($1)").bind(name);
            let now = show.fetch_one(&mut connection).await.map_err(|e| e.to_string())?;
            (now == value).then_some(()).ok_or(now)
        })
        .await;
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        stop(&mut self.process);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The other processes end with the first only after SIGQUIT.
pub fn stop(process: &mut Child) {
    if !matches!(process.try_wait(), Ok(None)) {
        return;
    }
    let _ = Command::new("kill").args(["-QUIT", &process.id().to_string()]).status();
    let _ = process.wait();
}

fn new_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("seckill-postgres-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    give_to_postgres(&folder);
    folder
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Makes the data of a new server in `folder/data`, with the role `seckill`.
pub fn init(folder: &Path, arguments: &[&str]) {
    let terms = ["-U", "seckill", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"];
    run(program("initdb").args(terms).args(arguments).arg("-D").arg(data(folder)));
}

/// Starts the server whose data is in `folder/data`. It writes `folder/postgres.log`.
pub fn spawn(folder: &Path, port: u16, settings: &[(&str, &str)]) -> Child {
    let log = std::fs::File::create(folder.join("postgres.log")).unwrap();
    let mut command = program("postgres");
    command.arg("-D").arg(data(folder)).args(["-p", &port.to_string()]);
    for (name, value) in [("listen_addresses", "127.0.0.1"), ("unix_socket_directories", "")].iter().chain(settings) {
        command.args(["-c", &format!("{name}={value}")]);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

fn is_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

/// A program of the newest PostgreSQL.
fn program(name: &str) -> Command {
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().map(|entry| entry.unwrap().path());
    as_postgres(&versions.max_by_key(version).expect("PostgreSQL is installed").join("bin").join(name))
}

/// A program that refuses to run as root: root runs it as the user `postgres`.
pub fn as_postgres(program: &Path) -> Command {
    let mut command = if is_root() {
        let mut as_postgres = Command::new("setpriv");
        as_postgres.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
        as_postgres
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}

/// Makes the user that runs PostgreSQL the only owner of a folder and its contents.
pub fn give_to_postgres(folder: &Path) {
    run(Command::new("chmod").arg("-R").arg("go=").arg(folder));
    if is_root() {
        run(Command::new("chown").arg("-R").arg("postgres:postgres").arg(folder));
    }
}

pub fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
