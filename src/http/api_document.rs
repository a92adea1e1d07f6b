//! The API's document (OpenAPI), as this instance serves it.

use std::collections::HashMap;

use serde_json::Value;
use utoipa::openapi::path::{PathItem, Paths};

use super::Content;

pub struct ApiDocument {
    pub json: Content,
    methods: HashMap<String, String>,
}

impl ApiDocument {
    pub fn new(paths: &Paths, document: &Value) -> Self {
        let methods = paths.paths.iter().map(|(path, item)| (path.clone(), methods(item).join(", "))).collect();
        Self { json: Content::compressed(document.to_string()), methods }
    }

    /// The methods of an address, as the header Allow lists them.
    pub fn methods(&self, path: &str) -> Option<&str> {
        self.methods.get(path).map(String::as_str)
    }
}

fn methods(item: &PathItem) -> Vec<&'static str> {
    let operations = [
        ("GET", &item.get),
        ("POST", &item.post),
        ("PUT", &item.put),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
    ];
    operations.into_iter().filter(|(_, operation)| operation.is_some()).map(|(name, _)| name).collect()
}
