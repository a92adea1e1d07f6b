//! Integration tests: the production builder against real Redis, PostgreSQL and RabbitMQ.
//!
//! `./dev test` starts the servers and names them in REDIS_URL, DATABASE_URL and AMQP_URL. A test that only
//! asks for answers shares a running system with others; each other test has a database, a Redis prefix and a queue prefix of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on shall fail

mod admin_api;
mod admin_sessions;
mod alarm_drill;
mod api_document;
mod auditor_findings;
mod batches_apart;
mod broken_network;
mod callers_apart;
mod challenges;
mod client;
mod client_orders;
mod compose_file;
mod configuration;
mod console_abuse;
mod console_access;
mod console_frame;
mod console_orders;
mod console_rights;
mod console_sales;
mod credentials;
mod crowds;
mod dashboards;
mod dense_commits;
mod doctor;
mod edge;
mod expiry_and_retries;
mod gateway;
mod group_expiry;
mod idle_sales;
mod lapsed_holds;
mod locks_and_fences;
mod memory;
mod metrics_and_logs;
mod migrations;
mod never_oversold;
mod nginx;
mod order_event_streams;
mod order_webhooks;
mod own_redis;
mod pages;
mod payments_and_callbacks;
mod permits_and_policies;
mod product_pictures;
mod published_pages;
mod published_secrets;
mod purchase_answers;
mod purchase_groups;
mod purchase_limits;
mod redis_cluster;
mod redis_memory_loss;
mod redis_unchanged;
mod relay_resends;
mod reverse_proxy;
mod runbooks;
mod sale_reads;
mod sales_apart;
mod schema_holds;
mod service_killed;
mod session_settings;
mod several_postgres;
mod shards;
mod sign_in_limits;
mod slow_clients;
mod statement_plans;
mod stock_waves;
mod thresholds_and_alarms;
mod tls_purchase;
mod tls_servers;
mod traces;
mod two_records;
mod wrong_clocks;
