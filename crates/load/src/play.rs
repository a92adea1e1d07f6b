//! Plays a schedule: each thread sends a share of it over a share of the connections (see `player`).

use std::sync::Arc;

use tokio::task::JoinSet;

use super::LoadError;
use super::measurements::Measurements;
use super::plan::Arrival;
use super::player::Player;
use super::progress::Progress;
use super::rush::Rush;

/// Plays the schedule to its end. Dropping the future ends it at once.
///
/// # Errors
/// A thread failed, or cannot wait for its connections any more.
pub async fn play(rush: Arc<Rush>, progress: &Progress) -> Result<(Arc<[Arrival]>, Measurements), LoadError> {
    progress.rushing(rush.arrivals.len() as u64);
    let open = rush.take_connections();
    let step = open.len();
    let mut threads = JoinSet::new();
    for (first, connections) in open.into_iter().enumerate() {
        let rush = Arc::clone(&rush);
        threads.spawn_blocking(move || Player::new(&rush, first, step).play(connections));
    }
    // A thread is not ended with its task, so it is told.
    let _abandon = AbandonWhenDropped(Arc::clone(&rush));
    // Aborted when this future ends.
    let mut background = JoinSet::new();
    background.spawn(Arc::clone(&rush).watch(progress.clone()));

    let mut measured = Measurements::default();
    while let Some(played) = threads.join_next().await {
        measured.merge(played?.map_err(LoadError::Events)?);
    }
    Ok((Arc::clone(&rush.arrivals), measured))
}

struct AbandonWhenDropped(Arc<Rush>);

impl Drop for AbandonWhenDropped {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests;
