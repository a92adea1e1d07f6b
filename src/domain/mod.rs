//! The types and rules of the business. Pure: no I/O, no clock, no framework.

pub mod account;
pub mod admission;
pub mod alarm;
pub mod breaker;
pub mod captcha;
pub mod database_clock;
pub mod delay;
pub mod ids;
pub mod json_object;
pub mod limiter;
pub mod message;
pub mod order;
pub mod origin;
pub mod outflow;
pub mod payment;
pub mod picture;
pub mod policy;
pub mod policy_form;
pub mod pressure;
pub mod sale;
pub mod shedding;
pub mod step;
pub mod threshold;
pub mod warning;
pub mod whole_number;
