//! Networks, processes and clients that fail or are slow, TLS, and nginx in front.

pub mod broken_network;
pub mod edge;
pub mod edge_pages;
pub mod head_requests;
pub mod nginx;
pub mod reverse_proxy;
pub mod service_killed;
pub mod slow_clients;
pub mod tls_purchase;
pub mod tls_servers;
pub mod token_issuer;
pub mod unread_answers;
pub mod wrong_clocks;
