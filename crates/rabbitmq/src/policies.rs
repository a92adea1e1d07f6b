//! The broker's policies on our queues, from the management interface, because AMQP does not show them.

use std::fmt::Display;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use seckill_webhook::HttpSender;
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::{Broker, QueueError};

/// Queues per answer: more than all channels and the delay ladder need.
const QUEUES_MAX: usize = 500;

/// Our queue, with the arguments that the broker's policies add.
#[derive(Debug, Clone, Deserialize)]
pub struct QueuePolicy {
    pub name: String,
    /// An object. Older brokers send an empty list for none.
    #[serde(default)]
    effective_policy_definition: Value,
}

impl QueuePolicy {
    pub fn has(&self, term: &str) -> bool {
        self.effective_policy_definition.get(term).is_some()
    }
}

#[derive(Deserialize)]
struct Page {
    items: Vec<QueuePolicy>,
}

impl Broker {
    /// All queues with our prefix, with the delay ladder; `None` if `amqp.management_url` is empty.
    pub async fn policies(&self, patience: Duration) -> Result<Option<Vec<QueuePolicy>>, QueueError> {
        if self.config.management_url.is_empty() {
            return Ok(None);
        }
        let wrong = |problem: &dyn Display| QueueError::Management(problem.to_string());
        let mut base = Url::parse(&self.config.management_url).map_err(|error| wrong(&error))?;
        let authorization = self.authorization(&base)?;
        if base.set_username("").is_err() || base.set_password(None).is_err() {
            return Err(wrong(&"the address cannot have a user"));
        }
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let begins_with_prefix = encoded(&format!("^{}", regex_of(&self.config.prefix)));
        let target = format!(
            "{}/api/queues/{}?page=1&page_size={QUEUES_MAX}&use_regex=true&name={begins_with_prefix}\
             &columns=name,effective_policy_definition",
            base.as_str().trim_end_matches('/'),
            encoded(&self.first_node()?.vhost)
        );
        let asked = HttpSender::default().get(&target, &[("authorization", authorization)], patience).await;
        let answer = asked.map_err(|error| wrong(&error))?;
        if answer.status != 200 {
            return Err(wrong(&format_args!("answers {}: the user needs the tag `monitoring`", answer.status)));
        }
        let page: Page = serde_json::from_slice(&answer.body).map_err(|error| wrong(&error))?;
        // The interface ignores case.
        Ok(Some(page.items.into_iter().filter(|queue| queue.name.starts_with(&self.config.prefix)).collect()))
    }

    /// The user and password of the address, or AMQP's.
    fn authorization(&self, address: &Url) -> Result<String, QueueError> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = match address.username() {
            "" => {
                let user = self.first_node()?.authority.userinfo;
                (user.username, user.password)
            }
            user => (decoded(user), decoded(address.password().unwrap_or_default())),
        };
        Ok(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }
}

fn regex_of(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.chars().flat_map(|c| (!plain(c)).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_looked_for_as_it_stands() {
        assert_eq!(regex_of("a-b_c(d"), r"a-b_c\(d");
    }

    #[test]
    fn a_queue_has_the_terms_of_its_policies() {
        let queue = |definition: &str| -> QueuePolicy {
            serde_json::from_str(&format!(r#"{{"name":"sk.dead"{definition}}}"#)).unwrap()
        };
        assert!(queue(r#","effective_policy_definition":{"message-ttl":1000}"#).has("message-ttl"));
        for none in ["", r#","effective_policy_definition":[]"#, r#","effective_policy_definition":{"expires":1}"#] {
            assert!(!queue(none).has("message-ttl"), "{none}");
        }
    }
}
