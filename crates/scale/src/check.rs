//! The simulation against what was measured: the bench's own cases, on the bench's own machine.
//!
//! The load generator, the service and its servers share the processors, and each connection sends its next request after the last
//! answer. What the bench measured as throughput and as the median wait is compared with what the simulation says, which knows only
//! the processor time of each process. What it does not know (interrupts, caches, which thread the kernel wakes first, a hypervisor)
//! makes it too fast on a full machine; and it says nothing of the slowest hundredth there.

use serde::Serialize;

use crate::assumed::Assumed;
use crate::measured::{Case, Measured};
use crate::rush::{Crowd, Request, Rush, Sale, Topology};

/// Throughput is right within this factor, and the median wait within that.
pub const THROUGHPUT_WITHIN: f64 = 1.5;
pub const MEDIAN_WITHIN: f64 = 2.5;
/// Simulated seconds of a case; and purchases to be settled.
const SECONDS: f64 = 1.0;
const UNSETTLED: u64 = 50_000;

/// One figure, measured and simulated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    pub what: String,
    pub unit: &'static str,
    pub measured: f64,
    pub simulated: f64,
    /// By which factor they shall differ at most.
    pub within: f64,
}

impl Compared {
    /// The larger by the smaller.
    pub fn factor(&self) -> f64 {
        (self.measured / self.simulated).max(self.simulated / self.measured)
    }

    pub fn holds(&self) -> bool {
        self.factor() <= self.within
    }
}

/// Compares all that was measured.
///
/// # Errors
/// The bench's JSON lacks figures.
pub fn compare(measured: &Measured, seed: u64) -> anyhow::Result<Vec<Compared>> {
    let mut all = Vec::new();
    for case in Case::ALL {
        let rush = as_measured(measured, case, seed)?;
        let outcome = rush.play();
        let median = if case == Case::Winners { outcome.winners } else { outcome.losers };
        let figures = [
            ("requests_per_second", "a second", outcome.answers_a_second, 1.0, THROUGHPUT_WITHIN),
            ("p50_us", "ms, median", median.p50_ms, 1e-3, MEDIAN_WITHIN),
        ];
        for (figure, unit, simulated, scale, within) in figures {
            if let Some(seen) = measured.of_case(case, figure) {
                all.push(Compared { what: case.name().to_owned(), unit, measured: seen * scale, simulated, within });
            }
        }
    }
    if let Some(seen) = measured.figure("/settled/per_second") {
        let mut rush = as_measured(measured, Case::Winners, seed)?;
        (rush.crowd, rush.sale.unsettled) = (Crowd::Open { per_second: 0.0, seconds: 0.0 }, UNSETTLED);
        rush.topology.work = 1;
        let simulated = rush.play().settled_a_second;
        let (what, unit) = ("settled".to_owned(), "orders a second");
        all.push(Compared { what, unit, measured: seen, simulated, within: THROUGHPUT_WITHIN });
    }
    Ok(all)
}

/// A case of the bench.
fn as_measured(measured: &Measured, case: Case, seed: u64) -> anyhow::Result<Rush> {
    let cores = measured.cores();
    let topology = Topology { serve_cores: cores, postgres_cores: cores, work: 0, ..Topology::smallest() };
    let (units, memory_ms) = match case {
        Case::Hello | Case::SoldOut => (0, 500.0),
        // With that memory off.
        Case::RefusedByRedis => (0, 0.0),
        Case::Winners => (u64::MAX, 500.0),
    };
    let client_us = measured.cpu_us(case, "wrk")?;
    Ok(Rush {
        costs: measured.costs()?,
        assumed: Assumed::one_machine(),
        topology,
        one_machine_cores: Some(cores),
        crowd: Crowd::Closed { connections: measured.connections().1 as u32, seconds: SECONDS, client_us },
        request: if case == Case::Hello { Request::Hello } else { Request::Purchase },
        sale: Sale { units, memory_ms, unsettled: 0 },
        seed,
    })
}
