//! The pages and the console in Chromium, driven by WebDriver, against a complete system with a bank.
//!
//! `./dev test` installs chromium, a Chinese font and axe-core. The tests leave pictures of the pages in
//! `target/screenshots`. A test that fails leaves a picture there too, named after the test.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod accessibility;
mod buyer;
mod captchas;
mod chromium;
mod console;
mod console_forms;
mod console_languages;
mod console_orders;
mod console_pages;
mod console_people;
mod console_planning;
mod console_sale_day;
mod currencies;
mod day;
mod input;
mod keyboard;
mod languages_and_sizes;
mod network_cut;
mod orders_page;
mod other_server;
mod page;
mod page_states;
mod program;
mod purchases;
mod sale_truths;
mod shop;
mod win_and_pay;
