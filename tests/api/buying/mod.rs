//! Purchases: answers, limits, challenges, groups, crowds.

pub mod buyer_ids;
pub mod challenges;
pub mod crowds;
pub mod dense_commits;
pub mod lapsed_holds;
pub mod never_oversold;
pub mod purchase_answers;
pub mod purchase_groups;
pub mod purchase_limits;
pub mod two_groups;
