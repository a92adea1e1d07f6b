//! Addresses of the API: each feature lists its own. `seckill::api` makes the routes and the API's document of all lists.

use actix_web::web::{delete, get, patch, post, put};
use actix_web::{FromRequest, Handler, Responder, Route};
use utoipa::__dev::{SchemaReferences, Tags};
use utoipa::Path;
use utoipa::openapi::{HttpMethod, OpenApi};

pub struct Address {
    pub path: String,
    pub route: Route,
    /// The router tries addresses in their order, and busy ones first.
    pub is_busy: bool,
    /// Adds the address to the document.
    pub describe: fn(&mut OpenApi),
}

/// A handler with the type that `utoipa::path` has made of its attributes: `__path_` and the handler's name.
pub fn address<P, H, A>(_: P, handler: H) -> Address
where
    P: Path + SchemaReferences + Tags<'static>,
    H: Handler<A>,
    A: FromRequest + 'static,
    H::Output: Responder + 'static,
{
    let route = match P::methods()[..] {
        [HttpMethod::Get] => get(),
        [HttpMethod::Post] => post(),
        [HttpMethod::Put] => put(),
        [HttpMethod::Patch] => patch(),
        _ => delete(),
    };
    Address { path: P::path(), route: route.to(handler), is_busy: false, describe: describe::<P> }
}

fn describe<P: Path + SchemaReferences + Tags<'static>>(api: &mut OpenApi) {
    let (mut schemas, mut operation) = (Vec::new(), P::operation());
    P::schemas(&mut schemas);
    api.components.get_or_insert_default().schemas.extend(schemas);
    operation.tags.get_or_insert_default().extend(P::tags().into_iter().map(str::to_owned));
    api.paths.add_path_operation(P::path(), P::methods(), operation);
}

impl Address {
    #[must_use]
    pub fn busy(self) -> Self {
        Self { is_busy: true, ..self }
    }
}
