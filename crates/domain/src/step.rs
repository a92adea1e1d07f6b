//! The result of a bounded step of a background worker.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more: the next step is due at once.
    More,
    Idle,
}

impl Step {
    /// `More` after a full batch, which may have left rows behind.
    pub const fn after(done: usize, batch_max: usize) -> Self {
        if done >= batch_max { Self::More } else { Self::Idle }
    }
}
