//! What a bounded step of a background worker returns.

/// Whether a bounded step has left work to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more: the next step is due at once.
    More,
    /// There is nothing more to do for now.
    Idle,
}

impl Step {
    /// `More` after a full batch, which may have left rows behind.
    pub const fn after(done: usize, batch_max: usize) -> Self {
        if done >= batch_max { Self::More } else { Self::Idle }
    }
}
