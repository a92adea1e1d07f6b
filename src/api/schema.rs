//! Adds to the API's document what Rust's types cannot express: the payment channels, the answer to each challenge, and which terms of
//! a policy go together. A request that follows the document never gets a 400.

use serde_json::{Map, Value, json};

use seckill_buying::api::challenges::{NUMBER_MAX, POINTS_MAX, TEXT_MAX};
use seckill_domain::limiter::{AlgorithmKind, ParameterBounds};
use seckill_domain::payment::NO_CHANNEL;

pub(crate) fn complete(document: &mut Value, channels: &[String]) {
    let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) else { return };
    if let Some(channel) = schemas.get_mut("Pay").and_then(|pay| pay.pointer_mut("/properties/channel"))
        && !channels.is_empty()
    {
        channel["enum"] = channels.iter().map(String::as_str).chain([NO_CHANNEL]).collect();
    }
    if let Some(answer) = schemas.get_mut("ChallengeAnswer").and_then(|pass| pass.pointer_mut("/properties/answer")) {
        *answer = challenge_answer(answer["description"].take());
    }
    if let Some(terms) = schemas.get_mut("PolicyTerms") {
        *terms = policy_terms(terms.take());
    }
}

fn challenge_answer(description: Value) -> Value {
    let number = json!({ "type": "number", "minimum": -NUMBER_MAX, "maximum": NUMBER_MAX });
    let sample = json!({ "type": "array", "minItems": 3, "maxItems": 3, "items": number });
    let object = |required: Value, properties: Value| json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties });
    let drag = json!({ "x": number, "trail": { "type": "array", "maxItems": POINTS_MAX, "items": sample } });
    json!({ "description": description, "oneOf": [
        { "type": "string", "maxLength": TEXT_MAX },
        object(json!(["x", "trail"]), drag),
        object(json!(["nonce"]), json!({ "nonce": { "type": "string", "pattern": "^[0-9]{1,20}$" } })),
    ] })
}

/// One schema for each algorithm and each kind of threshold, fixed or adaptive: they take different fields.
fn policy_terms(all: Value) -> Value {
    let variants: Vec<Value> = AlgorithmKind::ALL
        .iter()
        .flat_map(|algorithm| [false, true].map(|moving| variant(all.clone(), *algorithm, moving)))
        .collect();
    json!({ "description": all["description"], "oneOf": variants })
}

fn variant(mut schema: Value, algorithm: AlgorithmKind, moving: bool) -> Value {
    let bounds = algorithm.bounds();
    let mut required = vec!["apps", "algorithm"];
    let Some(properties) = schema["properties"].as_object_mut() else { return schema };
    properties.insert("algorithm".into(), json!({ "type": "string", "enum": [algorithm] }));
    for (name, given) in bounds {
        match given {
            ParameterBounds::Unused => only_null(properties, name),
            ParameterBounds::Optional(least, most) => bound(properties, name, least, most),
            ParameterBounds::Required(least, most) => {
                bound(properties, name, least, most);
                required.push(name);
            }
            ParameterBounds::Limit(most) => {
                bound(properties, name, 1, most);
                required.push(name);
                if !moving && let Some(limit) = properties.get_mut(name) {
                    // -1 means no limit.
                    limit["minimum"] = json!(-1);
                    limit["not"] = json!({ "const": 0 });
                }
            }
        }
    }
    let title = if moving { "moving" } else { "fixed" };
    if moving {
        let most = algorithm.threshold_max();
        for name in ["floor", "ceiling"] {
            bound(properties, name, 1, most);
            required.push(name);
        }
    } else {
        for name in ["floor", "ceiling", "target_ms"] {
            only_null(properties, name);
        }
    }
    for name in &required[2..] {
        if let Some(field) = properties.get_mut(*name) {
            field["type"] = json!("integer");
        }
    }
    schema["required"] = json!(required);
    schema["title"] = json!(format!("{}, {title}", algorithm.as_str()));
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("description");
    }
    schema
}

/// A field with bounds. Null means the same as a missing field, so a required field is never null.
fn bound(properties: &mut Map<String, Value>, name: &str, least: i64, most: i64) {
    if let Some(field) = properties.get_mut(name) {
        field["minimum"] = json!(least);
        field["maximum"] = json!(most);
    }
}

fn only_null(properties: &mut Map<String, Value>, name: &str) {
    properties.insert(name.to_owned(), json!({ "type": "null" }));
}
