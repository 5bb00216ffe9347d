//! Transactions over both stores and over participants.

use serde::Deserialize;

use super::bound::{Bound, MINUTE_MS, bound};

/// The section `[transactions]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transactions {
    /// The longest time in which a transaction may stay undecided, ms.
    pub open_max_ms: u64,
    /// Timeout of one call to a participant, ms.
    pub participant_timeout_ms: u64,
}

impl Default for Transactions {
    fn default() -> Self {
        Self { open_max_ms: 90_000, participant_timeout_ms: 5_000 }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("transactions.open_max_ms", |c| Some(c.transactions.open_max_ms), 1_000, 10 * MINUTE_MS, "ms"),
    bound("transactions.participant_timeout_ms", |c| Some(c.transactions.participant_timeout_ms), 100, MINUTE_MS, "ms"),
];
