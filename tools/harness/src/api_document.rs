//! The API document, as the service serves it.

use std::collections::BTreeSet;

use serde_json::Value;

pub struct Document(pub Value);

impl Document {
    pub fn of_development_mode() -> Self {
        let document = seckill::api::api_document(true, seckill_pages::document(), &[]).unwrap();
        Self(serde_json::from_slice(&document.json.plain).unwrap())
    }

    /// Method, path and description of every operation.
    pub fn operations(&self) -> impl Iterator<Item = (String, &str, &Value)> {
        let paths = self.0["paths"].as_object().unwrap().iter();
        paths.flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().iter();
            methods.map(|(method, operation)| (method.to_uppercase(), path.as_str(), operation))
        })
    }

    pub fn operation(&self, method: &str, path: &str) -> &Value {
        &self.0["paths"][path][method.to_lowercase()]
    }

    /// Status and problem code of every problem that an operation lists.
    pub fn problems(operation: &Value) -> BTreeSet<String> {
        let answers = operation["responses"].as_object().unwrap().iter();
        answers
            .filter_map(|(status, answer)| {
                let schema = &answer["content"]["application/problem+json"]["schema"];
                let codes = schema["allOf"][1]["properties"]["code"]["enum"].as_array()?.iter();
                Some(codes.map(move |code| format!("{status} {}", code.as_str().unwrap())))
            })
            .flatten()
            .collect()
    }
}
