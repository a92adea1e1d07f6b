//! HEAD: the answer that GET gets, without its body. `every_answer_is_one_that_the_document_lists` asks the whole API.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::network::unread_answers::static_addresses;
use crate::pages::served_pages::{png, seckill};
use seckill_domain::sale::NewSale;
use seckill_harness::folder::Folder;
use seckill_harness::{System, terms};

/// The fields that a connection or a moment decides, and those of a body of unknown length.
const OTHERWISE: [&str; 3] = ["connection", "date", "transfer-encoding"];
/// Answers whose length changes from one moment to the next.
const MOVING: [&str; 1] = ["/metrics"];

/// The status line and the fields of an answer.
type Head = (String, BTreeSet<String>);

fn head(text: &str, path: &str) -> Head {
    let (status, fields) = text.split_once("\r\n").unwrap();
    let is_compared = |field: &&str| {
        let name = field.split(':').next().unwrap();
        let moves = name == "content-length" && MOVING.contains(&path);
        !moves && !OTHERWISE.contains(&name)
    };
    (status.to_owned(), fields.lines().filter(is_compared).map(str::to_owned).collect())
}

/// Asks by HEAD, and then by GET over the same connection: a body of the first answer would stand before the second.
async fn head_and_get(at: SocketAddr, path: &str) -> [Head; 2] {
    let mut wire = TcpStream::connect(at).await.unwrap();
    let fields = "Host: localhost\r\nAccept: text/html\r\nAccept-Encoding: gzip\r\n";
    wire.write_all(format!("HEAD {path} HTTP/1.1\r\n{fields}\r\n").as_bytes()).await.unwrap();
    let (mut first, mut byte) = (Vec::new(), [0]);
    while !first.ends_with(b"\r\n\r\n") {
        wire.read_exact(&mut byte).await.unwrap();
        first.push(byte[0]);
    }
    wire.write_all(format!("GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut second = Vec::new();
    wire.read_to_end(&mut second).await.unwrap();
    let end = second.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    [first.trim_ascii_end(), &second[..end]].map(|text| head(std::str::from_utf8(text).unwrap(), path))
}

#[tokio::test(flavor = "multi_thread")]
async fn head_gets_the_answer_to_get_without_its_body() {
    let system = System::shared().await;
    let place = Folder::new("picture");
    let picture = place.write("phone.png", png(50, 50, [1, 2, 3]));
    let product = "Headed phone";
    seckill(&system, &["product", "set", "--name", product, "--picture", &picture]).unwrap();
    let sale = system.create_sale(NewSale { product: product.into(), ..terms(5) }).await;
    let at = system.instances[0].address;
    let mut paths = static_addresses(at, &sale).await;
    let others = "/sales/ID/ /sales/0 /sales/ID/state.js /api/v1/sales /api/v1/sales/ID /api/v1/sales/ID/state /api/v1/time \
                  /api/v1/orders /api/v1/nothing /api/v1/sales/ID/purchases /admin /admin/orders /admin/assets/none.js /assets/x";
    paths.extend(others.split_whitespace().map(|path| path.replace("ID", &sale.id.to_string())));
    let (mut lengths, mut statuses) = (0, BTreeSet::new());
    for path in paths {
        let [head, get] = head_and_get(at, &path).await;
        assert_eq!(head, get, "{path}");
        assert!(head.0.starts_with("HTTP/1.1 "), "{head:?}");
        lengths += usize::from(
            head.1.iter().any(|field| field.starts_with("content-length: ") && field != "content-length: 0"),
        );
        statuses.insert(head.0.split(' ').nth(1).unwrap().to_owned());
    }
    assert!(lengths > 20, "{lengths}");
    for status in ["200", "204", "401", "404", "405"] {
        assert!(statuses.contains(status), "{statuses:?}");
    }
}

/// Addresses that do not answer GET name the methods that they answer; all others name HEAD, too.
#[tokio::test(flavor = "multi_thread")]
async fn other_methods_are_told_the_methods() {
    let system = System::shared().await;
    let sale = system.create_sale(terms(5)).await;
    for (method, path, allowed) in [
        ("DELETE", "/", "GET, HEAD"),
        ("POST", "/sales/ID/", "GET, HEAD"),
        ("POST", "/assets/x.css", "GET, HEAD"),
        ("PUT", "/favicon.ico", "GET, HEAD"),
        ("POST", "/admin/orders", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/sales/ID/state.js", "GET, HEAD"),
        ("HEAD", "/api/v1/sales/ID/purchases", "POST"),
        ("PATCH", "/api/v1/admin/session", "DELETE, GET, HEAD, POST"),
    ] {
        let url = system.url(&path.replace("ID", &sale.id.to_string()));
        let answer = reqwest::Client::new().request(method.parse().unwrap(), url).send().await.unwrap();
        assert_eq!(answer.status(), 405, "{method} {path}");
        let mut told: Vec<&str> = answer.headers()["allow"].to_str().unwrap().split(", ").collect();
        told.sort_unstable();
        assert_eq!(told.join(", "), allowed, "{method} {path}");
    }
}
