//! Receivers over TLS: nothing is said to one that cannot prove who it is.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::worker_processes::{Worker, Works};
use seckill_harness::eventually;
use seckill_harness::receiver::Receiver;

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_over_tls_is_told_once_it_has_proved_who_it_is() {
    let mut works = Works::prepare(&[]).await;
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let terms = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let terms = terms.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let receiver = Receiver::over_tls(terms.with_single_cert(vec![own.cert.der().clone()], key).unwrap());
    works.channel("c", 50, &receiver).await;
    works.put("c", "k", 0..3).await;
    let refused = async |times: usize| {
        let before = receiver.connections();
        eventually(|| async {
            let tried = receiver.connections() - before;
            (tried >= times).then_some(()).ok_or_else(|| format!("{tried} connections"))
        })
        .await;
        assert_eq!(receiver.seen().len(), 0, "said to somebody unknown");
    };
    let stranger = Worker::start(&works.environment, None);
    refused(2).await;
    drop(stranger);

    let trusted = std::env::temp_dir().join(format!("seckill-trusted-{}", uuid::Uuid::new_v4().simple()));
    std::fs::write(&trusted, own.cert.pem()).unwrap();
    works.environment.insert("SSL_CERT_FILE".into(), trusted.to_str().unwrap().into());
    // Known, and not by this name.
    let aim = "UPDATE outflow_channels SET target = $1";
    let elsewhere = receiver.url().replace("127.0.0.1", "localhost");
    sqlx::query(aim).bind(elsewhere).execute(&works.sql).await.unwrap();
    let misled = Worker::start(&works.environment, None);
    refused(2).await;
    drop(misled);

    sqlx::query(aim).bind(receiver.url()).execute(&works.sql).await.unwrap();
    let before = receiver.connections();
    let _worker = Worker::start(&works.environment, None);
    eventually(|| async {
        let is = works.statuses("c").await;
        (is == [("done".to_owned(), 3)]).then_some(()).ok_or_else(|| format!("{is:?}"))
    })
    .await;
    let told: Vec<_> = receiver.seen().iter().map(|arrival| arrival.body["n"].clone()).collect();
    assert_eq!(told, [0, 1, 2]);
    assert_eq!(receiver.connections() - before, 1, "a connection is kept");
    let failed: i64 =
        sqlx::query_scalar("SELECT sum(attempts)::bigint FROM outflow_items").fetch_one(&works.sql).await.unwrap();
    std::fs::remove_file(trusted).unwrap();
    assert_eq!(failed, 0, "who cannot be reached costs no attempts");
}
