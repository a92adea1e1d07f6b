//! Faults of RabbitMQ: queues under a prefix of the test's own, and a private broker for faults of a whole broker.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use reqwest::Method;
use seckill::doctor::Verdict::{Fail, Pass, Unknown, Warn};
use seckill_harness::{Environment, eventually, http_client, quiet_environment, secret};
use seckill_rabbitmq::{Broker, Publisher};
use serde_json::{Value, json};

use super::{Look, config, shows_in_time};
use seckill_harness::folder::Folder;
use seckill_harness::own_rabbitmq::{OwnRabbitmq, free_port, listens};

async fn channel(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// Declares a durable queue with these arguments.
async fn declare(channel: &Channel, name: &str, arguments: &[(&'static str, AMQPValue)]) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut table = FieldTable::default();
    for (argument, value) in arguments {
        table.insert((*argument).into(), value.clone());
    }
    channel.queue_declare(name.into(), options, table).await.unwrap();
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Queues and an exchange that are missing, or of another kind than the workers declare.
#[tokio::test(flavor = "multi_thread")]
async fn queues_of_another_kind_are_found() {
    let environment = quiet_environment().await;
    let (settings, prefix) = (config(&environment, &[]), environment["SECKILL_AMQP__PREFIX"].clone());
    let look = async || Look::with(&environment, &[]).await;
    // A look declares nothing.
    for _ in 0..2 {
        look().await.shows("rabbitmq.queues", Warn, "do not exist yet");
    }

    let broker = Broker::new(&settings);
    let link = Publisher::new(broker.clone());
    eventually(|| async { link.connect().await.map_err(|error| error.to_string()) }).await;
    look().await.shows("rabbitmq.queues", Pass, "quorum queues");
    // The setting was changed, and the queue keeps the old bound.
    let other = Look::with(&environment, &[("SECKILL_AMQP__QUEUE_MAX_LENGTH", "500")]).await;
    other.shows("rabbitmq.queues", Warn, &format!("{prefix}dead"));

    let (connection, channel) = channel(&settings.amqp.url).await;
    let dead = format!("{prefix}dead");
    channel.queue_delete(dead.as_str().into(), Default::default()).await.unwrap();
    look().await.shows("rabbitmq.queues", Warn, "1 of ");
    declare(&channel, &dead, &[]).await;
    look().await.shows("rabbitmq.queues", Fail, &dead);
    channel.queue_delete(dead.as_str().into(), Default::default()).await.unwrap();
    // The queue has another bound, and differs in a second argument.
    let (bound, kind) = (("x-max-length", AMQPValue::LongLongInt(7)), ("x-queue-type", text("quorum")));
    declare(&channel, &dead, &[bound, kind, ("x-overflow", text("drop-head"))]).await;
    look().await.shows("rabbitmq.queues", Fail, "x-overflow");

    channel.exchange_delete(format!("{prefix}seckill").into(), Default::default()).await.unwrap();
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let name = format!("{prefix}seckill");
    channel.exchange_declare(name.into(), ExchangeKind::Fanout, options, FieldTable::default()).await.unwrap();
    look().await.shows("rabbitmq.queues", Fail, "our exchange exists otherwise");
    channel.exchange_delete(format!("{prefix}seckill").into(), Default::default()).await.unwrap();
    connection.close(200, "".into()).await.unwrap();
    eventually(|| async { broker.demolish().await.map_err(|error| error.to_string()) }).await;
}

/// A broker without heartbeats or with rare ones, with policies that drop messages, a user without rights, and an alarm.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_whole_broker_are_found() {
    let (folder, amqp, management, password) = (Folder::new("broker"), free_port(), free_port(), secret());
    let settings = [
        format!("listeners.tcp.1 = 127.0.0.1:{amqp}"),
        "management.tcp.ip = 127.0.0.1".to_owned(),
        format!("management.tcp.port = {management}"),
        "default_user = seckill".to_owned(),
        format!("default_pass = {password}"),
        "heartbeat = 0".to_owned(),
        // The management interface shows policies when it has collected them.
        "collect_statistics_interval = 250".to_owned(),
        "vm_memory_high_watermark.absolute = 1GB".to_owned(),
        "disk_free_limit.absolute = 10MB".to_owned(),
    ];
    let own = OwnRabbitmq::start(folder.path(), &settings, "rabbitmq_management");
    listens(amqp).await;
    listens(management).await;
    let url = format!("amqp://seckill:{password}@127.0.0.1:{amqp}/%2f");
    let mut environment = quiet_environment().await;
    environment.insert("AMQP_URL".to_owned(), url.clone());
    let prefix = environment["SECKILL_AMQP__PREFIX"].clone();
    let broker = Broker::new(&config(&environment, &[]));
    let link = Publisher::new(broker);
    eventually(|| async { link.connect().await.map_err(|error| error.to_string()) }).await;

    for (seconds, verdict, found) in [(0, Fail, "no heartbeats"), (60, Warn, "60 s")] {
        let url = format!("{url}?heartbeat={seconds}");
        Look::with(&environment, &[("AMQP_URL", &url)]).await.shows("rabbitmq.heartbeat", verdict, found);
    }
    let look = Look::with(&environment, &[]).await;
    look.shows("rabbitmq.policies", Unknown, "AMQP does not show policies");
    for name in ["rabbitmq.queues", "rabbitmq.alarms", "rabbitmq.permissions", "rabbitmq.heartbeat"] {
        assert_eq!(look.verdict(name), Pass, "{:#?}", look.checks[name]);
    }

    let management = Management { address: format!("http://127.0.0.1:{management}"), password: password.clone() };
    policies_are_found(&management, &environment, &prefix).await;
    alternate_exchange_is_found(&management, &environment, &prefix).await;

    management.send(Method::PUT, "users/limited", json!({ "password": password, "tags": "" })).await;
    let other = json!({ "configure": "^other", "write": "^other", "read": "^other" });
    management.send(Method::PUT, "permissions/%2F/limited", other).await;
    let limited = Look::with(&environment, &[("AMQP_URL", &url.replace("seckill:", "limited:"))]).await;
    limited.shows("rabbitmq.permissions", Fail, "limited");
    limited.shows("rabbitmq.alarms", Unknown, "may not publish");

    own.control(&["set_vm_memory_high_watermark", "absolute", "1MB"]);
    shows_in_time(async || Look::with(&environment, &[]).await, "rabbitmq.alarms", Fail, "memory").await;
    own.control(&["set_vm_memory_high_watermark", "absolute", "1GB"]);
    shows_in_time(async || Look::with(&environment, &[]).await, "rabbitmq.alarms", Pass, "takes messages").await;
}

/// The broker's management interface, which changes policies and users faster than `rabbitmqctl` starts.
struct Management {
    address: String,
    password: String,
}

impl Management {
    async fn send(&self, method: Method, what: &str, body: Value) {
        let request = http_client().request(method, format!("{}/api/{what}", self.address)).json(&body);
        let answer = request.basic_auth("seckill", Some(&self.password)).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }
}

async fn policies_are_found(management: &Management, environment: &Environment, prefix: &str) {
    let Management { address, password } = management;
    let shown = [("SECKILL_AMQP__MANAGEMENT_URL", address.as_str())];
    let name = "rabbitmq.policies";
    let look = async || Look::with(environment, &shown).await;
    let shows = async |verdict, found: &str| shows_in_time(look, name, verdict, found).await;
    shows(Pass, "no policy makes messages leave our 4 queues").await;
    let pattern = format!("^{prefix}groups-placed$").replace('.', "\\.");
    let losing = json!({ "message-ttl": 600_000, "expires": 600_000 });
    for (definition, verdict, terms) in
        [(losing, Fail, "message-ttl, expires"), (json!({ "delivery-limit": 600_000 }), Warn, "delivery-limit")]
    {
        let planted = json!({ "pattern": pattern, "definition": definition, "apply-to": "queues" });
        management.send(Method::PUT, "policies/%2F/planted", planted).await;
        shows(verdict, &format!("{prefix}groups-placed ({terms})")).await;
    }
    management.send(Method::DELETE, "policies/%2F/planted", Value::Null).await;
    shows(Pass, "").await;
    let with_user = address.replace("http://", &format!("http://seckill:{password}@"));
    let asked = Look::with(environment, &[("SECKILL_AMQP__MANAGEMENT_URL", &with_user)]).await;
    assert_eq!(asked.verdict(name), Pass);
    // Requested, but not available: the check has failed.
    let wrong = address.replace("http://", &format!("http://seckill:{}@", secret()));
    let refused = Look::with(environment, &[("SECKILL_AMQP__MANAGEMENT_URL", &wrong)]).await;
    refused.shows(name, Unknown, "401");
    assert_eq!(refused.verdict, Unknown);
}

/// AMQP shows one policy: the alternate exchange, which takes a message that should have come back.
async fn alternate_exchange_is_found(management: &Management, environment: &Environment, prefix: &str) {
    let (connection, channel) = channel(&environment["AMQP_URL"]).await;
    declare(&channel, "unrouted", &[]).await;
    let options = QueueBindOptions { nowait: false };
    let bound = channel.queue_bind("unrouted".into(), "amq.fanout".into(), "".into(), options, FieldTable::default());
    bound.await.unwrap();
    let pattern = format!("^{prefix}seckill$").replace('.', "\\.");
    let terms = json!({ "alternate-exchange": "amq.fanout" });
    let alternate = json!({ "pattern": pattern, "definition": terms, "apply-to": "exchanges" });
    management.send(Method::PUT, "policies/%2F/alternate", alternate).await;
    shows_in_time(async || Look::with(environment, &[]).await, "rabbitmq.policies", Fail, "did not come back").await;
    management.send(Method::DELETE, "policies/%2F/alternate", Value::Null).await;
    connection.close(200, "".into()).await.unwrap();
}
