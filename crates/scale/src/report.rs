//! Tables, as Markdown.

use std::fmt::Write;

use crate::assumed::Assumed;
use crate::check::Compared;
use crate::day::DayOutcome;
use crate::measured::{Costs, Measured};
use crate::plan::Plan;
use crate::rush::{Outcome, Topology};

/// Rounds to three digits, because more would say more than is known: `123,000`.
pub fn thousands(n: f64) -> String {
    if !n.is_finite() {
        return "–".to_owned();
    }
    let unit = 10f64.powf((n.abs().max(1.0).log10().floor() - 2.0).max(0.0));
    let digits = format!("{:.0}", (n / unit).round() * unit);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && text != "-" {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// What the figures stand on.
pub fn inputs(measured: &Measured, costs: &Costs, assumed: &Assumed, seed: u64) -> String {
    let mut text = String::new();
    let from = if measured.from_sample.is_empty() {
        "the bench's JSON".to_owned()
    } else {
        format!("the bench's JSON, but of the sample: {}", measured.from_sample.join(", "))
    };
    let Assumed { network_us, flush_us, standby_us, handshake_us, fill } = assumed;
    let _ = writeln!(
        text,
        "Measured ({from}), in µs of a processor: load balancer {:.1}; `serve` {:.1} sold out from memory, {:.1} after asking Redis, \
         {:.1} bought; Redis {:.1} a call, and {:.1} a refused buyer, {:.1} a winner; PostgreSQL {:.0} a commit, and {:.1} a winner, \
         {:.0} settled, {:.0} paid. Assumed: a round trip of {network_us} µs between machines, a flush of {flush_us} µs, a standby \
         {standby_us} µs away, {handshake_us} µs for a handshake, processors {} full. Seed {seed}.\n",
        costs.balancer_us,
        costs.memory_us,
        costs.asked_us,
        costs.bought_us,
        costs.call_us,
        costs.refused_us,
        costs.reserved_us,
        costs.commit_us,
        costs.row_us,
        costs.settled.postgres_us,
        costs.paid.postgres_us,
        percent(*fill),
    );
    text
}

/// One line about the machines.
fn machines(topology: &Topology) -> String {
    let shards = match topology.shards {
        1 => "1 shard".to_owned(),
        many => format!("{many} shards (planned)"),
    };
    format!(
        "{} load balancers of {} processors, {} `serve` of {}, {} Redis masters with {shards}, PostgreSQL with {}, RabbitMQ's leader \
         with {}, {} `work` of {}",
        topology.balancers,
        topology.balancer_cores,
        topology.serve,
        topology.serve_cores,
        topology.redis,
        topology.postgres_cores,
        topology.broker_cores,
        topology.work,
        topology.work_cores,
    )
}

/// A rush.
pub fn rush(topology: &Topology, outcome: &Outcome) -> String {
    let mut text = format!("{}.\n\n", machines(topology));
    let _ = writeln!(text, "| the rush | |\n|---|---|");
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("arrivals", thousands(outcome.arrivals as f64));
    row("bought", thousands(outcome.accepted as f64));
    row("sold out, from memory", thousands(outcome.sold_out_from_memory as f64));
    row("sold out, asking Redis", thousands(outcome.sold_out_by_redis as f64));
    row("503", thousands(outcome.unavailable as f64));
    row("answers a second", thousands(outcome.answers_a_second));
    let seconds = |s: Option<f64>| s.map_or_else(|| "–".to_owned(), |s| format!("{s:.2} s"));
    row("sold out after", seconds(outcome.sold_out_after_s));
    row("settled after", seconds(outcome.settled_after_s));
    row("p50, p99 of winners", format!("{:.1} ms, {:.1} ms", outcome.winners.p50_ms, outcome.winners.p99_ms));
    row("p50, p99 of losers", format!("{:.1} ms, {:.1} ms", outcome.losers.p50_ms, outcome.losers.p99_ms));
    row("buyers a call to Redis", format!("{:.0}", outcome.buyers_a_call));
    row("winners a commit", format!("{:.0}", outcome.winners_a_commit));
    text.push_str("\n| | processors | busy | in the busiest 0.1 s | full for |\n|---|---|---|---|---|\n");
    for usage in &outcome.usage {
        let (mean, peak) = (percent(usage.mean), percent(usage.peak));
        let full_s = usage.full_tenths as f64 / 10.0;
        let _ = writeln!(text, "| {} | {} | {mean} | {peak} | {full_s:.1} s |", usage.part.title(), usage.cores);
    }
    if let Some(first) = outcome.bends_first() {
        let _ = writeln!(text, "\nFirst to bend: {}.", first.part.title());
    }
    text
}

/// A day.
pub fn day(topology: &Topology, outcome: &DayOutcome) -> String {
    let mut text = format!("{}.\n\n", machines(topology));
    let _ = writeln!(text, "| the day | |\n|---|---|");
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("buyers", thousands(outcome.buyers));
    row("buyers in the busiest second", thousands(outcome.most_buyers_a_second));
    row("orders", thousands(outcome.orders));
    row("paid, lapsed", format!("{}, {}", thousands(outcome.paid), thousands(outcome.lapsed)));
    let waited = format!("{}, for {:.0} s without a pause", thousands(outcome.unsettled_most), outcome.unsettled_for_s);
    row("orders that waited to be settled, at most", waited);
    let waited = format!("{}, {:.0} s", thousands(outcome.payments_waiting_most), outcome.payments_wait_s);
    row("payments that waited for their channel, at most, and for how long", waited);
    text.push_str("\n| | processors | busy, s | of the day | in the busiest second | work waited, at most |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for usage in &outcome.usage {
        let (busy, mean, peak) = (thousands(usage.busy_s), percent(usage.mean), percent(usage.peak));
        let (title, wait) = (usage.part.title(), usage.longest_wait_s);
        let _ = writeln!(text, "| {title} | {} | {busy} | {mean} | {peak} | {wait:.1} s |", usage.cores);
    }
    if let Some(first) = outcome.bends_first() {
        let _ = writeln!(text, "\nFirst to bend: {}.", first.part.title());
    }
    text
}

/// A plan, with its rush and its day.
pub fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    text.push_str(
        "| | µs a buyer while it sells | µs a buyer when it is sold out | machines | processors | all busy at so many buyers a second, \
         while it sells | when it is sold out |\n|---|---|---|---|---|---|---|\n",
    );
    let at = |buyers: Option<f64>| buyers.map_or_else(|| "–".to_owned(), thousands);
    for need in &plan.needs {
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.2} | {} | {} | {} | {} |",
            need.part.title(),
            need.selling_us,
            need.sold_out_us,
            need.machines,
            need.cores,
            at(need.selling_bends_at),
            at(need.sold_out_bends_at),
        );
    }
    let _ = write!(
        text,
        "\n{} processors, {} processor-hours a day, without replicas and standbys",
        plan.cores,
        thousands(plan.core_hours_a_day)
    );
    if let Some(price) = plan.price_a_day {
        let _ = write!(text, ": {} a day", thousands(price));
    }
    let kept = &plan.kept;
    let _ = write!(text, ". Orders of {} years: {}", kept.years, thousands(kept.orders));
    match (kept.bytes_an_order, kept.bytes) {
        (Some(each), Some(all)) => _ = writeln!(text, ", {:.1} TB at {each:.0} bytes each.\n", all / 1e12),
        _ => text.push_str("; how many bytes each takes is not measured (./dev bench --only scale).\n\n"),
    }
    text.push_str(&rush(&plan.topology, &plan.rush));
    text.push('\n');
    text.push_str(&day(&plan.topology, &plan.day));
    text
}

/// The simulation against the bench.
pub fn compared(all: &[Compared]) -> String {
    let mut text =
        "| | unit | measured | simulated | factor | shall be within |\n|---|---|---|---|---|---|\n".to_owned();
    for one in all {
        let figure = |n: f64| if n < 100.0 { format!("{n:.2}") } else { thousands(n) };
        let (measured, simulated) = (figure(one.measured), figure(one.simulated));
        let (what, factor, within) = (&one.what, one.factor(), one.within);
        let _ = writeln!(text, "| {what} | {} | {measured} | {simulated} | {factor:.2} | {within} |", one.unit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three digits, in groups.
    #[test]
    fn figures_are_rounded_and_grouped() {
        let text = [0.0, 7.0, 999.4, 1_234.0, 123_456.0, 12_345_678.0, f64::NAN].map(thousands);
        assert_eq!(text, ["0", "7", "999", "1,230", "123,000", "12,300,000", "–"]);
    }

    /// The tables of the sample say what they stand on, and name every part.
    #[test]
    fn tables_say_what_they_stand_on() {
        let measured = Measured::sample().unwrap();
        let costs = measured.costs().unwrap();
        let text = inputs(&measured, &costs, &Assumed::one_machine(), 9);
        assert!(text.contains("7.9 sold out from memory") && text.contains("Seed 9."), "{text}");
        let text = machines(&Topology { shards: 8, ..Topology::smallest() });
        assert!(text.contains("8 shards (planned)"), "{text}");
    }
}
