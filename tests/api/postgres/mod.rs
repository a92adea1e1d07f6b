//! PostgreSQL: migrations, sessions, plans, several servers.

pub mod migrations;
pub mod session_settings;
pub mod several_postgres;
pub mod statement_plans;
