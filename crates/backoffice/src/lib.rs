//! The work of signed-in people: the use cases, each with its check of rights ([`admin`]), their API ([`api`]), the console's pages
//! ([`console`]), the runbooks, and the drawing of uploaded pictures.

pub mod admin;
pub mod api;
pub mod console;
pub mod picture;
pub mod runbooks;
