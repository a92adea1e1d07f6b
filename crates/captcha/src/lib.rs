//! Challenges that tell people from programs, and checks of their answers.
//!
//! - [`picture`]: distorted letters to read.
//! - [`slider`]: a piece to drag into its gap.
//! - [`work`]: a proof of work, which a computer does for its owner.
//!
//! Pure: random numbers are a parameter, and nothing is stored. The caller keeps the owner and the expiry of a challenge, and accepts
//! one answer.

mod canvas;
mod glyphs;
pub mod picture;
pub mod slider;
pub mod work;

pub use canvas::DrawError;
