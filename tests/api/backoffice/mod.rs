//! The admin API and the console.

pub mod admin_api;
pub mod admin_sessions;
pub mod alarm_handling;
pub mod console_abuse;
pub mod console_access;
pub mod console_frame;
pub mod console_orders;
pub mod console_rights;
pub mod console_sales;
pub mod credentials;
pub mod drafts;
pub mod list_pages;
pub mod product_pictures;
pub mod sale_figures;
pub mod shoppers;
pub mod sign_in_limits;
pub mod typed_texts;
