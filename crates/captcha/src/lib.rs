//! Challenges that tell people from programs, and the judgement of their answers.
//!
//! - [`picture`]: distorted letters that are to be read.
//! - [`slider`]: a piece that is to be dragged into its gap.
//! - [`work`]: a proof of work, which a computer does for its owner.
//!
//! Pure: random numbers are a parameter, and nothing is stored. Whose challenge it is, until when, and that it is answered once,
//! is the caller's affair.

mod canvas;
mod glyphs;
pub mod picture;
pub mod slider;
pub mod work;

pub use canvas::DrawError;
