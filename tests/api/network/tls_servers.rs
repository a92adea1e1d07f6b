//! Private Redis, PostgreSQL and RabbitMQ servers that speak only TLS and ask for passwords. An authority made for the test has signed
//! their certificates.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use seckill_harness::secret;

use seckill_harness::folder::Folder;
use seckill_harness::own_postgres;
use seckill_harness::own_rabbitmq::{OwnRabbitmq, free_port, listens};
use seckill_harness::running::Running;

/// The three servers. Dropping the value stops them and deletes their folder.
pub struct TlsServers {
    _broker: OwnRabbitmq,
    _redis: Running,
    postgres_process: Child,
    password: String,
    redis: u16,
    postgres: u16,
    amqp: u16,
    folder: Folder,
}

impl TlsServers {
    pub async fn start() -> Self {
        let folder = Folder::new("tls");
        write_certificates(folder.path());
        // With characters that an address must encode.
        let password = format!("{}@/:%", secret());
        let amqp = free_port();
        let _broker = start_rabbitmq(&folder, amqp, &password);
        let (redis, postgres) = (free_port(), free_port());
        let _redis = start_redis(&folder, redis, &password);
        let postgres_process = start_postgres(&folder, postgres, &password);
        let servers = Self { _broker, _redis, postgres_process, password, redis, postgres, amqp, folder };
        for port in [redis, postgres, amqp] {
            listens(port).await;
        }
        servers
    }

    pub fn file(&self, name: &str) -> String {
        self.folder.file(name)
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
}

impl Drop for TlsServers {
    fn drop(&mut self) {
        own_postgres::stop(&mut self.postgres_process);
    }
}

fn start_redis(folder: &Folder, port: u16, password: &str) -> Running {
    let log = std::fs::File::create(folder.path().join("redis.log")).unwrap();
    let (certificate, key, ca) = (folder.file("server.pem"), folder.file("server.key"), folder.file("ca.pem"));
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", "0", "--tls-port", &port.to_string()])
        .args(["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"])
        .args(["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca])
        .args(["--tls-auth-clients", "no", "--requirepass", password]);
    Running::start(command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log))
}

fn start_postgres(folder: &Folder, port: u16, password: &str) -> Child {
    let home = folder.path().join("postgres");
    std::fs::create_dir(&home).unwrap();
    for name in ["server.pem", "server.key"] {
        std::fs::copy(folder.path().join(name), home.join(name)).unwrap();
    }
    let own = |name: &str| home.join(name).to_str().unwrap().to_owned();
    std::fs::write(own("password"), password).unwrap();
    std::fs::write(own("hba.conf"), "hostssl all all 127.0.0.1/32 scram-sha-256\n").unwrap();
    own_postgres::give_to_postgres(&home);
    own_postgres::init(&home, &["--auth=scram-sha-256", "--pwfile", &own("password")]);
    let (certificate, key, rules) = (own("server.pem"), own("server.key"), own("hba.conf"));
    let files = [("ssl_cert_file", &*certificate), ("ssl_key_file", &*key), ("hba_file", &*rules), ("ssl", "on")];
    own_postgres::spawn(&home, port, &files)
}

fn start_rabbitmq(folder: &Folder, port: u16, password: &str) -> OwnRabbitmq {
    let settings = [
        "listeners.tcp = none".to_owned(),
        format!("listeners.ssl.1 = 127.0.0.1:{port}"),
        format!("ssl_options.cacertfile = {}", folder.file("ca.pem")),
        format!("ssl_options.certfile = {}", folder.file("server.pem")),
        format!("ssl_options.keyfile = {}", folder.file("server.key")),
        "ssl_options.verify = verify_none".to_owned(),
        "default_user = seckill".to_owned(),
        format!("default_pass = {password}"),
        "vm_memory_high_watermark.absolute = 1GB".to_owned(),
        "disk_free_limit.absolute = 10MB".to_owned(),
    ];
    OwnRabbitmq::start(folder.path(), &settings, "")
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
