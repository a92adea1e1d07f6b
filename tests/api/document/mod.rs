//! The API document, compared with the service.

pub mod api_document;
pub mod schema_holds;
