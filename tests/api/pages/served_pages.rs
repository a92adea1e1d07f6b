//! The pages (A1), as the service serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::process::{Command, Output, Stdio};

use html5gum::{DefaultEmitter, Token, Tokenizer};
use image::{ImageFormat, Rgb, RgbImage};
use reqwest::header::{ACCEPT, HeaderMap, IF_NONE_MATCH};
use reqwest::{Client, Response};
use seckill_domain::sale::{NewSale, Wave};
use seckill_harness::folder::Folder;
use seckill_harness::{Sale, System, terms};
use serde_json::{Value, json};

/// A product whose name no other test changes.
pub const PRODUCT: &str = "Pictured phone";

/// Pages with a known public address and other origins with pages that may call the API.
pub const KNOWN: [(&str, &str); 2] = [
    ("SECKILL_PAGES__ORIGIN", "https://shop.example"),
    ("SECKILL_HTTP__CORS_ORIGINS", "https://shop.example,http://127.0.0.1:8000"),
];

pub fn command(system: &System, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.args(words).env_clear().envs(&system.environment).env("RUST_LOG", "error").stdin(Stdio::null());
    command
}

pub fn seckill(system: &System, words: &[&str]) -> Result<Value, String> {
    let Output { status, stdout, stderr } = command(system, words).output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    if status.success() { Ok(serde_json::from_slice(&stdout).unwrap()) } else { Err(error) }
}

pub fn png(width: u32, height: u32, colour: [u8; 3]) -> Vec<u8> {
    let mut bytes = Vec::new();
    RgbImage::from_pixel(width, height, Rgb(colour)).write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
    bytes
}

pub type Element = (String, BTreeMap<String, String>);

/// The elements of a page, and the texts inside scripts and styles, as a browser would find them.
pub fn parsed(page: &str) -> (Vec<Element>, Vec<String>) {
    let (mut elements, mut inline) = (Vec::new(), Vec::<String>::new());
    let mut is_inside = false;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut emitter = DefaultEmitter::default();
    // A script's text is no markup.
    emitter.naively_switch_states(true);
    for token in Tokenizer::new_with_emitter(page, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => {
                let name = text(&tag.name);
                let attributes = tag.attributes.iter().map(|(name, value)| (text(name), text(value))).collect();
                is_inside = name == "script" || name == "style";
                if is_inside {
                    inline.push(String::new());
                }
                elements.push((name, attributes));
            }
            Token::EndTag(_) => is_inside = false,
            Token::String(found) if is_inside => inline.last_mut().unwrap().push_str(&text(&found)),
            Token::Error(error) => panic!("{error:?} in {page}"),
            _ => {}
        }
    }
    inline.retain(|text| !text.trim().is_empty());
    (elements, inline)
}

fn attribute<'a>(elements: &'a [Element], name: &str, attribute: &str) -> Vec<&'a str> {
    let of = elements.iter().filter(|(known, _)| known == name);
    of.filter_map(|(_, attributes)| attributes.get(attribute).map(String::as_str)).collect()
}

/// Every address on the page's own server that the page loads by itself.
pub fn loaded(elements: &[Element]) -> BTreeSet<String> {
    let sources = ["script", "img"].into_iter().flat_map(|name| attribute(elements, name, "src"));
    let links = elements
        .iter()
        .filter(|(name, attributes)| name == "link" && attributes.get("rel").is_some_and(|rel| rel != "canonical"));
    let links = links.filter_map(|(_, attributes)| attributes.get("href").map(String::as_str));
    let sets = attribute(elements, "img", "srcset").into_iter().flat_map(|set| set.split(','));
    let sets = sets.filter_map(|size| size.split_whitespace().next());
    sources.chain(links).chain(sets).filter(|path| path.starts_with('/')).map(str::to_owned).collect()
}

pub async fn get(system: &System, path: &str) -> Response {
    reqwest::get(system.url(path)).await.unwrap()
}

pub async fn page(system: &System, path: &str) -> String {
    let answer = get(system, path).await;
    assert_eq!(answer.status(), 200, "{path}");
    answer.text().await.unwrap()
}

pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

pub async fn sale_with_picture(system: &System, place: &Folder) -> Sale {
    let file = place.write("phone.png", png(1500, 1000, [200, 30, 30]));
    let words =
        ["product", "set", "--name", PRODUCT, "--description", "Rings.", "--alt", "A red phone", "--picture", &file];
    seckill(system, &words).unwrap();
    let waves = vec![Wave { after_ms: 60_000, units: 2 }];
    system.create_sale(NewSale { product: PRODUCT.into(), waves, ..terms(5) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_strict_and_names_only_files_that_exist() {
    let (system, place) = (System::shared().await, Folder::new("pages"));
    let sale = sale_with_picture(&system, &place).await.id;
    let mut loaded_by_all = BTreeSet::new();
    for path in
        ["/".to_owned(), format!("/sales/{sale}"), format!("/sales/{sale}/"), "/orders".into(), "/orders/".into()]
    {
        let answer = get(&system, &path).await;
        assert_eq!(answer.status(), 200, "{path}");
        let headers = answer.headers().clone();
        for (name, value) in [
            ("content-type", "text/html; charset=utf-8"),
            ("cache-control", "public, max-age=0, must-revalidate"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "strict-origin-when-cross-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            assert_eq!(header(&headers, name), value, "{path}");
        }
        let policy = header(&headers, "content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
        let (elements, inline) = parsed(&answer.text().await.unwrap());
        // A data block is no script.
        let blocks = inline.iter().filter(|text| serde_json::from_str::<Value>(text).is_err());
        assert_eq!(blocks.collect::<Vec<_>>(), Vec::<&String>::new(), "{path}");
        for (name, attributes) in &elements {
            let is_inline = attributes.keys().any(|attribute| attribute == "style" || attribute.starts_with("on"));
            assert!(!is_inline, "{name} of {path}: {attributes:?}");
        }
        loaded_by_all.extend(loaded(&elements));
    }
    assert!(loaded_by_all.iter().any(|path| path.starts_with("/pictures/")), "{loaded_by_all:?}");
    for path in &loaded_by_all {
        let answer = get(&system, path).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(header(answer.headers(), "cache-control"), "public, max-age=31536000, immutable", "{path}");
        assert_eq!(header(answer.headers(), "x-content-type-options"), "nosniff", "{path}");
        let kind = match path.rsplit_once('.').unwrap().1 {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "image/jpeg",
        };
        assert_eq!(header(answer.headers(), "content-type"), kind, "{path}");
    }
    for path in ["/assets/style.css", "/assets/style.0000000000000000.css", "/pictures/x.jpg"] {
        assert_eq!(get(&system, path).await.status(), 404, "{path}");
    }
    let unknown = format!("/pictures/{}-480.jpg", "0".repeat(32));
    assert_eq!(get(&system, &unknown).await.status(), 404);
}

/// A browser with a cached page asks whether it has changed, and gets a few bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_has_not_changed_is_not_sent_again() {
    let system = System::shared().await;
    let sale = system.create_sale(NewSale { product: "Unchanged phone".into(), ..terms(5) }).await.id;
    let http = Client::new();
    // Not the front page: it may have another test's new sale at any moment.
    for path in [format!("/sales/{sale}"), "/orders".into(), "/docs".into()] {
        let tag = header(get(&system, &path).await.headers(), "etag").to_owned();
        let known = [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".into(), "\"other\"".into()];
        for (known, status) in known.into_iter().zip([304, 304, 304, 304, 200]) {
            let answer = http.get(system.url(&path)).header(IF_NONE_MATCH, &known).send().await.unwrap();
            assert_eq!(
                (answer.status().as_u16(), header(answer.headers(), "etag")),
                (status, tag.as_str()),
                "{path} {known}"
            );
            assert_eq!(answer.text().await.unwrap().is_empty(), status == 304, "{path} {known}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_addresses_have_a_page_for_people_and_a_problem_for_programs() {
    let system = System::shared().await;
    let http = Client::new();
    let kind = async |path: &str, accept: &str| {
        let answer = http.get(system.url(path)).header(ACCEPT, accept).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
        header(answer.headers(), "content-type").to_owned()
    };
    let (browser, program) = ("text/html,application/xhtml+xml,*/*;q=0.8", "*/*");
    let (html, problem) = ("text/html; charset=utf-8", "application/problem+json");
    for (path, accept, expected) in [
        ("/nowhere", browser, html),
        ("/nowhere", program, problem),
        ("/api/v1/nowhere", browser, problem),
        ("/sales/999999", browser, html),
        ("/sales/999999", program, html),
        ("/sales/x", browser, html),
        ("/api/v1/sales/999999", browser, problem),
        ("/sales/999999/state.js", browser, problem),
    ] {
        assert_eq!(kind(path, accept).await, expected, "{path} {accept}");
    }
}

/// The API's answers are no pages: nothing in them runs, and no site can frame them.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_api_say_that_nothing_in_them_runs() {
    let system = System::shared().await;
    let sale = system.create_sale(terms(5)).await.id;
    for path in
        ["/api/v1/sales".to_owned(), format!("/sales/{sale}/state.js"), "/api/v1/nowhere".into(), "/healthz".into()]
    {
        let headers = get(&system, &path).await.headers().clone();
        assert_eq!(header(&headers, "content-security-policy"), "default-src 'none'; frame-ancestors 'none'", "{path}");
        assert_eq!(header(&headers, "x-content-type-options"), "nosniff", "{path}");
        assert!(headers.get("access-control-allow-origin").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_name_does_no_harm() {
    let (system, place) = (System::shared_with(&KNOWN).await, Folder::new("pages"));
    let name = "</script><b onclick=alert(1)>'\"&amp;<script>alert(2)</script>";
    let file = place.write("picture.png", png(20, 20, [1, 2, 3]));
    let words = ["product", "set", "--name", name, "--description", name, "--alt", name, "--picture", &file];
    seckill(&system, &words).unwrap();
    let sale = system.create_sale(NewSale { product: name.into(), ..terms(5) }).await.id;
    for path in ["/".to_owned(), format!("/sales/{sale}")] {
        let (elements, inline) = parsed(&page(&system, &path).await);
        assert!(!elements.iter().any(|(element, _)| element == "b" && path == "/"), "{path}");
        assert!(!elements.iter().any(|(_, attributes)| attributes.contains_key("onclick")), "{path}");
        assert!(attribute(&elements, "script", "src").iter().all(|source| source.starts_with("/assets/")), "{path}");
        assert!(!inline.iter().any(|text| text.starts_with("alert")), "{path}: {inline:?}");
        if path != "/" {
            let offer: Value = serde_json::from_str(&inline.concat()).unwrap();
            assert_eq!((&offer["name"], &offer["description"]), (&json!(name), &json!(name)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_name_their_own_address_where_it_is_known() {
    let (system, place) = (System::shared_with(&KNOWN).await, Folder::new("pages"));
    let sale = sale_with_picture(&system, &place).await.id;
    let (elements, inline) = parsed(&page(&system, &format!("/sales/{sale}")).await);
    let own = format!("https://shop.example/sales/{sale}");
    let canonical = elements.iter().find(|(_, attributes)| attributes.get("rel").is_some_and(|rel| rel == "canonical"));
    assert_eq!(canonical.unwrap().1["href"], own);
    let meta: BTreeMap<&str, &str> = elements
        .iter()
        .filter_map(|(_, attributes)| {
            let name = attributes.get("property").or(attributes.get("name"))?;
            Some((name.as_str(), attributes.get("content")?.as_str()))
        })
        .collect();
    assert_eq!((meta["og:url"], meta["og:title"]), (own.as_str(), PRODUCT));
    assert_eq!((meta["product:price:amount"], meta["product:price:currency"]), ("1.00", "CNY"));
    assert!(meta["og:image"].starts_with("https://shop.example/pictures/"), "{}", meta["og:image"]);
    let offer: Value = serde_json::from_str(&inline.concat()).unwrap();
    assert_eq!((&offer["offers"]["price"], &offer["offers"]["priceCurrency"]), (&json!("1.00"), &json!("CNY")));
    assert_eq!(offer["offers"]["url"], own);
}
