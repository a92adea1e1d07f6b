//! The private servers of `./dev`: whoever else works on this machine has no part in them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};

const SETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.dev");

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// No other user reads the passwords of RabbitMQ and PostgreSQL, and nobody connects to PostgreSQL without one.
#[tokio::test]
async fn the_private_servers_keep_their_passwords() {
    let address = std::env::var("DATABASE_URL").unwrap();
    let mut checked = 0;
    for set in std::fs::read_dir(SETS).into_iter().flatten().map(|set| set.unwrap().path()) {
        let [postgres, rabbitmq] = ["pg-password", "mq-password"].map(|name| set.join(name));
        // Other sets may have data of an earlier version, and servers may be the user's own.
        let Ok(password) = std::fs::read_to_string(&postgres) else { continue };
        if !address.contains(&password) {
            continue;
        }
        let folder = set.join("mq");
        assert_eq!([&postgres, &rabbitmq].map(|file| mode(file)), [0o600; 2]);
        assert_eq!([mode(&folder), mode(&folder.join("rabbitmq.conf"))], [0o700, 0o600]);
        let options: PgConnectOptions = address.replace(&format!(":{password}@"), "@").parse().unwrap();
        let refused = options.connect().await.map(Connection::close).err().expect("nobody connects without a password");
        assert!(refused.to_string().contains("password"), "{refused}");
        checked += 1;
    }
    let is_private =
        Path::new(SETS).exists() && address.starts_with("postgres://seckill:") && address.contains("@127.0.0.1:");
    assert!(checked == 1 || !is_private, "{checked} sets");
}
