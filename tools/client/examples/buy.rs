//! Buys one unit of a sale, pays for it, and follows the order to its payment. The service must run in development mode, as
//! `./dev run` starts it: only there can the example sign its buyer in.
//!
//!     cargo run -p seckill-client --example buy -- http://127.0.0.1:8080 1 alice

use std::time::Duration;

use seckill_client::{BuyerClient, Code, OrderStatus, Purchase, Service};
use tokio::time::sleep;

/// The example does not wait for a sale that starts later than this.
const WAIT_MAX: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let [address, sale_id, user] =
        ["http://127.0.0.1:8080", "1", "alice"].map(|default| arguments.next().unwrap_or_else(|| default.to_owned()));
    let sale_id: i64 = sale_id.parse()?;
    let buyer = BuyerClient::sign_in(&Service::new(&address)?, &user, 0).await?;
    let sale = buyer.sale(sale_id).await?;
    println!("{} for {} {}, {:?}", sale.product.name, sale.price_cents, sale.currency, sale.status);

    // The key exists once the sale opens. Wait by the service's clock.
    let mut state = buyer.state(sale_id).await?;
    let before_start = u64::try_from(state.starts_at_ms - state.now_ms).map(Duration::from_millis);
    if let Ok(wait) = before_start
        && !state.open
    {
        println!("it starts in {wait:?}");
        sleep(wait.min(WAIT_MAX)).await;
        state = buyer.state(sale_id).await?;
    }

    // If you store the Idempotency-Key before you send it, the purchase survives even a crash of this program.
    let purchase = Purchase::new(sale_id, state.key);
    let order_id = match buyer.purchase(&purchase).await {
        Ok(ticket) => ticket.order_id,
        Err(error) if error.code() == Some(&Code::AlreadyPurchased) => {
            error.problem().and_then(|problem| problem.order_id).ok_or("the order is not named")?
        }
        Err(error) => return Err(error.into()),
    };
    println!("order {order_id}");

    let written =
        buyer.wait_for(order_id, Duration::from_secs(30), |order| order.status != OrderStatus::Accepted).await?;
    if written.status == OrderStatus::PendingPayment {
        let channels = buyer.payment_channels().await?;
        let channel = channels.first().ok_or("the service has no payment channel")?;
        println!("paying by {channel}");
        buyer.pay(order_id, channel).await?;
    }
    let mut changes = buyer.follow(order_id);
    while let Some(order) = changes.next().await? {
        println!("{}", order.status);
        if order.status == OrderStatus::Paid {
            break;
        }
    }
    Ok(())
}
