//! The admin API, for signed-in people (`http::caller`). The console shows and changes everything through it. The document of the API adds to
//! each address its tag and the session that it requires (`api::document`).

pub mod accounts;
pub mod apps;
pub mod live;
pub mod log;
pub mod money;
pub mod orders;
pub mod outflows;
pub mod policies;
pub mod products;
pub mod queues;
pub mod sales;
pub mod session;

use crate::admin::AdminError;
use seckill_domain::policy::Name;
use crate::http::Answer;
use crate::http::codes::problems;

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
    pub NotDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, BodyTooLarge, TemporarilyUnavailable
}
problems! {
    pub NotDoneToOne: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    pub NotMade: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    pub NotChanged: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, Conflict, BodyTooLarge,
    TemporarilyUnavailable
}
