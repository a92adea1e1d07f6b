//! Clients that ask for much and read nothing: the cost of each has a bound, whatever it asks for. A client that reads gets everything.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use flate2::read::GzDecoder;
use futures_util::future::join_all;
use image::{ImageFormat, Rgb, RgbImage};
use reqwest::Client;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use seckill_domain::sale::NewSale;
use seckill_harness::folder::{Folder, free_address};
use seckill_harness::{Sale, System, terms};
use seckill_pages::assets;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::operations::memory::{resident_kb, serve};
use crate::pages::served_pages::{PRODUCT, loaded, parsed, seckill};

const CLIENTS: usize = 100;
/// The most memory of a client in docs/security.md, without the kernel's buffers.
const CLIENT_MAX_KB: usize = 128;
/// The most memory that the kernel may use for the answers to one client, also from there.
const KERNEL_MAX_KB: usize = 256;
/// Requests that each client sends at once.
const PIPELINED: usize = 6;

/// A sale whose product has a picture that does not compress.
async fn sale_with_large_picture(system: &System, place: &Folder) -> Sale {
    let noise = RgbImage::from_fn(1500, 1000, |x, y| {
        let [r, g, b, _] = (x * 7919 + y * 104_729).wrapping_mul(2_654_435_761).rotate_left(x % 31).to_be_bytes();
        Rgb([r, g, b])
    });
    let mut file = std::io::Cursor::new(Vec::new());
    noise.write_to(&mut file, ImageFormat::Png).unwrap();
    let file = place.write("noise.png", file.into_inner());
    seckill(system, &["product", "set", "--name", PRODUCT, "--alt", "Noise", "--picture", &file]).unwrap();
    system.create_sale(NewSale { product: PRODUCT.into(), ..terms(5) }).await
}

/// Every address with the same answer for all, the files that pages load, and an unknown address.
pub async fn static_addresses(address: SocketAddr, sale: &Sale) -> BTreeSet<String> {
    let get = async |path: &str| {
        let answer = Client::new().get(format!("http://{address}{path}")).header("accept", "text/html").send().await;
        answer.unwrap().text().await.unwrap()
    };
    let document: Value = serde_json::from_str(&get("/api/openapi.json").await).unwrap();
    let listed = document["paths"].as_object().unwrap().iter().filter(|(_, methods)| {
        let tag = methods["get"]["tags"][0].as_str();
        tag.is_some_and(|tag| tag == "pages" || tag == "service")
    });
    let mut addresses: BTreeSet<String> = listed.map(|(path, _)| path.replace("{id}", &sale.id.to_string())).collect();
    addresses.extend(["/admin/sign-in", "/nothing", "/favicon.ico"].map(str::to_owned));
    for page in addresses.clone() {
        addresses.extend(loaded(&parsed(&get(&page).await).0));
    }
    addresses.extend(assets::embedded().unwrap().all().map(|asset| asset.path.clone()));
    for known in ["/docs/swagger-ui-bundle.js", "/metrics", "/readyz", "/admin/assets/console", "/pictures/"] {
        assert!(addresses.iter().any(|path| path.starts_with(known)), "{known}: {addresses:?}");
    }
    addresses
}

/// The kernel's memory for answers that the service has written, and no client has read.
fn kernel_kb(service: SocketAddr) -> usize {
    let own = format!(":{:04X}", service.port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_service = fields.filter(|fields| fields[1].ends_with(&own));
    let unread = of_service.map(|fields| usize::from_str_radix(fields[4].split(':').next().unwrap(), 16).unwrap());
    unread.sum::<usize>() / 1024
}

/// A connection with a small receive buffer at the client.
async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// Asks for the address several times, and reads nothing.
async fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut wire = connect(address).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n");
    wire.write_all(request.repeat(PIPELINED).as_bytes()).await.unwrap();
    // The first answer has begun.
    wire.readable().await.unwrap();
    wire
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_read_nothing_take_bounded_memory() {
    let (system, place) = (System::prepare(&[]).await, Folder::new("pages"));
    let sale = sale_with_large_picture(&system, &place).await;
    let address = free_address();
    let process = serve(&system, address).await;
    let addresses = static_addresses(address, &sale).await;
    // Pictures are in the service's memory, and each thread has answered.
    for path in &addresses {
        read_slowly(address, path).await;
    }
    // Not measured again for each address: the memory that the allocator keeps from the last one would count as free.
    let before = resident_kb(&process);
    let mut taken = BTreeMap::new();
    for path in &addresses {
        let clients = join_all((0..CLIENTS).map(|_| ask(address, path))).await;
        sleep(Duration::from_millis(200)).await;
        taken.insert(path, (resident_kb(&process).saturating_sub(before), kernel_kb(address)));
        drop(clients);
    }
    println!("{CLIENTS} clients take, in kB of the service and of the kernel: {taken:?}");
    taken.retain(|_, (own, kernel)| *own > CLIENTS * CLIENT_MAX_KB || *kernel > CLIENTS * KERNEL_MAX_KB);
    assert!(taken.is_empty(), "{CLIENTS} clients take, in kB of the service and of the kernel: {taken:?}");
    every_answer_comes_whole(address, &addresses).await;
    process.end();
    system.finish().await;
}

/// Every static answer arrives complete: plain, compressed, and at a slow client.
async fn every_answer_comes_whole(address: SocketAddr, addresses: &BTreeSet<String>) {
    let client = Client::new();
    let get = |path: &str, headers: &[(&str, &str)]| {
        let request = client.get(format!("http://{address}{path}"));
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send()
    };
    let mut compressed = BTreeSet::new();
    for path in addresses {
        let plain = get(path, &[]).await.unwrap();
        let (headers, body) = (plain.headers().clone(), plain.bytes().await.unwrap());
        let length = headers.get(CONTENT_LENGTH).map_or(0, |length| length.to_str().unwrap().parse().unwrap());
        assert_eq!(body.len(), length, "{path}");
        let zipped = get(path, &[("accept-encoding", "gzip")]).await.unwrap();
        if zipped.headers().contains_key(CONTENT_ENCODING) {
            assert_eq!(zipped.headers()[VARY], headers[VARY], "{path}");
            let mut unzipped = Vec::new();
            GzDecoder::new(&*zipped.bytes().await.unwrap()).read_to_end(&mut unzipped).unwrap();
            assert!(unzipped == body, "{path}");
            compressed.insert(path.clone());
        }
        if body.len() > 16 * 1024 && !path.starts_with("/metrics") {
            assert!(read_slowly(address, path).await.ends_with(&body), "{path}");
        }
    }
    for large in ["/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/api/openapi.json", "/assets/sale."] {
        assert!(compressed.iter().any(|path| path.starts_with(large)), "{large}: {compressed:?}");
    }
}

/// All bytes until the service closes the connection, read in small pieces.
async fn read_slowly(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut wire = connect(address).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    wire.write_all(request.as_bytes()).await.unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 3000]);
    loop {
        match wire.read(&mut piece).await.unwrap() {
            0 => return answer,
            read => answer.extend_from_slice(&piece[..read]),
        }
        tokio::task::yield_now().await;
    }
}
