//! A client for Seckill: permits of flow control, purchases and their orders, and webhooks.
//!
//! One [`Service`] holds the address and the connections. It is cheap to clone, and both clients share it:
//!
//! - [`FlowClient`] asks for permits with an application's token (`seckill app create NAME`).
//! - [`BuyerClient`] buys with a buyer's token, and follows, pays and cancels the buyer's orders.
//! - [`WebhookVerifier`] checks the messages that the service posts to your server, and needs no connection.
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
//! The folder `examples` shows each client at work: `acquire`, `buy` and `webhook`. docs/client.md says how to run them.

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
pub use decision::{Decision, Refusal, WhenAway};
pub use error::{Code, Error, Problem};
pub use flow::{Ask, FlowClient};
pub use follow::OrderChanges;
pub use orders::{Order, OrderPage, OrderPayment, OrderStatus, PaymentBegun, RefundBegun};
pub use permit::{Outcome, Permit, Reason};
pub use purchase::{Purchase, Ticket};
pub use retry::RetryTerms;
pub use sales::{Captcha, Product, Sale, SalePhase, SaleState, Wave};
pub use service::{Service, ServiceBuilder};
pub use webhook::{InvalidSecret, OrderChange, SignatureError, WebhookError, WebhookMessage, WebhookVerifier};
