//! Debian's nginx accepts the files of deploy/.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use reqwest::Client;
use seckill_domain::client_address::ClientAddress;
use seckill_harness::nginx::{DEPLOY, INSTANCES, Nginx, checked};

/// In the place of `INSTANCES`, for later versions of nginx.
const BY_NAME: &str = "instances-by-name.conf";

/// nginx and the service count the same addresses as one client: an IPv6 /64, in any notation.
#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_network_is_one_client_at_the_edge_too() {
    // Each address has zeros in some of its eight groups: two of each kind, and their neighbour in the next /64.
    let of_kind = |kind: u16, fill: u16| {
        let group = |n: u16| if kind >> n & 1 == 1 { fill + n } else { 0 };
        Ipv6Addr::from([0, 1, 2, 3, 4, 5, 6, 7].map(group))
    };
    let beside = |address: Ipv6Addr| Ipv6Addr::from(u128::from(address) ^ 1 << 64);
    let mut addresses: BTreeSet<IpAddr> = (0..256)
        .flat_map(|kind| [of_kind(kind, 0x2a01), of_kind(kind, 0x7), of_kind(kind | 0xf0, 0x2a01)])
        .flat_map(|address| [address, beside(address)])
        .map(IpAddr::from)
        .collect();
    let others = "192.0.2.1 192.0.2.2 ::ffff:192.0.2.1 ::192.0.2.1 ::1 :: 2001:db8::1 2001:db8:0:0:1:: 2001:1::1 \
                  64:ff9b::1.2.3.4 64:ff9b::1.2.3.5 64:ff9b::1.2.0.0 64:ff9b::0.0.3.4 2002:5060:708::1 2002:5060:708:1:2:3:4:5 \
                  2002:5060:0:1::1 2002:5060::1 2002:5061::1 ::ffff:0:8.8.1.1 ::ffff:0:8.8.0.0 2001:0:1:2:3:4:f5ff:fffa \
                  2001:0:1:2:8000:4:f5ff:fffa 2001:0:1:2::f5ff:fffb 2001:0:1:0:3:4:f5ff:fffc 2001:0:1::f5ff:fffc \
                  64:ff9b:1::9 64:ff9b:1::a 64:ff9b:1:2:3:4:5:6 fe80::1 fe80::2 febf:1::1 fec0::1 fec0::2 2001:db8:0:5efe:1::";
    for text in others.split_whitespace() {
        addresses.insert(text.parse().unwrap());
    }
    let told = "location = /client { return 200 $client; }\n    location /api/ {";
    let from = "server_tokens off;\n  set_real_ip_from 127.0.0.1;\n  real_ip_header X-Real-IP;";
    let site = seckill_harness::folder::Folder::new("site");
    let changes = [("location /api/ {", told), ("server_tokens off;", from)];
    let edge = Nginx::edge(&["127.0.0.1:9".parse().unwrap()], site.path(), &changes).await;
    let client = Client::new();
    let (mut at_edge, mut clients) = (BTreeMap::<String, BTreeSet<String>>::new(), BTreeSet::new());
    for address in addresses {
        let asked = client.get(edge.url("/client")).header("X-Real-IP", address.to_string());
        let told = asked.send().await.unwrap().text().await.unwrap();
        let counted = ClientAddress::from(address).to_string();
        clients.insert(counted.clone());
        at_edge.entry(told).or_default().insert(counted);
    }
    let mixed: Vec<_> = at_edge.iter().filter(|(_, of_service)| of_service.len() > 1).collect();
    assert!(mixed.is_empty(), "several clients are one at the edge: {mixed:?}");
    let count = at_edge.len();
    assert_eq!(count, clients.len(), "one client is several at the edge: {at_edge:#?}");
}

/// nginx accepts each file of deploy/ without a warning, alone or included by another.
#[tokio::test(flavor = "multi_thread")]
async fn nginx_takes_every_file_of_deploy() {
    let names = std::fs::read_dir(DEPLOY).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let texts: Vec<(String, String)> = names
        .filter(|name| name.ends_with(".conf"))
        .map(|name| (name.clone(), std::fs::read_to_string(format!("{DEPLOY}/{name}")).unwrap()))
        .collect();
    let mut checked_files = 0;
    for (file, text) in &texts {
        if !text.contains("http {") {
            if file == BY_NAME {
                continue;
            }
            let includes = format!("include /etc/nginx/seckill/{file};");
            assert!(texts.iter().any(|(_, other)| other.contains(&includes)), "nothing includes {file}");
            continue;
        }
        // Names that only the network of compose.yaml knows.
        let known = ["app:8080"].into_iter().filter(|host| text.contains(host)).map(|host| (host, "127.0.0.1:9"));
        let known: Vec<_> = known.collect();
        let token = ("gateway-token.conf", "proxy_set_header Authorization \"Bearer x\";\n");
        for instances in [INSTANCES, BY_NAME] {
            let instances = std::fs::read_to_string(format!("{DEPLOY}/{instances}")).unwrap();
            let instances = ["serve-1:8080", "serve-2:8080"].iter().fold(instances, |text, host| {
                assert!(text.contains(host), "{text}");
                text.replace(host, "127.0.0.1:9")
            });
            // Debian's nginx knows no other part of that file.
            let instances = instances.replace(" resolve ", " ").replace("resolver ", "#");
            let output = checked(file, &known, &[token, (INSTANCES, &instances)]).await;
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("[warn]"), "{file}: {said}");
        }
        checked_files += 1;
    }
    assert!(checked_files >= 2, "{checked_files} files");
}
