//! The background workers, by their names.

use clap::ValueEnum;

/// A background worker, by the name that `work --only` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Worker {
    /// Publishes outbox rows to the broker
    Relay,
    /// Turns accepted purchases into orders
    Fulfil,
    /// Cancels orders whose time to pay is over
    Expire,
    /// Returns the units of ended orders to Redis
    Release,
    /// Adds the units of waves that are due
    Waves,
    /// Finishes holds that stayed unconfirmed
    Reconcile,
    /// Compares the stock in Redis with PostgreSQL's
    Drift,
    /// Sends lost messages again, retires old sales, clears their data, and finds work that other workers missed
    Sweep,
    /// Writes the minutes' counts of permits to PostgreSQL
    Figures,
    /// Moves the thresholds that adapt
    Adapt,
    /// Raises and clears alarms, and sends them
    Alarms,
    /// Sends outflow items in their slots
    Outflow,
    /// Sends payments in their slots
    Pay,
    /// Asks channels for outcomes that they did not report
    Ask,
    /// Sends order webhooks
    Shop,
}
