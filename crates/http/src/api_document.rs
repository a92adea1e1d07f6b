//! The API's document (OpenAPI), as this instance serves it.

use std::collections::HashMap;

use serde_json::Value;

use super::Content;

pub struct ApiDocument {
    pub json: Content,
    methods: HashMap<String, String>,
}

impl ApiDocument {
    pub fn new(document: &Value) -> Self {
        let methods = |item: &Value| -> Vec<String> {
            let listed = item.as_object().into_iter().flatten().map(|(method, _)| method.to_uppercase());
            listed
                .flat_map(|method| if method == "GET" { vec![method, "HEAD".to_owned()] } else { vec![method] })
                .collect()
        };
        let paths = document["paths"].as_object().into_iter().flatten();
        let methods = paths.map(|(path, item)| (path.clone(), methods(item).join(", "))).collect();
        Self { json: Content::compressed(document.to_string()), methods }
    }

    /// The methods of an address, as the header Allow lists them.
    pub fn methods(&self, path: &str) -> Option<&str> {
        self.methods.get(path).map(String::as_str)
    }
}
