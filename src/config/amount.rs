//! The bound of one transfer's amount.

use serde::Deserialize;

use super::bound::{Bound, bound};

/// The section `[amount]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AmountBounds {
    /// One transfer holds at most `u64::MAX` divided by this, in smallest units.
    pub safety_factor: u64,
}

impl Default for AmountBounds {
    fn default() -> Self {
        Self { safety_factor: 1_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("amount.safety_factor", |c| Some(c.amount.safety_factor), 2, 1_000_000_000, "(a divisor; 2 is the largest amount that PostgreSQL can hold)"),
];
