//! The least that an actix service can do with a POST: `seckill-bench-hello ADDRESS`. `./dev bench` compares with it.

use std::net::SocketAddr;

use actix_web::web::{Bytes, post};
use actix_web::{App, HttpResponse, HttpServer, rt};
use anyhow::Context;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Reads the body, like every handler that keeps its connection, and answers a small JSON document. It has the number of
/// threads of `seckill serve`, and its allocator.
fn main() -> anyhow::Result<()> {
    let address: SocketAddr = std::env::args().nth(1).context("usage: seckill-bench-hello ADDRESS")?.parse()?;
    let greet = async |body: Bytes| HttpResponse::Ok().json(serde_json::json!({ "hello": body.len() }));
    let server = HttpServer::new(move || App::new().default_service(post().to(greet))).backlog(4096).bind(address)?;
    Ok(rt::System::new().block_on(server.run())?)
}
