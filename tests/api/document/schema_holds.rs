//! The document says exactly what is accepted: a fitting body never gets 400 or 5xx, and no other body is accepted. The bodies are
//! generated from the document itself.

use std::collections::BTreeMap;

use jsonschema::Validator;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, RequestBuilder};
use seckill_domain::account::AccountRole;
use seckill_domain::ids::Units;
use seckill_domain::policy::Name;
use seckill_domain::sale::NewSale;
use seckill_domain::stock::Stock;
use seckill_domain::text;
use seckill_flow::policy_changes;
use seckill_harness::{Sale, System, eventually, terms};
use serde_json::{Map, Value, json};

use crate::backoffice::admin_api::{self, Person};

/// Generated bodies for each address. Checking a password takes long, so sign-in has fewer.
const BODIES: usize = 60;
const SIGN_INS: usize = 5;

/// No limits of requests, and a second channel.
const SETTINGS: [(&str, &str); 9] = [
    ("SECKILL_PURCHASE__BUYER_LIMIT", "-1"),
    ("SECKILL_PURCHASE__ADDRESS_LIMIT", "-1"),
    ("SECKILL_ADMIN__LOGIN_LIMIT", "10000"),
    ("SECKILL_CHANNELS__BANK__KIND", "sandbox"),
    ("SECKILL_CHANNELS__BANK__URL", "http://127.0.0.1:9"),
    ("SECKILL_CHANNELS__BANK__RATE", "1"),
    ("SECKILL_CHANNELS__BANK__REFUND_RATE", "1"),
    ("SECKILL_CHANNELS__BANK__JITTER_MS", "0"),
    ("SECKILL_CHANNELS__BANK__TIMEOUT_MS", "1000"),
];

/// The document, from which bodies are generated.
struct Maker {
    document: Value,
    runner: TestRunner,
}

impl Maker {
    fn resolved(&self, schema: &Value) -> Value {
        match schema["$ref"].as_str() {
            Some(name) => self.document.pointer(name.trim_start_matches('#')).unwrap().clone(),
            None => schema.clone(),
        }
    }

    fn pick(&mut self, n: usize) -> usize {
        (0..n).new_tree(&mut self.runner).unwrap().current()
    }

    /// A value that fits. The ends of a bound are as likely as all values between them.
    fn value(&mut self, schema: &Value) -> Value {
        let schema = self.resolved(schema);
        for choice in ["oneOf", "enum"] {
            if let Some(choices) = schema[choice].as_array() {
                let chosen = choices[self.pick(choices.len())].clone();
                return if choice == "enum" { chosen } else { self.value(&chosen) };
            }
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
            kind => vec![kind.as_str().unwrap()],
        };
        match kinds[self.pick(kinds.len())] {
            "null" => Value::Null,
            "boolean" => json!(self.pick(2) == 1),
            "integer" => self.integer(&schema),
            "number" => self.number(&schema),
            "string" => json!(self.text(&schema)),
            "array" => {
                let most = schema["maxItems"].as_u64().unwrap() as usize;
                let least = schema["minItems"].as_u64().unwrap_or(0) as usize;
                let n = [least, most, least + self.pick(3)][self.pick(3)].min(most);
                (0..n).map(|_| self.value(&schema["items"])).collect()
            }
            "object" => self.object(&schema),
            other => panic!("{other}"),
        }
    }

    fn integer(&mut self, schema: &Value) -> Value {
        let (least, most) = (schema["minimum"].as_i64().expect("bounds"), schema["maximum"].as_i64().expect("bounds"));
        let between = (least..=most).new_tree(&mut self.runner).unwrap().current();
        let number = [least, most, between][self.pick(3)];
        // A whole number may be written with a fraction of zero.
        if self.pick(2) == 0 { json!(number) } else { json!(number as f64) }
    }

    fn number(&mut self, schema: &Value) -> Value {
        let (least, most) = (schema["minimum"].as_f64().expect("bounds"), schema["maximum"].as_f64().expect("bounds"));
        let between = (least..=most).new_tree(&mut self.runner).unwrap().current();
        json!([least, most, between][self.pick(3)])
    }

    fn text(&mut self, schema: &Value) -> String {
        let most = schema["maxLength"].as_u64().unwrap_or(200) as usize;
        let pattern = schema["pattern"].as_str().unwrap_or("^[\\s\\S]*$").trim_matches(['^', '$']);
        // The longest text has characters of four bytes, if the pattern allows them. They differ: a password of equal characters is
        // refused, which a schema cannot express.
        let long: String = "\u{10FFF0}\u{10FFF7}\u{10FFF2}\u{10FFFB}\u{10FFF5}\u{10FFFE}\u{10FFF9}\u{10FFF3}"
            .chars()
            .cycle()
            .take(most)
            .collect();
        if self.pick(4) == 0 && pattern.ends_with(['*', ')']) && fits(schema, &json!(long)) {
            return long;
        }
        let made = proptest::string::string_regex(pattern).unwrap();
        loop {
            let made = made.new_tree(&mut self.runner).unwrap().current();
            // Some hidden characters are right in some places, which a schema cannot say.
            let made: String = made.chars().filter(|c| !text::is_hidden(*c) || *c == '\n').take(most).collect();
            if fits(schema, &json!(made)) {
                return made;
            }
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        assert_eq!(schema["additionalProperties"], false, "{schema}");
        let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().flat_map(Value::as_str).collect();
        let mut object = Map::new();
        for (name, field) in schema["properties"].as_object().unwrap() {
            if required.contains(&name.as_str()) || self.pick(2) == 0 {
                object.insert(name.clone(), self.value(field));
            }
        }
        Value::Object(object)
    }
}

fn fits(schema: &Value, value: &Value) -> bool {
    jsonschema::validator_for(schema).unwrap().is_valid(value)
}

/// Bodies that differ from this one in one field. Most of them do not fit.
fn neighbours(body: &Value, properties: &[String]) -> Vec<Value> {
    let with = |name: &str, value: Value| {
        let mut other = body.clone();
        other[name] = value;
        other
    };
    // serde also reads a struct from a list of its fields.
    let in_a_row: Value = properties.iter().map(|name| body[name].clone()).collect();
    let mut others = vec![with("surprise", json!(1)), in_a_row];
    for name in properties {
        let mut without = body.clone();
        without.as_object_mut().unwrap().remove(name);
        others.push(without);
        for value in [
            json!(null),
            json!(true),
            json!({}),
            json!([]),
            json!(0),
            json!(-1),
            json!(-2),
            json!(1.5),
            json!(i64::MAX),
        ] {
            others.push(with(name, value));
        }
        for value in ["", " ", "a\u{7}b", "queue:0", "queue:60001", "queue:007", "no such", "ü"] {
            others.push(with(name, json!(value)));
        }
        others.push(with(name, json!("a".repeat(5000))));
        match &body[name] {
            Value::Number(number) if number.is_i64() => {
                let number = number.as_i64().unwrap();
                others
                    .extend([with(name, json!(number.saturating_sub(1))), with(name, json!(number.saturating_add(1)))]);
            }
            Value::String(text) => others.push(with(name, json!(format!("{text}x")))),
            Value::Object(_) => others.push(with(name, json!({ "surprise": 1 }))),
            _ => {}
        }
    }
    others
}

/// Callers of all kinds, with all rights.
struct Callers<'a> {
    system: &'a System,
    http: Client,
    sale: Sale,
    /// The sales that managers change, and set the status of.
    managed: Sale,
    changed: Sale,
    closed: Sale,
    app: String,
    person: Person,
}

impl Callers<'_> {
    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let sale = match path {
            // It is closed soon, and then nothing can be changed.
            _ if path.ends_with("/status") => &self.closed,
            // Without a limit, no stock could be added to it.
            _ if method == "PATCH" => &self.changed,
            _ if path.contains("/admin/") => &self.managed,
            _ => &self.sale,
        };
        let filled = path.replace("/sales/{id}", &format!("/sales/{}", sale.id)).replace("/alarms/{id}", "/alarms/1");
        let filled = filled.replace("/blocks", "/blocks?buyer=ann");
        let filled = filled.replace("{id}", "00000000-0000-0000-0000-000000000000");
        let filled = filled.replace("/apps/{name}", "/apps/till").replace("{name}", "p");
        let request = self.http.request(method.parse().unwrap(), self.system.url(&filled));
        let request = request.header(CONTENT_TYPE, "application/json");
        match path {
            _ if path.contains("/flow/") => request.bearer_auth(&self.app),
            _ if path.contains("/admin/") => self.person.authenticated(request),
            _ => request.bearer_auth(self.system.token("ann", 0)),
        }
    }

    /// Two times in three, names existing things, so that the rest of the body is checked.
    fn known(&self, n: usize, path: &str, mut body: Value) -> Value {
        if !n.is_multiple_of(3) {
            for (name, value) in [
                ("app", json!("shop")),
                ("apps", json!(["shop"])),
                ("policy", json!("p")),
                ("key", json!(self.sale.key)),
            ] {
                if body.get(name).is_some() && (name != "key" || path.ends_with("/purchases")) {
                    body[name] = value;
                }
            }
        }
        // A range that moves must contain the threshold.
        for threshold in ["limit", "rate"] {
            if n % 3 == 2 && body.get("floor").is_some() && body[threshold].as_f64().is_some_and(|most| most >= 1.0) {
                (body["floor"], body["ceiling"]) = (json!(1), body[threshold].clone());
            }
        }
        body
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fits_is_not_refused_and_what_does_not_fit_is_not_accepted() {
    let system = System::shared_with(&SETTINGS).await;
    // More units than one buyer may have are a 400 that no schema can express: this sale allows all of them.
    let any = NewSale { per_user: Units::parse(10_000).unwrap(), ..terms(0) };
    let sale = system.create_sale(NewSale { stock: Stock::parse(-1).unwrap(), ..any }).await;
    let (managed, closed) = (system.create_sale(terms(5)).await, system.create_sale(terms(5)).await);
    let changed = system.create_sale(NewSale { starts_in_ms: 3_600_000, ends_in_ms: 7_200_000, ..terms(5) }).await;
    let app = async |name| {
        let name = Name::parse(name, "app").unwrap();
        policy_changes::create_app(&system.stores.ledger, &name, "test").await.unwrap()
    };
    // Tokens of the second application are exchanged.
    let (app, _) = (app("shop").await, app("till").await);
    admin_api::account(&system, "root", AccountRole::Admin).await;
    let person = Person::sign_in(&system, "root").await;
    let callers = Callers { system: &system, http: Client::new(), sale, managed, changed, closed, app, person };
    let document = system.get("/api/openapi.json", None).await.1;
    let offered = system.get("/api/v1/payments/channels", None).await.1;
    assert_eq!(offered["channels"], json!(["bank", "sandbox"]));
    // An order that costs nothing is paid through none.
    let payable = &document["components"]["schemas"]["Pay"]["properties"]["channel"]["enum"];
    assert_eq!(*payable, json!(["bank", "sandbox", "none"]));
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut maker = Maker { document: document.clone(), runner: TestRunner::new_with_rng(Config::default(), rng) };
    let (mut wrong, mut answers) = (Vec::new(), BTreeMap::<String, usize>::new());
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            // A callback's body is the channel's, and is not read before its signature.
            if schema.is_null() || path.contains("/callbacks/") {
                continue;
            }
            if path.ends_with("/acquire") {
                // More permits than the policy's limit are another 400 that no schema can express.
                let all =
                    json!({ "apps": ["shop"], "algorithm": "fixed-window", "limit": 1_000_000_000, "window_ms": 100 });
                let set = callers.request("PUT", "/api/v1/admin/policies/{name}").body(all.to_string());
                assert_eq!(set.send().await.unwrap().status(), 200);
            }
            let whole = json!({ "allOf": [schema], "components": document["components"] });
            let validator: Validator = jsonschema::validator_for(&whole).unwrap();
            let resolved = maker.resolved(schema);
            let shape = resolved["oneOf"].get(0).unwrap_or(&resolved);
            let properties: Vec<String> = shape["properties"].as_object().unwrap().keys().cloned().collect();
            let few = path.ends_with("/session");
            let mut bodies = Vec::new();
            for n in 0..if few { SIGN_INS } else { BODIES } {
                let body = callers.known(n, path, maker.value(schema));
                if n < 3 {
                    let others = neighbours(&body, &properties);
                    // Fitting bodies would sign in.
                    bodies.extend(others.into_iter().filter(|other| !few || !validator.is_valid(other)));
                }
                bodies.push(body);
            }
            for body in bodies {
                // A schema counts characters, not bytes.
                let fits = validator.is_valid(&body) && body["user"].as_str().is_none_or(|user| user.len() <= 128);
                let request = callers.request(&method.to_uppercase(), path).body(body.to_string());
                // On a busy machine a server may not answer in time, once.
                let status = eventually(|| async {
                    let status = request.try_clone().unwrap().send().await.unwrap().status().as_u16();
                    (status != 503).then_some(status).ok_or_else(|| format!("{method} {path}: 503: {body:.300}"))
                })
                .await;
                *answers.entry(format!("{method} {path} {status}")).or_default() += 1;
                let listed = operation["responses"].get(status.to_string()).is_some();
                // 403 and 404 may come before the body's last field is checked, so not all misfits get 400.
                let right = if fits { status != 400 && status < 500 } else { (400..500).contains(&status) };
                if !listed || !right {
                    wrong.push(format!("{method} {path}: {status}, fits: {fits}: {body:.300}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {answers:#?}:\n{}", wrong.len(), wrong.join("\n"));
    // Each kind of body was accepted and refused.
    for (body, ok) in [
        ("dev/token", 200),
        // This sale has no challenge, so a fitting body is checked no further.
        ("challenges", 409),
        ("passes", 409),
        ("purchases", 202),
        ("acquire", 200),
        ("release", 200),
        ("admin/apps", 201),
        ("admin/sales", 201),
        ("stock", 200),
        ("patch /api/v1/admin/sales/{id}", 200),
    ] {
        for status in [ok, 400] {
            assert!(
                answers.keys().any(|key| key.ends_with(&format!("{body} {status}"))),
                "{body} {status}: {answers:#?}"
            );
        }
    }
    assert!(answers.contains_key("put /api/v1/admin/policies/{name} 200"), "{answers:#?}");
}
