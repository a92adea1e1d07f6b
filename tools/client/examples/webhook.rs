//! Receives the service's webhooks with actix-web. Other servers work in the same way: take the body as raw bytes, before any JSON
//! parser, and give it to `WebhookVerifier::verify` with the headers.
//!
//!     SECRETS=whsec_… cargo run -p seckill-client --example webhook -- 127.0.0.1:9000

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use actix_web::http::StatusCode;
use actix_web::web::{Bytes, Data, post};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use seckill_client::WebhookVerifier;

struct Receiver {
    verifier: WebhookVerifier,
    /// The processed messages. A shop keeps them in its database, in the transaction that processes the message.
    processed: Mutex<HashSet<String>>,
}

async fn receive(request: HttpRequest, body: Bytes, receiver: Data<Receiver>) -> HttpResponse {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let message = match receiver.verifier.verify(header, &body, SystemTime::now()) {
        Ok(message) => message,
        Err(error) => {
            eprintln!("refused: {error}");
            return HttpResponse::build(StatusCode::from_u16(error.status()).unwrap_or(StatusCode::UNAUTHORIZED))
                .finish();
        }
    };
    // A message is sent again if the answer to it was lost.
    if receiver.processed.lock().unwrap_or_else(PoisonError::into_inner).insert(message.id.clone()) {
        match message.order {
            Some(order) => println!("order {} of {} is {}", order.order_id, order.user_id, order.status),
            None => println!("{}: {}", message.kind, message.data),
        }
    }
    HttpResponse::NoContent().finish()
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9000".to_owned());
    let secrets = std::env::var("SECRETS").map_err(|_| "set SECRETS: those of SECKILL_SHOP__WEBHOOK_SECRETS")?;
    let verifier = WebhookVerifier::new(&secrets)?;
    let receiver = Data::new(Receiver { verifier, processed: Mutex::default() });
    println!("listening at http://{address}/seckill");
    let app = move || App::new().app_data(receiver.clone()).route("/seckill", post().to(receive));
    HttpServer::new(app).workers(1).bind(&address)?.run().await?;
    Ok(())
}
