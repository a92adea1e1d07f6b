//! Buying: the use cases of buyers on the worker threads ([`sale`]), the work that follows ([`sale_work`]), figures of watched sales
//! ([`live`]), and the buyers' API ([`api`]).

pub mod api;
pub mod live;
pub mod sale;
pub mod sale_work;
