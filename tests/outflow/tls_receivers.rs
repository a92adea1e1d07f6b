//! Tests of receivers over TLS: a worker sends nothing to a receiver without a valid certificate.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::worker_processes::{Works, worker};
use seckill_harness::receiver::Receiver;
use seckill_harness::{until, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn items_are_sent_over_tls_only_to_a_receiver_with_a_valid_certificate() {
    let mut works = Works::prepare(&[]).await;
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let terms = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let terms = terms.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let receiver = Receiver::over_tls(terms.with_single_cert(vec![own.cert.der().clone()], key).unwrap());
    works.channel("c", 50, &receiver).await;
    works.put("c", "k", 0..10).await;
    let refused = async |times: usize| {
        let before = receiver.connections();
        wait_until(|| async { receiver.connections() - before }, |&tried| tried >= times).await;
        assert_eq!(receiver.seen().len(), 0, "an item was sent to a receiver without a valid certificate");
    };
    let untrusting = worker(&works.environment, None);
    refused(2).await;
    drop(untrusting);

    let trusted = std::env::temp_dir().join(format!("seckill-trusted-{}", uuid::Uuid::new_v4().simple()));
    std::fs::write(&trusted, own.cert.pem()).unwrap();
    works.environment.insert("SSL_CERT_FILE".into(), trusted.to_str().unwrap().into());
    // The certificate is trusted, but is not for this name.
    let set_target = "UPDATE outflow_channels SET target = $1";
    let elsewhere = receiver.url().replace("127.0.0.1", "localhost");
    sqlx::query(set_target).bind(elsewhere).execute(&works.sql).await.unwrap();
    let wrong_name = worker(&works.environment, None);
    refused(2).await;
    drop(wrong_name);

    sqlx::query(set_target).bind(receiver.url()).execute(&works.sql).await.unwrap();
    let before = receiver.connections();
    let _worker = worker(&works.environment, None);
    until([("done".to_owned(), 10)], || works.statuses("c")).await;
    let sent: Vec<_> = receiver.seen().iter().map(|arrival| arrival.body["n"].clone()).collect();
    assert_eq!(sent, Vec::from_iter(0..10_i32));
    let made = receiver.connections() - before;
    // A few more are allowed: one that was slow to open, or the last worker's, recorded only now.
    assert!((1..6).contains(&made), "a connection must be reused: {made} for ten items");
    let failed: i64 =
        sqlx::query_scalar("SELECT sum(attempts)::bigint FROM outflow_items").fetch_one(&works.sql).await.unwrap();
    std::fs::remove_file(trusted).unwrap();
    assert_eq!(failed, 0, "a receiver that cannot be reached must cost no attempts");
}
