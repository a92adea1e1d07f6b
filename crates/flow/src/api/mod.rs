//! The API of flow control: permits for other applications, and for gateways that ask for each request.

mod gateway;
mod permits;
mod problems;

use actix_web::web::route;
use seckill_http::addresses::{Address, address};

/// The addresses of flow control.
pub fn addresses() -> Vec<Address> {
    vec![
        // A gateway asks once for each request that it passes on. Envoy keeps that request's method, and appends its path.
        Address {
            route: route().to(gateway::authorize),
            ..address(gateway::__path_authorize, gateway::authorize).busy()
        },
        Address {
            path: "/api/v1/flow/authorize/{path:.*}".to_owned(),
            route: route().to(gateway::authorize_path),
            ..address(gateway::__path_authorize_path, gateway::authorize_path).busy()
        },
        address(permits::__path_acquire, permits::acquire),
        address(permits::__path_release, permits::release),
    ]
}
