//! The admin API, for signed-in people (`caller`). The console shows and changes everything through it. The document of the API adds to
//! each address its tag and the session that it requires (`api::document`).

pub mod accounts;
pub mod apps;
mod caller;
mod cookies;
pub mod live;
pub mod log;
pub mod money;
pub mod orders;
pub mod outflows;
pub mod policies;
mod problems;
pub mod products;
pub mod queues;
pub mod sales;
pub mod session;

pub use caller::{Ask, Caller};
pub use cookies::CookieNames;

use crate::admin::{AdminError, Office};
use seckill_buying::live::LiveSales;
use seckill_domain::policy::Name;
use seckill_http::Answer;
use seckill_http::codes::problems;

/// State for the handlers of the admin API and the console's pages.
pub struct Backoffice {
    pub office: Office,
    pub cookies: CookieNames,
    pub live: LiveSales,
}

fn app(text: &str) -> Result<Name, AdminError> {
    Ok(Name::parse(text, "app")?)
}

// What reads are refused with: all of a list, some of it, or one thing; `Guarded` ones are not for every account.
problems!(pub NotRead: SignedOut, TemporarilyUnavailable);
problems!(pub NotReadSome: InvalidRequest, SignedOut, TemporarilyUnavailable);
problems!(pub NotReadOne: InvalidRequest, SignedOut, NotFound, TemporarilyUnavailable);
problems!(pub NotReadGuarded: SignedOut, Forbidden, TemporarilyUnavailable);
problems!(pub NotReadSomeGuarded: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);

// What changes are refused with: of something that is always there, that may be unknown, and that may be in another state.
problems! {
    pub(crate) NotDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, BodyTooLarge, TemporarilyUnavailable
}
problems! {
    pub(crate) NotDoneToOne: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    pub(crate) NotMade: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    pub(crate) NotChanged: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
