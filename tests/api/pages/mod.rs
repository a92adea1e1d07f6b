//! The buyers' pages, served and published.

pub mod published_pages;
pub mod served_pages;
