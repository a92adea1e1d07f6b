//! A client for Seckill: permits of flow control, purchases and their orders, and webhooks.
//!
//! One [`Service`] holds the address and the connections. It is cheap to clone, and both clients share it:
//!
//! - [`FlowClient`] asks for permits with an application's token (`seckill app create NAME`).
//! - [`BuyerClient`] buys with a buyer's token, and follows, pays and cancels the buyer's orders.
//! - [`WebhookVerifier`] checks the messages that the service posts to your server, and needs no connection.
//!
//! # Ask for a permit
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use seckill_client::{Decision, FlowClient, Outcome, Service, WhenAway};
//!
//! # async fn example(token: &str) -> Result<(), seckill_client::Error> {
//! let service = Service::new("http://127.0.0.1:8080")?;
//! let flow = FlowClient::new(&service, "shop", token)?
//!     .with_timeout(Duration::from_millis(300))
//!     .with_when_away(WhenAway::Open);
//!
//! match flow.acquire("login", "alice", 1).await? {
//!     Decision::Granted(permit) => {
//!         // The work that the policy limits. A permit that is dropped instead returns its lease in the background.
//!         permit.release(Outcome::Ok).await?;
//!     }
//!     Decision::NotConfigured => {} // no such policy: nothing limits the work
//!     Decision::Refused(refusal) => println!("again in {:?}", refusal.retry_after),
//!     Decision::Prepared { answer, .. } => println!("{answer}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Buy
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use seckill_client::{BuyerClient, OrderStatus, Purchase, Service};
//!
//! # async fn example(token: &str) -> Result<(), seckill_client::Error> {
//! let buyer = BuyerClient::new(&Service::new("http://127.0.0.1:8080")?, token)?;
//! let state = buyer.state(1).await?;
//! let purchase = Purchase::new(1, state.key);
//! // Retried under one Idempotency-Key until there is a definite answer, so it never buys twice.
//! let ticket = buyer.purchase(&purchase).await?;
//! let written = |order: &seckill_client::Order| order.status != OrderStatus::Accepted;
//! buyer.wait_for(ticket.order_id, Duration::from_secs(10), written).await?;
//! buyer.pay(ticket.order_id, "sandbox").await?;
//! let mut changes = buyer.follow(ticket.order_id);
//! while let Some(order) = changes.next().await? {
//!     println!("{}", order.status);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - **Time-outs.** Every call has one: [`ServiceBuilder::timeout`], and [`FlowClient::with_timeout`] for permits.
//! - **Retries.** Only [`BuyerClient::purchase`], [`BuyerClient::follow`] and the release of leases retry by themselves: a bounded
//!   number of times, with growing random pauses, and never before the end of a `Retry-After`. Any other call is sent once;
//!   [`Error::may_retry`] and [`Error::retry_after`] say whether and when to repeat it.
//! - **Connections** are kept and reused. Redirects are not followed, because they would send the token elsewhere.
//! - **Cancellation.** Every future may be dropped. A dropped purchase may have bought: repeat it with the same [`Purchase`].
//! - **Errors** are typed: [`Error::Problem`] has the service's [`Code`], which docs/errors.md explains.
//! - **Runtime.** Calls need a running tokio runtime.
//!
//! # Features
//!
//! `tls` allows https:// addresses. Certificates are checked against the authorities that the machine trusts, or against those
//! given to `ServiceBuilder::root_certificates_pem`.
//!
//! The examples `acquire`, `buy` and `webhook` (`cargo run -p seckill-client --example buy`) run against `./dev run`;
//! docs/client.md says how.

#![warn(missing_docs)]

mod breaker;
mod buyer;
mod challenges;
mod decision;
mod error;
mod event_stream;
mod flow;
mod follow;
mod orders;
mod permit;
mod purchase;
mod retry;
mod sales;
mod service;
#[cfg(feature = "tls")]
mod tls;
mod webhook;

pub use buyer::BuyerClient;
pub use challenges::{Challenge, ChallengeAnswer, ChallengeKind, Pass, Question};
pub use decision::{Decision, Reason, Refusal, WhenAway};
pub use error::{Code, Error, Problem};
pub use flow::{Ask, FlowClient};
pub use follow::OrderChanges;
pub use orders::{Order, OrderPage, OrderStatus, PaymentBegun, RefundBegun};
pub use permit::{Outcome, Permit};
pub use purchase::{Purchase, Ticket};
pub use retry::RetryTerms;
pub use sales::{Captcha, Product, Sale, SalePhase, SaleState, Wave};
pub use service::{Service, ServiceBuilder};
pub use webhook::{InvalidSecret, OrderChange, SignatureError, WebhookError, WebhookMessage, WebhookVerifier};
