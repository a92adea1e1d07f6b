//! What commands print: tables for people, JSON and CSV for programs.

use std::io::Write;

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Table, presets};
use serde::Serialize;

use super::Format;
use crate::domain::limiter::Parameters;
use crate::domain::policy::{Name, Policy};
use crate::domain::sale::SalePhase;
use crate::ledger::flow::alarms::Alarm;
use crate::ledger::orders::read::OwnedOrder;
use crate::ledger::outbox::ParkedRow;
use crate::ledger::sales::terms::SaleFigures;
use crate::pay::compare_books::ChannelVerdict;
use crate::sale::audit::SaleVerdict;

/// Prints rows of one kind; the fields of `T` are the columns.
pub fn rows<T: Serialize>(rows: impl Iterator<Item = T>, format: Format) -> anyhow::Result<()> {
    let out = std::io::stdout().lock();
    match format {
        Format::Json => json(&rows.collect::<Vec<_>>(), out),
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(out);
            for row in rows {
                csv.serialize(row)?;
            }
            Ok(csv.flush()?)
        }
        Format::Table => table(rows, out),
    }
}

fn json<T: Serialize>(rows: &[T], mut out: impl Write) -> anyhow::Result<()> {
    serde_json::to_writer(&mut out, rows)?;
    Ok(writeln!(out)?)
}

fn table<T: Serialize>(rows: impl Iterator<Item = T>, mut out: impl Write) -> anyhow::Result<()> {
    // The CSV writer knows how to lay fields out: a table is the same cells in a frame.
    let mut csv = csv::Writer::from_writer(Vec::new());
    for row in rows {
        csv.serialize(row)?;
    }
    let bytes = csv.into_inner().map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    for (place, record) in csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..]).records().enumerate() {
        let record = record?;
        let cells: Vec<&str> = record.iter().collect();
        if place == 0 {
            table.set_header(cells)
        } else {
            table.add_row(cells)
        };
    }
    if table.row_count() == 0 {
        return Ok(writeln!(out, "nothing to show")?);
    }
    Ok(writeln!(out, "{table}")?)
}

pub fn time(ms: i64) -> String {
    let time = DateTime::<Utc>::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[derive(Serialize)]
pub struct OrderLine {
    order_id: String,
    sale_id: i64,
    user: String,
    quantity: i32,
    amount_cents: i64,
    status: &'static str,
    reason: String,
    created_at: String,
    expires_at: String,
}

impl From<&OwnedOrder> for OrderLine {
    fn from(owned: &OwnedOrder) -> Self {
        let order = &owned.order;
        Self {
            order_id: order.order_id.to_string(),
            sale_id: order.sale_id.get(),
            user: owned.user_id.clone(),
            quantity: order.quantity,
            amount_cents: order.amount_cents,
            status: order.status.as_str(),
            reason: order.reason.clone().unwrap_or_default(),
            created_at: time(order.created_at_ms),
            expires_at: time(order.expires_at_ms),
        }
    }
}

#[derive(Serialize)]
pub struct SaleLine {
    id: i64,
    product: String,
    price_cents: i64,
    total_stock: i64,
    stock: i64,
    per_user: u32,
    min_level: i64,
    status: SalePhase,
    starts_at: String,
    ends_at: String,
    pay_within_s: i64,
}

impl SaleLine {
    pub fn new(figures: &SaleFigures, now_ms: i64) -> Self {
        let sale = &figures.sale;
        Self {
            id: sale.id.get(),
            product: sale.product.clone(),
            price_cents: sale.price_cents,
            total_stock: figures.total_stock,
            stock: figures.stock,
            per_user: sale.per_user.get(),
            min_level: sale.min_level,
            status: sale.phase_at(now_ms),
            starts_at: time(sale.starts_at_ms),
            ends_at: time(sale.ends_at_ms),
            pay_within_s: sale.pay_within_ms / 1000,
        }
    }
}

#[derive(Serialize)]
pub struct ParkedLine {
    id: i64,
    kind: String,
    order_id: String,
    sale_id: i64,
    user: String,
    attempts: i32,
    error: String,
    created_at: String,
}

impl From<&ParkedRow> for ParkedLine {
    fn from(row: &ParkedRow) -> Self {
        Self {
            id: row.id,
            kind: row.kind.clone(),
            order_id: row.order_id.to_string(),
            sale_id: row.sale_id,
            user: row.user_id.clone(),
            attempts: row.attempts,
            error: row.last_error.clone().unwrap_or_default(),
            created_at: time(row.created_at.timestamp_millis()),
        }
    }
}

/// The auditor's verdict on one sale, in words.
pub fn verdict(verdict: &SaleVerdict) {
    let word = if verdict.held { "held" } else { "BROKEN" };
    let flight = verdict.in_flight;
    let state = match (verdict.at_rest, verdict.redis_compared) {
        (true, true) => "at rest".to_owned(),
        (true, false) if verdict.retired => "long over".to_owned(),
        (true, false) => "Redis not compared".to_owned(),
        (false, _) => format!(
            "in flight: {} promised, {} unconfirmed, {} unreleased, {} messages",
            flight.promised_units, flight.unconfirmed_units, flight.unreleased_units, flight.messages
        ),
    };
    let state =
        if flight.money > 0 { format!("{state}; {} payments and refunds under way", flight.money) } else { state };
    let redis = verdict.redis_available.map_or("-".to_owned(), |n| n.to_string());
    println!(
        "sale {}: {word} ({state}); total {}, left {}, in live orders {}, for sale in Redis {redis}",
        verdict.sale_id, verdict.total_stock, verdict.stock, verdict.live_units
    );
    for finding in &verdict.findings {
        println!("  {}: {}", finding.invariant, finding.problem);
        for evidence in &finding.evidence {
            println!("    {evidence}");
        }
    }
}

/// What comparing with a channel's books came to.
pub fn channel_verdict(verdict: &ChannelVerdict) {
    let word = if verdict.held { "held" } else { "BROKEN" };
    println!(
        "channel {}: {word}; {} movements of money, {} of them not heard of yet",
        verdict.channel, verdict.movements, verdict.under_way
    );
    verdict.differences.iter().for_each(|difference| println!("  {difference}"));
}

/// A policy in one line.
#[derive(Serialize)]
pub struct PolicyLine {
    name: String,
    apps: String,
    algorithm: &'static str,
    terms: String,
    excess: String,
    when_down: &'static str,
    key: String,
    version: i64,
    created_by: String,
    updated_by: String,
    updated_at: String,
}

impl From<&Policy> for PolicyLine {
    fn from(policy: &Policy) -> Self {
        let terms = &policy.terms;
        let apps: Vec<_> = terms.apps.iter().map(Name::as_str).collect();
        let Parameters { limit, capacity, rate, window_ms, lease_ms } = policy.algorithm.parameters();
        let named = [
            ("limit", limit),
            ("capacity", capacity),
            ("rate", rate),
            ("window_ms", window_ms),
            ("lease_ms", lease_ms),
        ];
        let mut said: Vec<_> = named.into_iter().filter_map(|(name, n)| Some(format!("{name} {}", n?))).collect();
        if let Some(range) = &terms.range {
            said.push(format!("moves {} to {}", range.floor, range.ceiling));
        }
        if terms.breaker.is_some() {
            said.push("breaker".to_owned());
        }
        Self {
            name: terms.name.to_string(),
            apps: apps.join(" "),
            algorithm: terms.algorithm.kind().as_str(),
            terms: said.join(", "),
            excess: terms.excess.to_string(),
            when_down: terms.when_down.as_str(),
            key: terms.key.clone(),
            version: policy.version,
            created_by: policy.created_by.clone(),
            updated_by: policy.updated_by.clone(),
            updated_at: time(policy.updated_at_ms),
        }
    }
}

/// An alarm in one line.
#[derive(Serialize)]
pub struct AlarmLine {
    kind: String,
    subject: String,
    raised_at: String,
    cleared_at: Option<String>,
    details: String,
}

impl From<&Alarm> for AlarmLine {
    fn from(alarm: &Alarm) -> Self {
        Self {
            kind: alarm.kind.clone(),
            subject: alarm.subject.clone(),
            raised_at: time(alarm.raised_at.timestamp_millis()),
            cleared_at: alarm.cleared_at.map(|at| time(at.timestamp_millis())),
            details: alarm.details.to_string(),
        }
    }
}
