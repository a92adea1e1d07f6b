//! Ids in the path, and the parameters of lists.

use actix_web::HttpRequest;
use actix_web::web::Query;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::problem::Problem;
use seckill_domain::ids::{Invalid, OrderId, SaleId};

pub fn sale_id(request: &HttpRequest) -> Result<SaleId, Problem> {
    Ok(SaleId::parse(request.match_info().query("id"))?)
}

/// The product that the path names. Its id is written like a sale's.
pub fn product_id(request: &HttpRequest) -> Result<i64, Problem> {
    let id = SaleId::parse(request.match_info().query("id"));
    id.map(SaleId::get).map_err(|_| Problem::invalid("the product id must be a positive whole number"))
}

pub fn order_id(request: &HttpRequest) -> Result<OrderId, Problem> {
    parse_order_id(request.match_info().query("id"))
}

pub fn parse_order_id(text: &str) -> Result<OrderId, Problem> {
    Uuid::try_parse(text).map(OrderId).map_err(|_| Problem::invalid("the order id must be a UUID"))
}

pub fn query<T: DeserializeOwned>(text: &str) -> Result<T, Invalid> {
    let query = Query::<T>::from_query(text).map(Query::into_inner);
    query.map_err(|_| Invalid::new("query", "must have known parameters only, each once"))
}
