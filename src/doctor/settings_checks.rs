//! Our own settings: values that production refuses, and the routes to the service and its servers.

use std::net::IpAddr;

use futures_util::future::join_all;
use tokio::net::lookup_host;
use tokio::time::Instant;
use url::Url;

use super::{Answer, Check, Finding, Topic, in_time, one_line, some_of};
use seckill_config::production::UnfitKind;
use seckill_config::tls::{Protection, Route};
use seckill_config::{Allow, Config, Http};
use seckill_domain::proxies::ProxyNetwork;
use seckill_postgres as ledger;
use seckill_rabbitmq::Broker;
use seckill_redis::Gate;
use seckill_tokens::Tokens;

pub(super) struct LocatedRoute {
    setting: &'static str,
    route: Answer<Route>,
    place: Place,
}

/// The distance of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    ThisMachine,
    PrivateNetwork,
    Internet,
    Unknown,
}

pub(super) async fn locate(config: &Config, deadline: Instant) -> Vec<LocatedRoute> {
    let redis = Gate::new(&config.redis, &config.purchase).map(|gate| gate.routes());
    let (sales, locks) =
        redis.map_or_else(|error| (Err(one_line(&error)), Vec::new()), |(sales, locks)| (Ok(sales), locks));
    let mut routes = [each("redis.url", sales), each("redis.lock_urls", Ok(locks))].concat();
    routes.extend(each("database.url", ledger::inspect::routes(&config.database).map_err(|error| one_line(&error))));
    routes.extend(each("amqp.url", Broker::new(config).routes().map_err(|error| one_line(&error))));
    routes.extend(management_route(&config.amqp.management_url).map(|route| ("amqp.management_url", Ok(route))));
    let located = routes.into_iter().map(|(setting, route)| async move {
        let place = match &route {
            Ok(Route { host: Some(host), .. }) => place_of(host, deadline).await,
            Ok(Route { host: None, .. }) => Place::ThisMachine,
            Err(_) => Place::Unknown,
        };
        LocatedRoute { setting, route, place }
    });
    join_all(located).await
}

fn each(setting: &'static str, routes: Answer<Vec<Route>>) -> Vec<(&'static str, Answer<Route>)> {
    match routes {
        Ok(routes) => routes.into_iter().map(|route| (setting, Ok(route))).collect(),
        Err(why) => vec![(setting, Err(why))],
    }
}

fn management_route(address: &str) -> Option<Route> {
    let url = Url::parse(address).ok()?;
    let tls = url.scheme() == "https";
    let protection = if tls { Protection::CheckedCertificate } else { Protection::Nothing };
    Some(Route { host: url.host_str().map(str::to_owned), protection })
}

async fn place_of(host: &str, deadline: Instant) -> Place {
    // The resolver takes an IPv6 address without the brackets of a URL.
    let addresses = in_time(deadline, lookup_host((host.trim_matches(['[', ']']), 0))).await;
    let Ok(addresses) = addresses else { return Place::Unknown };
    let places: Vec<Place> = addresses.map(|address| place_of_ip(address.ip())).collect();
    [Place::Internet, Place::PrivateNetwork, Place::ThisMachine]
        .into_iter()
        .find(|place| places.contains(place))
        .unwrap_or(Place::Unknown)
}

fn place_of_ip(ip: IpAddr) -> Place {
    let shared = |v4: std::net::Ipv4Addr| v4.octets()[0] == 100 && v4.octets()[1] & 0b1100_0000 == 0b0100_0000;
    match ip.to_canonical() {
        ip if ip.is_loopback() => Place::ThisMachine,
        IpAddr::V4(v4) if v4.is_private() || v4.is_link_local() || v4.is_unspecified() || shared(v4) => {
            Place::PrivateNetwork
        }
        IpAddr::V6(v6) if v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_unspecified() => {
            Place::PrivateNetwork
        }
        IpAddr::V4(_) | IpAddr::V6(_) => Place::Internet,
    }
}

pub(super) fn checks(
    config: &Config,
    routes: &[LocatedRoute],
    unreadable_clients: u64,
    keys: &Option<Answer<usize>>,
) -> Vec<Check> {
    vec![
        Topic(
            "settings.development",
            "I2 and every limit by buyer: in development mode anybody gets a token for any buyer",
        )
        .check(development(config)),
        Topic(
            "settings.secrets",
            "A22: with a published secret anybody signs tokens, callbacks and webhooks, or opens a server",
        )
        .check(secrets(config)),
        Topic("settings.receivers", "A2: without TLS anybody between can read and change what is sent to receivers")
            .check(receivers(config)),
        Topic(
            "settings.issuer",
            "I2: who is between us and the issuer of tokens can be any buyer, and without its keys nobody buys",
        )
        .check(issuer(config, keys)),
        Topic("settings.play-bank", "I4: the sandbox bank approves every payment: goods without money")
            .check(play_bank(config)),
        Topic("settings.tls", "without TLS anybody between reads passwords, and changes what is said (security.md)")
            .check(tls(routes)),
        Topic("settings.bind", "A5: a client that bypasses nginx meets none of its limits, and sees /metrics")
            .check(bind(&config.http)),
        Topic("settings.proxies", "A8: behind a proxy that is not trusted, all buyers count as one address")
            .check(proxies(&config.http, unreadable_clients)),
    ]
}

fn development(config: &Config) -> Finding {
    let fix = "set SECKILL_DEV=0, with secrets of your own (docs/install.md)";
    match (config.dev, place_of_ip(config.http.bind.ip())) {
        (false, _) => Finding::pass("development mode is off"),
        (true, Place::ThisMachine) => Finding::warn("development mode is on, at an address of this machine only", fix),
        (true, Place::PrivateNetwork | Place::Internet | Place::Unknown) => {
            Finding::fail(format!("development mode is on, and other machines may reach {}", config.http.bind), fix)
        }
    }
}

/// The settings that are unfit for production in one way, and whether `[allow]` does not cover them.
fn unfit(config: &Config, kind: UnfitKind) -> (Vec<String>, bool) {
    let settings = |config: &Config| -> Vec<String> {
        let unfit = config.unfit_for_production().into_iter().filter(|unfit| unfit.kind == kind);
        unfit.filter_map(|unfit| unfit.error.setting()).collect()
    };
    let strict = Config { allow: Allow { http_receivers: false, sandbox_channel: false }, ..config.clone() };
    (settings(&strict), !settings(config).is_empty())
}

/// A failure; less than that if a setting allows it, or in development mode, which has its own check.
fn unless_allowed(config: &Config, refused: bool, found: String, fix: &str) -> Finding {
    match (config.dev, refused) {
        (true, _) => Finding::warn(format!("{found}; development mode allows it"), fix),
        (false, true) => Finding::fail(format!("{found}; the service does not start"), fix),
        (false, false) => Finding::warn(format!("{found}; [allow] allows it"), fix),
    }
}

fn secrets(config: &Config) -> Finding {
    let (settings, refused) = unfit(config, UnfitKind::PublishedSecret);
    if settings.is_empty() {
        return Finding::pass("no secret or password is one that the source code publishes");
    }
    let found = format!("published with the source code: {}", some_of(&settings));
    let fix = "choose others: openssl rand -hex 32, or echo whsec_$(openssl rand -base64 32)";
    unless_allowed(config, refused, found, fix)
}

fn receivers(config: &Config) -> Finding {
    let (settings, refused) = unfit(config, UnfitKind::PlainReceiver);
    if settings.is_empty() {
        return Finding::pass("channels and webhooks have https:// addresses, or none");
    }
    unless_allowed(config, refused, format!("http:// in {}", some_of(&settings)), "use https:// addresses")
}

/// How many keys the issuer publishes that we can use. `None`: the settings name no issuer.
pub(super) async fn issuer_keys(config: &Config, deadline: Instant) -> Option<Answer<usize>> {
    let tokens = Tokens::new(&config.auth, config.dev).ok()?;
    let issuer = tokens.issuer()?;
    Some(in_time(deadline, issuer.count()).await)
}

fn issuer(config: &Config, keys: &Option<Answer<usize>>) -> Finding {
    let (settings, refused) = unfit(config, UnfitKind::PlainIssuer);
    if !settings.is_empty() {
        return unless_allowed(config, refused, "auth.jwks_url is http://".to_owned(), "use an https:// address");
    }
    match keys {
        None => Finding::pass("the settings have the keys of buyers' tokens"),
        Some(Ok(keys)) => Finding::pass(format!("the issuer publishes {keys} keys that we can use")),
        Some(Err(why)) => Finding::could_not_look(
            format!("the keys of auth.jwks_url are not read: {why}"),
            "correct the address, or look at the issuer: an instance that starts now refuses every buyer",
        ),
    }
}

fn play_bank(config: &Config) -> Finding {
    let (settings, refused) = unfit(config, UnfitKind::PlayBank);
    if settings.is_empty() {
        return Finding::pass("the sandbox bank is not offered to buyers");
    }
    let fix = "remove SECKILL_CHANNELS__SANDBOX__SECRETS, and configure a channel of your own (docs/payments.md)";
    unless_allowed(config, refused, "buyers can pay at the sandbox bank".to_owned(), fix)
}

fn tls(routes: &[LocatedRoute]) -> Finding {
    let fix = "use rediss://, sslmode=verify-full, amqps:// and https://, with the files of your authorities \
               (docs/install.md)";
    let (mut open, mut doubtful) = (Vec::new(), Vec::new());
    for LocatedRoute { setting, route, place } in routes {
        let Ok(route) = route else {
            doubtful.push(format!("{setting} (not understood)"));
            continue;
        };
        match (place, route.protection) {
            (_, Protection::CheckedCertificate) | (Place::ThisMachine, _) => {}
            (Place::Internet, Protection::Nothing) => open.push(format!("{setting} (over the internet)")),
            (_, Protection::AnyCertificate) => doubtful.push(format!("{setting} (believes any certificate)")),
            (Place::Unknown, Protection::Nothing) => doubtful.push(format!("{setting} (its name does not resolve)")),
            (Place::PrivateNetwork, Protection::Nothing) => doubtful.push(format!("{setting} (in a private network)")),
        }
    }
    if !open.is_empty() {
        return Finding::fail(format!("without TLS: {}", some_of(&open)), fix);
    }
    if !doubtful.is_empty() {
        return Finding::warn(format!("without TLS that is checked: {}", some_of(&doubtful)), fix);
    }
    Finding::pass("every server is on this machine, or is reached over TLS that is checked")
}

fn bind(http: &Http) -> Finding {
    let fix = "let http.bind be an address that only the proxy reaches (127.0.0.1 on its machine, or a network of \
               their own), or let a packet filter refuse everybody else";
    match (place_of_ip(http.bind.ip()), http.trusted_proxies.is_empty()) {
        (Place::ThisMachine, _) => Finding::pass(format!("http.bind is {}: only this machine reaches it", http.bind)),
        (Place::Internet, _) => {
            Finding::fail(format!("http.bind is {}: everybody reaches the service past the proxy", http.bind), fix)
        }
        (Place::PrivateNetwork | Place::Unknown, false) => Finding::warn(
            format!("http.bind is {}: clients that reach this machine may pass the proxy by", http.bind),
            fix,
        ),
        (Place::PrivateNetwork | Place::Unknown, true) => {
            Finding::warn(format!("http.bind is {}, and http.trusted_proxies is empty", http.bind), fix)
        }
    }
}

fn proxies(http: &Http, unreadable_clients: u64) -> Finding {
    let (proxies, header) = (&http.trusted_proxies, http.forwarded_header.as_str());
    if proxies.is_empty() {
        let fix = "let http.trusted_proxies list the addresses of the proxies, and these send the header of \
                   http.forwarded_header (deploy/nginx.conf)";
        return Finding::warn(format!("http.trusted_proxies is empty: {header} of a proxy is not believed"), fix);
    }
    let fix = "let http.trusted_proxies list only networks in which nobody but the proxies is";
    let strangers: Vec<_> = proxies.iter().filter(|network| holds_strangers(network)).collect();
    if strangers.is_empty() && unreadable_clients > 0 {
        let fix =
            "let the proxies write addresses into the header; the log of serve shows what they write (security.md)";
        Finding::warn(
            format!("{unreadable_clients} requests named a client by no address: they count as the proxy"),
            fix,
        )
    } else if strangers.is_empty() {
        Finding::pass(format!("{header} is believed from {}", some_of(proxies)))
    } else if strangers.iter().any(|network| network.prefix_len() == 0) {
        Finding::fail(format!("{header} is believed from everybody: {}", some_of(&strangers)), fix)
    } else {
        Finding::warn(format!("{header} is believed from large parts of the Internet: {}", some_of(&strangers)), fix)
    }
}

/// A network of the Internet that is larger than those of content delivery networks.
fn holds_strangers(network: &ProxyNetwork) -> bool {
    let smallest = if network.address().is_ipv4() { 11 } else { 24 };
    network.prefix_len() < smallest && (network.prefix_len() < 7 || place_of_ip(network.address()) == Place::Internet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_this_machine_of_a_private_network_or_of_the_internet() {
        for (place, addresses) in [
            (Place::ThisMachine, &["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"][..]),
            (Place::PrivateNetwork, &["10.1.2.3", "172.31.80.2", "192.168.1.1", "169.254.1.1"]),
            (Place::PrivateNetwork, &["100.64.0.1", "0.0.0.0"]),
            (Place::PrivateNetwork, &["fd00::1", "fe80::1", "::", "::ffff:10.0.0.1"]),
            (Place::Internet, &["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:4860:4860::8888"]),
        ] {
            for address in addresses {
                assert_eq!(place_of_ip(address.parse().unwrap()), place, "{address}");
            }
        }
    }
}
