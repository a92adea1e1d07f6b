//! Redis, PostgreSQL and RabbitMQ servers of the test's own, that speak only TLS and ask for passwords. Their certificates are
//! signed by an authority that was made for the test.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use seckill_harness::{eventually, secret};
use tokio::net::TcpStream;

/// The three servers. They end, and their folder goes, when the value is dropped.
pub struct TlsServers {
    folder: PathBuf,
    processes: Vec<Child>,
    password: String,
    redis: u16,
    postgres: u16,
    amqp: u16,
}

impl TlsServers {
    pub async fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("seckill-tls-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        write_certificates(&folder);
        // With characters that an address must encode.
        let password = format!("{}@/:%", secret());
        let mut servers =
            Self { folder, processes: Vec::new(), password, redis: port(), postgres: port(), amqp: port() };
        servers.start_rabbitmq();
        servers.start_redis();
        servers.start_postgres();
        for port in [servers.redis, servers.postgres, servers.amqp] {
            eventually(|| async { TcpStream::connect(("127.0.0.1", port)).await.map(drop).map_err(|e| e.to_string()) })
                .await;
        }
        servers
    }

    /// A file of the servers' folder: ca.pem signed their certificates, other-ca.pem did not.
    pub fn file(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn password(&self) -> String {
        utf8_percent_encode(&self.password, NON_ALPHANUMERIC).to_string()
    }

    pub fn redis_url(&self) -> String {
        format!("rediss://:{}@127.0.0.1:{}/", self.password(), self.redis)
    }

    pub fn amqp_url(&self) -> String {
        format!("amqps://seckill:{}@127.0.0.1:{}/%2f", self.password(), self.amqp)
    }

    /// Without the authority's file.
    pub fn postgres_url(&self) -> String {
        format!("postgres://seckill:{}@127.0.0.1:{}/postgres?sslmode=verify-full", self.password(), self.postgres)
    }

    fn spawn(&mut self, command: &mut Command, name: &str) {
        let log = std::fs::File::create(self.folder.join(format!("{name}.log"))).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.processes.push(command.spawn().unwrap());
    }

    fn start_redis(&mut self) {
        let (port, password) = (self.redis.to_string(), self.password.clone());
        let (certificate, key, ca) = (self.file("server.pem"), self.file("server.key"), self.file("ca.pem"));
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", "0", "--tls-port", &port, "--save", "", "--appendonly", "no"])
            .args(["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca])
            .args(["--tls-auth-clients", "no", "--requirepass", &password, "--maxmemory-policy", "noeviction"]);
        self.spawn(&mut command, "redis");
    }

    /// PostgreSQL refuses to run as root, so root starts it as the user `postgres`, whom its files then belong to.
    fn start_postgres(&mut self) {
        let folder = self.folder.join("postgres");
        std::fs::create_dir(&folder).unwrap();
        for name in ["server.pem", "server.key"] {
            std::fs::copy(self.folder.join(name), folder.join(name)).unwrap();
        }
        let password = folder.join("password");
        std::fs::write(&password, &self.password).unwrap();
        let as_root = run(Command::new("id").arg("-u")).trim() == "0";
        run(Command::new("chmod").arg("-R").arg("go=").arg(&folder));
        if as_root {
            run(Command::new("chown").arg("-R").arg("postgres:postgres").arg(&folder));
        }
        let program = |name: &str| {
            let program = newest_postgres().join(name);
            let mut command = Command::new(if as_root { Path::new("setpriv") } else { &program });
            if as_root {
                command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(&program);
            }
            command.current_dir("/");
            command
        };
        let data = folder.join("data");
        run(program("initdb")
            .args(["-U", "seckill", "--auth=scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
            .arg("-D")
            .arg(&data)
            .arg("--pwfile")
            .arg(&password));
        let rules = folder.join("hba.conf");
        std::fs::write(&rules, "hostssl all all 127.0.0.1/32 scram-sha-256\n").unwrap();
        run(Command::new("chmod").arg("a+r").arg(&rules));
        let setting = |name: &str, value: &Path| format!("{name}={}", value.display());
        let mut command = program("postgres");
        command.arg("-D").arg(&data).args(["-p", &self.postgres.to_string(), "-c", "listen_addresses=127.0.0.1"]).args(
            [
                "-c",
                "unix_socket_directories=",
                "-c",
                "ssl=on",
                "-c",
                &setting("ssl_cert_file", &folder.join("server.pem")),
                "-c",
                &setting("ssl_key_file", &folder.join("server.key")),
                "-c",
                &setting("hba_file", &rules),
            ],
        );
        self.spawn(&mut command, "postgres");
    }

    /// As dev.d/rabbitmq.sh starts one, with an epmd of its own, which a killed broker would leave behind.
    fn start_rabbitmq(&mut self) {
        let home = self.folder.join("rabbitmq");
        std::fs::create_dir(&home).unwrap();
        let path = |name: &str| home.join(name).to_str().unwrap().to_owned();
        let settings = [
            "listeners.tcp = none".to_owned(),
            format!("listeners.ssl.1 = 127.0.0.1:{}", self.amqp),
            format!("ssl_options.cacertfile = {}", self.file("ca.pem")),
            format!("ssl_options.certfile = {}", self.file("server.pem")),
            format!("ssl_options.keyfile = {}", self.file("server.key")),
            "ssl_options.verify = verify_none".to_owned(),
            "default_user = seckill".to_owned(),
            format!("default_pass = {}", self.password),
            "vm_memory_high_watermark.absolute = 1GB".to_owned(),
            "disk_free_limit.absolute = 10MB".to_owned(),
        ];
        std::fs::write(home.join("rabbitmq.conf"), settings.join("\n") + "\n").unwrap();
        for name in ["advanced.config", "enabled_plugins"] {
            std::fs::write(home.join(name), "[].\n").unwrap();
        }
        std::fs::write(home.join("rabbitmq-env.conf"), "").unwrap();
        let epmd = port().to_string();
        self.spawn(Command::new("epmd").args(["-port", &epmd, "-address", "127.0.0.1"]), "epmd");
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .current_dir(&home)
            .envs([("HOME", path("")), ("RABBITMQ_CONF_ENV_FILE", path("rabbitmq-env.conf")), ("ERL_EPMD_PORT", epmd)])
            .envs([("RABBITMQ_NODENAME", "seckill@localhost"), ("ERL_EPMD_ADDRESS", "127.0.0.1")])
            .envs([("RABBITMQ_DIST_PORT", port().to_string()), ("RABBITMQ_MNESIA_BASE", path("mnesia"))])
            .envs([("RABBITMQ_LOG_BASE", path("")), ("RABBITMQ_PID_FILE", path("beam.pid"))])
            .envs([("RABBITMQ_GENERATED_CONFIG_DIR", path("config")), ("RABBITMQ_SCHEMA_DIR", path("schema"))])
            .envs([("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))])
            .envs([("RABBITMQ_ADVANCED_CONFIG_FILE", path("advanced.config"))])
            .envs([("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins"))])
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            // So that the process is the broker itself, and not a shell.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env_remove("NOTIFY_SOCKET");
        self.spawn(&mut command, "rabbitmq");
    }
}

impl Drop for TlsServers {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            // PostgreSQL's other processes end with the first only if it is told to end: SIGQUIT.
            let _ = Command::new("kill").args(["-QUIT", &process.id().to_string()]).status();
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The folder of PostgreSQL's programs, of the newest version.
fn newest_postgres() -> PathBuf {
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().map(|entry| entry.unwrap().path());
    versions.max_by_key(version).expect("PostgreSQL is installed").join("bin")
}

/// Writes ca.pem, the server's certificate and key, and other-ca.pem, which signed neither.
fn write_certificates(folder: &Path) {
    let authority = |name: &str| {
        let (mut terms, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
        terms.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        terms.distinguished_name.push(DnType::CommonName, name);
        (terms.self_signed(&key).unwrap().pem(), Issuer::new(terms, key))
    };
    let ((ca, issuer), (other, _)) = (authority("Seckill's tests"), authority("Somebody else"));
    let key = KeyPair::generate().unwrap();
    let terms = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = terms.signed_by(&key, &issuer).unwrap().pem();
    for (name, text) in
        [("ca.pem", ca), ("other-ca.pem", other), ("server.pem", certificate), ("server.key", key.serialize_pem())]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
}
