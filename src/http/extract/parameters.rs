//! The parameters of a list.

use actix_web::web::Query;
use serde::de::DeserializeOwned;

use crate::domain::ids::Invalid;

/// Reads the query of a list.
///
/// # Errors
/// A parameter that is not known, or is given twice.
pub fn query<T: DeserializeOwned>(text: &str) -> Result<T, Invalid> {
    let query =
        Query::<T>::from_query(text).map_err(|_| Invalid::new("query", "must have known parameters only, each once"));
    query.map(Query::into_inner)
}
