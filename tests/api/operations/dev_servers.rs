//! The private servers of `./dev`: no other user of this machine can use them.

use std::os::unix::fs::PermissionsExt;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

const SETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.dev");

/// No other user can read the passwords of RabbitMQ and PostgreSQL, and PostgreSQL accepts no connection without one.
#[tokio::test]
async fn the_private_servers_keep_their_passwords() {
    let address = seckill_harness::server("DATABASE_URL");
    for set in std::fs::read_dir(SETS).into_iter().flatten().map(|set| set.unwrap().path()) {
        let base = std::fs::read_to_string(set.join("ports")).ok().and_then(|base| base.trim().parse::<u16>().ok());
        // The other sets, and the user's own servers.
        if !base.is_some_and(|base| address.contains(&format!("@127.0.0.1:{}/", base + 1))) {
            continue;
        }
        for (name, expected) in
            [("mq", 0o700), ("mq/rabbitmq.conf", 0o600), ("mq-password", 0o600), ("pg-password", 0o600)]
        {
            let file = set.join(name);
            let found = std::fs::metadata(&file).map(|file| file.permissions().mode() & 0o777).ok();
            assert_eq!(found, Some(expected), "{}", file.display());
        }
        let password = std::fs::read_to_string(set.join("pg-password")).unwrap();
        let options: PgConnectOptions = address.replace(&format!(":{password}@"), "@").parse().unwrap();
        let refused = options.connect().await.map(drop).expect_err("nobody connects without a password");
        assert!(refused.to_string().contains("password"), "{refused}");
    }
}
