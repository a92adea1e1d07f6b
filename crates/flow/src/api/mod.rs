//! The API of flow control: permits for other applications, and for gateways that ask for each request.

pub mod gateway;
pub mod permits;
mod problems;
