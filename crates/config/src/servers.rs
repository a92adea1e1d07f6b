//! Several servers in one address, in the form that PostgreSQL's clients use: `scheme://user:password@one:1,two:2/rest`.

const SERVERS_MAX: usize = 16;

/// One address for each server, in the given order. The parts before and after the list apply to each.
pub fn each_server(address: &str) -> Vec<String> {
    let Some((before, list, rest)) = parts(address) else { return vec![address.to_owned()] };
    list.split(',').map(|server| format!("{before}{server}{rest}")).collect()
}

const TARGET: &str = "target_session_attrs=";

/// One address for each PostgreSQL server, without the parameter that only clients read.
pub fn each_postgres(address: &str) -> Vec<String> {
    let (address, terms) = address.split_once('?').unwrap_or((address, ""));
    let terms: Vec<&str> = terms.split('&').filter(|term| !term.is_empty() && !term.starts_with(TARGET)).collect();
    let terms = if terms.is_empty() { String::new() } else { format!("?{}", terms.join("&")) };
    each_server(&format!("{address}{terms}"))
}

/// Whether to check that the server takes writes: the address names several servers, or asks for a primary.
pub fn wants_primary(address: &str) -> bool {
    target(address).is_some() || each_server(address).len() > 1
}

pub(super) fn target_problem(address: &str) -> Option<&'static str> {
    let wrong = !["read-write", "primary"].contains(&target(address)?);
    wrong.then_some("must have target_session_attrs=read-write: the service writes")
}

fn target(address: &str) -> Option<&str> {
    let (_, terms) = address.split_once('?')?;
    terms.split('&').find_map(|term| term.strip_prefix(TARGET))
}

/// The same address, with the server at this index first.
pub fn with_first(address: &str, place: usize) -> String {
    let Some((before, list, rest)) = parts(address) else { return address.to_owned() };
    let mut servers: Vec<&str> = list.split(',').collect();
    if place < servers.len() {
        servers[..=place].rotate_right(1);
    }
    format!("{before}{}{rest}", servers.join(","))
}

pub(super) fn problem(address: &str) -> Option<&'static str> {
    let (_, list, _) = parts(address)?;
    let servers: Vec<&str> = list.split(',').collect();
    let again = (1..servers.len()).any(|at| servers[..at].contains(&servers[at]));
    match servers.len() {
        0 | 1 => None,
        n if n > SERVERS_MAX => Some("names more than 16 servers"),
        _ if servers.contains(&"") => Some("has a comma without a server on both sides of it"),
        _ if again => Some("names a server twice"),
        _ => None,
    }
}

/// The schemes of addresses that name sentinels, or nodes of a cluster, instead of servers. The second of each pair uses TLS.
const SENTINELS: [(&str, &str); 2] = [("redis+sentinel://", "redis://"), ("rediss+sentinel://", "rediss://")];
/// The parameters for the user and the password at sentinels.
pub(super) const AT_SENTINELS: [&str; 2] = ["sentinel_user", "sentinel_password"];
const CLUSTER: [(&str, &str); 2] = [("redis+cluster://", "redis://"), ("rediss+cluster://", "rediss://")];

/// Servers that know others: sentinels know their master, and nodes of a cluster know all nodes. Sentinels are named by
/// `redis+sentinel://user:password@one:26379,two:26379/master`, nodes by `redis+cluster://user:password@one:6379,two:6379`. User and
/// password are for the master, or for all nodes. `?sentinel_user=…&sentinel_password=…` are for the sentinels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guides {
    pub addresses: Vec<String>,
    /// The master's name at the sentinels; empty for a cluster.
    pub master: String,
    /// The part before the host in the address of a master or node.
    before: String,
}

impl Guides {
    pub fn server_at(&self, host: &str, port: u16) -> String {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("{}{host}:{port}/", self.before)
    }
}

pub fn sentinels(address: &str) -> Option<Guides> {
    let (scheme, plain) = SENTINELS.into_iter().find(|(scheme, _)| address.starts_with(scheme))?;
    let (before, list, rest) = parts(address)?;
    let (master, terms) = rest.split_once('?').unwrap_or((rest, ""));
    let term = |name: &str| terms.split('&').find_map(|term| term.strip_prefix(name)?.strip_prefix('='));
    let login = match AT_SENTINELS.map(term) {
        [None, None] => String::new(),
        [user, password] => format!("{}:{}@", user.unwrap_or_default(), password.unwrap_or_default()),
    };
    let before = before.replacen(scheme, plain, 1);
    let addresses = list.split(',').map(|server| format!("{plain}{login}{server}/")).collect();
    Some(Guides { addresses, master: master.trim_start_matches('/').to_owned(), before })
}

pub(super) fn sentinels_problem(address: &str) -> Option<&'static str> {
    let sentinels = sentinels(address)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if sentinels.master.is_empty() || !sentinels.master.chars().all(is_name) {
        return Some("must end in /NAME, the name under which the sentinels know the master, of A-Z a-z 0-9 . _ -");
    }
    let terms = address.split_once('?').map_or("", |(_, terms)| terms).split('&').filter(|term| !term.is_empty());
    let is_of = |term: &str, name: &str| term.strip_prefix(name).is_some_and(|value| value.starts_with('='));
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        terms.partition(|term| AT_SENTINELS.iter().any(|name| is_of(term, name)));
    let [_, password] = AT_SENTINELS;
    let has_password = known.iter().any(|term| is_of(term, password) && term.len() > password.len() + 1);
    if !unknown.is_empty() || (!known.is_empty() && !has_password) {
        return Some(
            "may have ?sentinel_user=USER&sentinel_password=PASSWORD after the name, percent-encoded: a user needs a password",
        );
    }
    None
}

pub fn nodes(address: &str) -> Option<Guides> {
    let (scheme, plain) = CLUSTER.into_iter().find(|(scheme, _)| address.starts_with(scheme))?;
    let (before, list, _) = parts(address)?;
    let before = before.replacen(scheme, plain, 1);
    let addresses = list.split(',').map(|server| format!("{before}{server}/")).collect();
    Some(Guides { addresses, master: String::new(), before })
}

pub(super) fn nodes_problem(address: &str) -> Option<&'static str> {
    nodes(address)?;
    let (_, _, rest) = parts(address)?;
    (!rest.trim_matches('/').is_empty()).then_some("must end with the last node: a cluster has one database")
}

/// The part before the list of servers, the list, and the part after it. In a password, `@` and `/` are percent-encoded.
fn parts(address: &str) -> Option<(&str, &str, &str)> {
    let begin = address.find("://")? + 3;
    let end = address[begin..].find(['/', '?', '#']).map_or(address.len(), |at| begin + at);
    let begin = address[begin..end].rfind('@').map_or(begin, |at| begin + at + 1);
    Some((&address[..begin], &address[begin..end], &address[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user and a password with characters that separate the parts of an address.
    const USER: &str = "me:a%40b,c";

    #[test]
    fn each_server_has_an_address_of_its_own() {
        let list = format!("postgres://{USER}@one:5432,two,[::1]:7/shop?sslmode=disable");
        let each =
            ["one:5432", "two", "[::1]:7"].map(|server| format!("postgres://{USER}@{server}/shop?sslmode=disable"));
        assert_eq!(each_server(&list), each);
        assert_eq!(with_first("amqp://x@one,two:2,three/%2f", 1), "amqp://x@two:2,one,three/%2f");
        let with_password = format!("redis://{USER}@one:1");
        for one in ["amqp://one:1/%2f", &with_password, "postgres:///shop?host=/run", "nonsense"] {
            assert_eq!(each_server(one), [one]);
            assert_eq!(problem(one), None);
        }
    }

    #[test]
    fn sentinels_are_named_with_their_master() {
        let address = format!("redis+sentinel://{USER}@one:26379,two:26379/shop");
        let watched = sentinels(&address).unwrap();
        assert_eq!(watched.addresses, ["redis://one:26379/", "redis://two:26379/"]);
        assert_eq!((watched.master.as_str(), sentinels_problem(&address)), ("shop", None));
        assert_eq!(watched.server_at("10.0.0.1", 6379), format!("redis://{USER}@10.0.0.1:6379/"));
        assert_eq!(watched.server_at("::1", 6379), format!("redis://{USER}@[::1]:6379/"));
        let secure = sentinels("rediss+sentinel://one:1/shop").unwrap();
        assert_eq!((secure.addresses[0].as_str(), &*secure.server_at("a", 1)), ("rediss://one:1/", "rediss://a:1/"));
        assert_eq!(sentinels("redis://one:1/0"), None);
        for wrong in ["redis+sentinel://one:1", "redis+sentinel://one:1/", "redis+sentinel://one:1/a/b"] {
            assert!(sentinels_problem(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn sentinels_may_have_a_user_and_a_password_of_their_own() {
        for (terms, login) in [
            ("sentinel_password=a%40b", ":a%40b@"),
            ("sentinel_user=me&sentinel_password=a%40b", "me:a%40b@"),
            ("sentinel_password=x&sentinel_user=me", "me:x@"),
            ("", ""),
        ] {
            let address = format!("rediss+sentinel://{USER}@one:1,two:2/shop?{terms}");
            let watched = sentinels(&address).unwrap();
            assert_eq!(watched.addresses, ["one:1", "two:2"].map(|server| format!("rediss://{login}{server}/")));
            assert_eq!(watched.server_at("a", 3), format!("rediss://{USER}@a:3/"));
            assert_eq!((&*watched.master, sentinels_problem(&address)), ("shop", None));
        }
        let empty = format!("{}=", AT_SENTINELS[1]);
        for wrong in ["sentinel_user=me", &empty, "password=x", "sentinel_password=x&tls=1", "x"] {
            assert!(sentinels_problem(&format!("redis+sentinel://one:1/shop?{wrong}")).is_some(), "{wrong}");
        }
    }

    #[test]
    fn nodes_of_a_cluster_share_user_and_password() {
        let address = format!("redis+cluster://{USER}@one:7001,two:7002");
        let named = nodes(&address).unwrap();
        let each = ["one:7001", "two:7002"].map(|server| format!("redis://{USER}@{server}/"));
        assert_eq!((named.addresses, nodes_problem(&address)), (each.to_vec(), None));
        assert_eq!(nodes("rediss+cluster://one:1/").unwrap().server_at("::1", 2), "rediss://[::1]:2/");
        assert_eq!((nodes("redis://one:1/0"), nodes("redis+sentinel://one:1/x")), (None, None));
        assert!(nodes_problem("redis+cluster://one:1/3").is_some());
    }

    #[test]
    fn postgres_may_be_asked_for_a_server_that_takes_writes() {
        let asked = "postgres://x@one,two/x?a=b&target_session_attrs=read-write";
        assert_eq!(each_postgres(asked), ["postgres://x@one/x?a=b", "postgres://x@two/x?a=b"]);
        assert_eq!(each_postgres("postgres://x@one/x?target_session_attrs=primary"), ["postgres://x@one/x"]);
        assert!(wants_primary(asked) && wants_primary("postgres://x@one/x?target_session_attrs=primary"));
        assert!(!wants_primary(&format!("postgres://{USER}@one/x")));
        assert_eq!((target_problem(asked), target_problem("postgres://x@one/x")), (None, None));
        assert!(target_problem("postgres://x@one/x?target_session_attrs=any&a=b").is_some());
    }

    #[test]
    fn a_list_that_is_no_list_is_named() {
        let many = (0..17).map(|n| format!("h{n}")).collect::<Vec<_>>().join(",");
        for wrong in ["one,", ",one", "one,,two", "one:1,two:1,one:1", &many] {
            assert!(problem(&format!("amqp://{USER}@{wrong}/%2f")).is_some(), "{wrong}");
        }
        assert_eq!(problem("amqp://x@one:1,one:2/%2f"), None);
    }
}
