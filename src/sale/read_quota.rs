//! How often one buyer may read orders, on one instance: a fixed window of a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::domain::ids::UserId;

pub const WINDOW: Duration = Duration::from_secs(1);
/// Buyers that are counted in a window; when there are more, the counts begin anew.
const COUNTED_MAX: usize = 100_000;

pub struct ReadQuota {
    pub max: u32,
    window: Mutex<(Instant, HashMap<UserId, u32>)>,
}

/// The buyer has read too often. The next window begins after this time.
#[derive(Debug)]
pub struct TooOften(pub Duration);

impl ReadQuota {
    pub fn new(max: u32) -> Self {
        Self { max, window: Mutex::new((Instant::now(), HashMap::new())) }
    }

    /// Counts a read.
    pub fn count(&self, buyer: &UserId) -> Result<(), TooOften> {
        let mut window = self.window.lock();
        let (began, counts) = &mut *window;
        if began.elapsed() >= WINDOW || counts.len() >= COUNTED_MAX {
            *began = Instant::now();
            counts.clear();
        }
        let count = counts.entry(buyer.clone()).or_default();
        *count = count.saturating_add(1);
        if *count <= self.max { Ok(()) } else { Err(TooOften(WINDOW.saturating_sub(began.elapsed()))) }
    }
}
