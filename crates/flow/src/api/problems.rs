//! Which problem each error of flow control is.

use crate::FlowError;
use seckill_domain::policy::WrongPolicy;
use seckill_http::codes::Code;
use seckill_http::problem::Problem;

impl From<FlowError> for Problem {
    fn from(error: FlowError) -> Self {
        match &error {
            FlowError::Invalid(invalid) => Self::from(Code::InvalidRequest).about(invalid),
            FlowError::Policy(wrong @ WrongPolicy::Unworkable(_)) => Self::from(Code::UnworkableTerms).detail(wrong),
            FlowError::Policy(wrong) => Self::invalid(wrong),
            FlowError::Unknown(_) => Self::from(Code::NotFound),
            FlowError::Ambiguous | FlowError::Exists(_) | FlowError::TwoTokens { .. } => {
                Self::from(Code::Conflict).detail(error)
            }
            FlowError::NotOwned => Self::from(Code::Forbidden).detail(error),
            FlowError::Gate(_) | FlowError::Ledger(_) => {
                tracing::warn!(%error, "request failed");
                Self::unavailable()
            }
        }
    }
}
