//! What a bounded step says of itself.

/// Whether a bounded step has left something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more: come again at once.
    More,
    /// Nothing more for now.
    Idle,
}

impl Step {
    /// A batch that was full may have been cut short.
    pub const fn after(done: usize, batch_max: usize) -> Self {
        if done >= batch_max { Self::More } else { Self::Idle }
    }
}
