//! RabbitMQ: the settings that prevent the loss of messages before the marks detect it.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::versions::TestedVersions;
use super::{Answer, Check, Finding, Topic, in_time, of, some_of};
use seckill_config::Config;
use seckill_rabbitmq::Broker;
use seckill_rabbitmq::inspect::{BOUND, BrokerInspection, Fate, QueueCheck};
use seckill_rabbitmq::policies::QueuePolicy;

const PERMISSIONS: Topic = Topic("rabbitmq.permissions", "I6: a relay that may not declare or publish sends nothing");

/// A silent broker is noticed after two heartbeats: with this interval, after a minute.
const HEARTBEAT_SLOW_S: u16 = 30;
/// How long to wait until the connections are closed. A connection that the broker has blocked does not close.
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// Keys of queue policies that drop messages before they are processed.
const LOSING: [&str; 2] = ["message-ttl", "expires"];
/// The key that dead-letters messages after several failures, which often are not the messages' fault.
const SETTING_ASIDE: &str = "delivery-limit";

pub(super) const VERSIONS: TestedVersions = TestedVersions {
    server: "RabbitMQ",
    oldest: (3, 10),
    newest: (4, 3),
    needed: ((3, 10), "before 3.10 quorum queues have no time to live: orders do not expire by messages"),
};

pub(super) struct BrokerAnswers {
    version: Answer<String>,
    heartbeat_s: Answer<u16>,
    exchange: Answer<QueueCheck>,
    queues: Answer<Vec<(String, QueueCheck)>>,
    published: Answer<Fate>,
    policies: Answer<Option<Vec<QueuePolicy>>>,
}

pub(super) async fn ask(config: &Config, deadline: Instant, limit: Duration) -> BrokerAnswers {
    let broker = Broker::new(config);
    let over_amqp = async {
        let server = in_time(deadline, broker.inspect()).await;
        let publish = async {
            let exchange = of(deadline, &server, BrokerInspection::exchange).await;
            let to_ours = exchange.as_ref().is_ok_and(|exchange| *exchange != QueueCheck::Missing);
            let publish = async |server: &BrokerInspection| server.publish(to_ours).await;
            let published = of(deadline, &server, publish).await;
            (exchange, published)
        };
        let ((exchange, published), queues) = tokio::join!(publish, of(deadline, &server, BrokerInspection::queues));
        let heartbeat_s = server.as_ref().map(BrokerInspection::heartbeat_s).map_err(Clone::clone);
        if let Ok(server) = &server {
            let _ = timeout(CLOSE_MAX, server.close()).await;
        }
        (heartbeat_s, exchange, queues, published)
    };
    let ((heartbeat_s, exchange, queues, published), policies, version) =
        tokio::join!(over_amqp, in_time(deadline, broker.policies(limit)), in_time(deadline, broker.version()));
    BrokerAnswers { version, heartbeat_s, exchange, queues, published, policies }
}

pub(super) fn checks(broker: &BrokerAnswers) -> Vec<Check> {
    let BrokerAnswers { version, heartbeat_s, exchange, queues: declared, published, policies: effective } = broker;
    let both = match (exchange, declared) {
        (Ok(exchange), Ok(queues)) => Ok((exchange, queues)),
        (Err(why), _) | (_, Err(why)) => Err(why.clone()),
    };
    vec![
        Topic(
            "rabbitmq.queues",
            "other queues than quorum queues lose messages with their node: orders are a minute late",
        )
        .judge(&both, |(exchange, declared)| queues(exchange, declared)),
        Topic(
            "rabbitmq.policies",
            "rules 6 and 8: a message that a policy drops is sent again late, or found by the sweeper",
        )
        .judge_both((published, effective), |published, effective| policies(published, effective.as_deref())),
        Topic("rabbitmq.alarms", "F15: while the broker takes no messages, no order is settled")
            .judge(published, alarms),
        Topic("rabbitmq.heartbeat", "F4: a broker that dies silently is noticed after two heartbeats")
            .judge(heartbeat_s, |seconds| heartbeat(*seconds)),
        Topic("rabbitmq.version", "rules 6 and 8: the limits and time-outs of queues differ between versions")
            .judge(version, |version| VERSIONS.judge(version)),
        PERMISSIONS.judge_both((&both, published), |(exchange, declared), published| {
            permissions(exchange, declared, published)
        }),
    ]
}

fn queues(exchange: &QueueCheck, queues: &[(String, QueueCheck)]) -> Finding {
    let declare_again = "stop the workers, let the queue run empty, delete it (rabbitmqctl delete_queue NAME) and \
                         start the workers: they declare it anew";
    if let QueueCheck::Otherwise(why) = exchange {
        let found = format!("our exchange exists otherwise: {why}");
        return Finding::fail(found, "delete the exchange, and start a worker");
    }
    // A queue with another length bound is right in all other respects.
    let other_bound = |why: &str| why.contains(&format!("'{BOUND}'"));
    let (mut wrong, mut bounded, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for (name, declared) in queues {
        match declared {
            QueueCheck::Otherwise(why) if other_bound(why) => bounded.push(name),
            QueueCheck::Otherwise(why) => wrong.push(format!("{name}: {why}")),
            QueueCheck::Missing => missing.push(name),
            QueueCheck::AsConfigured | QueueCheck::Refused(_) => {}
        }
    }
    if let Some(first) = wrong.first() {
        let found = format!("{} of {} queues exist otherwise; {first}", wrong.len(), queues.len());
        return Finding::fail(found, declare_again);
    }
    if !bounded.is_empty() {
        let found = format!("with another bound than amqp.queue_max_length: {}", some_of(&bounded));
        let fix = format!("nothing, if you changed the setting and the old bound is enough; else {declare_again}");
        return Finding::warn(found, fix);
    }
    if !missing.is_empty() || *exchange == QueueCheck::Missing {
        let found = format!("{} of {} queues do not exist yet: {}", missing.len(), queues.len(), some_of(&missing));
        return Finding::warn(found, "start `seckill work`, which declares them, and run the doctor again");
    }
    Finding::pass(format!("{} quorum queues are as every worker declares them", queues.len()))
}

fn policies(published: &Fate, effective: Option<&[QueuePolicy]>) -> Finding {
    if *published == Fate::Taken {
        let fix = "remove the policy that gives our exchange an alternate exchange: a message without a queue must \
                   come back";
        return Finding::fail("a message for which there is no queue did not come back", fix);
    }
    let Some(queues) = effective else {
        let by_hand = "set amqp.management_url, or look by hand that none has message-ttl, expires or delivery-limit: \
                       rabbitmqctl list_queues name effective_policy_definition";
        return Finding::not_asked("AMQP does not show policies, and amqp.management_url is empty", by_hand);
    };
    let with = |terms: &[&str]| -> Vec<String> {
        let terms_of = |queue: &QueuePolicy| terms.iter().filter(|term| queue.has(term)).copied().collect::<Vec<_>>();
        let found = queues.iter().map(|queue| (&queue.name, terms_of(queue))).filter(|(_, terms)| !terms.is_empty());
        found.map(|(name, terms)| format!("{name} ({})", terms.join(", "))).collect()
    };
    let fix = "change the policy so that its pattern does not match our prefix: rabbitmqctl list_policies, \
               list_operator_policies";
    let (losing, aside) = (with(&LOSING), with(&[SETTING_ASIDE]));
    if !losing.is_empty() {
        return Finding::fail(format!("a policy makes messages leave unprocessed: {}", some_of(&losing)), fix);
    }
    if !aside.is_empty() {
        return Finding::warn(format!("a policy sets aside redelivered messages: {}", some_of(&aside)), fix);
    }
    Finding::pass(format!("no policy makes messages leave our {} queues", queues.len()))
}

fn alarms(published: &Fate) -> Finding {
    match published {
        Fate::Returned | Fate::Taken => Finding::pass("the broker takes messages"),
        Fate::Blocked(why) => {
            let fix = "free memory or disk at the broker: rabbitmq-diagnostics alarms";
            Finding::fail(format!("the broker takes no messages: {why}"), fix)
        }
        Fate::Refused(why) => {
            Finding::could_not_look(format!("we may not publish: {why}"), format!("see {}", PERMISSIONS.0))
        }
    }
}

fn heartbeat(seconds: u16) -> Finding {
    let found = format!("a heartbeat each {seconds} s");
    let fix = "leave `heartbeat` out of amqp.url, and let amqp.heartbeat_s be 10";
    match seconds {
        0 => Finding::fail("there are no heartbeats", format!("{fix}; do not set heartbeat = 0 in rabbitmq.conf")),
        1..=HEARTBEAT_SLOW_S => Finding::pass(found),
        _ => Finding::warn(found, fix),
    }
}

fn permissions(exchange: &QueueCheck, queues: &[(String, QueueCheck)], published: &Fate) -> Finding {
    let refused = |declared: &QueueCheck| match declared {
        QueueCheck::Refused(why) => Some(why.clone()),
        QueueCheck::AsConfigured | QueueCheck::Missing | QueueCheck::Otherwise(_) => None,
    };
    let mut refusals: Vec<String> = queues.iter().filter_map(|(_, declared)| refused(declared)).collect();
    refusals.extend(refused(exchange));
    if let Fate::Refused(why) = published {
        refusals.push(why.clone());
    }
    match refusals.first() {
        Some(first) => {
            let fix = "rabbitmqctl set_permissions -p VHOST USER '^PREFIX' '^PREFIX' '^PREFIX' with the prefix of \
                       amqp.prefix";
            Finding::fail(format!("{} refusals; {first}", refusals.len()), fix)
        }
        None => Finding::pass("we may declare what exists, and publish"),
    }
}
