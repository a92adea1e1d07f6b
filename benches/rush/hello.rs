//! What everything is compared with: the least that an actix service can do with a POST.

use std::net::SocketAddr;

use actix_web::web::{Bytes, post};
use actix_web::{App, HttpResponse, HttpServer, rt};

/// It reads the body like every handler that wants its connection kept, and answers a little JSON. As many threads as
/// `seckill serve` has, and the same allocator.
pub fn serve(address: SocketAddr) -> anyhow::Result<()> {
    let greet = async |body: Bytes| HttpResponse::Ok().json(serde_json::json!({ "hello": body.len() }));
    let server = HttpServer::new(move || App::new().default_service(post().to(greet))).backlog(4096).bind(address)?;
    Ok(rt::System::new().block_on(server.run())?)
}
