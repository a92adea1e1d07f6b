//! What the paths of the admin API name.

use actix_web::HttpRequest;
use uuid::Uuid;

use crate::domain::ids::Invalid;

/// The number in the path.
pub(super) fn number(request: &HttpRequest, field: &'static str) -> Result<i64, Invalid> {
    match request.match_info().query("id").parse() {
        Ok(id @ 1..) => Ok(id),
        _ => Err(Invalid::new(field, "must be a whole number of at least 1")),
    }
}

/// The UUID in the path.
pub(super) fn uuid(request: &HttpRequest, field: &'static str) -> Result<Uuid, Invalid> {
    Uuid::try_parse(request.match_info().query("id")).map_err(|_| Invalid::new(field, "must be a UUID"))
}
