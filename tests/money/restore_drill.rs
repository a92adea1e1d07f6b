//! The drill of docs/runbooks/backup-and-restore.md, by deploy/backup.sh and deploy/restore.sh: a dump in the middle of a rush, more
//! purchases and payments, then everything is dropped.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use seckill::app::payment_service;
use seckill_domain::sale::NewSale;
use seckill_domain::shards::ShardCount;
use sqlx::{AssertSqlSafe, Connection, PgConnection, query_scalar, raw_sql};
use tokio::process::Command;
use uuid::Uuid;

use crate::world::{Rates, World, buy};
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::running::Running;
use seckill_harness::{Sale, eventually, redis_at, secret, terms};

const RATES: Rates = Rates { pay: 200, refund: 1 };
/// Buyers of the rush. The dump begins when some of them have bought.
const CROWD: usize = 400;
const BOUGHT_BEFORE_THE_DUMP: i64 = 60;
const LATE: usize = 20;

/// The programs of backup.sh and restore.sh get no password as an argument, and each program has the right one.
#[test]
fn no_password_is_an_argument() {
    let folder = Folder::new("arguments");
    let [bin, log] = ["bin", "log"].map(|name| folder.path().join(name));
    std::fs::create_dir(&bin).unwrap();
    let program = format!(
        "#!/bin/bash
        echo \"$(basename \"$0\") $* | $PGPASSWORD | $REDISCLI_AUTH\" >>'{}'
        case \"$(basename \"$0\") $*\" in
          pg_dump*) for part; do case $part in --file=*) : >\"${{part#--file=}}\" ;; esac; done ;;
          pg_restore*--list*) echo '; Archive created at noon' ;;
          redis-cli*PING) echo PONG ;;
          psql*pg_stat_activity*) echo 0 ;;
        esac",
        log.display()
    );
    for name in ["pg_dump", "pg_restore", "psql", "redis-cli"] {
        std::fs::write(bin.join(name), &program).unwrap();
        std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (postgres, redis) = (format!("p@{}", secret()), format!("r:{}", secret()));
    let urls = [
        (
            "DATABASE_URL",
            format!("postgres://shop:{}@db.example:5432/shop?sslmode=require", postgres.replace('@', "%40")),
        ),
        ("REDIS_URL", format!("redis://shop:{}@cache.example:6379/", redis.replace(':', "%3a"))),
    ];
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let file = folder.path().join("dump");
    for name in ["backup.sh", "restore.sh"] {
        let mut command = std::process::Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name));
        let done = command.arg(&file).env("PATH", &path).envs(urls.clone()).output().unwrap();
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let calls = std::fs::read_to_string(&log).unwrap();
    for name in ["pg_dump", "pg_restore", "psql", "redis-cli"] {
        assert!(calls.lines().any(|line| line.starts_with(name)), "{name} is not called: {calls}");
    }
    for call in calls.lines() {
        let (arguments, given) = call.split_once(" | ").unwrap();
        assert!(!arguments.contains(&postgres[2..]) && !arguments.contains(&redis[2..]), "{call}");
        // Each program has at least the password of its own server.
        let needed = if arguments.starts_with("redis-cli") { &redis } else { &postgres };
        assert!(arguments.contains("--list") || given.split(" | ").any(|given| given == *needed), "{call}");
    }
    assert!(calls.contains("postgres://shop@db.example:5432/shop?sslmode=require"), "{calls}");
    assert!(calls.contains("-u redis://cache.example:6379/ --user shop "), "{calls}");
}

/// Runs a script of deploy/ with the settings of the system. Returns what it says, as an error if it fails.
async fn script(world: &World, name: &str, file: &Path) -> Result<String, String> {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name));
    let done = command.arg(file).envs(&world.system.environment).output().await.unwrap();
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if done.status.success() { Ok(said) } else { Err(said) }
}

/// A Redis server with a password, and its address in the form without a user.
async fn locked_redis() -> (Running, String) {
    let (port, password) = (free_address().port(), secret());
    let mut server = std::process::Command::new("redis-server");
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--requirepass", &password]);
    let server = Running::start(server.current_dir("/").stdout(Stdio::null()));
    let url = format!("redis://:{password}@127.0.0.1:{port}/");
    eventually(|| async { redis_at(&url).await.map(drop).map_err(|error| error.to_string()) }).await;
    (server, url)
}

async fn buy_all(world: &World, sale: &Sale, users: impl IntoIterator<Item = String>) -> HashSet<Uuid> {
    let buying = stream::iter(users).map(|user| async move { buy(&world.system, sale, &user).await });
    buying.buffer_unordered(16).collect().await
}

async fn payment_of(world: &World, order: Uuid) -> Uuid {
    let paid = "SELECT id FROM payments WHERE order_id = $1 AND pays";
    query_scalar(paid).bind(order).fetch_one(&world.system.sql).await.unwrap()
}

/// Drops the database with all its contents, as if its machine had burnt.
async fn drop_database(world: &World) {
    let (server, name) = world.system.config.database.url.rsplit_once('/').unwrap();
    let mut maintenance = PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    raw_sql(AssertSqlSafe(drop)).execute(&mut maintenance).await.unwrap();
}

/// Purchases after the dump are gone, and can be made again. Money that moved after the dump is found.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_mid_rush_is_restored_and_the_sale_goes_on() {
    // Messages that are sent in the dump, but no longer in the broker, are sent again after this time.
    let (_redis, redis_url) = locked_redis().await;
    let soon = [
        ("SECKILL_OUTBOX__RESEND_AFTER_MS", "1000"),
        ("SECKILL_RECONCILE__SWEEP_INTERVAL_MS", "1000"),
        ("REDIS_URL", redis_url.as_str()),
    ];
    let mut world = World::with_orders(20, &RATES, true, &soon).await;
    for buyer in 0..10 {
        assert_eq!(world.pay(buyer).await, 202);
    }
    for buyer in 0..10 {
        world.payment_decided(buyer).await;
    }
    // Its payment is in the dump, and reaches the bank later.
    world.bank.close();
    assert_eq!(world.pay(11).await, 202);

    let sale = world.system.create_sale(NewSale { shards: ShardCount::parse(2).unwrap(), ..terms(1_000) }).await;
    let file: PathBuf = std::env::temp_dir().join(format!("seckill-{}.dump", Uuid::new_v4().simple()));
    let rows = format!("SELECT count(*) FROM purchase_records WHERE sale_id = {}", sale.id);
    let rush = buy_all(&world, &sale, (0..CROWD).map(|n| format!("r{n}")));
    let dump = async {
        world.wait_until(&rows, |bought| bought >= BOUGHT_BEFORE_THE_DUMP).await;
        script(&world, "backup.sh", &file).await.unwrap();
    };
    let (rush, ()) = tokio::join!(rush, dump);

    // Purchases and payments after the dump.
    let late = buy_all(&world, &sale, (0..LATE).map(|n| format!("late{n}"))).await;
    let lost_sale = world.system.create_sale(terms(5)).await;
    world.reopen(&RATES).await;
    let newcomer = world.orders.len();
    let order = buy(&world.system, &sale, &format!("u{newcomer}")).await;
    world.orders.push(order);
    let is_order = format!("SELECT count(*) FROM orders WHERE id = '{order}' AND status = 'pending_payment'");
    world.wait_for(&is_order, 1).await;
    let mut unknown = HashSet::new();
    for buyer in [10, newcomer] {
        assert_eq!(world.pay(buyer).await, 202);
        world.payment_decided(buyer).await;
        unknown.insert(payment_of(&world, world.orders[buyer]).await);
    }
    world.payment_decided(11).await;
    // Nothing is restored under a living service.
    let said = script(&world, "restore.sh", &file).await.unwrap_err();
    assert!(said.contains("end all serve, work and publish first"), "{said}");
    assert_eq!(world.status(newcomer).await, "paid");
    world.system.stop().await;

    drop_database(&world).await;
    let said = script(&world, "restore.sh", &file).await.unwrap();
    assert_eq!(said.lines().count(), 3, "{said}");
    world.system.serve(true).await;

    // The dump is restored completely, and nothing else is there.
    world.system.settled(&sale).await;
    world.system.settled(&world.sale).await;
    let known: Vec<Uuid> = query_scalar("SELECT id FROM orders WHERE sale_id = $1")
        .bind(sale.id.get())
        .fetch_all(&world.system.sql)
        .await
        .unwrap();
    let known: HashSet<Uuid> = known.into_iter().collect();
    assert!(known.len() >= usize::try_from(BOUGHT_BEFORE_THE_DUMP).unwrap(), "{} orders", known.len());
    assert!(known.is_subset(&rush), "an order that nobody bought");
    let (status, _) = world.system.get(&format!("/api/v1/orders/{order}"), Some(&format!("u{newcomer}"))).await;
    assert_eq!(status, 404);

    // The channel is asked about the payment in the dump. The comparison finds the payments that are not in the dump.
    world.payment_decided(11).await;
    world.wait_until_money_settles().await;
    let paid = "SELECT count(*) FROM orders WHERE status = 'paid'";
    assert_eq!(world.count(paid).await, 11);
    // No money is in flight.
    let compared = payment_service(&world.system.config).unwrap().compare_within(Duration::ZERO).await;
    let verdicts = compared.unwrap();
    let [verdict] = verdicts.as_slice() else { panic!("one channel: {verdicts:#?}") };
    let found: HashSet<Uuid> = verdict
        .differences
        .iter()
        .map(|line| {
            line.strip_suffix(": the channel moved money that we know nothing of").unwrap_or_else(|| panic!("{line}"))
        })
        .map(|id| id.parse().unwrap())
        .collect();
    assert!(!verdict.held);
    assert_eq!(found, unknown);

    // The sale continues: buyers from after the dump buy again, and no id of a lost sale is used again.
    let again = buy_all(&world, &sale, (0..LATE).map(|n| format!("late{n}"))).await;
    assert_eq!(again, late, "the same key is the same purchase");
    world.system.settled(&sale).await;
    assert_eq!(world.system.orders(&sale).await, i64::try_from(known.len() + LATE).unwrap());
    let next = world.system.create_sale(terms(5)).await;
    assert!(next.id.get() > lost_sale.id.get(), "sale {} is sale {} again", next.id, lost_sale.id);
    let told: i64 = query_scalar("SELECT count(*) FROM audit_log WHERE actor = 'restore.sh' AND action = 'restore'")
        .fetch_one(&world.system.sql)
        .await
        .unwrap();
    assert_eq!(told, 1);
    std::fs::remove_file(&file).unwrap();
    world.system.finish().await;
}
