//! Logs that a background task fails, without repeating it each second.

use std::fmt::Display;

/// The last failure of one task. A failure is logged once: not again until the task has succeeded, or fails for another reason.
#[derive(Default)]
pub struct FailureLog(Option<String>);

impl FailureLog {
    /// `consequence`: what does not happen meanwhile.
    pub fn note<T, E: Display>(&mut self, outcome: Result<T, E>, consequence: &'static str) -> Option<T> {
        match outcome {
            Ok(value) => {
                if self.0.take().is_some() {
                    tracing::info!("no longer: {consequence}");
                }
                Some(value)
            }
            Err(error) => {
                let error = error.to_string();
                if self.0.as_ref() != Some(&error) {
                    tracing::warn!(error, "{consequence}");
                    self.0 = Some(error);
                }
                None
            }
        }
    }
}
