//! Limits your own work by a policy: asks for a permit, works, and returns it.
//!
//!     APP_TOKEN=… cargo run -p seckill-client --example acquire -- http://127.0.0.1:8080 shop login alice

use std::time::Duration;

use seckill_client::{Decision, FlowClient, Outcome, Service, WhenAway};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let [address, app, policy, key] = ["http://127.0.0.1:8080", "shop", "login", "alice"]
        .map(|default| arguments.next().unwrap_or_else(|| default.to_owned()));
    let token = std::env::var("APP_TOKEN").map_err(|_| "set APP_TOKEN: seckill app create prints it")?;

    // One client for the whole program. If the service is away, a login page lets everybody in instead of nobody.
    let flow = FlowClient::new(&Service::new(&address)?, &app, &token)?
        .with_timeout(Duration::from_millis(300))
        .with_when_away(WhenAway::Open);

    match flow.acquire(&policy, &key, 1).await? {
        Decision::Granted(permit) => {
            println!("granted, {:?} left; reason {:?}", permit.remaining(), permit.reason());
            permit.wait_turn().await;
            let worked = work().await;
            permit.release(if worked.is_ok() { Outcome::Ok } else { Outcome::Error }).await?;
            worked?;
        }
        Decision::NotConfigured => println!("{app} has no policy {policy}: nothing limits this"),
        Decision::Refused(refusal) => println!("{refusal}"),
        Decision::Prepared { answer, refusal } => println!("{refusal}: {answer}"),
    }
    // Dropped permits are returned in the background.
    flow.drain(Duration::from_secs(5)).await;
    Ok(())
}

/// The protected work.
async fn work() -> Result<(), std::io::Error> {
    println!("working");
    Ok(())
}
