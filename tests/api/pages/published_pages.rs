//! Published bundles (A1): `seckill publish`, once and watching, killed and repeated, and with the API at another origin.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use reqwest::header::ORIGIN;
use reqwest::{Client, Method};
use seckill_domain::ids::SaleId;
use seckill_domain::sale::SaleStatus;
use seckill_harness::folder::Folder;
use seckill_harness::running::Running;
use seckill_harness::{System, terms, until, wait_until};
use serde_json::{Value, json};

use crate::pages::served_pages::{
    KNOWN, PRODUCT, command, get, header, loaded, page, parsed, png, sale_with_picture, seckill,
};

struct Bundle(PathBuf);

impl Bundle {
    fn new(place: &Folder, name: &str) -> Self {
        Self(place.path().join(name))
    }

    fn argument(&self) -> String {
        self.0.display().to_string()
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn manifest(&self) -> Value {
        serde_json::from_str(&self.text("manifest.json")).unwrap()
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        fn read(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    read(root, &path, files);
                } else {
                    files.insert(path.strip_prefix(root).unwrap().display().to_string(), fs::read(&path).unwrap());
                }
            }
        }
        let mut files = BTreeMap::new();
        read(&self.0, &self.0, &mut files);
        files
    }
}

fn publish(system: &System, bundle: &Bundle) -> Value {
    seckill(system, &["publish", "--out", &bundle.argument()]).unwrap()
}

fn publishing(system: &System, bundle: &Bundle, more: &[&str]) -> Running {
    let argument = bundle.argument();
    let words = [&["publish", "--out", argument.as_str()], more].concat();
    Running::start(command(system, &words).stdout(Stdio::null()).stderr(Stdio::piped()))
}

async fn many_sales(system: &System, sales: i32) {
    system.execute(format!(
        "INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at, pay_within_ms,
                            purchase_key, waiting_key)
         SELECT (SELECT min(id) FROM products), 100, 'CNY', 1, 1, 1, 0, now(), now() + interval '1 day', 900000, 'k', 'w'
         FROM generate_series(1, {sales})"
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_show_all_sales_and_follow_their_changes() {
    let (mut system, place) = (System::start().await, Folder::new("pages"));
    let sale = sale_with_picture(&system, &place).await.id;
    let bundle = Bundle::new(&place, "new/folder");
    a_bundle_lists_every_file_with_its_hash_and_headers(&system, sale, &bundle).await;
    publishing_again_writes_only_what_has_changed(&system, &place, sale, &bundle).await;
    a_watching_publisher_follows_changes_until_it_is_stopped(&system, &place).await;
    system.serve(false).await;
    a_changed_sale_or_product_is_shown_everywhere(&system, &place).await;
    system.finish().await;
}

/// The bundle is complete: every file is in the manifest with its hash and headers, and its pages name only files in it.
async fn a_bundle_lists_every_file_with_its_hash_and_headers(system: &System, sale: SaleId, bundle: &Bundle) {
    let published = publish(system, bundle);
    assert_eq!((&published["sales"], &published["files_unchanged"]), (&json!(1), &json!(0)));
    let files = bundle.files();
    let manifest = bundle.manifest();
    let entries = manifest["files"].as_array().unwrap();
    let listed: BTreeSet<&str> = entries.iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    let found: BTreeSet<&str> = files.keys().map(String::as_str).filter(|path| *path != "manifest.json").collect();
    assert_eq!(listed, found);
    for entry in entries {
        let path = entry["path"].as_str().unwrap();
        let content = &files[path];
        assert_eq!(entry["blake3"], blake3::hash(content).to_hex().as_str(), "{path}");
        assert_eq!(entry["bytes"], content.len(), "{path}");
        // The service sends the same file with the same headers, except for 404.html.
        let address = format!("/{}", path.trim_end_matches("index.html"));
        if path != "404.html" {
            let answer = get(system, &address).await;
            let headers = answer.headers().clone();
            assert_eq!(answer.bytes().await.unwrap(), content.as_slice(), "{path}");
            assert_eq!(header(&headers, "content-type"), entry["content_type"], "{path}");
            assert_eq!(header(&headers, "cache-control"), entry["cache_control"], "{path}");
            for (name, value) in entry["headers"].as_object().unwrap() {
                assert_eq!(header(&headers, name), value, "{path}");
            }
        }
        if path.ends_with(".html") {
            for named in loaded(&parsed(std::str::from_utf8(content).unwrap()).0) {
                assert!(files.contains_key(named.trim_start_matches('/')), "{path} names {named}");
            }
        }
    }
    for path in ["index.html", "404.html", "orders/index.html", &format!("sales/{sale}/index.html")] {
        assert!(listed.contains(path), "{path}");
    }
}

async fn publishing_again_writes_only_what_has_changed(system: &System, place: &Folder, sale: SaleId, bundle: &Bundle) {
    let (files, written) = (bundle.files(), fs::metadata(bundle.0.join("index.html")).unwrap().modified().unwrap());
    let again = publish(system, bundle);
    assert_eq!((&again["files_written"], &again["pages_removed"]), (&json!(0), &json!(0)));
    assert_eq!(bundle.files(), files);
    assert_eq!(fs::metadata(bundle.0.join("index.html")).unwrap().modified().unwrap(), written);
    // In another folder, the same bytes.
    let other = Bundle::new(place, "other");
    publish(system, &other);
    assert_eq!(other.files(), files);

    fs::write(bundle.0.join("robots.txt"), "User-agent: *").unwrap();
    let asset = files.keys().find(|path| path.starts_with("assets/style.")).unwrap();
    fs::write(bundle.0.join(asset), "broken by hand").unwrap();
    let second = system.create_sale(terms(1)).await.id;
    assert!(system.stores.remove_sale(sale, "test").await.unwrap());
    let third = publish(system, bundle);
    assert_eq!((&third["sales"], &third["pages_removed"]), (&json!(1), &json!(1)));
    let now = bundle.files();
    assert!(!now.contains_key(&format!("sales/{sale}/index.html")) && !bundle.0.join(format!("sales/{sale}")).exists());
    assert!(now.contains_key(&format!("sales/{second}/index.html")) && now.contains_key("robots.txt"));
    assert_eq!(now[asset], files[asset]);
    assert!(!bundle.text("index.html").contains(&format!("/sales/{sale}\"")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_killed_in_the_middle_leaves_whole_files_and_the_next_completes_it() {
    let (system, place) = (System::prepare(&[]).await, Folder::new("pages"));
    sale_with_picture(&system, &place).await;
    many_sales(&system, 700).await;
    let whole = Bundle::new(&place, "whole");
    publish(&system, &whole);
    let whole = whole.files();
    // At several places: with the first asset, a picture, the first page, and a page of the second batch.
    for (n, reached) in ["assets", "pictures", "sales", "sales/600"].iter().enumerate() {
        let bundle = Bundle::new(&place, &format!("killed-{n}"));
        let mut process = publishing(&system, &bundle, &[]);
        until(true, || async { fs::read_dir(bundle.0.join(reached)).is_ok_and(|mut files| files.next().is_some()) })
            .await;
        process.kill();
        for (path, content) in bundle.files() {
            let is_temporary = path.rsplit('/').next().unwrap().starts_with(".seckill-tmp-");
            assert!(is_temporary || whole[&path] == content, "{path} is not whole");
        }
        publish(&system, &bundle);
        assert_eq!(bundle.files(), whole, "killed at {reached}");
    }
    // A temporary file of a dead publisher is deleted.
    let bundle = Bundle::new(&place, "killed-0");
    fs::write(bundle.0.join("assets/.seckill-tmp-1-1"), "half").unwrap();
    publish(&system, &bundle);
    assert_eq!(bundle.files(), whole);
    system.finish().await;
}

async fn a_watching_publisher_follows_changes_until_it_is_stopped(system: &System, place: &Folder) {
    let sale = sale_with_picture(system, place).await.id;
    let bundle = Bundle::new(place, "watched");
    let watching = publishing(system, &bundle, &["--watch"]);
    let file = bundle.0.join(format!("sales/{sale}/index.html"));
    let shows = async |path: &Path, text: &str| {
        wait_until(|| async { fs::read_to_string(path).unwrap_or_default() }, |found| found.contains(text)).await;
    };
    shows(&file, "Rings.").await;
    seckill(system, &["product", "set", "--name", PRODUCT, "--description", "Rings louder."]).unwrap();
    shows(&file, "Rings louder.").await;
    let second = system.create_sale(terms(1)).await.id;
    shows(&bundle.0.join("index.html"), &format!("/sales/{second}\"")).await;
    assert!(system.stores.remove_sale(second, "test").await.unwrap());
    until(true, || async { !bundle.0.join(format!("sales/{second}")).exists() }).await;
    let refused = seckill(system, &["publish", "--out", &bundle.argument()]).unwrap_err();
    assert!(refused.contains("another publish") && refused.lines().count() == 1, "{refused}");
    assert!(watching.end().success());
}

/// Pages at another origin than the API: they name the API, their policy allows it, and the API accepts calls from listed origins.
#[tokio::test(flavor = "multi_thread")]
async fn pages_elsewhere_may_call_the_api_if_their_origin_is_listed() {
    let (system, place) = (System::shared_with(&KNOWN).await, Folder::new("pages"));
    let sale = system.create_sale(terms(5)).await;
    let bundle = Bundle::new(&place, "bundle");
    seckill(&system, &["publish", "--out", &bundle.argument(), "--api", "https://api.example/"]).unwrap();
    let page = bundle.text(&format!("sales/{}/index.html", sale.id));
    let (elements, _) = parsed(&page);
    let api = elements.iter().find(|(_, attributes)| attributes.get("name").is_some_and(|name| name == "api")).unwrap();
    assert_eq!(api.1["content"], "https://api.example");
    let manifest = bundle.manifest();
    let policy = manifest["files"][0]["headers"]["Content-Security-Policy"].as_str().unwrap();
    assert!(policy.contains("script-src 'self' https://api.example;"), "{policy}");
    assert!(policy.contains("connect-src 'self' https://api.example;"), "{policy}");
    for wrong in ["https://api.example/path", "api.example", "https://api.example; script-src *"] {
        let refused = seckill(&system, &["publish", "--out", &bundle.argument(), "--api", wrong]).unwrap_err();
        assert!(refused.contains("--api") && refused.lines().count() == 1, "{refused}");
    }

    let http = Client::new();
    let purchases = format!("/api/v1/sales/{}/purchases", sale.id);
    let preflight = async |origin: &str, method: &str, headers: &str| {
        let request = http.request(Method::OPTIONS, system.url(&purchases)).header(ORIGIN, origin);
        let request = request.header("access-control-request-method", method);
        request.header("access-control-request-headers", headers).send().await.unwrap()
    };
    let wanted = "authorization,content-type,idempotency-key";
    for origin in ["https://shop.example", "http://127.0.0.1:8000"] {
        let answer = preflight(origin, "POST", wanted).await;
        assert!(answer.status().is_success(), "{}", answer.status());
        assert_eq!(header(answer.headers(), "access-control-allow-origin"), origin);
        assert_eq!(header(answer.headers(), "access-control-max-age"), "3600");
        assert!(answer.headers().get("access-control-allow-credentials").is_none());
    }
    for (origin, method, headers) in [
        ("https://evil.example", "POST", wanted),
        ("https://shop.example.evil.example", "POST", wanted),
        ("null", "POST", wanted),
        ("https://shop.example", "DELETE", wanted),
        ("https://shop.example", "POST", "x-csrf-token"),
    ] {
        let answer = preflight(origin, method, headers).await;
        assert!(!answer.status().is_success(), "{origin} {method} {headers}: {}", answer.status());
    }
    // A purchase, as the page sends it.
    let buy =
        http.post(system.url(&purchases)).header(ORIGIN, "https://shop.example").bearer_auth(system.token("ann", 0));
    let bought = buy.json(&json!({ "key": sale.key })).send().await.unwrap();
    assert_eq!(bought.status(), 202);
    assert_eq!(header(bought.headers(), "access-control-allow-origin"), "https://shop.example");
    let exposed = header(bought.headers(), "access-control-expose-headers").to_ascii_lowercase();
    for name in ["retry-after", "location", "ratelimit", "ratelimit-policy"] {
        assert!(exposed.split(',').any(|known| known.trim() == name), "{name}: {exposed}");
    }
    // Another origin gets the same answer, and its browser hides it from the page.
    let elsewhere = http.get(system.url("/api/v1/sales")).header(ORIGIN, "https://evil.example").send().await.unwrap();
    assert_eq!(elsewhere.status(), 200);
    assert!(elsewhere.headers().get("access-control-allow-origin").is_none());
    system.settled(&sale).await;
}

/// A change appears on every instance's pages, in the API and in the next bundle.
async fn a_changed_sale_or_product_is_shown_everywhere(system: &System, place: &Folder) {
    let sale = sale_with_picture(system, place).await.id;
    let bundle = Bundle::new(place, "changed");
    let (shown, file) = (format!("/sales/{sale}"), format!("sales/{sale}/index.html"));
    let urls: Vec<String> = system.instances.iter().map(|i| format!("http://{}{shown}", i.address)).collect();
    publish(system, &bundle);
    let first = page(system, &shown).await;
    assert!(first.contains("Rings.") && first.contains("A red phone") && first.contains("1.00"));
    assert_eq!(bundle.text(&file), first);
    assert_eq!(bundle.text("index.html"), page(system, "/").await);
    assert_eq!(bundle.text("orders/index.html"), page(system, "/orders").await);

    let product = system.get(&format!("/api/v1/sales/{sale}"), None).await.1;
    assert_eq!(product["waves"], json!([{ "after_s": 60, "units": 2 }]));
    let product = format!("/api/v1/products/{}", product["product"]["id"]);
    let picture = system.get(&product, None).await.1["picture"].clone();
    assert_eq!(
        (&picture["width"], &picture["height"], &picture["alt"]),
        (&json!(1200), &json!(800), &json!("A red phone"))
    );
    for size in ["small", "large"] {
        assert!(first.contains(picture[size].as_str().unwrap()), "{picture}");
    }

    // By a command, and by SQL.
    let other = place.write("blue.png", png(300, 200, [30, 30, 200]));
    seckill(system, &["product", "set", "--name", PRODUCT, "--picture", &other]).unwrap();
    system.execute(format!("UPDATE sales SET price_cents = 4200 WHERE id = {sale}")).await;
    for url in &urls {
        // The old text described the old picture.
        let new = |text: &String| text.contains("42.00") && text.contains("Rings.") && !text.contains("A red phone");
        wait_until(|| async { reqwest::get(url).await.unwrap().text().await.unwrap() }, new).await;
    }
    let changed = system.get(&product, None).await.1["picture"].clone();
    assert_eq!((&changed["width"], &changed["alt"]), (&json!(300), &json!(PRODUCT)));
    assert_eq!(changed["small"], changed["large"]);
    // Open pages still find the old one.
    assert_eq!(get(system, picture["small"].as_str().unwrap()).await.status(), 200);
    let second = publish(system, &bundle);
    assert_eq!(bundle.text(&file), page(system, &shown).await);
    assert!(second["files_unchanged"].as_u64() > second["files_written"].as_u64(), "{second}");

    // Only the given fields change.
    seckill(system, &["product", "set", "--name", PRODUCT, "--alt", "A blue phone"]).unwrap();
    system.is_followed().await;
    let (_, now) = system.get(&product, None).await;
    assert_eq!((&now["description"], &now["picture"]["small"]), (&json!("Rings."), &changed["small"]));
    assert_eq!(now["picture"]["alt"], "A blue phone");
    // Closed sales are published too: the page shows the state of the offer.
    assert!(system.stores.set_sale_status(sale, SaleStatus::Closed, "test").await.unwrap());
    system.is_followed().await;
    assert!(page(system, &shown).await.contains("Discontinued"));
}
