//! The admin API, for people who are signed in (`http::caller`): what the console shows and changes.

pub mod accounts;
pub mod apps;
pub mod lapsed_holds;
pub mod live;
pub mod log;
pub mod money;
mod money_line;
pub mod orders;
pub mod outflows;
pub mod overview;
mod path;
pub mod policies;
pub mod products;
pub mod queues;
mod sale_forms;
pub mod sales;
pub mod session;

use crate::admin::AdminError;
use crate::domain::policy::Name;

/// The name of an application, from a path or a body.
fn app(text: &str) -> Result<Name, AdminError> {
    Ok(Name::parse(text, "app")?)
}
