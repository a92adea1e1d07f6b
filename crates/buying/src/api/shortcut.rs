//! The shortcut for purchases. It finds their address by comparing texts, before the router and the extractors of actix-web, which cost time in
//! each request. All other requests, and purchases with another spelling of the address, take the long way to the same answers.

use std::rc::Rc;

use actix_http::Request;
use actix_web::ResponseError;
use actix_web::body::BoxBody;
use actix_web::dev::Response;
use actix_web::http::Method;
use actix_web::web::Data;

use super::purchases::purchase;
use crate::sale::thread_state::ThreadState;
use seckill_domain::ids::SaleId;
use seckill_http::AppState;
use seckill_http::extract::read_body_of;

pub struct Shortcut {
    thread: Data<ThreadState>,
    app_state: Data<AppState>,
}

impl Shortcut {
    pub fn new(thread: Data<ThreadState>, app_state: Data<AppState>) -> Rc<Self> {
        Rc::new(Self { thread, app_state })
    }

    /// The sale of a purchase. `None`: the request takes the long way.
    pub fn sale(request: &Request) -> Option<SaleId> {
        let id = request.path().strip_prefix("/api/v1/sales/")?.strip_suffix("/purchases")?;
        if request.method() == Method::POST { SaleId::parse(id).ok() } else { None }
    }

    pub async fn answer(self: Rc<Self>, sale: SaleId, mut request: Request) -> Response<BoxBody> {
        let payload = request.take_payload();
        let answer = match read_body_of(request.head(), payload, &self.app_state).await {
            Ok(body) => purchase(request.head(), Ok(sale), &body, &self.thread, &self.app_state).await,
            Err(problem) => Err(problem),
        };
        answer.unwrap_or_else(|problem| problem.error_response()).into()
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn only_a_purchase_at_a_sale_takes_the_shortcut() {
        let sale = |method, path: &str| {
            let request = TestRequest::default().method(method).uri(path).to_request();
            Shortcut::sale(&request).map(SaleId::get)
        };
        assert_eq!(sale(Method::POST, "/api/v1/sales/7/purchases"), Some(7));
        assert_eq!(sale(Method::POST, "/api/v1/sales/7/purchases?x=/y/purchases"), Some(7));
        assert_eq!(sale(Method::GET, "/api/v1/sales/7/purchases"), None);
        for other in ["", "0", "-7", "+7", "%37", "x", "7/", "7/purchases/8", "/7", "99999999999999999999"] {
            assert_eq!(sale(Method::POST, &format!("/api/v1/sales/{other}/purchases")), None, "{other}");
        }
        for other in ["/api/v1/sales/7/purchases/", "//api/v1/sales/7/purchases", "/api/v1/sales/7", "/"] {
            assert_eq!(sale(Method::POST, other), None, "{other}");
        }
    }
}
