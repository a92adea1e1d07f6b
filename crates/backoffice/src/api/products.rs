//! Products and their pictures, for operators.

use std::time::Duration;

use actix_web::http::header::CONTENT_LENGTH;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::{Answer, NotChanged, NotDone, NotMade};
use crate::admin::AdminError;
use crate::admin::products::ChangedProduct;
use crate::api::{Ask, Caller};
use crate::picture::{FILE_BYTES_MAX, PictureError, draw_apart};
use seckill_domain::ids::Invalid;
use seckill_domain::sale::ProductEdit;
use seckill_http::Problem;
use seckill_http::codes::Code;
use seckill_http::extract::read_body;

/// A picture of 10 MiB arrives within this time over 1.5 Mbit/s.
const UPLOAD_MAX: Duration = Duration::from_secs(60);
static UPLOADS: Semaphore = Semaphore::const_new(4);

/// The changes of a product. Fields that are left out change nothing.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProductForm {
    /// What buyers are told of the product. It may have several lines.
    #[schema(max_length = 5000, pattern = "^[^\\x00-\\x09\\x0B-\\x1F\\x7F-\\x9F]*$")]
    description: Option<String>,
    /// A description of the picture, for people who cannot see it.
    #[schema(max_length = 300, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*$")]
    picture_alt: Option<String>,
}

/// A product's new name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewProductName {
    #[schema(
        max_length = 200,
        pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]*[^\\s\\x00-\\x1F\\x7F-\\x9F][^\\x00-\\x1F\\x7F-\\x9F]*$"
    )]
    name: String,
}

/// The product's picture as it is now.
#[derive(Serialize, ToSchema)]
struct PictureSet {
    product_id: i64,
    /// Names the picture, by its content.
    picture: String,
    everywhere: bool,
}

/// Make or change a product
///
/// For managers and admins.
#[utoipa::path(
    put,
    path = "/api/v1/admin/products/{name}",
    params(("name" = String, Path, description = "The product: 1 to 200 characters", min_length = 1, max_length = 200)),
    request_body = ProductForm,
    responses((status = 200, description = "Done", body = ChangedProduct), NotMade),
)]
pub(super) async fn set_product(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let name = product_name(caller)?;
        let ProductForm { description, picture_alt } = caller.body()?;
        office.set_product(&caller.account, name, description, picture_alt).await
    })
    .await
}

/// Set a product's picture
///
/// For managers and admins. The body is the picture: a JPEG, PNG or WebP of at most 10 MiB and 40 megapixels, with its Content-Length. It is
/// redrawn in two sizes; nothing else of the file is kept. The product is made where it is missing. The product's name describes the
/// picture until another description is set.
#[utoipa::path(
    put,
    path = "/api/v1/admin/products/{name}/picture",
    params(("name" = String, Path, description = "The product: 1 to 200 characters", min_length = 1, max_length = 200)),
    request_body(content = Vec<u8>, content_type = "image/*", description = "The picture"),
    responses((status = 200, description = "Done", body = PictureSet), NotDone),
)]
pub(super) async fn set_product_picture(request: HttpRequest, payload: Payload) -> Answer {
    // Before the file is read: strangers send no megabytes.
    let named = Ask::with_picture(request.clone())?.act(async move |office, caller| {
        let name = product_name(caller)?;
        office.check_picture_of(&caller.account, &name)?;
        Ok(name)
    });
    let name = named.await.map_err(Problem::unread)?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    // A few at a time, because each file is in memory.
    let Ok(_place) = UPLOADS.try_acquire() else {
        return Err(Problem::from(AdminError::from(PictureError::Busy)).unread());
    };
    let file = match length {
        // A connection is cut that sends a long body without saying so.
        None => return Err(Problem::invalid("Content-Length is required").unread()),
        Some(length) if length > FILE_BYTES_MAX => return Err(Problem::too_large(FILE_BYTES_MAX).unread()),
        Some(_) => timeout(UPLOAD_MAX, read_body(payload, length, FILE_BYTES_MAX)).await,
    };
    let file = file.map_err(|_| Problem::from(Code::TooSlow).unread())??;
    let picture = draw_apart(file).await.map_err(AdminError::from)?;
    let hash = picture.hash.clone();
    let changed = Ask::with_picture(request)?
        .act(async move |office, caller| office.set_product_picture(&caller.account, name, &picture).await);
    let ChangedProduct { product_id, everywhere } = changed.await?;
    let mut response = HttpResponse::Ok();
    // The connection has read more than its bound, and is not used again.
    response.force_close();
    Ok(response.json(PictureSet { product_id, picture: hash, everywhere }))
}

/// Rename a product
///
/// For managers and admins. The pages of its sales show the new name at once. A picture that the old name describes is described by the new
/// one.
#[utoipa::path(
    put,
    path = "/api/v1/admin/products/{name}/name",
    params(("name" = String, Path, description = "The product: 1 to 200 characters", min_length = 1, max_length = 200)),
    request_body = NewProductName,
    responses((status = 200, description = "Done", body = ChangedProduct), NotChanged),
)]
pub(super) async fn rename_product(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let NewProductName { name } = caller.body()?;
        office.edit_product(&caller.account, &product_name(caller)?, ProductEdit::Rename(name)).await
    })
    .await
}

/// Remove a product that no sale has
///
/// For managers and admins.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/products/{name}",
    params(("name" = String, Path, description = "The product: 1 to 200 characters", min_length = 1, max_length = 200)),
    responses((status = 200, description = "Done", body = ChangedProduct), NotChanged),
)]
pub(super) async fn remove_product(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        office.edit_product(&caller.account, &product_name(caller)?, ProductEdit::Remove).await
    })
    .await
}

/// Remove a product's picture
///
/// For managers and admins.
#[utoipa::path(
    delete,
    path = "/api/v1/admin/products/{name}/picture",
    params(("name" = String, Path, description = "The product: 1 to 200 characters", min_length = 1, max_length = 200)),
    responses((status = 200, description = "Done", body = ChangedProduct), NotChanged),
)]
pub(super) async fn remove_product_picture(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        office.edit_product(&caller.account, &product_name(caller)?, ProductEdit::RemovePicture).await
    })
    .await
}

/// The product that the path names. The router leaves `%2F`, `%2B` and `%25` as they are.
fn product_name(caller: &Caller) -> Result<String, AdminError> {
    let name = percent_decode_str(caller.part("name")).decode_utf8();
    Ok(name.map_err(|_| Invalid::new("name", "must be UTF-8"))?.into_owned())
}
