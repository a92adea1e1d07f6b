//! Ids in the path.

use actix_web::HttpRequest;
use uuid::Uuid;

use crate::domain::ids::{OrderId, SaleId};
use crate::http::problem::Problem;

/// The sale that the path names.
pub fn sale_id(request: &HttpRequest) -> Result<SaleId, Problem> {
    Ok(SaleId::parse(request.match_info().query("id"))?)
}

/// The product that the path names. Its id is written like a sale's.
pub fn product_id(request: &HttpRequest) -> Result<i64, Problem> {
    let id = SaleId::parse(request.match_info().query("id"));
    id.map(SaleId::get).map_err(|_| Problem::invalid("the product id must be a positive whole number"))
}

/// The order that the path names.
pub fn order_id(request: &HttpRequest) -> Result<OrderId, Problem> {
    parse_order_id(request.match_info().query("id"))
}

/// An order id, as a client writes it.
pub fn parse_order_id(text: &str) -> Result<OrderId, Problem> {
    Uuid::try_parse(text).map(OrderId).map_err(|_| Problem::invalid("the order id must be a UUID"))
}
